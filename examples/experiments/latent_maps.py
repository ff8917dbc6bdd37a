"""Figures 1 and 8 of the paper: codes over a map of the decoder's uncertainty.

python examples/experiments/latent_maps.py           # rows say how long
python examples/experiments/latent_maps.py --smoke   # seconds, proves nothing

Three maps of MNIST: the VAE's learned deviation, and how much decoders differ that are
drawn from the post-hoc and the online posterior. On the latter two, shortest paths
under the expected metric beside straight lines; heights where no data are keep them
away from there. Finished runs are not repeated; the figure is drawn each time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from command_line import parser_of, zoo_of
from comparing import rank_correlation
from resuming import Row, run_missing
from torch import Tensor
from trained_models import Setting, Zoo

from lae_backpack import LaplaceAE
from lae_backpack.downstream.geometry import LatentManifold
from lae_backpack.downstream.plots import latent_map
from lae_backpack.posterior.sampling import run_with, weights_of

NAMES = ("VAE", "post hoc", "online")
MARGIN = 0.3  # of the codes' range, on each side
N_MARKED = 150  # codes that are drawn
CODES_OF_MANIFOLD = 300
Extent = tuple[float, float, float, float]


def extent_of(codes: Tensor) -> Extent:
    """The window of a map.

    Args:
        codes: The codes.  # [N, 2]

    Returns:
        Left, right, bottom and top.
    """
    low, high = codes.amin(0), codes.amax(0)
    room = MARGIN * (high - low)
    left, bottom = (low - room).tolist()
    right, top = (high + room).tolist()
    return left, right, bottom, top


def grid_of(extent: Extent, n_grid: int) -> Tensor:
    """The points of a map, row by row from the bottom.

    Args:
        extent: Its window.
        n_grid: Points on each side.

    Returns:
        Codes.  # [n_grid * n_grid, 2]
    """
    left, right, bottom, top = extent
    rows, columns = torch.meshgrid(
        torch.linspace(bottom, top, n_grid),
        torch.linspace(left, right, n_grid),
        indexing="ij",
    )
    return torch.stack((columns.flatten(), rows.flatten()), 1)


@torch.no_grad()
def deviation_at(model: Any, points: Tensor, n_networks: int, seed: int) -> Tensor:
    """How uncertain decoders are of codes.

    Args:
        model: A LaplaceAE, or a baseline with learned variances.
        points: The codes.  # [N, 2]
        n_networks: How many decoders are drawn.
        seed: Of the decoders.

    Returns:
        The standard deviation, the mean over pixels.  # [N]
    """
    if not isinstance(model, LaplaceAE):
        return model.pixels(points).stddev.flatten(1).mean(1)
    generator = torch.Generator().manual_seed(seed)
    decoder = model.model.get_submodule("decoder")
    images = [
        run_with(decoder, weights_of("decoder", weights), points)
        for weights in model.sampler().draws(n_networks, generator)
    ]
    return torch.stack(images).std(0).flatten(1).mean(1)


@torch.no_grad()
def codes_of(model: Any, x: Tensor) -> Tensor:
    """Where images are, by the mean encoder.

    Args:
        model: The model.
        x: The images.  # [N, *in]

    Returns:
        Their codes.  # [N, 2]
    """
    net = model.model if isinstance(model, LaplaceAE) else model.net
    return net.get_submodule("encoder")(x)


def paths_between(model: LaplaceAE, codes: Tensor, key: Row) -> list[Row]:
    """Shortest paths between codes of test images, beside straight lines.

    Args:
        model: The posterior.
        codes: Of test images.  # [N, 2]
        key: What is run.

    Returns:
        Points, lengths and uncertainties, for each pair.
    """
    generator = torch.Generator().manual_seed(key["seed"])
    manifold = LatentManifold(
        model, key["decoders"], codes[:CODES_OF_MANIFOLD], generator=generator
    )
    found = []
    for pair in range(key["pairs"]):
        a, b = codes[2 * pair], codes[2 * pair + 1]
        path = manifold.shortest_path(a, b, max_iter=key["rounds"]).detach()
        line = torch.lerp(a, b, torch.linspace(0, 1, len(path))[:, None])
        both = torch.stack((path, line))
        lengths = manifold.curve_length(both).detach().tolist()
        spread = [
            deviation_at(model, way, key["networks"], key["seed"]).mean().item()
            for way in both
        ]
        row = {"length_of_path": lengths[0], "length_of_line": lengths[1]}
        row |= {"deviation_on_path": spread[0], "deviation_on_line": spread[1]}
        found.append({**row, "points": path.tolist()})
    return found


def measure(key: Row, zoo: Zoo) -> list[Row]:
    """Whether one model is less certain where no data are.

    Args:
        key: What is run.
        zoo: Has the models.

    Returns:
        One row.
    """
    setting = Setting(key["data"], key["net"], key["epochs"], key["seed"])
    model = zoo.model(key["model"], setting)
    codes = codes_of(model, setting.shaped(zoo.images(setting.data).test.x))
    points = grid_of(extent_of(codes), key["grid"])
    distance = torch.cdist(points, codes).amin(1)
    ask = key["networks"], setting.seed
    at_data, on_map = (deviation_at(model, at, *ask) for at in (codes[:1000], points))
    row: Row = {
        "deviation_at_data": at_data.mean().item(),
        "deviation_on_map": on_map.mean().item(),
        "correlation_with_distance": rank_correlation(on_map, distance),
    }
    if isinstance(model, LaplaceAE):
        row["paths"] = paths_between(model, codes, key)
    return [row]


def draw(zoo: Zoo, rows: list[Row], path: Path) -> None:
    """Draw the maps, with paths.

    Args:
        zoo: Has the models.
        rows: What was measured.
        path: The figure's file.
    """
    figure, axes = plt.subplots(
        1, len(rows), figsize=(5.4 * len(rows), 4.4), layout="constrained"
    )
    for ax, key in zip(axes, rows, strict=True):
        setting = Setting(key["data"], key["net"], key["epochs"], key["seed"])
        model, test = zoo.model(key["model"], setting), zoo.images(setting.data).test
        codes = codes_of(model, setting.shaped(test.x))
        extent = extent_of(codes)
        points = grid_of(extent, key["grid"])
        spread = deviation_at(model, points, key["networks"], setting.seed)
        spread = spread.reshape(key["grid"], key["grid"])
        marked = codes[:N_MARKED], test.labels[:N_MARKED]
        name = "standard deviation of a pixel"
        latent_map(*marked, spread, extent, uncertainty_name=name, ax=ax)
        ax.set_title(key["model"])
        if "paths" not in key:
            continue
        for way in key["paths"]:
            across, up = zip(*way["points"], strict=True)
            ax.plot(across[:: len(across) - 1], up[:: len(up) - 1], "w--", lw=1.6)
            ax.plot(across, up, color="#d55e00", lw=2.2)
        ax.set(xlim=extent[:2], ylim=extent[2:])
        title = f"{key['model']}: shortest paths, and straight lines (dashed)"
        ax.set_title(title, fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Run what is missing, and draw."""
    parser = parser_of(__doc__, epochs=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grid", type=int, default=50, help="points on each side")
    parser.add_argument("--networks", type=int, default=100, help="drawn for a map")
    parser.add_argument("--decoders", type=int, default=20, help="drawn for a metric")
    parser.add_argument("--pairs", type=int, default=5, help="of images, with paths")
    parser.add_argument("--rounds", type=int, default=5, help="of 20 steps of L-BFGS")
    args = parser.parse_args()
    about: Row = {"data": "mnist", "net": "linear", "epochs": args.epochs}
    if args.smoke:
        args.epochs, args.grid, args.networks, args.decoders = 1, 5, 3, 2
        args.pairs = args.rounds = 1
        about = {"data": "digits", "net": "small", "epochs": 1}
    names = ("grid", "networks", "decoders", "rounds", "pairs", "seed")
    about |= {name: getattr(args, name) for name in names}
    zoo = zoo_of(args)
    runs: list[Row] = [{"model": name, **about} for name in NAMES]
    file = args.out / "latent_maps.json"
    rows = run_missing(file, runs, lambda key: measure(key, zoo))
    asked = [row for key in runs for row in rows if key.items() <= row.items()]
    draw(zoo, asked, args.out / "latent_maps.png")


if __name__ == "__main__":
    main()
