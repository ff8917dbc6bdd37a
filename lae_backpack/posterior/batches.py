"""Batches of autoencoders: the target is the input, and labels are left alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import Module


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


def checked_batches(loader: Iterable[object], model: Module) -> Iterator[Tensor]:
    """A loader's inputs, on the model's device.

    Args:
        loader: Yields ``x``, ``(x,)`` or ``(x, label)``.
        model: The model.

    Yields:
        Inputs.  # [N, *in]

    Raises:
        ValueError: If there is no batch, or one is not finite.
        TypeError: If a batch is not of the model's dtype.
    """
    weight = next(model.parameters())
    number = 0
    for number, batch in enumerate(loader, start=1):
        x = images_of(batch).to(weight.device)
        if x.dtype != weight.dtype:
            raise TypeError(
                f"Batch {number} has dtype {x.dtype}, the model {weight.dtype}. "
                f"Convert one of them, for instance with x.to({weight.dtype})."
            )
        if not torch.isfinite(x).all():
            raise ValueError(
                f"Batch {number} has pixels that are not finite. Clean the data, for "
                "instance with torch.nan_to_num."
            )
        yield x
    if number == 0:
        raise ValueError("The loader yields no batch. Give it a dataset with data.")
