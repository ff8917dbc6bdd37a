"""7. From a plain trained decoder to codes with full covariances
==============================================================

A plain autoencoder gives each image one code and does not say how sure it is. Its
decoder g knows: pixels with noise sigma leave a posterior over the code whose curvature
is ``W^T W / sigma^2 + I``, with W the Jacobian of g at the code.
"""

# %%
# A plain autoencoder
# -------------------
# Of 8x8 digits, trained as ever: nothing of this is about codes.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from lae_backpack.latent import LatentLaplace

torch.manual_seed(0)
pixels, _ = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32) / 16
train, test = images[:1500], images[1500:]
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64))
parameters = [*encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adam(parameters, lr=3e-3)
for _ in range(600):
    optimizer.zero_grad()
    (decoder(encoder(train)) - train).square().mean().backward()
    optimizer.step()

# %%
# Ten lines
# ---------
# The noise is what reconstructions leave over; the encoder's codes are where
# the search for each posterior's mode starts.

with torch.no_grad():
    sigma = (decoder(encoder(train)) - train).square().mean().sqrt()
    laplace = LatentLaplace(decoder, "gaussian", sigma)
    q = laplace.posterior(test, z0=encoder(test), n_updates=20)
    codes = q.mean  # [297, 4]
    covariance = q.covariance_matrix  # [297, 4, 4]
    spread = q.variance.sqrt()  # [297, 4]
    correlation = covariance / (spread[:, :, None] * spread[:, None])
    draws = decoder(q.sample(torch.Size([100])))  # [100, 297, 64]
    pixel_spread = draws.std(0)  # [297, 64], what the code leaves open

# %%
# Each code has an ellipse of its own. Here are the first two of its four dimensions, at
# two standard deviations:

figure, ax = plt.subplots(figsize=(5, 4), layout="constrained")
angle = torch.linspace(0, 2 * torch.pi, 60)
circle = torch.stack((angle.cos(), angle.sin()))  # [2, 60]
for mean, part in zip(codes[:60, :2], covariance[:60, :2, :2], strict=True):
    ellipse = mean[:, None] + 2 * torch.linalg.cholesky(part) @ circle
    ax.plot(*ellipse, color="#0072b2", lw=0.8)
    ax.plot(*mean, ".", color="#d55e00", ms=3)
ax.set(xlabel="first code", ylabel="second code")
plt.show()

# %%
# What it gives
# -------------
# The mode explains each image at least as well as the encoder's code did ...

with torch.no_grad():
    before, after = (laplace.log_joint(test, z) for z in (encoder(test), codes))
print(f"log p(x, z) rises by {(after - before).mean():.1f} nats on average")
assert (after >= before).all()

# %%
# ... and the correlations matter: a Gaussian with the same mode that leaves them out
# bounds log p(x) less tightly. (The best one without them has the variances
# 1 / precision: that is what a VAE's encoder would have to learn.)


def bound(q: MultivariateNormal) -> float:
    """The mean evidence lower bound of the test images.

    Args:
        q: Gaussians over their codes.

    Returns:
        Nats.
    """
    z = q.sample(torch.Size([200]))
    log_prob = laplace.likelihood.log_prob(test, decoder(z)).sum(-1).mean(0)
    prior = MultivariateNormal(torch.zeros(4), torch.eye(4))
    return (log_prob - kl_divergence(q, prior)).mean().item()


with torch.no_grad():
    precision = q.precision_matrix.diagonal(dim1=1, dim2=2)
    independent = MultivariateNormal(codes, torch.diag_embed(1 / precision))
    full, diagonal = bound(q), bound(independent)
print(f"bound with the full covariance {full:.2f}, with a diagonal one {diagonal:.2f}")
print(f"largest correlation within a code {correlation.tril(-1).abs().max():.2f}")
assert full > diagonal
assert pixel_spread.shape == test.shape
