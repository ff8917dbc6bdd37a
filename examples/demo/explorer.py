"""What the page's explorer shows: images decoded before at every point of a grid."""

from __future__ import annotations

import base64
import io
from copy import deepcopy
from dataclasses import dataclass

import matplotlib
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils import vector_to_parameters
from tqdm import tqdm

from lae_backpack import LaplaceAE

MARGIN = 0.08  # around the codes, as a share of their range
MARKS = 400  # test images that are drawn on a map; more hide it


@dataclass(frozen=True)
class Grid:
    """Decoded images at the points of a grid, the first row at the bottom."""

    extent: tuple[float, float, float, float]  # left, right, bottom, top
    mean: Tensor  # [G, G, H, W]
    deviation: Tensor  # [G, G, H, W]

    @property
    def uncertainty(self) -> Tensor:
        """The root mean variance of the pixels at each point.  # [G, G]."""
        return self.deviation.square().mean((-1, -2)).sqrt()

    @property
    def points(self) -> Tensor:
        """The codes.  # [G, G, 2]."""
        return grid_points(self.extent, len(self.mean))


def extent_of(codes: Tensor) -> tuple[float, float, float, float]:
    """The part of the plane that is shown.

    Args:
        codes: Codes of test images.  # [N, 2]

    Returns:
        Left, right, bottom and top.
    """
    low, high = codes.amin(0), codes.amax(0)
    edge = MARGIN * (high - low).clamp_min(1e-6)
    (left, bottom), (right, top) = (low - edge).tolist(), (high + edge).tolist()
    return left, right, bottom, top


def grid_points(extent: tuple[float, float, float, float], size: int) -> Tensor:
    """The codes of a grid.

    Args:
        extent: Left, right, bottom and top.
        size: Points along each side.

    Returns:
        The codes, the first row at the bottom.  # [G, G, 2]
    """
    across = torch.linspace(extent[0], extent[1], size)
    up = torch.linspace(extent[2], extent[3], size)
    rows, columns = torch.meshgrid(up, across, indexing="ij")
    return torch.stack([columns, rows], dim=-1)


@torch.no_grad()
def decode_grid(
    la: LaplaceAE,
    codes: Tensor,
    size: int,
    n_networks: int,
    seed: int,
    progress_bar: bool = True,
) -> Grid:
    """Decode a grid over the codes with sampled decoders.

    Args:
        la: The posterior.
        codes: Codes of test images.  # [N, 2]
        size: Points along each side of the grid.
        n_networks: How many networks.
        seed: Of the networks.
        progress_bar: Show one.

    Returns:
        Mean and standard deviation at each point.
    """
    extent = extent_of(codes)
    points = grid_points(extent, size).flatten(0, 1)
    network = deepcopy(la.model)
    generator = torch.Generator().manual_seed(seed)
    total = squares = torch.zeros(())
    drawn = la.sample(n_networks, generator)
    for weights in tqdm(drawn, "explorer", disable=not progress_bar):
        vector_to_parameters(weights, network.parameters())
        pixels = network.decoder(points).double()  # pyright: ignore[reportCallIssue]
        total, squares = total + pixels, squares + pixels.square()
    mean = total / n_networks
    variance = (squares / n_networks - mean.square()).clamp_min(0)
    deviation = (variance * n_networks / max(1, n_networks - 1)).sqrt()

    def laid_out(values: Tensor) -> Tensor:
        return values.float().squeeze(1).unflatten(0, (size, size))

    return Grid(extent, laid_out(mean), laid_out(deviation))


def explorer_data(
    grid: Grid, codes: Tensor, labels: Tensor, class_names: tuple[str, ...]
) -> dict[str, object]:
    """Everything the page's JavaScript needs, pictures as data.

    Args:
        grid: Decoded images.
        codes: Codes of test images.  # [N, 2]
        labels: Their classes.  # [N]
        class_names: What classes are called.

    Returns:
        What JSON takes.
    """
    size = len(grid.mean)
    nearest = torch.cdist(grid.points.flatten(0, 1), codes).argmin(1)
    brightest = grid.deviation.amax((-1, -2))
    relative = grid.deviation / brightest.clamp_min(1e-12)[..., None, None]
    uncertainty = grid.uncertainty
    logarithm = uncertainty.clamp_min(1e-12).log()
    low, high = logarithm.aminmax()
    shade = (logarithm - low) / (high - low).clamp_min(1e-12)
    return {
        "size": size,
        "tile": list(grid.mean.shape[-2:]),
        "extent": grid.extent,
        "codes": [[round(v, 4) for v in code] for code in codes[:MARKS].tolist()],
        "labels": labels[:MARKS].tolist(),
        "classNames": list(class_names),
        "nearest": labels[nearest].tolist(),
        "uncertainty": [float(f"{v:.3g}") for v in uncertainty.flatten().tolist()],
        "brightest": [float(f"{v:.3g}") for v in brightest.flatten().tolist()],
        "means": as_png(atlas(grid.mean.clamp(0, 1))),
        "deviations": as_png(atlas(relative), "cividis"),
        "background": as_png(shade.flip(0), "cividis"),
    }


def atlas(tiles: Tensor) -> Tensor:
    """All pictures of a grid as one, the grid's first row at the top.

    Args:
        tiles: The pictures.  # [G, G, H, W]

    Returns:
        One picture.  # [G H, G W]
    """
    return tiles.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def as_png(values: Tensor, colours: str | None = None) -> str:
    """A picture as a data address.

    Args:
        values: In [0, 1].  # [H, W]
        colours: matplotlib's name of a colour map; grey without.

    Returns:
        What an image's ``src`` takes.
    """
    levels = (values * 255).round().byte().numpy()
    picture = Image.fromarray(levels)
    if colours:
        palette = matplotlib.colormaps[colours](range(256), bytes=True)[:, :3]
        picture.putpalette(palette.tobytes())
    file = io.BytesIO()
    picture.save(file, "png", optimize=True)
    return data_address(file.getvalue(), "image/png")


def data_address(content: bytes, kind: str) -> str:
    """Bytes as an address that needs no file.

    Args:
        content: The bytes.
        kind: Their media type.

    Returns:
        The address.
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
