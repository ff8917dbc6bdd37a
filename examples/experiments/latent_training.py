"""One protocol for all latent-variable models: the small network of the VLAE paper.

Adam, batches of 128, 55,000 images for training and 5,000 to choose the epoch.
Gaussian pixels: the mean image is subtracted, one noise scale is learned and begins at
the pixels' spread. Bernoulli pixels: drawn anew for every batch of training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from latent_baselines import VAE, HouseholderVAE, SemiAmortisedVAE
from torch import Tensor, nn
from tqdm import tqdm

from lae_backpack.latent import VLAE, CodeModel

BATCH = 128
LR = 2e-3  # the best of 5e-4, 2e-3 and 5e-3 for the VAE, in a few epochs
N_VALIDATION = 5000


@dataclass(frozen=True)
class Images:
    """The three parts of a dataset.  # [N, 784] each.

    Attributes:
        binary: Pixels are probabilities, to be drawn.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    binary: bool

    @classmethod
    def prepared(cls, train: Tensor, test: Tensor, binary: bool, seed: int) -> Images:
        """Split and centre.

        Args:
            train: Pixels in [0, 1]; a twelfth is set apart.  # [N, 784]
            test: Pixels in [0, 1].  # [M, 784]
            binary: Whether pixels shall be drawn.
            seed: Of what is drawn once: the pixels of validation and test.

        Returns:
            The parts.
        """
        n_validation = min(N_VALIDATION, len(train) // 12)
        train, validation = train[:-n_validation], train[-n_validation:]
        if binary:
            generator = torch.Generator().manual_seed(seed)
            validation = torch.bernoulli(validation, generator=generator)
            test = torch.bernoulli(test, generator=generator)
            return cls(train, validation, test, binary)
        centre = train.mean(0)
        return cls(train - centre, validation - centre, test - centre, binary)


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLUs between them.

    Args:
        *sizes: Of all layers.

    Returns:
        The net.
    """
    layers: list[nn.Module] = []
    for n_in, n_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def build(
    name: str, n_updates: int, images: Images, hidden: int = 256, code: int = 16
) -> CodeModel:
    """A model with fresh weights.

    Args:
        name: ``"vae"``, ``"savae"``, ``"hf"`` or ``"vlae"``.
        n_updates: T: updates, steps or reflections.
        images: The data, for the noise to begin with.
        hidden: The width.
        code: The size of a code.

    Returns:
        The model.
    """
    likelihood = "bernoulli" if images.binary else "gaussian"
    spread = images.train.square().mean().sqrt().item()
    given = {"likelihood": likelihood, "sigma": spread}
    pixels = images.train.shape[1]
    decoder = mlp(code, hidden, pixels)
    if name == "vlae":
        encoder = mlp(pixels, hidden, code)
        return VLAE(encoder, decoder, n_updates=n_updates, **given)
    encoder = mlp(pixels, hidden, 2 * code)
    if name == "savae":
        return SemiAmortisedVAE(encoder, decoder, n_steps=n_updates, **given)
    if name == "hf":
        return HouseholderVAE(encoder, decoder, n_flows=n_updates, **given)
    return VAE(encoder, decoder, **given)


def over_batches(
    value: Callable[[Tensor], Tensor], images: Tensor, size: int = 500
) -> Tensor:
    """Evaluate something of every image.

    Args:
        value: Gives one number for each image of a batch.
        images: The images.  # [N, 784]
        size: Of a batch.

    Returns:
        The numbers.  # [N]
    """
    with torch.no_grad():
        return torch.cat([value(batch) for batch in images.split(size)])


def train(
    model: CodeModel,
    images: Images,
    n_epochs: int,
    seed: int,
    label: str = "",
    lr: float = LR,
    clip: float | None = None,
) -> list[float]:
    """Train a model; it ends up with the weights of its best epoch.

    Args:
        model: The model.
        images: The data.
        n_epochs: How many epochs.
        seed: Of order and noise.
        label: What the progress bar says.
        lr: The learning rate of Adam.
        clip: The largest norm of a gradient; longer ones are shortened to it.

    Returns:
        The validation images' mean bound after each epoch.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr, fused=True)
    curve: list[float] = []
    best = copy.deepcopy(model.state_dict())
    for _ in tqdm(range(n_epochs), desc=label, leave=False, disable=None):
        order = torch.randperm(len(images.train), generator=generator)
        for chosen in order.split(BATCH):
            x = images.train[chosen]
            x = torch.bernoulli(x, generator=generator) if images.binary else x
            optimizer.zero_grad()
            (-model.elbo(x, generator=generator).mean()).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        fixed = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():  # steps of the semi-amortised VAE draw there
            torch.manual_seed(seed)
            bounds = over_batches(
                lambda x, fixed=fixed: model.elbo(x, generator=fixed), images.validation
            )
        if not curve or bounds.mean().item() > max(curve):
            best = copy.deepcopy(model.state_dict())
        curve.append(bounds.mean().item())
    model.load_state_dict(best)
    return curve


def log_likelihood(
    model: CodeModel, images: Tensor, n_importance: int, seed: int
) -> Tensor:
    """Importance-sampled log-likelihoods.

    Args:
        model: The model.
        images: The images.  # [N, 784]
        n_importance: Samples for each.
        seed: Of the samples.

    Returns:
        Nats for each image.  # [N]
    """
    generator = torch.Generator().manual_seed(seed)
    return over_batches(
        lambda x: model.log_likelihood(x, n_importance, generator), images
    )
