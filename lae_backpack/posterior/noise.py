"""Standard normal numbers, by the million.

torch draws them on one core, and that takes longer than the forward pass of the network
whose weights they become.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import starmap

import torch
from torch import Tensor

# Numbers that one generator draws. The same for any number of threads, and so is the
# result.
BLOCK = 2**16

Draw = Callable[[Tensor], Tensor]


@contextmanager
def normal_noise(generator: torch.Generator | None) -> Iterator[Draw]:
    """Prepare to fill tensors.

    Args:
        generator: Where randomness comes from.

    Yields:
        What fills a tensor and returns it.
    """
    # Made anew for each use: threads that are kept do not survive a fork.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:

        def draw(out: Tensor) -> Tensor:
            if out.device.type != "cpu" or out.numel() <= BLOCK:
                return out.normal_(generator=generator)
            blocks = out.view(-1).split(BLOCK)
            seeds = torch.randint(2**62, (len(blocks),), generator=generator).tolist()
            pairs = zip(blocks, seeds, strict=True)
            if torch.get_num_threads() == 1:
                list(starmap(_fill, pairs))
            else:
                list(pool.map(lambda pair: _fill(*pair), pairs))
            return out

        yield draw


def _fill(block: Tensor, seed: int) -> None:
    block.normal_(generator=torch.Generator().manual_seed(seed))
