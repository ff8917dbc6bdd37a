"""Draw what travels backwards: the matrices themselves, of a small trained net.

python docs/drawing.py        # writes docs/_static/what_travels.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import jacrev

STATIC = Path(__file__).parent / "_static"
WIDTHS = (64, 32, 16, 4, 16, 32, 64)
NAMES = ("32", "16", "code: 4", "16", "32", "output: 64")
LIMIT = 16
WAYS = {"exact": None, "mixed": LIMIT, "approx": 0}


def trained_autoencoder(images: Tensor) -> nn.Sequential:
    """A small autoencoder of digits.

    Args:
        images: Flat images.  # [N, 64]

    Returns:
        The net, each block a linear layer and what follows it.
    """
    torch.manual_seed(0)
    pairs = zip(WIDTHS, WIDTHS[1:], strict=False)
    blocks = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairs]
    blocks[2], blocks[5] = (nn.Sequential(blocks[i][0]) for i in (2, 5))
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(500):
        x = images[torch.randint(len(images), (64,))]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
    return model


def travelling(model: nn.Sequential, x: Tensor, limit: int | None) -> list[Tensor]:
    """The curvature at each block's output, by explicit Jacobians.

    Args:
        model: The net.
        x: One image.  # [64]
        limit: As ``max_dense_dim``.

    Returns:
        Matrices, and vectors where only the diagonal travels; the first block's first.
    """
    inputs = [x]
    for block in model:
        inputs.append(block(inputs[-1]).detach())

    def kept(matrix: Tensor) -> Tensor:
        dense = limit is None or len(matrix) <= limit
        return matrix if dense else matrix.diagonal().diag()

    carried = [kept(2 * torch.eye(WIDTHS[-1]))]
    for block, at in list(zip(model, inputs, strict=False))[:0:-1]:
        jacobian = jacrev(block)(at).detach()
        carried.append(kept(jacobian.T @ carried[-1] @ jacobian))
    return carried[::-1]


def draw_matrix(ax: Axes, matrix: Tensor, norm: LogNorm, dense: bool) -> None:
    """Show what one tensor carries.

    Args:
        ax: Where.
        matrix: The matrix, with zeros for what is not carried.  # [F, F]
        norm: Colours.
        dense: Whether all of it travels.
    """
    f = len(matrix)
    shown = matrix.abs().clone()
    if not dense:
        shown[~torch.eye(f, dtype=torch.bool)] = torch.nan
    # Small matrices are drawn smaller, but large enough to be seen.
    half = 0.5 * (f / 64) ** 0.5
    colours = plt.get_cmap("Blues").copy()
    colours.set_bad("white")
    box = (0.5 - half, 0.5 + half) * 2
    ax.imshow(shown, cmap=colours, norm=norm, extent=box, interpolation="nearest")
    frame = Rectangle((box[0], box[0]), 2 * half, 2 * half, fill=False, lw=0.8)
    frame.set_edgecolor("#0072b2" if dense else "0.6")
    ax.add_patch(frame)
    numbers = f * f if dense else f
    ax.text(0.5, 0.5 - half - 0.04, f"{numbers:,}", ha="center", va="top", fontsize=9)
    ax.set(xlim=(-0.05, 1.05), ylim=(-0.12, 1.02), aspect="equal")
    ax.axis("off")


def draw(path: Path) -> None:
    """Make the drawing.

    Args:
        path: The file to write.
    """
    pixels, _ = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32) / 16
    model = trained_autoencoder(images)
    norm = LogNorm(1e-3, 30)
    figure, axes = plt.subplots(3, len(NAMES), figsize=(9, 4.9), layout="constrained")
    for row, (way, limit) in zip(axes, WAYS.items(), strict=True):
        carried = travelling(model, images[0], limit)
        numbers = 0
        for ax, matrix in zip(row, carried, strict=True):
            # The Hessian of a squared error is diagonal in any case.
            dense = (limit is None or len(matrix) <= limit) and ax is not row[-1]
            draw_matrix(ax, matrix, norm, dense)
            numbers += len(matrix) ** 2 if dense else len(matrix)
        what = {"exact": "all matrices", "mixed": f"matrices up to {LIMIT}"}
        text = f"{way}\n{what.get(way, 'diagonals')}\n{numbers:,} numbers"
        place = dict(transform=row[0].transAxes, ha="right", va="center")
        row[0].text(-0.08, 0.52, text, fontsize=11, **place)
    for ax, name in zip(axes[0], NAMES, strict=True):
        ax.set_title(name, fontsize=10)
    figure.suptitle("the loss is on the right, curvature travels to the left  ←")
    path.parent.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "lae_backpack"  # the same file each time
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Write the drawing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=STATIC / "what_travels.svg")
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()
