"""Images beside each other in one plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP = 0.08  # between images, in widths of an image
CHANNELS = (1, 3)


def as_pictures(x: Tensor, name: str) -> Tensor:
    """Images as matplotlib takes them.

    Args:
        x: Images, also flat ones if they are square.
            # [N, C, H, W], [N, H, W] or [N, P]
        name: What they are, for messages.

    Returns:
        Grey or coloured images.  # [N, H, W] or [N, H, W, 3]

    Raises:
        ValueError: If these are no images.
    """
    x = x.detach().cpu().float()
    if x.dim() == 2 and (side := round(x.shape[1] ** 0.5)) ** 2 == x.shape[1]:
        return x.unflatten(1, (side, side))
    if x.dim() == 4 and x.shape[1] in CHANNELS:
        return x[:, 0] if x.shape[1] == 1 else x.movedim(1, -1)
    if x.dim() == 3:
        return x
    raise ValueError(
        f"{name} must be images of shape [N, C, H, W] with 1 or 3 channels, [N, H, W], "
        f"or [N, P] with a square P, got {list(x.shape)}. Reshape them."
    )


@dataclass
class Mosaic:
    """Pictures in rows and columns; the place of each is in its extent."""

    ax: Axes
    n_rows: int
    n_columns: int
    shape: tuple[int, int]  # height and width of a picture

    def __post_init__(self) -> None:
        """Clear the stage."""
        self.height = self.shape[0] / self.shape[1]
        across = self.n_columns * (1 + GAP) - GAP
        down = self.n_rows * (self.height + GAP) - GAP
        self.ax.set(xlim=(0, across), ylim=(down, 0), aspect="equal")
        self.ax.set(xticks=[], yticks=[])
        self.ax.tick_params(length=0)
        for spine in self.ax.spines.values():
            spine.set_visible(False)

    def put(self, row: int, column: int, picture: Tensor, **style: Any) -> Any:
        """Draw a picture in its place.

        Args:
            row: From above.
            column: From the left.
            picture: The pixels.  # [H, W] or [H, W, 3]
            **style: As for ``imshow``.

        Returns:
            What ``imshow`` returns.
        """
        left, top = column * (1 + GAP), row * (self.height + GAP)
        extent = (left, left + 1, top + self.height, top)
        limits = self.ax.get_xlim(), self.ax.get_ylim()
        drawn = self.ax.imshow(picture.numpy(), extent=extent, **style)
        self.ax.set(xlim=limits[0], ylim=limits[1])  # imshow moves them
        return drawn

    def name_rows(self, names: Sequence[str]) -> None:
        """Write beside the rows.

        Args:
            names: From above.
        """
        places = [r * (self.height + GAP) + self.height / 2 for r in range(len(names))]
        self.ax.set_yticks(places, names)

    def name_columns(self, names: Sequence[str]) -> None:
        """Write above the columns.

        Args:
            names: From the left.
        """
        self.ax.set_xticks([c * (1 + GAP) + 0.5 for c in range(len(names))], names)
        self.ax.xaxis.tick_top()
        self.ax.tick_params(length=0)


def grey(picture: Tensor) -> dict[str, Any]:
    """How images of pixels in [0, 1] are drawn.

    Args:
        picture: The pixels.

    Returns:
        Settings for ``imshow``.
    """
    return {} if picture.dim() == 3 else {"cmap": "gray", "vmin": 0, "vmax": 1}


def seen_only(picture: Tensor, observed: Tensor) -> Tensor:
    """A picture with a chequered pattern where it is hidden.

    Args:
        picture: The pixels.  # [H, W] or [H, W, 3]
        observed: Where they are seen.  # shaped like picture

    Returns:
        Pixels.  # shaped like picture
    """
    height, width = picture.shape[:2]
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
    pattern = 0.5 + 0.12 * ((rows + columns) % 2 * 2.0 - 1)
    if picture.dim() == 3:
        pattern = pattern[..., None]
    return torch.where(observed, picture, pattern.expand_as(picture))
