"""A LaplaceAE as a module that Lightning trains."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import Self, override

from lae_backpack.lightning.checkpoints import Checkpoints
from lae_backpack.lightning.installed import Callback, Trainer
from lae_backpack.lightning.trainer import (
    follow_device,
    n_steps_of,
    require_trainer_that_fits,
    whole_number,
)
from lae_backpack.posterior.autoencoder import LaplaceAE
from lae_backpack.posterior.batches import BatchCheck, images_of, require_countable
from lae_backpack.posterior.choices import require_one_of
from lae_backpack.posterior.online.optimizers import (
    adam,
    cosine,
    require_gradient_steps,
    require_optimizer_of,
)
from lae_backpack.posterior.online.randomness import (
    States,
    random_states,
    set_random_states,
)
from lae_backpack.posterior.online.run import Moment, OnlineRun
from lae_backpack.posterior.online.settings import History, OnlineSettings
from lae_backpack.posterior.online.step import EMStep
from lae_backpack.posterior.online.validation import SampledLoss
from lae_backpack.posterior.sampling import new_seed


class LaplaceAEModule(Checkpoints):
    """Trains a LaplaceAE as ``la.fit_online`` does, by a Trainer's loop.

    It logs ``train_loss``, ``val_loss`` (of sampled networks), and after each epoch the
    ``evidence`` (the log marginal likelihood). Checkpoints hold mean, precision and
    randomness: taken up at the end of an epoch, a run goes on bit by bit. After
    ``trainer.fit`` the LaplaceAE is fitted.
    """

    def __init__(
        self,
        la: LaplaceAE,
        *,
        settings: OnlineSettings | None = None,
        lr: float = 1e-3,
        lr_decay: Literal["cosine", "constant"] = "cosine",
        optimizer: Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        scheduler_steps: Moment = "epoch",
        generator: torch.Generator | None = None,
    ) -> None:
        """Choose how to train; arguments are those of ``la.fit_online``.

        Args:
            la: What is trained, in place.
            settings: How the precision follows the data.
            lr: The learning rate of Adam, if no optimiser is given.
            lr_decay: Whether that rate falls to nothing over the Trainer's steps.
            optimizer: An optimiser of the model's parameters.
            scheduler: A scheduler of that optimiser.
            scheduler_steps: When it steps: each ``"epoch"`` or each ``"batch"``.
            generator: Where the weights' randomness comes from.
        """
        super().__init__(la)
        require_gradient_steps(optimizer, scheduler)
        require_one_of("lr_decay", lr_decay, ("cosine", "constant"))
        require_one_of("scheduler_steps", scheduler_steps, ("epoch", "batch"))
        self.automatic_optimization = False
        self._settings = settings or OnlineSettings()
        self._lr, self._lr_decay, self._generator = float(lr), lr_decay, generator
        self._given, self._scheduler_steps = (optimizer, scheduler), scheduler_steps
        self._step: EMStep | None = None
        self._check = self._validation_check = BatchCheck(la.model, la.bernoulli)
        self._sampled_loss: SampledLoss | None = None
        self._states: States | None = None  # random ones, from before validation
        self._validated: list[tuple[float, int]] = []  # losses and rows of batches

    @property
    def history(self) -> History:
        """What one watches, of the last ``trainer.fit``."""
        return self._history if self._run is None else self._run.history

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.la(x)

    @override
    def predict_step(self, batch: object, batch_idx: int = 0) -> tuple[Tensor, Tensor]:
        # What the posterior keeps for later must be fit for training, too.
        with torch.inference_mode(False), torch.no_grad():
            return self.la(images_of(batch).clone())

    @override
    def setup(self, stage: str) -> None:
        self._resumes = stage == "fit"
        if stage == "fit":
            self._run = self._loaded = self._before = None
            require_trainer_that_fits(self.trainer)
            self._history, self._rest, self._validates = History(), None, None
            self._seed = new_seed(self._generator)

    @override
    def teardown(self, stage: str) -> None:
        self._loaded = self._before = None
        if stage == "fit":
            self.leave_usable()
        follow_device(self.la)

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # The only way to follow the model when the Trainer puts it back after an
        # exception: it calls no hook then.
        moved = super()._apply(fn, recurse)
        follow_device(self.la)
        return moved

    @override
    def configure_callbacks(self) -> list[Callback]:
        return [LeavesUsable()]

    @override
    def configure_optimizers(self) -> Any:
        optimizer, scheduler = self._given
        if optimizer is None:
            optimizer = adam(self.la.params, self._lr)
            if self._lr_decay == "cosine":
                scheduler = cosine(optimizer, n_steps_of(self.trainer))
                self._scheduler_steps: Moment = "batch"
        return [optimizer], [] if scheduler is None else [scheduler]

    @override
    def on_train_start(self) -> None:
        follow_device(self.la)
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        if not isinstance(optimizer, Optimizer) or isinstance(scheduler, list):
            raise ValueError(
                "LaplaceAEModule takes one optimiser and at most one scheduler, got "
                "several. Let configure_optimizers return one of each."
            )
        require_optimizer_of(self.la, optimizer)
        loader: Any = self.trainer.train_dataloader
        n_data, n_steps = require_countable(loader), n_steps_of(self.trainer)
        self._run = OnlineRun(
            la=self.la,
            loader=loader,
            n_data=n_data,
            n_batches=whole_number(self.trainer.num_training_batches),
            n_epochs=self.trainer.max_epochs or 0,
            settings=self._settings,
            optimizer=optimizer,
            scheduler=scheduler,  # pyright: ignore[reportArgumentType]
            scheduler_steps=self._scheduler_steps,
            warmup_steps=self._settings.warmup_steps_of(n_steps),
            seed=self._seed,
        )
        self._run.start()
        self.take_up()

    @override
    def on_train_epoch_start(self) -> None:
        self._step = None

    @override
    def training_step(self, batch: object, batch_idx: int) -> Tensor:
        assert self._run is not None
        if self._step is None:
            self._step = self._run.new_step()
            self._check = BatchCheck(self.la.model, self.la.bernoulli)
            if batch_idx == 0:
                self._run.forget_epoch()
        number = batch_idx + 1
        taken = self._run.take_step(self._step, self._check(batch, number), number)
        assert taken is not None  # there is one rank, and it had a batch
        loss = torch.tensor(taken.loss, device=self.device)
        self.log("train_loss", loss, prog_bar=True, batch_size=taken.n_rows)
        return loss

    @override
    def on_train_epoch_end(self) -> None:
        assert self._run is not None
        self._run.close_epoch()
        self._run.step_scheduler("epoch")
        self.log("evidence", self.la.log_marginal_likelihood().detach())

    @override
    def on_train_end(self) -> None:
        self.leave_usable()

    def leave_usable(self) -> None:
        """Make a fitted posterior of what training has reached."""
        self.let_go()
        self.end_run()
        self.undo_load()  # of a checkpoint that the run could not take up

    def let_go(self) -> None:
        """Free what is kept for steps: copies of the model."""
        self._step = self._sampled_loss = self._states = None

    @override
    def on_predict_start(self) -> None:
        follow_device(self.la)

    @override
    def on_validation_model_zero_grad(self) -> None:
        super().on_validation_model_zero_grad()
        # The last moment before the Trainer makes an iterator, which draws a seed.
        loader = self.trainer.val_dataloaders
        self._states = random_states(loader, self.la._device)

    @override
    def on_validation_epoch_start(self) -> None:
        follow_device(self.la)
        self._validation_check = BatchCheck(self.la.model, self.la.bernoulli)
        self._validated = []
        if self._run is not None:
            self._sampled_loss = self._run.sampled_loss()
        else:  # a look before training, or at what was fitted before
            how = self._validates or (0, True, self.la.n_data > 0)
            self._sampled_loss = SampledLoss(self.la, *how)

    @override
    def validation_step(self, batch: object, batch_idx: int) -> Tensor:
        assert self._sampled_loss is not None
        x = self._validation_check(batch, batch_idx + 1)
        loss = self._sampled_loss(x, batch_idx)
        self._validated.append((loss, len(x)))
        per_sample = torch.tensor(loss / len(x), device=self.device)
        self.log("val_loss", per_sample, prog_bar=True, batch_size=len(x))
        return per_sample

    @override
    def on_validation_epoch_end(self) -> None:
        self._sampled_loss = None
        if self._states is not None:
            loader = self.trainer.val_dataloaders
            set_random_states(self._states, loader, self.la._device)
            self._states = None
        if self._run is not None and self.trainer.state.fn == "fit":
            losses, rows = zip(*self._validated, strict=True)
            self._run.history.validation.append(sum(losses) / sum(rows))


class LeavesUsable(Callback):
    """Tells a module of exceptions, which Lightning does not."""

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: Any, exception: BaseException
    ) -> None:
        if trainer.state.fn == "fit":
            pl_module.leave_usable()
        else:
            pl_module.let_go()
