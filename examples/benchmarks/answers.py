"""What the diagonal does to answers: outliers, calibration, sampled networks.

    python examples/benchmarks/answers.py --data-dir DIR    # or LAE_DATA=DIR
    python examples/benchmarks/answers.py --smoke           # seconds, proves nothing

The trained autoencoders of error.py, fitted post hoc under each structure to the same
1,024 images, whose curvature and loss stand for all 10,000 they were trained with.
Noise from the residuals, one prior precision by the marginal likelihood, for all in the
same way. 256 test images of MNIST, as many of Fashion-MNIST for outliers, 50 sampled
networks. With 100 of them the small convolutional net took about 18 seconds of
processor time for each structure, so all should take 6 to 8 minutes on one thread if
error.py has left its nets and exact diagonals; they are computed first otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from diagonals import STRUCTURES
from error import COLOURS
from measuring import write_json
from scores import auroc, calibration
from table import command_line
from torch import Tensor
from tqdm import tqdm
from trained import Zoo, for_net, zoo_arguments

from lae_backpack import LaplaceAE
from lae_backpack.datasets import load_images

RESULTS = Path(__file__).parent / "results"
EXACT = "exact"
SHOWN = {
    "auroc_output": "AUROC, output variance",
    "auroc_latent": "AUROC, latent variance",
    "correlation_pixels": "variance and squared error, rank correlation of pixels",
    "z_squared": "mean squared z-score",
    "nll": "negative log density of a pixel",
    "excess": "error of sampled networks / of the mode",
}
Row = dict[str, Any]


def fitted(zoo: Zoo, net: str, curvature: Tensor) -> LaplaceAE:
    """A posterior with given curvature and a tuned prior.

    Args:
        zoo: The nets.
        net: Which one.
        curvature: Its diagonal over the zoo's images.  # [P]

    Returns:
        The posterior.
    """
    la = LaplaceAE(zoo.model(net, zoo.last), hessian_structure="approx_diag")
    la.fit(zoo.images(net)[: zoo.n_images].split(zoo.batch))  # for loss and noise
    scale = zoo.n_train / zoo.n_images
    la.H, la.loss, la.n_data = scale * curvature.float(), scale * la.loss, zoo.n_train
    la.optimize_prior_precision(method="marglik", n_steps=200)
    return la


def answers(la: LaplaceAE, x: Tensor, outliers: Tensor, n_networks: int) -> Row:
    """Ask one posterior everything.

    Args:
        la: The posterior.
        x: Test images.  # [N, *in]
        outliers: Images of another kind.  # [N, *in]
        n_networks: How many are sampled.

    Returns:
        The scores by name.
    """
    both, count = torch.cat([x, outliers]), len(x)

    def ask(predict: Any) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        mean, variance = predict(both, n_samples=n_networks, generator=generator)
        return mean.flatten(1), variance.flatten(1)

    mean, variance = ask(la)
    _, spread = ask(la.latent)
    error = mean[:count] - x.flatten(1)
    with torch.no_grad():
        of_mode = (la.model(x) - x).square().sum().item() / count
    of_mean = error.square().sum().item() / count
    # An unbiased variance of S networks is S / (S - 1) times their mean square.
    share = (n_networks - 1) / n_networks
    of_networks = of_mean + share * variance[:count].sum().item() / count
    noise = torch.as_tensor(la.sigma_noise).square().item()
    return {
        "prior_precision": torch.as_tensor(la.prior_precision).item(),
        "sigma_noise": noise**0.5,
        "auroc_output": auroc(variance[:count].sum(1), variance[count:].sum(1)),
        "auroc_latent": auroc(spread[:count].sum(1), spread[count:].sum(1)),
        **calibration(error, variance[:count], noise),
        "error_of_mode": of_mode,
        "error_of_mean": of_mean,
        "error_of_networks": of_networks,
        "excess": of_networks / of_mode,
    }


def asked_about(zoo: Zoo, net: str, count: int) -> tuple[Tensor, Tensor]:
    """What is asked about.

    Args:
        zoo: The nets.
        net: Which one it is for.
        count: How many images of each kind.

    Returns:
        Test images and outliers.  # [count, *in] each
    """
    if zoo.made_up:
        x = zoo.images(net)[:count]
        return x, 1 - x
    names = ("mnist", "fashion-mnist")
    x, outliers = (load_images(n, "test", zoo.data_dir)[:count] for n in names)
    return for_net(net, x), for_net(net, outliers)


def draw(rows: list[Row], path: Path) -> None:
    """Draw the scores, a panel for each.

    Args:
        rows: The rows.
        path: Where to write the figure.
    """
    names = [EXACT, *STRUCTURES]
    nets = list(dict.fromkeys(row["net"] for row in rows))
    figure, axes = plt.subplots(2, 3, figsize=(15, 8), layout="constrained")
    for ax, (score, title) in zip(axes.flat, SHOWN.items(), strict=True):
        for j, net in enumerate(nets):
            found = {r["structure"]: r[score] for r in rows if r["net"] == net}
            ax.plot(
                [found[name] for name in names],
                range(len(names)),
                "o-",
                lw=0.5,
                color=COLOURS[j],
                label=net,
            )
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_title(title, fontsize=10)
        ax.grid(alpha=0.3)
        if score in {"excess", "z_squared"}:
            ax.axvline(1, color="0.5", lw=0.8)
    axes[0][0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Ask, print the table, write JSON and the figure."""
    args, zoo = zoo_arguments(command_line(__doc__, RESULTS))
    count, n_networks = (4, 3) if args.smoke else (256, 50)
    rows: list[Row] = []
    print(f"{'net':<11}{'structure':<15}" + "".join(f"{key:>19}" for key in SHOWN))
    for net in args.nets:
        x, outliers = asked_about(zoo, net, count)
        data = zoo.images(net)[: zoo.n_images]
        for name in tqdm([EXACT, *STRUCTURES], net, leave=False, disable=None):
            torch.manual_seed(args.seed)
            if name == EXACT:
                curvature = zoo.exact(net, zoo.last, zoo.n_images)
            else:
                model = zoo.model(net, zoo.last)
                curvature = STRUCTURES[name](model)(data, zoo.batch)
            la = fitted(zoo, net, curvature)
            found = answers(la, x, outliers, n_networks)
            rows.append({"net": net, "structure": name, **found})
            cells = "".join(f"{found[key]:>19.3f}" for key in SHOWN)
            print(f"{net:<11}{name:<15}{cells}", flush=True)
    settings = {"images": count, "networks": n_networks, "fitted": zoo.n_images}
    content = {"seed": args.seed, "settings": settings, "rows": rows}
    write_json(args.out / "answers.json", content)
    draw(rows, args.out / "answers.png")


if __name__ == "__main__":
    main()
