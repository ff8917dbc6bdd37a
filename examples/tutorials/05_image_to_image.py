"""5. From ``diag`` to ``approx_diag`` in an image-to-image net
============================================================

laplace-torch's ``diag`` goes through the Jacobian of all outputs, which image-to-image
nets have many of. With ``approx_diag`` one word changes and the cost becomes that of a
backward pass.
"""

# %%
# A net that removes noise
# ------------------------

import time

import matplotlib.pyplot as plt
import torch
from laplace import DiagLaplace, Laplace
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import ApproxDiagLaplace  # importing it adds the new structures

torch.manual_seed(0)
pixels, _ = load_digits(return_X_y=True)
clean = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
noisy = clean + 0.3 * torch.randn_like(clean)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.Tanh(),
    nn.Conv2d(8, 8, 3, padding=1),
    nn.Tanh(),
    nn.Conv2d(8, 1, 3, padding=1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(300):
    rows = torch.randint(1500, (64,))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(noisy[rows]), clean[rows]).backward()
    optimizer.step()

# %%
# What laplace-torch does
# -----------------------
# Its ``diag`` needs outputs of shape ``[N, D]``, so the net gets a Flatten at its end,
# and the targets too. It builds the Jacobian of every image.

n_weights = sum(p.numel() for p in model.parameters())
print(f"{n_weights} weights x 64 pixels = {n_weights * 64:,} numbers for each image")

flat = nn.Sequential(model, nn.Flatten())
few = TensorDataset(noisy[:64], clean[:64].flatten(1))
start = time.perf_counter()
exact = Laplace(flat, "regression", subset_of_weights="all", hessian_structure="diag")
exact.fit(DataLoader(few, batch_size=16))
exact_seconds = time.perf_counter() - start
assert isinstance(exact, DiagLaplace)

# %%
# The drop-in
# -----------
# No Flatten: outputs and targets are images. What comes back is a ``DiagLaplace``, with
# all that laplace-torch gives it.

images = TensorDataset(noisy[:64], clean[:64])
start = time.perf_counter()
la = Laplace(
    model, "regression", subset_of_weights="all", hessian_structure="approx_diag"
)
la.fit(DataLoader(images, batch_size=16))
seconds = time.perf_counter() - start
assert isinstance(la, ApproxDiagLaplace) and isinstance(la, DiagLaplace)
print(f"seconds: diag {exact_seconds:.2f}, approx_diag {seconds:.2f}")

# %%
# The noise comes from the residuals, the prior from the evidence, as ever.

with torch.no_grad():
    la.sigma_noise = (model(noisy[:64]) - clean[:64]).square().mean().sqrt()
la.optimize_prior_precision()
mean, variance = la(noisy[1500:], pred_type="nn", n_samples=50)
print(mean.shape, variance.shape)

figure, axes = plt.subplots(3, 8, figsize=(8, 3.2), layout="constrained")
for row, (name, pictures, colours) in enumerate((
    ("input", noisy[1500:], "gray_r"),
    ("mean", mean, "gray_r"),
    ("std", variance.sqrt(), "viridis"),
)):
    for column, ax in enumerate(axes[row]):
        ax.imshow(pictures[column, 0], cmap=colours, vmin=0)
        ax.set(xticks=[], yticks=[])
    axes[row, 0].set_ylabel(name)
plt.show()

# %%
# How far is it from the exact diagonal?
# --------------------------------------
# laplace-torch's is exact. Both have the same convention, so curvatures compare weight
# by weight.

factor = (la.H / exact.H).log().abs().median().exp().item()
print(f"the median weight is off by the factor {factor:.2f}")
by_tensor = [p.numel() for p in model.parameters()]
pairs = zip(la.H.split(by_tensor), exact.H.split(by_tensor), strict=True)
for (name, _), (ours, theirs) in zip(model.named_parameters(), pairs, strict=True):
    print(f"{name:<10} approx / exact, sums: {(ours.sum() / theirs.sum()).item():.2f}")

# %%
# Images that ``diag`` cannot do
# ------------------------------
# The same net takes images of any size, and the Jacobian grows with them. Ours builds
# none. ``mixed_diag`` is there too, for nets with narrow layers:
# ``backend_kwargs={"max_dense_dim": 128}``.

for side in (128, 1024):
    gigabytes = 4 * side**2 * n_weights * 4 / 2**30
    print(f"Jacobian of four images of {side} x {side}: {gigabytes:.1f} GB")

large = torch.rand(8, 1, 128, 128)
la_large = Laplace(
    model, "regression", subset_of_weights="all", hessian_structure="approx_diag"
)
la_large.fit(DataLoader(TensorDataset(large, large), batch_size=4))
large_mean, large_variance = la_large(large[:2], pred_type="nn", n_samples=10)
print(large_variance.shape)

# %%
# ``pred_type`` is ``"glm"`` by default, as in laplace-torch. For many outputs it is
# sampled from the linearised net, without a Jacobian, and ``variance`` has the shape of
# the output. ``"nn"`` samples networks, ``"propagated"`` needs one pass.

assert mean.shape == variance.shape == noisy[1500:].shape
assert large_variance.shape == (2, 1, 128, 128)
last = slice(-by_tensor[-1] - by_tensor[-2], None)
torch.testing.assert_close(la.H[last], exact.H[last], rtol=1e-3, atol=1e-3)
assert factor < 3
