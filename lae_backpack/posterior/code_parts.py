"""What a code's uncertainty may be made of: ``la.latent(x, include=...)``.

The part from the weights is LaplaceAE's own. Others come from packages that build on
this one and must not be imported here, so they register themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lae_backpack.posterior.choices import require_one_of

# Mean and variance of codes, from a LaplaceAE, x, n_samples, generator, chunk_size.
CodeMoments = Callable[
    [Any, Tensor, int, torch.Generator | None, int | None], tuple[Tensor, Tensor]
]

_PARTS: dict[str, CodeMoments] = {}


def register_code_part(name: str) -> Callable[[CodeMoments], CodeMoments]:
    """Offer a value of ``include``.

    Args:
        name: The value.

    Returns:
        A decorator for the function that computes mean and variance.
    """

    def register(moments: CodeMoments) -> CodeMoments:
        _PARTS[name] = moments
        return moments

    return register


def code_part(name: str) -> CodeMoments:
    """What computes mean and variance for a value of ``include``.

    Args:
        name: The value.

    Returns:
        The function.
    """
    require_one_of("include", name, ("weights", *_PARTS))
    return _PARTS[name]
