"""Training mean and precision together, as users call it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from lae_backpack.posterior import distributed
from lae_backpack.posterior.batches import NO_BATCH, n_data_of_all_ranks
from lae_backpack.posterior.choices import require_at_least, require_one_of
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
        _require_parameters_of(optimizer, self)
        settings = settings or OnlineSettings()
        self.choose_structure(post_hoc=False)
        n_steps = n_epochs * (n_batches or 1)
        own_schedule = optimizer is None and lr_decay == "cosine"
        _require_same_on_all_ranks(
            self, n_epochs, settings, scheduler_steps, validation_loader is None,
            patience, checkpoint is None, checkpoint_every, resume,
        )  # fmt: skip
        if optimizer is None:
            optimizer = _adam(self.params, float(lr))
            if lr_decay == "cosine":
                scheduler_steps = "epoch" if n_batches is None else "batch"
                scheduler = _cosine(optimizer, n_steps)
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
        before = self.H, self.sigma_noise
        try:
            if self.noise_from_residuals:
                self.sigma_noise = 1.0
            if settings.initial_precision is not None:
                halves = 2 if self.backend.calibrates else 1
                each = settings.initial_precision / halves
                self.take_looks(torch.full_like(self.looks, each))
            path = run.checkpoint
            if resume and path is not None and distributed.of_rank_zero(path.exists):
                resume_run(run, path)
            return run.run()
        except BaseException:
            if not run.history.losses:
                self.H, self.sigma_noise = before
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
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "optimizer is LBFGS, which asks for the loss several times in a step. Use "
            "one that takes gradients, such as Adam or SGD."
        )
    if scheduler is not None and optimizer is not None:
        if scheduler.optimizer is not optimizer:
            raise ValueError(
                "scheduler was made for another optimizer. Make it with this one."
            )
    if scheduler is not None and optimizer is None:
        raise ValueError(
            "scheduler belongs to an optimizer, got optimizer=None. Pass the optimiser "
            "that the scheduler was made for."
        )
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


def _require_parameters_of(optimizer: Optimizer | None, la: LaplaceAE) -> None:
    """Refuse an optimiser of another model.

    Raises:
        ValueError: If it does not hold a trainable parameter of this one.
    """
    if optimizer is None:
        return
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not all(id(p) in held for p in la.params):
        raise ValueError(
            "optimizer does not hold all trainable parameters of the model. Make it "
            "with la.params, or freeze the others before LaplaceAE(model)."
        )


def _adam(params: list[torch.nn.Parameter], lr: float) -> Adam:
    # One kernel instead of a dozen, where there is one.
    fused = all(p.device.type in ("cpu", "cuda") for p in params)
    return Adam(params, lr, fused=fused)


def _cosine(optimizer: Optimizer, n_steps: int) -> LambdaLR:
    return LambdaLR(optimizer, lambda t: 0.5 + 0.5 * math.cos(math.pi * t / n_steps))
