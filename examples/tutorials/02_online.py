"""2. Online training
==================

Post hoc, the mean of the weights is what plain training found, and a network drawn
around it may be worse. Online, mean and precision are trained together: every step
draws a network, and moves the mean so that *drawn* networks reconstruct well.
"""

# %%
# One call
# --------

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE, OnlineSettings

pixels, digits = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32) / 16
train, test = images[:1500], images[1500:]
loader = DataLoader(TensorDataset(train), batch_size=64, shuffle=True)


def autoencoder() -> AutoEncoder:
    torch.manual_seed(0)
    return AutoEncoder(
        nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)),
        nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64)),
    )


la = LaplaceAE(autoencoder())
history = la.fit_online(
    loader,
    n_epochs=20,
    lr=5e-3,
    settings=OnlineSettings(alpha=1e-2),
    validation_loader=DataLoader(TensorDataset(test), batch_size=297),
    progress_bar=False,
)

figure, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
steps = len(history.losses)
ax.plot(history.losses, color="0.7", label="drawn network, each batch")
per_epoch = torch.arange(1, history.epochs + 1) * (steps // history.epochs)
ax.plot(per_epoch, history.validation, "o-", color="#0072b2", label="validation")
ax.axvline(steps / 10, color="#e69f00", ls="--", label="end of warm-up")
ax.set(xlabel="step", ylabel="squared error of an image", ylim=(0, 10))
ax.legend(frameon=False)
plt.show()

# %%
# The first tenth of the run is at the mean weights, while the precision builds up: at
# nothing but the prior, a drawn network knows nothing, and Adam would remember its huge
# gradients for long.

# %%
# Codes and their spread
# ----------------------
# Each digit's code is the mean over 100 drawn encoders. Circles are as large as the
# spread.

code, code_variance = la.latent(test, generator=torch.Generator().manual_seed(0))
figure, ax = plt.subplots(figsize=(5, 4), layout="constrained")
spread = code_variance.mean(1).sqrt()
area = 40 * (spread / spread.median()) ** 2
colours = {"c": digits[1500:], "cmap": "tab10", "vmin": -0.5, "vmax": 9.5}
dots = ax.scatter(*code.T, s=area, alpha=0.6, **colours)
figure.colorbar(dots, ax=ax, ticks=range(10), label="digit")
ax.set(xlabel="first code", ylabel="second code")
plt.show()

# %%
# An effective temperature
# ------------------------
# The paper's update, ``H <- (1 - alpha) H + GGN``, does not settle at the data's GGN
# but at ``1 / alpha`` times it. So the posterior is colder than Bayes' by that factor.
# Compare H with a post-hoc fit at the same weights:


def times_the_data(la: LaplaceAE) -> float:
    posthoc = LaplaceAE(la.model)
    posthoc.fit(loader)
    matters = posthoc.H > 1e-3 * posthoc.H.mean()  # some pixels are always black
    return (la.H / posthoc.H)[matters].median().item()


def errors(la: LaplaceAE) -> tuple[float, float]:
    drawn = la.samples(test, 50, torch.Generator().manual_seed(0))

    def error(images: Tensor) -> float:
        return (images - test).square().sum(-1).mean().item()

    return error(drawn), error(drawn.mean(0))


warmer = LaplaceAE(autoencoder())
settings = OnlineSettings(alpha=3e-2)
warmer.fit_online(loader, 20, lr=5e-3, settings=settings, progress_bar=False)
ratios = {1e-2: times_the_data(la), 3e-2: times_the_data(warmer)}
print("alpha   1 / alpha   H / GGN   error of: drawn networks   their mean")
for (alpha, ratio), posterior in zip(ratios.items(), (la, warmer), strict=True):
    drawn, mean = errors(posterior)
    print(f"{alpha:<8}{1 / alpha:<12.1f}{ratio:<10.1f}{drawn:<27.2f}{mean:.2f}")

# %%
# A larger ``alpha`` is warmer: drawn networks differ more from each other. The
# default, 0.001, is what the published code uses. It needs a few thousand steps to
# settle, more than this page has.

for alpha, ratio in ratios.items():
    assert 0.9 < alpha * ratio < 1.1
assert history.validation[-1] < history.validation[0]
