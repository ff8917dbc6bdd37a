"""Figures 9 and 10 of the paper: telling Fashion-MNIST from MNIST, and the reverse.

python examples/experiments/ood_scores.py                # rows say how long
python examples/experiments/ood_scores.py --nets linear  # only that net
python examples/experiments/ood_scores.py --recipe Muon --nets conv/4 --networks 50
python examples/experiments/ood_scores.py --smoke        # seconds, proves nothing

All models with the linear net and with the paper's convolutional net at a quarter of
its width; that net at full width once, trained online, for fewer epochs, with fewer
images and networks. "Dead pixels frozen": pixels that are zero in all training images
leave their first-layer weights at the prior, and these weights may be all that an
uncertainty sees of an outlier; here they do not vary. Finished runs are not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from command_line import parser_of, zoo_of
from experiment_images import OUTLIERS
from ood_figures import (
    TITLES,
    Scores,
    draw_curves,
    draw_histograms,
    draw_table,
    file_of,
    to_draw,
)
from recipes import RECIPES, USUAL
from resuming import Row, run_missing
from torch import Tensor
from trained_models import MODELS, Setting, Zoo, networks_of

from lae_backpack import LaplaceAE
from lae_backpack.downstream.ood import detection, mean_log_likelihood, outlier_scores

FROZEN = ", dead pixels frozen"
ALL = (*MODELS, *(f"{name}{FROZEN}" for name in ("post hoc", "online")))
N_REFERENCE = 2_000
NEVER_MOVES = 1e30  # a precision
OF_VARIANCES = (
    "output_variance",
    "output_deviation",
    "latent_variance",
    "latent_deviation",
    "pairwise_divergence",
)


def freeze_dead_pixels(la: LaplaceAE, x: Tensor) -> int:
    """Make first-layer weights of pixels that are always zero certain.

    Args:
        la: A posterior whose first layer is linear.
        x: The training images.  # [N, P]

    Returns:
        How many pixels these are.
    """
    dead = ~(x != 0).any(0)  # [P]
    first = next(la.model.parameters())  # [out, P]
    precision = la.H.clone()
    precision[: first.numel()].view_as(first)[:, dead] = NEVER_MOVES
    la.H = precision
    return int(dead.sum())


def scores_of(
    model: Any, parts: Mapping[str, Tensor], n_networks: int, seed: int
) -> Scores:
    """Score images, all by the same networks.

    Args:
        model: The model.
        parts: Images by name; ``"reference"`` for typicality.  # [N, *in] each
        n_networks: How many networks.
        seed: Of the networks.

    Returns:
        The scores of the other parts by their names.
    """

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    n_samples = networks_of(model, n_networks)
    usual = mean_log_likelihood(model, parts["reference"], n_samples, generator())
    found = {}
    for part in parts.keys() - {"reference"}:
        x = parts[part]
        scores = outlier_scores(model, x, usual, n_samples, generator())
        if hasattr(model, "pixel_variance"):
            whole = model.pixel_variance(x, n_samples, generator()).flatten(1)
            scores["output_variance"] = whole.sum(1)
            scores["output_deviation"] = whole.sqrt().sum(1)
            del scores["pairwise_divergence"]  # its formula is for equal noise
            if n_samples == 1:
                del scores["latent_variance"], scores["latent_deviation"]
        elif n_samples == 1:
            for name in OF_VARIANCES:
                del scores[name]
        found[part] = scores
    return found


def measure(key: Row, zoo: Zoo) -> tuple[list[Row], Scores]:
    """Ask one model about test images and outliers.

    Args:
        key: What is run.
        zoo: Has the models.

    Returns:
        One row for each score, and the scores themselves.
    """
    about = (key[name] for name in ("data", "net", "epochs", "seed"))
    setting = Setting(*about, recipe=key["recipe"])
    frozen = FROZEN in key["model"]
    model = zoo.model(key["model"].removesuffix(FROZEN), setting)
    images, outliers = zoo.images(setting.data), zoo.images(key["outliers"])
    found: Row = {}
    if frozen:
        x = setting.shaped(images.train.x)
        found["dead_pixels"] = freeze_dead_pixels(model, x)
    count = key["test_images"]
    parts = {
        "reference": setting.shaped(images.train.x[:N_REFERENCE]),
        "inside": setting.shaped(images.test.by_lot(count).x),
        "outside": setting.shaped(outliers.test.by_lot(count).x),
    }
    scores = scores_of(model, parts, key["networks"], setting.seed)
    rows = []
    for name, inside in scores["inside"].items():
        pair = inside, scores["outside"][name]
        rows.append({"score": name, **asdict(detection(*pair)), **found})
        rows[-1] |= to_draw(*pair) if name in TITLES else {}
    return rows, scores


def planned(args: Any) -> list[Row]:
    """All runs.

    Args:
        args: The command line.

    Returns:
        One key for each.
    """
    runs = []
    for seed in args.seeds:
        for net in args.nets:
            full = net == "conv"
            epochs = {"linear": args.epochs, "conv": args.full_epochs}
            names = ["online"] if full else [m for m in ALL if m in args.models]
            if net not in ("linear", "small"):
                names = [name for name in names if FROZEN not in name]
            for data in ["fashion-mnist"] if full else args.data:
                about = {"net": net, "data": data, "outliers": OUTLIERS[data]}
                about |= {"epochs": epochs.get(net, args.conv_epochs)}
                about |= {"recipe": args.recipe}
                about |= {"networks": 10 if full else args.networks}
                about |= {"test_images": min(args.test_images, 1000 if full else 10**9)}
                runs += [{"model": name, **about, "seed": seed} for name in names]
    return runs


def main() -> None:
    """Run what is missing, and draw all of it."""
    parser = parser_of(__doc__, epochs=20)
    parser.add_argument("--conv-epochs", type=int, default=15, help="quarter width")
    parser.add_argument("--full-epochs", type=int, default=6, help="full width")
    parser.add_argument("--nets", nargs="+", default=["linear", "conv/4", "conv"])
    parser.add_argument("--data", nargs="+", default=["fashion-mnist", "mnist"])
    parser.add_argument("--models", nargs="+", default=ALL, choices=ALL)
    parser.add_argument("--recipe", default=USUAL, choices=RECIPES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--networks", type=int, default=100, help="sampled to judge")
    parser.add_argument("--test-images", type=int, default=10_000, help="of each kind")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = args.conv_epochs = 1
        args.nets, args.data, args.networks = ["small", "conv/16"], ["digits"], 3
        args.test_images = 32
    zoo = zoo_of(args)

    def run(key: Row) -> list[Row]:
        rows, scores = measure(key, zoo)
        if key["model"] == "online":
            file = args.out / file_of("ood_histograms", key)
            draw_histograms(key, scores, file)
        return rows

    args.out.mkdir(parents=True, exist_ok=True)
    rows = run_missing(args.out / "ood_scores.json", planned(args), run)
    draw_table(rows, ALL, args.out / "ood_scores.png")
    draw_curves(rows, ALL, args.out)


if __name__ == "__main__":
    main()
