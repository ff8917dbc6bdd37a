"""3. Approx, mixed, exact: cost and error
=======================================

One number, ``max_dense_dim``, goes from the approximate diagonal (``0``) to the exact
one (``None``). Matrices travel backwards through layers with at most that many
features, diagonals through all others. This page measures what that costs and gains.
"""

# %%
# A small convolutional autoencoder
# ---------------------------------
# Small enough for the exact diagonal: its widest layer has 8 x 8 x 8 = 512 features, so
# the exact pass carries a 512 x 512 matrix for each image.

import time

import matplotlib.pyplot as plt
import torch
from laplace import DiagLaplace, Laplace
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import diag_ggn

torch.manual_seed(0)
pixels, _ = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.Tanh(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 32),
    nn.Tanh(),
    nn.Linear(32, 4),
    nn.Linear(4, 32),
    nn.Tanh(),
    nn.Linear(32, 128),
    nn.Tanh(),
    nn.Unflatten(1, (8, 4, 4)),
    nn.Upsample(scale_factor=2),
    nn.Conv2d(8, 8, 3, padding=1),
    nn.Tanh(),
    nn.Conv2d(8, 1, 3, padding=1),
)
batch, loss = images[:16], nn.MSELoss(reduction="sum")
limits = {"approx": 0, "4": 4, "32": 32, "128": 128, "exact": None}


def all_diagonals() -> dict[str, dict[str, Tensor]]:
    return {
        name: diag_ggn(model, loss, batch, batch, max_dense_dim=limit)
        for name, limit in limits.items()
    }


def median_factor(diagonal: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    found, true = (
        torch.cat([v.flatten() for v in curvature.values()]).clamp_min(1e-12)
        for curvature in (diagonal, exact)
    )
    return (found / true).log().abs().median().exp().item()


# %%
# Error, before and after training
# --------------------------------
# At random weights the approximate diagonal is close. Training makes features work
# together, and what a diagonal drops then matters. The number is the factor by which
# the median weight's curvature is off; 1 is perfect.

at_random = all_diagonals()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(400):
    x = images[torch.randint(1500, (64,))]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x).backward()
    optimizer.step()
trained = all_diagonals()
factors = {
    when: {name: median_factor(d, found["exact"]) for name, d in found.items()}
    for when, found in (("random", at_random), ("trained", trained))
}

# %%
# Cost
# ----
# Seconds of one pass, the best of five. All contenders run in turn, round after round,
# because a busy machine then harms all of them alike.

seconds: dict[str, list[float]] = {name: [] for name in limits}
for _ in range(5):
    for name, limit in limits.items():
        start = time.perf_counter()
        diag_ggn(model, loss, batch, batch, max_dense_dim=limit)
        seconds[name].append(time.perf_counter() - start)
best = {name: min(taken) for name, taken in seconds.items()}

print("max_dense_dim   time / approx   off by (random)   off by (trained)")
for name in limits:
    cost = best[name] / best["approx"]
    off = [factors[when][name] for when in ("random", "trained")]
    print(f"{name:<16}{cost:<16.1f}x {off[0]:<16.2f}x {off[1]:.2f}")

# %%
# The same in a figure, and where the error is: layer by layer, from the first
# convolution to the last. At the output the approximation is exact, and it gets worse
# on the way to the input. Matrices at the bottleneck mend the encoder.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for when, style in (("random", "o-"), ("trained", "s--")):
    axes[0].plot(list(factors[when].values()), style, label=f"{when} weights")
names = [f"{n}\n{best[n] / best['approx']:.1f}x" for n in limits]
axes[0].set_xticks(range(len(limits)), names)
axes[0].set(xlabel="max_dense_dim, and its time", ylim=(0, None))
axes[0].set(ylabel="median weight is off by the factor")
axes[0].legend(frameon=False)
layers = [name for name in trained["exact"] if name.endswith("weight")]
for name, style in (("approx", "o-"), ("32", "^--")):
    ratio = [trained[name][w].sum() / trained["exact"][w].sum() for w in layers]
    axes[1].plot(
        [r.item() for r in ratio], style, label=f"max_dense_dim {limits[name]}"
    )
names = [type(model[int(w.split(".")[0])]).__name__ for w in layers]
axes[1].set_xticks(range(len(layers)), names, rotation=40, ha="right")
axes[1].axhline(1, color="0.6", lw=1)
axes[1].set(ylim=(0, None), ylabel="curvature / exact curvature")
axes[1].legend(frameon=False)
plt.show()

# %%
# With the limit at the size of the narrow layers the bottleneck is exact and the cost
# stays close to that of ``approx``. Mixed is not always better than approx in every
# weight: what arrives at the first dense layer has been through diagonals. So measure
# on your own net, on a few images, as here.

# %%
# The calibrated diagonal
# -----------------------
# ``calibrated_diag`` takes random probes: for each image the squared gradient of
# ``<eps, f(x)>`` with random signs ``eps``, which is noisy, but right on average for
# every weight. The last layer needs none of that, it is exact. So is everything before
# a narrow code, of at most four features as here: the decoder's few columns are pushed
# forwards one by one. With few images and no such code,
# ``backend_kwargs={"shrink": True}`` pulls what the probes say to the approximate
# diagonal's shape, as far as two halves of the data disagree on it. Here over 128
# images, in laplace-torch:

data = DataLoader(TensorDataset(images[:128], images[:128]), batch_size=16)
fitted = {}
for structure, settings in (
    ("approx_diag", {}),
    ("calibrated_diag", {}),
    ("mixed_diag", {"max_dense_dim": None}),  # no limit: exact
):
    la = Laplace(model, "regression", "all", structure, backend_kwargs=settings)
    la.fit(data)
    assert isinstance(la, DiagLaplace)
    fitted[structure] = {"all": la.H}
for structure in ("approx_diag", "calibrated_diag"):
    factor = median_factor(fitted[structure], fitted["mixed_diag"])
    print(f"{structure:<16} the median weight is off by x {factor:.2f}")
    factors[structure] = {"all": factor}

assert factors["calibrated_diag"]["all"] < factors["approx_diag"]["all"]
for when in ("random", "trained"):
    assert factors[when]["exact"] == 1
assert factors["trained"]["approx"] > factors["random"]["approx"]
assert factors["trained"]["128"] < factors["trained"]["approx"]
assert best["approx"] < best["exact"]
