"""9. Prior and noise from the evidence
====================================

How large error bars are depends on the prior precision and the noise. The *evidence*
chooses both from the training data alone. This tutorial shows MacKay's updates, why
they go wrong for networks with batch norm, and what puts them right.
"""

# %%
# MacKay's updates
# ----------------
# A curve with a gap, and a network with six hidden units. ``maximise_evidence`` ends
# where laplace-torch's marginal likelihood has no slope, for the prior and the noise at
# once, and counts the parameters that the data determine.

import matplotlib.pyplot as plt
import torch
from laplace.baselaplace import FullLaplace, ParametricLaplace
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import ApproxDiagLaplace
from lae_backpack.posterior.evidence import (
    largest_variances,
    maximise_evidence,
    maximise_linear_evidence,
    normalised_groups,
    subnetwork_laplace,
)

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def curve(x: Tensor) -> Tensor:
    return (2 * x).sin() + 0.15 * torch.randn_like(x)


x = torch.cat((torch.linspace(-2.5, -0.7, 40), torch.linspace(0.7, 2.5, 40)))[:, None]
y = curve(x)
inside = torch.cat([
    torch.empty(200).uniform_(*ends) for ends in ((-2.5, -0.7), (0.7, 2.5))
])
gap = torch.empty(200).uniform_(-0.7, 0.7)
test = {"inside": inside[:, None], "gap": gap[:, None]}
answers = {name: curve(points) for name, points in test.items()}
loader = DataLoader(TensorDataset(x, y), batch_size=80)


def trained(model: nn.Sequential, n_steps: int) -> nn.Sequential:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n_steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


small = trained(nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)), 1500)
la = FullLaplace(small, "regression")
la.fit(loader)
found = maximise_evidence(la)
print(
    f"noise {la.sigma_noise:.3f} (0.15 was added), prior "
    f"{found.prior_precision.item():.3f};\n{found.effective_parameters.sum():.1f} of "
    f"{la.n_params} parameters determined, {len(found.log_evidence)} updates"
)

grid = torch.linspace(-3.5, 3.5, 100)[:, None]


def draw(ax: Axes, title: str, mean: Tensor, bars: Tensor) -> None:
    low, high = (mean.flatten() + sign * 2 * bars.flatten() for sign in (-1, 1))
    ax.fill_between(grid.flatten(), low, high, alpha=0.3)
    ax.plot(grid, mean, color="#0072b2")
    ax.plot(x, y, ".", color="black", markersize=3)
    ax.set(title=title, ylim=(-4, 4), xlabel="x")


figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained", sharey=True)
best_prior = found.prior_precision.item()
for ax, factor in zip(axes, (0.01, 1.0, 100.0), strict=True):
    la.prior_precision = factor * best_prior
    mean, variance = la(grid)
    draw(ax, f"prior: {factor:g} of the best", mean, variance.sqrt())
plt.show()

# %%
# Batch norm
# ----------
# A network with batch norm computes the same if its normalised weights are ten times as
# large. So their size says nothing about the prior, and training leaves it at no mode
# of the posterior. Two remedies: take the evidence at the optimum of the *linearised*
# network (found without ever building a Jacobian), and give each normalised layer a
# prior of its own. ``normalised_groups`` finds these layers by doubling their weights.

normed = trained(
    nn.Sequential(
        nn.Linear(1, 20),
        nn.BatchNorm1d(20),
        nn.Tanh(),
        nn.Linear(20, 20),
        nn.BatchNorm1d(20),
        nn.Tanh(),
        nn.Linear(20, 1),
    ),
    300,
)
groups = normalised_groups(normed, x)
print("normalised:", groups)


def log_density(la: ParametricLaplace, name: str) -> float:
    mean, variance = la(test[name])
    total = variance.reshape(-1, 1) + la.sigma_noise**2
    return float(
        torch.distributions.Normal(mean, total.sqrt()).log_prob(answers[name]).mean()
    )


posteriors, densities = {}, {}
for name in ("plain evidence", "at the linear optimum", "and in groups"):
    la = FullLaplace(normed, "regression")
    la.fit(loader)
    if name == "plain evidence":
        chosen = maximise_evidence(la)
    elif name == "at the linear optimum":
        chosen = maximise_linear_evidence(la, loader)
    else:
        chosen = maximise_linear_evidence(la, loader, groups)
    posteriors[name] = la
    densities[name] = {place: log_density(la, place) for place in test}
    print(
        f"{name}: log-density inside {densities[name]['inside']:.3f}, in the gap "
        f"{densities[name]['gap']:.3f},\n    prior {chosen.prior_precision.min():.3g} "
        f"to {chosen.prior_precision.max():.3g}"
    )

# %%
# The scale makes no difference
# -----------------------------
# Ten times the normalised weights (and the statistics that belong to them): the same
# network. With groups, the same error bars, too.

plain, spread = (
    posteriors[name](grid)[1].flatten().sqrt()
    for name in ("plain evidence", "and in groups")
)
state = normed.state_dict()
for layer, norm in (("0", "1"), ("3", "4")):
    for name in (f"{layer}.weight", f"{layer}.bias", f"{norm}.running_mean"):
        state[name] *= 10
    state[f"{norm}.running_var"] *= 100
scaled = FullLaplace(normed, "regression")
scaled.fit(loader)
maximise_linear_evidence(scaled, loader, groups)
scaled_spread = scaled(grid)[1].flatten().sqrt()
difference = float((scaled_spread / spread).log().abs().max())
print(f"largest relative difference of the error bars: {difference:.4f}")

figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
mean = scaled(grid)[0]
draw(axes[0], "plain evidence", mean, plain)
draw(axes[1], "both remedies", mean, spread)
plt.show()

# %%
# A few weights with all their covariances
# ----------------------------------------
# A cheap diagonal tells which weights are left most open; laplace-torch's own
# subnetwork posterior then treats these together.

cheap = ApproxDiagLaplace(small, "regression")
cheap.fit(loader)
maximise_evidence(cheap)
print("weights", largest_variances(cheap, 6).tolist(), "of", cheap.n_params)
subnetwork = subnetwork_laplace(cheap, loader, 6)
mean, variance = subnetwork(grid)

# %%
# What holds
# ----------

assert found.converged and abs(found.sigma_noise - 0.15) < 0.03
assert groups == [["0.weight", "0.bias"], ["3.weight", "3.bias"]]
best, worst = densities["and in groups"], densities["plain evidence"]
assert best["inside"] > worst["inside"] and best["gap"] > worst["gap"] + 0.2
assert difference < 0.01
assert variance.shape == (100, 1, 1)
