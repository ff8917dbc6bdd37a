"""10. How sure a reconstruction is
================================

An X-ray scanner measures sums along rays, not pixels. A *deep image prior* finds an
image for them: a network is fitted to the measurements of one image, and nothing else
is learned. This tutorial linearises such a network and says how sure it is of every
pixel. It runs from a clone of the repository, whose ``examples/experiments`` holds the
projections and the network.
"""

# %%
# Projections of a digit
# ----------------------
# 28x28 pixels, seen from 20 directions, with 5% noise.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import lae_backpack

EXPERIMENTS = Path(lae_backpack.__file__).parents[1] / "examples" / "experiments"
sys.path.insert(0, str(EXPERIMENTS))
from deep_image_prior import by_dropout, linearised, reconstruct
from radon import SmallUNet, radon_matrix

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

digits, _ = load_digits(return_X_y=True)
pixels = torch.tensor(digits[3]).reshape(1, 1, 8, 8) / 16
pixels = F.interpolate(pixels, size=(24, 24), mode="bilinear").clamp_min(0)
truth = F.pad(pixels, (2, 2, 2, 2)).flatten()
matrix = radon_matrix(28, n_angles=20)
clean = matrix @ truth
noise = 0.05 * clean.abs().mean()
measured = clean + noise * torch.randn_like(clean)

figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
axes[0].imshow(truth.reshape(28, 28))
axes[0].set(title="truth", xticks=[], yticks=[])
axes[1].imshow(measured.reshape(20, -1), aspect="auto")
axes[1].set(title="measured", xlabel="detector", ylabel="direction")
plt.show()

# %%
# Two networks
# ------------
# What goes in is the projections, smeared back. A small U-Net turns it into an image
# that explains them. The second one has dropout, which stays on afterwards: the spread
# of its images is what the first one's linearisation is compared with.

start = (matrix.T @ measured).reshape(1, 1, 28, 28)
start = start / start.max()
plain, dropping = SmallUNet(8), SmallUNet(8, dropout=0.05)
for net in (plain, dropping):
    reconstruct(net, start, measured, matrix, n_steps=1500)
misfit = float((matrix @ plain(start).flatten() - measured).detach().std() / noise)
print(f"what is left of the projections: {misfit:.2f} times their noise")

# %%
# Linearised at its weights, the network is a linear model, and its posterior over the
# image is a Gaussian. With fewer measurements than weights it is solved over the
# measurements. One prior precision for each layer and the noise maximise the evidence.

found = {
    "linearised": linearised(plain, start, measured, matrix, n_steps=100),
    "MC dropout": by_dropout(dropping, start, n_samples=100),
}

figure, axes = plt.subplots(2, 3, figsize=(7.5, 5), layout="constrained")
for row, (way, (mean, variance)) in zip(axes, found.items(), strict=True):
    error = (mean - truth).abs()
    pictures = {way: mean, "error": error, "standard deviation": variance.sqrt()}
    for ax, (title, values) in zip(row, pictures.items(), strict=True):
        top = 1.0 if title == way else float(error.quantile(0.98))
        ax.imshow(values.reshape(28, 28), vmin=0, vmax=top)
        ax.set(title=title, xticks=[], yticks=[])
plt.show()

# %%
# Are the error bars right?
# -------------------------
# Of 90% intervals about 90% should hold the truth. Most pixels are background, which is
# easy, so the digit's own are counted apart: there, both ways are too sure of what they
# say. Where a way is unsure, it is right to be.

coverage = {}
for way, (mean, variance) in found.items():
    inside = ((truth - mean).abs() < 1.645 * (variance + 1e-4).sqrt()).double()
    coverage[way] = float(inside.mean()), float(inside[truth > 0].mean())
    print(f"{way}: {coverage[way][0]:.2f} of all pixels, {coverage[way][1]:.2f} of the")
    print("    digit's are within their 90% intervals")

# %%
# What holds
# ----------

mean, variance = found["linearised"]
errors = torch.stack(((mean - truth).abs(), variance.sqrt()))
assert misfit < 1.6
assert torch.corrcoef(errors)[0, 1] > 0.3  # large errors are where it is unsure
assert 0.6 < coverage["linearised"][0] < 0.9
assert all(digit < everywhere < 0.9 for everywhere, digit in coverage.values())
