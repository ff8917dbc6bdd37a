"""Training mean and precision together, as users call it."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lae_backpack.posterior import distributed
from lae_backpack.posterior.batches import NO_BATCH, n_data_of_all_ranks
from lae_backpack.posterior.choices import require_at_least, require_one_of
from lae_backpack.posterior.online.optimizers import (
    adam,
    cosine,
    require_gradient_steps,
    require_optimizer_of,
)
from lae_backpack.posterior.online.resuming import resume as resume_run
from lae_backpack.posterior.online.run import Callback, Moment, OnlineRun
from lae_backpack.posterior.online.settings import History, OnlineSettings
from lae_backpack.posterior.rank_checks import require_same, require_same_posterior
from lae_backpack.posterior.sampling import new_seed

if TYPE_CHECKING:
    from lae_backpack.posterior.autoencoder import LaplaceAE


class OnlineTraining:
    """What LaplaceAE has beyond laplace-torch: its own training."""

    @distributed.failing_together()
    def fit_online(
        self: Any,
        loader: Iterable[object],
        n_epochs: int = 10,
        *,
        settings: OnlineSettings | None = None,
        lr: float = 1e-3,
        lr_decay: Literal["cosine", "constant"] = "cosine",
        optimizer: Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        scheduler_steps: Moment = "epoch",
        validation_loader: Iterable[object] | None = None,
        patience: int | None = None,
        callbacks: Iterable[Callback] = (),
        checkpoint: str | Path | None = None,
        checkpoint_every: int | None = None,
        resume: bool = False,
        generator: torch.Generator | None = None,
        progress_bar: bool = True,
    ) -> History:
        """Train the mean and the precision together, by Monte-Carlo EM.

        The mean is in the model at every moment. The noise is taken as 1, as in the
        paper, unless ``sigma_noise`` is a number or ``"learned"``.

        On several ranks of ``torch.distributed``, a step is one of all their batches
        together, and each rank samples its own networks.

        Args:
            loader: Yields ``x``, ``(x,)`` or ``(x, label)``; needs ``loader.dataset``.
            n_epochs: How many epochs, those of a resumed run included.
            settings: How the precision follows the data.
            lr: The learning rate of Adam, if no optimiser is given.
            lr_decay: Whether that rate falls to nothing over the ``n_epochs``.
            optimizer: An optimiser of the model's parameters.
            scheduler: A scheduler of that optimiser.
            scheduler_steps: When it steps: each ``"epoch"`` or each ``"batch"``.
            validation_loader: Data whose loss under sampled networks is computed after
                each epoch.
            patience: Stop after so many epochs without a lower validation loss, and go
                back to the best one.
            callbacks: Called with this object and the history after each epoch, on
                every rank.
            checkpoint: A file to write after each epoch, always whole, by rank 0.
            checkpoint_every: Write it after so many steps, too.
            resume: Take the run up from the checkpoint, if there is one.
            generator: Where the weights' randomness comes from.
            progress_bar: Show one.

        Returns:
            The history.

        Raises:
            ValueError: If settings do not fit together, or there is no data.
        """
        _require_settings_that_fit(
            n_epochs,
            optimizer, scheduler, validation_loader, patience, checkpoint,
            checkpoint_every, resume,
        )  # fmt: skip
        require_one_of("lr_decay", lr_decay, ("cosine", "constant"))
        require_one_of("scheduler_steps", scheduler_steps, ("epoch", "batch"))
        n_data, n_batches = n_data_of_all_ranks(loader), _n_batches(loader)
        if n_batches == 0:
            raise ValueError(NO_BATCH)
        if optimizer is not None:
            require_optimizer_of(self, optimizer)
        settings = settings or OnlineSettings()
        n_steps = n_epochs * (n_batches or 1)
        own_schedule = optimizer is None and lr_decay == "cosine"
        _require_same_on_all_ranks(
            self, n_epochs, settings, scheduler_steps, validation_loader is None,
            patience, checkpoint is None, checkpoint_every, resume,
        )  # fmt: skip
        if optimizer is None:
            optimizer = adam(self.params, float(lr))
            if lr_decay == "cosine":
                scheduler_steps = "epoch" if n_batches is None else "batch"
                scheduler = cosine(optimizer, n_steps)
        run = OnlineRun(
            la=self,
            loader=loader,
            n_data=n_data,
            n_batches=n_batches,
            n_epochs=n_epochs,
            settings=settings,
            optimizer=optimizer,
            scheduler=scheduler,
            scheduler_steps=scheduler_steps,
            warmup_steps=settings.warmup_steps_of(n_steps),
            seed=distributed.of_rank_zero(partial(new_seed, generator)),
            validation_loader=validation_loader,
            patience=patience,
            callbacks=tuple(callbacks),
            checkpoint=None if checkpoint is None else Path(checkpoint),
            checkpoint_every=checkpoint_every,
            progress_bar=progress_bar,
            own_schedule=own_schedule,
        )
        try:
            run.start()
            path = run.checkpoint
            if resume and path is not None and distributed.of_rank_zero(path.exists):
                resume_run(run, path)
            return run.run()
        except BaseException:
            run.undo_start_without_steps()
            raise


def _n_batches(loader: Iterable[object]) -> int | None:
    """The steps of an epoch, as far as loaders tell."""
    own = len(loader) if isinstance(loader, Sized) else None
    of_ranks = [n for n in distributed.gathered(own) if n is not None]
    return max(of_ranks) if len(of_ranks) == distributed.n_ranks() else None


def _require_same_on_all_ranks(la: LaplaceAE, *settings: object) -> None:
    """Refuse ranks that would train something else."""
    if distributed.n_ranks() > 1:
        require_same_posterior(la)
        remedy = "Call fit_online with the same settings on all ranks."
        require_same("setting", settings, remedy)


def _require_settings_that_fit(
    n_epochs: int,
    optimizer: Optimizer | None,
    scheduler: LRScheduler | None,
    validation_loader: Iterable[object] | None,
    patience: int | None,
    checkpoint: str | Path | None,
    checkpoint_every: int | None,
    resume: bool,
) -> None:
    """Refuse settings that make no sense together.

    Raises:
        ValueError: If they do not.
        FileNotFoundError: If there is no directory for the checkpoint.
    """
    require_at_least("n_epochs", n_epochs, 1)
    require_gradient_steps(optimizer, scheduler)
    if patience is not None and validation_loader is None:
        raise ValueError("patience needs a validation_loader, got None. Give one.")
    for name, value in (("patience", patience), ("checkpoint_every", checkpoint_every)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if checkpoint is None:
        if resume or checkpoint_every:
            raise ValueError(
                "resume and checkpoint_every need a checkpoint, got None. Give a path."
            )
    elif Path(checkpoint).is_dir():
        raise ValueError(
            f"checkpoint={str(checkpoint)!r} is a directory. Give a file in it."
        )
    elif not Path(checkpoint).absolute().parent.is_dir():
        raise FileNotFoundError(
            f"checkpoint={str(checkpoint)!r} is in a directory that does not exist. "
            "Create it first."
        )
