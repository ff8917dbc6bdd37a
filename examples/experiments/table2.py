"""Table 2 of the paper: how well sampled networks reconstruct MNIST's test images.

python examples/experiments/table2.py             # three seeds; rows say how long
python examples/experiments/table2.py --recipe Muon --epochs 120 --only "online mixed"
python examples/experiments/table2.py --smoke     # seconds, proves nothing

Post hoc: the curvature of a trained autoencoder by KFAC, exact, approximate, mixed and
calibrated; each with the paper's noise of 1 and a prior by the evidence, and with the
noise of the residuals and a prior of 1 or by validation images. Online: exact,
approximate and mixed. One look at the exact curvature takes far longer than a step, so
that it is taken at every 25th (``--exact-every``) and stands for all of them. Finished
runs are not repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from command_line import parser_of, zoo_of
from kronecker import KroneckerAE
from log_axis import readable_log
from recipes import RECIPES, USUAL
from resuming import Row, run_missing
from torch import Tensor
from trained_models import EXACT, RARELY, Setting, Zoo

from lae_backpack import LaplaceAE
from lae_backpack.downstream.networks import Draw

STRUCTURES: dict[str, Callable[[Any], LaplaceAE]] = {
    "KFAC": KroneckerAE,
    "exact": lambda net: LaplaceAE(net, sigma_noise=1.0, **EXACT),
    "approx": lambda net: LaplaceAE(
        net, sigma_noise=1.0, hessian_structure="approx_diag"
    ),
    "mixed": lambda net: LaplaceAE(
        net, sigma_noise=1.0, hessian_structure="mixed_diag"
    ),
    "calibrated": lambda net: LaplaceAE(
        net, sigma_noise=1.0, hessian_structure="calibrated_diag"
    ),
}
ONLINE = {"exact": "online exact", "approx": "online approx", "mixed": "online"}
CHOSEN = "residual, prior by validation"
NOISES = {"unit": "noise 1", "residual": "residual noise", CHOSEN: "validated prior"}
PRIORS = tuple(10.0**power for power in range(9))  # to choose from by validation images


class Reconstruction:
    """What sampled networks make of images."""

    def __init__(self, la: Any, x: Tensor, n_networks: int, seed: int) -> None:
        """Draw networks.

        Args:
            la: A model with ``samples``.
            x: The images.  # [N, P]
            n_networks: How many.
            seed: Of the networks.
        """
        draw = Draw(la, n_networks, torch.Generator().manual_seed(seed))
        squares, of_mean, start = [], [], 0
        for block in draw.blocks(x):
            rows = x[start : start + block.n_rows]
            start += block.n_rows
            total, found = torch.zeros_like(rows), []
            for network in block.networks:
                found.append((network.output - rows).square().sum(1))
                total += network.output
            squares.append(torch.stack(found))
            of_mean.append((total / n_networks - rows).square().sum(1))
        self._squares = torch.cat(squares, 1).double()  # [S, N]
        self._of_mean = torch.cat(of_mean)
        self._n_pixels = x.shape[1]

    def log_density(self, sigma: float) -> float:
        """The Gaussian log-density, with the mean over networks inside the logarithm.

        Args:
            sigma: The pixels' noise.

        Returns:
            The mean over images, in nats.
        """
        logs = (-self._squares / (2 * sigma**2)).logsumexp(0)
        constant = self._n_pixels * math.log(sigma * math.sqrt(2 * math.pi))
        return (logs - math.log(len(self._squares))).mean().item() - constant

    def row(self, residual: float) -> Row:
        """All figures; the paper's two are sums of squared errors.

        Args:
            residual: The root mean squared error on training images.

        Returns:
            The figures by name.
        """
        return {
            "error_of_networks": self._squares.mean().item(),
            "error_of_mean": self._of_mean.mean().item(),
            "log_density_unit_noise": self.log_density(1.0),
            "log_density_residual_noise": self.log_density(residual),
            "residual": residual,
        }


@torch.no_grad()
def residual_of(net: Any, x: Tensor) -> float:
    """How far reconstructions by the mean weights are from training images.

    Args:
        net: The net.
        x: The images.  # [N, P]

    Returns:
        The root mean squared error of a pixel.
    """
    total = sum(float((net(rows) - rows).square().sum()) for rows in x.split(1000))
    return math.sqrt(total / x.numel())


def prior_by_validation(la: LaplaceAE, x: Tensor, seed: int) -> float:
    """The prior precision whose networks give images the largest log-density.

    Args:
        la: Fitted, with the noise that is to be; its prior is changed.
        x: Images that were not trained on.  # [N, P]
        seed: Of the networks.

    Returns:
        One of ``PRIORS``.
    """
    found = {}
    for prior in PRIORS:
        la.prior_precision = prior
        networks = Reconstruction(la, x, 20, seed)
        found[prior] = networks.log_density(float(la.sigma_noise))
    return max(found, key=lambda prior: found[prior])


def measure(key: Row, zoo: Zoo, args: Any) -> list[Row]:
    """One line of the table, for one seed.

    Args:
        key: What is run.
        zoo: Has the models.
        args: The command line.

    Returns:
        Its rows: post hoc, one for each noise and prior.
    """
    about = (key[name] for name in ("data", "net", "epochs", "seed"))
    every = key.get("look_every")
    setting = Setting(*about, recipe=key["recipe"], look_every=every)
    images = zoo.images(setting.data)
    x, test = (setting.shaped(part.x) for part in (images.train, images.test))
    test = test[: args.test_images]

    def judged(la: Any, n_networks: int, noise: str, residual: float) -> Row:
        found = Reconstruction(la, test, n_networks, setting.seed).row(residual)
        return {"noise": noise, **found}

    if key["way"] == "plain":
        plain = zoo.model("autoencoder", setting)
        return [judged(plain, 1, "none", residual_of(plain.net, x))]
    if key["way"] == "online":
        name = ONLINE[key["structure"]]
        la = zoo.model(name, setting)
        row = judged(la, args.networks, "unit", residual_of(la.model, x))
        return [{**row, "training_seconds": zoo.training_seconds(name, setting)}]
    net = zoo.model("autoencoder", setting).net
    la, residual = STRUCTURES[key["structure"]](net), residual_of(net, x)
    la.fit(zoo.loader(setting))
    la.optimize_prior_precision(method="marglik")
    prior = float(la.prior_precision)
    as_paper = judged(la, args.networks, "unit", residual)
    la.prior_precision, la.sigma_noise = 1.0, residual
    ours = judged(la, args.networks, "residual", residual)
    rows = [{**as_paper, "prior": prior}, {**ours, "prior": 1.0}]
    unseen = setting.shaped(images.validation.x)[:1000]
    prior = prior_by_validation(la, unseen, setting.seed)
    la.prior_precision = prior
    chosen = judged(la, args.networks, CHOSEN, residual)
    return [*rows, {**chosen, "prior": prior}]


def planned(args: Any) -> list[Row]:
    """All runs, seed by seed.

    Args:
        args: The command line.

    Returns:
        One key for each.
    """
    ways = [("plain", "none")]
    ways += [("post hoc", structure) for structure in STRUCTURES]
    ways += [("online", structure) for structure in ONLINE]
    about = {"data": "mnist", "net": "linear", "epochs": args.epochs}
    about |= {"recipe": args.recipe}
    about |= {"data": "digits", "net": "small"} if args.smoke else {}
    about |= {"networks": args.networks, "test_images": args.test_images}
    looks = {("online", "exact"): {"look_every": args.exact_every}}
    return [
        {"way": way, "structure": structure, "seed": seed, **about}
        | looks.get((way, structure), {})
        for seed in args.seeds
        for way, structure in ways
        if args.only in f"{way} {structure}" and structure in args.structures
    ]


def draw(rows: list[Row], path: Any) -> None:
    """Draw the errors of networks and of their mean, all seeds.

    Args:
        rows: The results.
        path: The figure's file.
    """
    rows = sorted(rows, key=lambda row: (row["recipe"], _name(row)))
    names = list(dict.fromkeys(_name(row) for row in rows))[::-1]
    figure, ax = plt.subplots(figsize=(10, 0.24 * len(names) + 1), layout="constrained")
    for score, marker, colour, label in (
        ("error_of_networks", "o", "#d55e00", "of sampled networks"),
        ("error_of_mean", "D", "#0072b2", "of their mean"),
    ):
        places = [names.index(_name(row)) for row in rows]
        values = [row[score] for row in rows]
        ax.plot(values, places, marker, mfc="none", mec=colour, label=label)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.7, len(names) - 0.3)
    ax.set_xlabel("squared error, summed over pixels")
    readable_log(ax)
    ax.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _name(row: Row) -> str:
    trained = "" if row["recipe"] == USUAL else f", {row['recipe']}"
    if row["way"] == "plain":
        return f"plain autoencoder{trained}"
    noise = f", {NOISES[row['noise']]}" if row["way"] == "post hoc" else ""
    return f"{row['way']}, {row['structure']}{noise}{trained}"


def main() -> None:
    """Run what is missing, and draw all of it."""
    parser = parser_of(__doc__, epochs=20)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", default="", help='for instance "post hoc KFAC"')
    names = ["none", *STRUCTURES]  # a plain autoencoder has none
    parser.add_argument("--structures", nargs="+", default=names, choices=names)
    parser.add_argument("--recipe", default=USUAL, choices=RECIPES)
    parser.add_argument("--networks", type=int, default=50, help="sampled to judge")
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument(
        "--exact-every",
        type=int,
        default=RARELY.refresh_every,
        help="steps between two looks at exact curvature",
    )
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.seeds, args.networks, args.test_images = 1, [0], 3, 32
    zoo = zoo_of(args)
    rows = run_missing(
        args.out / "table2.json", planned(args), lambda key: measure(key, zoo, args)
    )
    draw(rows, args.out / "table2.png")


if __name__ == "__main__":
    main()
