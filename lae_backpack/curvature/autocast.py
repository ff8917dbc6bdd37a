"""What torch may do to a model behind our back: rounding, and compiling."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import Module


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on.

    Args:
        x: A tensor of the device that is meant.

    Returns:
        True if layers round what they compute.
    """
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Compute exactly for a while.

    Args:
        x: A tensor of the device that is meant.

    Returns:
        A context.
    """
    return (
        torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()
    )


def uncompiled(modules: Iterable[Module]) -> AbstractContextManager[object]:
    """Let modules run as they are written, so that hooks on them see every call.

    Args:
        modules: All of a model's.

    Returns:
        A context.
    """
    compiled = any(
        m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in modules
    )
    # Older versions of torch have no such way.
    if compiled and hasattr(torch.compiler, "set_stance"):
        return torch.compiler.set_stance("force_eager")
    return nullcontext()
