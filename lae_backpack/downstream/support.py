"""Where codes of data are, as a height that grows where there are none."""

from __future__ import annotations

import torch
from torch import Tensor


class Support:
    """The deviation that images have when ``n`` of the data are near a code.

    It is ``height / sqrt(1 + n)``, as for a mean of which ``n`` noisy values are known.
    A posterior over weights may be sure between data; this is not. Heights that come
    from data are the usual remedy for latent geometries (Arvanitidis et al., 2018).
    """

    def __init__(self, codes: Tensor, height: float, n_neighbours: int = 10) -> None:
        """Choose the width of the kernel that counts: how far neighbours usually are.

        Args:
            codes: Some hundred codes of data.  # [C, K]
            height: The deviation where there is nothing.
            n_neighbours: The neighbour whose distance is the width.
        """
        self.codes = codes.detach()
        self._height = height
        k = min(n_neighbours, len(codes) - 1)
        distances = torch.cdist(self.codes, self.codes)
        near = distances.topk(k + 1, largest=False)[0][:, -1].median()
        self._width = near.clamp_min(torch.finfo(near.dtype).eps)

    def __call__(self, points: Tensor) -> Tensor:
        """The deviation at some codes.

        Args:
            points: The codes.  # [N, K]

        Returns:
            One number for each.  # [N]
        """
        squares = (points[:, None] - self.codes).square().sum(-1)  # [N, C]
        count = (-0.5 * squares / self._width**2).exp().sum(1)
        return self._height * (1 + count).rsqrt()
