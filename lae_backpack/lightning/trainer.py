"""What a Trainer must be like, and what it does to a posterior's device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lae_backpack.posterior import distributed

if TYPE_CHECKING:
    from lae_backpack.lightning.installed import Trainer
    from lae_backpack.posterior.autoencoder import LaplaceAE

HELD = "H", "_looks", "mean", "loss"
BY_SETTERS = "sigma_noise", "prior_precision", "prior_mean"
PRECISIONS = ("32-true", "bf16-mixed")


def require_trainer_that_fits(trainer: Trainer) -> None:
    """Refuse what this module cannot do; Lightning itself refuses the rest.

    Args:
        trainer: The Trainer.

    Raises:
        ValueError: If it has several processes, or a precision that changes the model.
    """
    strategy = type(trainer.strategy).__name__
    n_processes = max(trainer.world_size, distributed.n_ranks())
    if n_processes > 1 or not strategy.startswith("SingleDevice"):
        raise ValueError(
            f"LaplaceAEModule trains in one process, got {n_processes} and {strategy}. "
            "Use Trainer(devices=1), or call la.fit_online on all ranks of torchrun."
        )
    if trainer.precision not in PRECISIONS:
        raise ValueError(
            f"Trainer(precision={trainer.precision!r}) is not supported, allowed: "
            f"{PRECISIONS}. Convert the model before LaplaceAE(model), for instance "
            "with model.double(), and leave precision out."
        )


def n_steps_of(trainer: Trainer) -> int:
    """How long training will be.

    Args:
        trainer: The Trainer.

    Returns:
        Its steps.

    Raises:
        ValueError: If it has no end.
    """
    n_steps = trainer.estimated_stepping_batches
    if not 1 <= n_steps < float("inf"):
        raise ValueError(
            "The Trainer has no end that is known, and warm-up and the learning rate "
            "depend on it. Give it max_epochs and a loader with a length, or max_steps."
        )
    return int(n_steps)


def follow_device(la: LaplaceAE) -> None:
    """Take a posterior to where the Trainer has taken its model.

    Args:
        la: The posterior.
    """
    device = la._device
    held = {name: getattr(la, name) for name in HELD + BY_SETTERS}
    tensors = {n: value for n, value in held.items() if isinstance(value, Tensor)}
    if all(value.device == device for value in tensors.values()):
        return
    # What the posterior keeps for later must be fit for training, too.
    with torch.inference_mode(False), torch.no_grad():
        for name, value in tensors.items():
            # Setters look at the value, and take it to the model's device themselves.
            setattr(la, name, value if name in BY_SETTERS else value.to(device))


def whole_number(n_batches: float) -> int | None:
    """A number of batches, as ``fit_online`` knows it.

    Args:
        n_batches: What the Trainer says.

    Returns:
        It, or ``None`` if the loader does not tell.
    """
    return None if n_batches == float("inf") else int(n_batches)
