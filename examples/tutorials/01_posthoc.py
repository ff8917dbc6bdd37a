"""1. Post-hoc uncertainty for an existing autoencoder
===================================================

You have a trained autoencoder. It reconstructs images, and does not say where it may be
wrong. ``LaplaceAE`` looks at the curvature of its loss once, keeps every weight as it
is, and gives means and variances of pixels and of codes.
"""

# %%
# The autoencoder you have
# ------------------------
# Digits of 8x8 pixels, which scikit-learn ships, and a plain training loop. Nothing of
# this knows about Laplace.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pixels, _ = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
train, test = images[:1500], images[1500:]


class MyAutoencoder(nn.Module):
    # Any module with an encoder and a decoder will do.
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(128, 64),
            nn.Tanh(),
            nn.Linear(64, 4),
        )
        self.decoder = nn.Sequential(
            nn.Linear(4, 64),
            nn.Tanh(),
            nn.Linear(64, 128),
            nn.Tanh(),
            nn.Unflatten(1, (8, 4, 4)),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(8, 1, 3, padding=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))


model = MyAutoencoder()
loader = DataLoader(TensorDataset(train), batch_size=128, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(20):
    for (x,) in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()

# %%
# Two lines
# ---------
# One pass over the data. The noise of the pixels is taken from the residuals
# (``sigma_noise="residual"``, the default); the prior precision stays at 1, because the
# evidence makes autoencoders too sure (see the gotchas).

from lae_backpack import LaplaceAE

weights_before = [p.clone() for p in model.parameters()]
la = LaplaceAE(model)
la.fit(loader)
print(f"noise {la.sigma_noise.item():.3f}, prior {la.prior_precision.item():.2f}")

# %%
# Mean and variance
# -----------------
# ``la(x)`` averages over 100 networks drawn from the posterior. Its variance is that of
# the networks; add ``la.sigma_noise ** 2`` for that of a new pixel.

generator = torch.Generator().manual_seed(0)
mean, variance = la(test, generator=generator)
code, code_variance = la.latent(test, generator=generator)
print(mean.shape, variance.shape, code.shape, code_variance.shape)

figure, axes = plt.subplots(3, 8, figsize=(8, 3.2), layout="constrained")
for row, (name, pictures, colours) in enumerate((
    ("image", test, "gray_r"),
    ("mean", mean, "gray_r"),
    ("std", variance.sqrt(), "viridis"),
)):
    for column, ax in enumerate(axes[row]):
        ax.imshow(pictures[column, 0], cmap=colours, vmin=0)
        ax.set(xticks=[], yticks=[])
    axes[row, 0].set_ylabel(name)
plt.show()

# %%
# Where it may be wrong
# ---------------------
# Sort all pixels by their predicted spread, and cut them into ten groups of equal size:
# the error rises with the spread.

error = (mean - test).square().flatten()
order = variance.flatten().argsort()
spread, wrong = (
    torch.stack([group.mean() for group in values[order].chunk(10)]).sqrt()
    for values in (variance.flatten(), error)
)

# %%
# Images of another kind
# ----------------------
# Digits that lie on their side have the same strokes, in places where the network has
# seen none. Nothing was trained to tell them apart.

lying = test.transpose(2, 3)
_, lying_variance = la(lying, generator=generator)
scores = [v.sum((1, 2, 3)).sqrt() for v in (variance, lying_variance)]
auroc = roc_auc_score([0] * len(test) + [1] * len(lying), torch.cat(scores))
print(f"AUROC of the predicted spread, upright against lying digits: {auroc:.3f}")

figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
axes[0].plot(spread, wrong, "o-", color="#0072b2")
axes[0].set(xlabel="predicted standard deviation", ylabel="root mean squared error")
axes[0].set(title="pixels, ten groups", ylim=(0, None))
axes[1].hist(scores[0], bins=30, alpha=0.7, label="upright", color="#0072b2")
axes[1].hist(scores[1], bins=30, alpha=0.7, label="lying", color="#e69f00", hatch="//")
axes[1].set(xlabel="predicted spread of the image", ylabel="images")
axes[1].legend(frameon=False)
plt.show()

# %%
# How many networks?
# ------------------
# A variance from few networks is itself noisy. Here is the same AUROC with three draws
# of each number of networks:

for n_samples in (2, 5, 20, 100):
    found = []
    for _ in range(3):
        both = [
            la(x, n_samples=n_samples, generator=generator)[1].sum((1, 2, 3))
            for x in (test, lying)
        ]
        found.append(roc_auc_score([0] * 297 + [1] * 297, torch.cat(both)))
    print(f"{n_samples:>3} networks: " + ", ".join(f"{value:.3f}" for value in found))

# %%
# What it does not see
# --------------------
# The spread tells what the *weights* leave open. A digit made of the upper half of one
# and the lower half of another lights no pixel that is new, and its spread is not
# larger; its reconstruction error is. Look at both.

halves = torch.cat((test[:, :, :4], test.roll(1, 0)[:, :, 4:]), dim=2)
halves_mean, halves_variance = la(halves, generator=generator)
for name, inside, outside in (
    ("spread", variance, halves_variance),
    ("error", error, (halves_mean - halves).square()),
):
    inside, outside = (v.reshape(len(test), -1).sum(1) for v in (inside, outside))
    both = roc_auc_score(
        [0] * len(test) + [1] * len(test), torch.cat((inside, outside))
    )
    print(f"AUROC against digits of two halves, by {name}: {both:.3f}")

# %%
# Your model is as it was
# -----------------------
# The model you gave is unchanged, and the shapes are those of its images and codes.

assert mean.shape == variance.shape == test.shape
assert code.shape == code_variance.shape == (len(test), 4)
pairs = zip(weights_before, model.parameters(), strict=True)
assert all(torch.equal(before, after) for before, after in pairs)
assert auroc > 0.9
assert wrong[-1] > 2 * wrong[0]
