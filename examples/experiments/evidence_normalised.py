"""Evidence on networks with batch norm: plain, and with the two recommendations.

    python examples/experiments/evidence_normalised.py

Regression of a curve with a gap by a batch-normed network, in several seeds, with a
full posterior: test log-density inside and within the gap, for the evidence at the
network's weights or at the linear model's optimum, with one prior or one per group.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from comparing import write_json
from laplace.baselaplace import FullLaplace, ParametricLaplace
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from lae_backpack.posterior.evidence import (
    maximise_evidence,
    maximise_linear_evidence,
    normalised_groups,
)

RESULTS = Path(__file__).parent / "results"
NOISE = 0.15


def curve(x: Tensor) -> Tensor:
    """Noisy values of a curve.

    Args:
        x: Where.

    Returns:
        The values.
    """
    return (2 * x).sin() + NOISE * torch.randn_like(x)


def places(n_points: int) -> dict[str, Tensor]:
    """Points within the data and within their gap.

    Args:
        n_points: How many of each.

    Returns:
        The points by name.  # [N, 1] each
    """
    inside = torch.empty(n_points, 1).uniform_(0.7, 2.5)
    signs = torch.where(torch.rand(n_points, 1) < 0.5, -1.0, 1.0)
    return {
        "inside": inside * signs,
        "gap": torch.empty(n_points, 1).uniform_(-0.7, 0.7),
    }


def trained(x: Tensor, y: Tensor, width: int, n_steps: int) -> nn.Sequential:
    """A network with batch norm.

    Args:
        x: The inputs.
        y: The targets.
        width: Of its two hidden layers.
        n_steps: Of Adam.

    Returns:
        The network.
    """
    model = nn.Sequential(
        nn.Linear(1, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n_steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


def log_density(la: ParametricLaplace, x: Tensor, y: Tensor) -> float:
    """The mean log-density of new targets.

    Args:
        la: The posterior.
        x: The inputs.
        y: The targets.

    Returns:
        The number.
    """
    mean, variance = la(x)
    deviation = (variance.reshape(-1, 1) + la.sigma_noise**2).sqrt()
    return float(Normal(mean, deviation).log_prob(y).mean())


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    seeds, steps, rounds = args.seeds, args.steps, 1000
    if args.smoke:
        seeds, steps, rounds = 1, 20, 3
    torch.set_default_dtype(torch.float64)
    rows = []
    for seed in tqdm(range(seeds), disable=None):
        torch.manual_seed(seed)
        x, test = places(80)["inside"], places(400)
        y, answers = curve(x), {name: curve(points) for name, points in test.items()}
        model = trained(x, y, args.width, steps)
        loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
        for at_optimum in (False, True):
            for prior in ("one", "groups"):
                groups = normalised_groups(model, x) if prior == "groups" else "scalar"
                la = FullLaplace(model, "regression", sigma_noise=NOISE)
                la.fit(loader)
                found = maximise_evidence(la, groups)
                if at_optimum:  # with the network's noise: it makes the predictions
                    found = maximise_linear_evidence(
                        la, loader, groups, learn_noise=False, max_rounds=rounds
                    )
                rows.append({
                    "seed": seed,
                    "evidence": "linear optimum" if at_optimum else "network",
                    "prior": prior,
                    "converged": found.converged,
                    "sigma_noise": float(found.sigma_noise),
                    **{n: log_density(la, test[n], answers[n]) for n in test},
                })
    for evidence in ("network", "linear optimum"):
        for prior in ("one", "groups"):
            own = [r for r in rows if (r["evidence"], r["prior"]) == (evidence, prior)]
            means = [sum(r[n] for r in own) / len(own) for n in ("inside", "gap")]
            print(
                f"evidence at the {evidence}, prior: {prior}; mean log-density inside "
                f"{means[0]:.3f}, in the gap {means[1]:.3f}"
            )
    write_json(args.out / "evidence_normalised.json", {"seed": 0, "rows": rows})


if __name__ == "__main__":
    main()
