"""6. Outliers, missing pixels, few labels
=======================================

Three things people do with an autoencoder that knows what it does not know. All of them
take a ``LaplaceAE``, or anything else that gives samples.
"""

# %%
# One posterior for all of them
# -----------------------------
# Handwritten digits, trained online. The noise follows the error of drawn networks
# (``sigma_noise="learned"``), so densities mean something.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE, OnlineSettings
from lae_backpack.downstream.imputation import impute
from lae_backpack.downstream.ood import detection, outlier_scores
from lae_backpack.downstream.semisupervised import CodeNeighbours

torch.manual_seed(0)
pixels, numbers = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
labels = torch.tensor(numbers)
train, test = images[:1500], images[1500:]
model = AutoEncoder(
    nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)),
    nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Unflatten(1, (1, 8, 8))
    ),
)
la = LaplaceAE(model, sigma_noise="learned")
loader = DataLoader(TensorDataset(train), batch_size=64, shuffle=True)
la.fit_online(
    loader, 25, lr=5e-3, settings=OnlineSettings(alpha=3e-2), progress_bar=False
)
generator = torch.Generator().manual_seed(0)

# %%
# Outliers
# --------
# Two kinds: digits that lie on their side, and digits whose lower half belongs to
# another. Every score is higher for what is more outlying.

outliers = {
    "lying": test.transpose(2, 3),
    "halves": torch.cat((test[:, :, :4], test.roll(1, 0)[:, :, 4:]), dim=2),
}
inside = outlier_scores(la, test, reference=train, generator=generator)
found = {
    kind: outlier_scores(la, x, reference=train, generator=generator)
    for kind, x in outliers.items()
}
print(f"{'AUROC':<22}" + "".join(f"{kind:>8}" for kind in outliers))
auroc = {}
for score in inside:
    auroc[score] = {
        kind: detection(inside[score], outside[score]).auroc
        for kind, outside in found.items()
    }
    print(f"{score:<22}" + "".join(f"{v:8.3f}" for v in auroc[score].values()))

# %%
# Variances see images that use weights the data never used. A digit made of two halves
# uses none: its likelihood gives it away, its variance does not. Which score is best is
# a matter of the outliers, so look at several.

# %%
# Missing pixels
# --------------
# The lower half is hidden. Each mode starts from noise and goes through networks of its
# own; then several networks reconstruct it. What was observed stays as it is.

observed = torch.zeros(8, 8, dtype=torch.bool)
observed[:4] = True
filled = impute(
    la, test[:8], observed, n_modes=3, n_per_mode=20, n_steps=5, generator=generator
)

figure, axes = plt.subplots(6, 8, figsize=(8, 6.2), layout="constrained")
hidden = torch.where(observed, test[:8], torch.nan)
spread = filled.variance[0].sqrt()
rows = (
    ("image", test[:8]),
    ("observed", hidden),
    *((f"mode {i + 1}", mean) for i, mean in enumerate(filled.mean)),
    ("std of mode 1", spread),
)
for line, (name, pictures) in zip(axes, rows, strict=True):
    colours = plt.get_cmap("viridis" if "std" in name else "gray_r").copy()
    colours.set_bad("#f2dcb8")
    for ax, picture in zip(line, pictures, strict=True):
        top = spread.max().item() if "std" in name else 1
        ax.imshow(picture[0], cmap=colours, vmin=0, vmax=top)
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()

# %%
# Few labels
# ----------
# Five labelled digits of each class. Each is embedded by 100 drawn encoders, so an
# uncertain one reaches further; the nearest copies vote.

chosen = torch.cat([(labels[:1500] == digit).nonzero()[:5, 0] for digit in range(10)])
neighbours = CodeNeighbours(la, generator=generator).fit(train[chosen], labels[chosen])
accuracy = neighbours.accuracy(test, labels[1500:])
print(
    f"accuracy with {len(chosen)} labels: {accuracy:.2f} "
    f"(votes, chosen by cross-validation: {neighbours.n_neighbours})"
)

assert auroc["output_variance"]["lying"] > 0.95
assert auroc["log_likelihood"]["halves"] > 0.7
assert torch.equal(
    filled.mean[..., :4, :], test[:8, :, :4].expand_as(filled.mean[..., :4, :])
)
assert filled.variance[..., 4:, :].mean() > 0
assert accuracy > 0.5
