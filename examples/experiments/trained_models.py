"""Models that are trained once for all experiments, and the images they see.

Trained ones are kept in a folder: an experiment that is stopped goes on from there, and
another one that asks for the same model gets it at once.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from baselines import BASELINES, Ensemble, train
from comparing import fashion_autoencoder, mnist_autoencoder
from experiment_images import Images, load
from recipes import RECIPES, USUAL, Recipe
from swapped import quickened
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE, OnlineSettings

CACHE = Path(__file__).parent / "cache"


def small_autoencoder() -> AutoEncoder:
    """A net for smoke runs.

    Returns:
        The net, for flat images of 28x28 pixels.
    """
    encoder = nn.Sequential(nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 2))
    decoder = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 784))
    return AutoEncoder(encoder, decoder)


NETS = {
    "small": small_autoencoder,
    "linear": mnist_autoencoder,
    "conv/16": partial(fashion_autoencoder, 16),  # for smoke runs, too
    "conv/4": partial(fashion_autoencoder, 4),
    "conv": partial(fashion_autoencoder, 1),
}
EXACT = {
    "hessian_structure": "mixed_diag",
    # In pieces whose memory is used again: whole batches take longer.
    "backend_kwargs": {"max_dense_dim": None, "memory_budget": "400MB"},
}
# A look at exact curvature takes far longer than a step: only at every 25th.
RARELY = OnlineSettings(refresh_every=25)
ONLINE: dict[str, tuple[dict[str, Any], OnlineSettings]] = {
    "online": ({"hessian_structure": "mixed_diag"}, OnlineSettings()),  # the default
    "online approx": ({"hessian_structure": "approx_diag"}, OnlineSettings()),
    "online exact": (EXACT, RARELY),
}
POST_HOC, ENSEMBLE = "post hoc", "ensemble"  # made of plain autoencoders
MODELS = (*BASELINES, POST_HOC, "online")


@dataclass(frozen=True)
class Setting:
    """What a model is trained on, for how long, and how.

    Attributes:
        data: The images.
        net: One of ``NETS``.
        epochs: How many.
        seed: Of weights and order.
        lr: The learning rate; ``None`` takes the recipe's.
        recipe: One of ``RECIPES``.
        look_every: Steps between two looks at the curvature in online training;
            ``None`` leaves it to model and recipe.
    """

    data: str = "mnist"
    net: str = "linear"
    epochs: int = 20
    seed: int = 0
    lr: float | None = None
    recipe: str = USUAL
    look_every: int | None = None

    @property
    def how(self) -> Recipe:
        """The recipe, with this learning rate."""
        recipe = RECIPES[self.recipe]
        return recipe if self.lr is None else replace(recipe, lr=self.lr)

    def untrained(self) -> AutoEncoder:
        """Make the net, whose convolutions run in their faster memory format.

        Returns:
            The net, as the recipe trains it.
        """
        net = NETS[self.net]().to(memory_format=torch.channels_last)
        return self.how.prepared(net)

    def shaped(self, x: Tensor) -> Tensor:
        """Images as the net takes them.

        Args:
            x: Images.  # [N, 1, 28, 28]

        Returns:
            The images, flat for nets of linear layers.
        """
        return x if "conv" in self.net else x.flatten(1)


@dataclass
class Zoo:
    """Finds models, or trains them."""

    folder: Path = CACHE
    data_dir: Path | None = None
    loaded: dict[str, Images] = field(default_factory=dict)

    def images(self, name: str) -> Images:
        """A data set, read once.

        Args:
            name: As for ``load``.

        Returns:
            Its parts.
        """
        if name not in self.loaded:
            self.loaded[name] = load(name, self.data_dir)
        return self.loaded[name]

    def loader(self, setting: Setting) -> DataLoader[Any]:
        """The training images in a random order that the seed alone decides.

        Args:
            setting: Which ones.

        Returns:
            Yields ``(x,)``.
        """
        data = TensorDataset(setting.shaped(self.images(setting.data).train.x))
        order = RandomSampler(
            data, generator=torch.Generator().manual_seed(setting.seed)
        )
        batches = BatchSampler(order, setting.how.batch, drop_last=False)
        return DataLoader(data, sampler=batches, batch_size=None)

    def model(self, name: str, setting: Setting) -> Any:
        """A trained model.

        Args:
            name: One of ``MODELS``, or of ``ONLINE``.
            setting: What it is trained on.

        Returns:
            The model in eval mode, with ``samples``, and ``latent_samples`` but for the
            ensemble.
        """
        if name == POST_HOC:
            return self._post_hoc(setting)
        if name == ENSEMBLE:
            return self._ensemble(setting)
        torch.manual_seed(setting.seed)
        model = _untrained(name, setting.untrained)
        path = self._path(name, setting)
        if path.exists():
            _restore(model, torch.load(path, weights_only=False))
        else:
            start = time.perf_counter()
            self._train(model, name, setting)
            state = _state(model) | {"seconds": time.perf_counter() - start}
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")  # another process may read
            torch.save(state, part)
            part.replace(path)
        (model.model if isinstance(model, LaplaceAE) else model).eval()
        return model

    def _train(self, model: Any, name: str, setting: Setting) -> None:
        loader, how = self.loader(setting), setting.how
        online = isinstance(model, LaplaceAE)
        params = model.params if online else list(model.parameters())
        optimizer = how.optimizer(params, how.lr)
        n_steps = setting.epochs * len(loader)
        schedule = how.decay(optimizer, n_steps)
        if online:
            settings = how.settings(ONLINE[name][1], n_steps)
            every = setting.look_every or settings.refresh_every
            model.fit_online(
                loader,
                setting.epochs,
                settings=replace(settings, refresh_every=every),
                optimizer=optimizer,
                scheduler=schedule,
                scheduler_steps="batch",
                progress_bar=False,
            )
        else:
            label = f"{name}, {setting.data}, {setting.net}, seed {setting.seed}"
            train(model, loader, setting.epochs, optimizer, schedule, label)

    def training_seconds(self, name: str, setting: Setting) -> float:
        """How long a model was trained.

        Args:
            name: The model.
            setting: What it is trained on.

        Returns:
            Seconds; post hoc those of the plain autoencoder.
        """
        path = self._path("autoencoder" if name == POST_HOC else name, setting)
        return torch.load(path, weights_only=False)["seconds"]

    def _post_hoc(self, setting: Setting) -> LaplaceAE:
        plain = self.model("autoencoder", setting)
        la = LaplaceAE(plain.net)
        la.fit(self.loader(setting))
        return la

    def _ensemble(self, setting: Setting) -> Ensemble:
        # Ensembles of other seeds share no member with this one.
        seeds = itertools.count(Ensemble.n_networks * setting.seed)

        def plain() -> AutoEncoder:
            return self.model("autoencoder", replace(setting, seed=next(seeds))).net

        return Ensemble(plain).eval()

    def _path(self, name: str, setting: Setting) -> Path:
        words = [setting.data, setting.net, setting.epochs, setting.seed, name]
        usual = RECIPES[setting.recipe].lr
        words += [] if setting.how.lr == usual else [f"lr {setting.how.lr:g}"]
        words += [] if setting.recipe == USUAL else [setting.recipe]
        words += [f"looks {setting.look_every}"] if setting.look_every else []
        stem = "-".join(str(word).replace(" ", "_").replace("/", "_") for word in words)
        return self.folder / f"{stem}.pt"


def _untrained(name: str, make: Callable[[], AutoEncoder]) -> Any:
    if name in ONLINE:
        return LaplaceAE(quickened(make()), **ONLINE[name][0])
    return quickened(BASELINES[name](make))


def _state(model: Any) -> dict[str, Any]:
    if isinstance(model, LaplaceAE):
        return {
            "weights": model.model.state_dict(),
            "posterior": model.state_dict(),
        }
    return {"weights": model.state_dict()}


def _restore(model: Any, state: dict[str, Any]) -> None:
    if isinstance(model, LaplaceAE):
        model.model.load_state_dict(state["weights"])
        model.load_state_dict(state["posterior"])
    else:
        model.load_state_dict(state["weights"])


def networks_of(model: Any, wanted: int) -> int:
    """How many networks to ask a model for.

    Args:
        model: The model.
        wanted: How many are wanted.

    Returns:
        Fewer if it has fewer.
    """
    return min(wanted, getattr(model, "n_networks", wanted))
