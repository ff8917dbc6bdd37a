"""Batches of autoencoders: the target is the input, and labels are left alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import Module

from lae_backpack.curvature.recorder import lock_of
from lae_backpack.curvature.suspended import without_storing
from lae_backpack.posterior import distributed
from lae_backpack.posterior.chunks import automatic_size, cut
from lae_backpack.posterior.finite import first_not_finite
from lae_backpack.posterior.sampling import evaluating
from lae_backpack.posterior.shards import (
    n_own_samples,
    n_samples,
    own_part,
    yields_whole_items,
)

NO_BATCH = "The loader yields no batch. Give it a dataset with data."


def images_of(batch: object) -> Tensor:
    """The input of a batch in any of the usual forms.

    Args:
        batch: ``x``, ``(x,)`` or ``(x, label)``.

    Returns:
        ``x``.  # [N, *in]

    Raises:
        TypeError: If the batch has another form.
    """
    x = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(x, Tensor):
        raise TypeError(
            f"A batch must be x, (x,) or (x, label) with a tensor x, got "
            f"{type(batch).__name__}. Give the loader a TensorDataset, or a collate_fn."
        )
    return x


def require_sized(loader: Iterable[object]) -> int:
    """Refuse a loader that does not tell how much data it has.

    Args:
        loader: The loader.

    Returns:
        The samples of an epoch.

    Raises:
        TypeError: If the loader has no dataset, or one without length.
        ValueError: If there is no data.
    """
    n_data = n_samples(loader)
    if n_data is None:
        without = getattr(loader, "dataset", None) is None
        lacking = "no dataset" if without else "a dataset without a length"
        raise TypeError(
            f"Fitting must know how much data there is, and {type(loader).__name__} "
            f"has {lacking}. Use a DataLoader over a dataset with __len__."
        )
    if n_data == 0:
        raise ValueError(NO_BATCH)
    return n_data


def require_countable(loader: Iterable[object]) -> int:
    """As ``require_sized``, for those who weigh a batch by its share of the data.

    Args:
        loader: The loader.

    Returns:
        The samples of an epoch.

    Raises:
        TypeError: Also if its samples cannot be counted.
    """
    if yields_whole_items(loader):
        raise TypeError(
            "Training must know how much data there is, and the loader has "
            "batch_size=None: items of its dataset are whole batches of any size. Use "
            "DataLoader(dataset, batch_size=...), or sampler=BatchSampler(...) where "
            "the dataset takes lists of indices."
        )
    return require_sized(loader)


def n_data_of_all_ranks(loader: Iterable[object]) -> int:
    """How much data there is in an epoch.

    Args:
        loader: The loader of this rank; it may be empty if another's is not.

    Returns:
        The samples of all ranks.

    Raises:
        ValueError: If there is no data.
    """
    own = n_own_samples(loader)
    if own is None or distributed.n_ranks() == 1 or yields_whole_items(loader):
        return require_countable(loader)
    (n_data,) = distributed.meet(own)
    if n_data == 0:
        raise ValueError(NO_BATCH)
    return n_data


class Pairs:
    """A loader's images as what goes in and what shall come out."""

    def __init__(self, loader: Iterable[object]) -> None:
        """Keep the loader.

        Args:
            loader: Yields ``x``, ``(x,)`` or ``(x, label)``.
        """
        self._loader = loader

    @property
    def dataset(self) -> object:
        """What the loader goes through, for laplace-torch to count."""
        return self._loader.dataset  # type: ignore[attr-defined]

    def __len__(self) -> int:
        """How many batches there are, for laplace-torch's progress bar.

        Returns:
            As many as the loader says.
        """
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the loader.

        Yields:
            ``(x, x)``.
        """
        for batch in self._loader:
            x = images_of(batch)
            yield x, x


def checked_batches(
    loader: Iterable[object], model: Module, probabilities: bool = False
) -> Iterator[Tensor]:
    """A loader's inputs, on the model's device.

    Args:
        loader: Yields ``x``, ``(x,)`` or ``(x, label)``; of several ranks, one may be
            without data.
        model: The model.
        probabilities: Whether pixels must be within [0, 1].

    Yields:
        Inputs.  # [N, *in]

    Raises:
        ValueError: If there is no batch.
    """
    number, checked = 0, BatchCheck(model, probabilities)
    for number, batch in enumerate(own_part(loader), start=1):
        yield checked(batch, number)
    if number == 0 and distributed.n_ranks() == 1:
        raise ValueError(NO_BATCH)


class BatchCheck:
    """Gives the inputs of batches, one after the other, or refuses them."""

    def __init__(self, model: Module, probabilities: bool = False) -> None:
        """Start a pass through the data.

        Args:
            model: The model.
            probabilities: Whether pixels must be within [0, 1].
        """
        self._model, self._probabilities = model, probabilities
        self._shape: torch.Size | None = None  # the last one that the model took

    def __call__(self, batch: object, number: int) -> Tensor:
        """Check a batch.

        Args:
            batch: ``x``, ``(x,)`` or ``(x, label)``.
            number: Its number, from 1.

        Returns:
            ``x``, on the model's device.  # [N, *in]

        Raises:
            ValueError: If pixels are no probabilities.
        """
        x = checked_images(images_of(batch), self._model, f"Batch {number}")
        if x.shape[1:] != self._shape:
            require_reconstruction(self._model, x)
            self._shape = x.shape[1:]
        if self._probabilities and (x.min() < 0 or x.max() > 1):
            raise ValueError(
                f"Batch {number} has pixels from {x.min():.3g} to {x.max():.3g}, "
                "likelihood='bernoulli' needs [0, 1]. Scale the images."
            )
        return x


def checked_images(x: Tensor, model: Module, name: str = "x") -> Tensor:
    """A batch of images that an autoencoder can take.

    Args:
        x: The batch.  # [N, *in]
        model: The model.
        name: What the batch is called.

    Returns:
        The batch, on the model's device.

    Raises:
        ValueError: If it is empty, lacks a dimension, or is not finite.
        TypeError: If it is not of the model's dtype.
    """
    weight = next(model.parameters())
    x = x.to(weight.device)
    if x.dtype != weight.dtype:
        raise TypeError(
            f"{name} has dtype {x.dtype}, the model {weight.dtype}. "
            f"Convert one of them, for instance with x.to({weight.dtype})."
        )
    if x.dim() < 2 or len(x) == 0:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, [N, ...] with N of at least 1 is "
            "needed. Give a single image a batch dimension with x[None]."
        )
    chunks = cut(x, automatic_size(x))
    if any(first_not_finite([(name, chunk)]) is not None for chunk in chunks):
        raise ValueError(
            f"{name} has pixels that are not finite. Clean the data, for instance with "
            "torch.nan_to_num."
        )
    return x


def require_reconstruction(model: Module, x: Tensor) -> None:
    """Refuse a batch whose shape an autoencoder does not take or does not return.

    Args:
        model: The autoencoder.
        x: The batch.  # [N, *in]

    Raises:
        ValueError: If the shapes do not fit.
    """
    remedy = (
        "Give images of the size the model was made for, with a batch dimension, and "
        "let the decoder end in their shape."
    )
    # Two of the same: a single image without a batch dimension fails here, too.
    pair = torch.cat((x[:1], x[:1]))
    try:
        with lock_of(model), evaluating(model), without_storing(), torch.no_grad():
            shape = model(pair).shape
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"The model does not take x of shape {tuple(x.shape)}: {error}. {remedy}"
        ) from error
    if shape != pair.shape:
        raise ValueError(
            f"The reconstruction of x of shape {tuple(x.shape)} has shape "
            f"{(len(x), *shape[1:])}; they must be equal. {remedy}"
        )
