"""A run of online training."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from tqdm import tqdm

from lae_backpack.posterior import distributed
from lae_backpack.posterior.batches import checked_batches
from lae_backpack.posterior.online import resuming
from lae_backpack.posterior.online.randomness import (
    States,
    random_states,
    set_random_states,
)
from lae_backpack.posterior.online.settings import History, OnlineSettings
from lae_backpack.posterior.online.step import EMStep, Taken
from lae_backpack.posterior.online.validation import SampledLoss
from lae_backpack.posterior.sampling import as_vector

if TYPE_CHECKING:
    from lae_backpack.posterior.autoencoder import LaplaceAE

Callback = Callable[["LaplaceAE", History], None]
Moment = Literal["epoch", "batch"]
BAR_EVERY = 20  # steps between two looks of the progress bar


@dataclass
class OnlineRun:
    """What a run is made of, and how far it is."""

    la: LaplaceAE
    loader: Iterable[object]
    n_data: int
    n_batches: int | None
    n_epochs: int
    settings: OnlineSettings
    optimizer: Optimizer
    scheduler: LRScheduler | None
    scheduler_steps: Moment
    warmup_steps: int
    seed: int
    validation_loader: Iterable[object] | None = None
    patience: int | None = None
    callbacks: Iterable[Callback] = ()
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    progress_bar: bool = False
    own_schedule: bool = False  # the cosine over all steps
    history: History = field(default_factory=History)
    n_outputs: int = 0
    epoch_loss: float = 0.0  # summed over the samples of the present epoch
    epoch_samples: int = 0
    batches_done: int = 0  # of the present epoch
    epoch_start: States = field(default_factory=dict)
    best: dict[str, Any] | None = None
    before: tuple[Any, ...] | None = None  # probes, precision, its looks, and noise

    def start(self) -> None:
        """Set structure, noise and precision to what training starts from."""
        la, initial = self.la, self.settings.initial_precision
        self.before = la.backend.n_probes, la.H, la._looks, la.sigma_noise
        la.choose_structure(post_hoc=False)
        if la.noise_from_residuals:
            la.sigma_noise = 1.0
        if initial is not None:
            halves = 2 if la.backend.calibrates else 1
            la.take_looks(torch.full_like(la.looks, initial / halves))

    def undo_start_without_steps(self) -> None:
        """Take all of that back, if there is nothing to show for it."""
        la = self.la
        if self.before is not None and not self.history.losses:
            la.backend.n_probes, la.H, la._looks, la.sigma_noise = self.before

    def run(self) -> History:
        """Train to the end.

        Returns:
            The history.
        """
        history = self.history
        try:
            while history.epochs < self.n_epochs and not history.stopped_early:
                self._epoch()
                self._end_epoch()
        finally:
            self.finish()
        if self.best is not None:
            resuming.restore_posterior(self.la, self.best)
            self.la.mean = as_vector(self.la.params)
        return history

    def _epoch(self) -> None:
        la, history, skipped = self.la, self.history, self.batches_done
        now = random_states(self.loader, la._device)
        if skipped:  # taken up in the middle: the same batches again, up to there
            set_random_states(self.epoch_start, self.loader, la._device)
        else:
            self.epoch_start = now
            self.forget_epoch()
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(history.epochs)
        step = self.new_step()
        bar = tqdm(
            distributed.as_long_as_others(
                checked_batches(self.loader, la.model, la.bernoulli)
            ),
            desc=f"epoch {history.epochs + 1}/{self.n_epochs}",
            total=self.n_batches,
            disable=not self.progress_bar or distributed.rank() > 0,
        )
        for number, x in enumerate(bar, start=1):
            if number <= skipped:
                if number == skipped:
                    set_random_states(now, self.loader, la._device)
                continue
            if self.take_step(step, x, number) is None:
                break
            if self.progress_bar and number % BAR_EVERY == 0:
                bar.set_postfix(self._watched(), refresh=False)
            if (
                self.checkpoint_every
                and len(history.losses) % self.checkpoint_every == 0
            ):
                self._save()

    def forget_epoch(self) -> None:
        """Start an epoch's sums anew."""
        self.epoch_loss, self.epoch_samples = 0.0, 0

    def new_step(self) -> EMStep:
        """What does the steps of an epoch.

        Returns:
            It, with buffers of its own: an H that users hold stays as it is.
        """
        return EMStep(
            self.la,
            self.optimizer,
            self.settings,
            self.n_data,
            self.warmup_steps,
            self.seed,
        )

    def take_step(self, step: EMStep, x: Tensor | None, number: int) -> Taken | None:
        """Do one step and write down what it was like.

        Args:
            step: What does it.
            x: A batch, or ``None`` if this rank has no more.  # [N, *in]
            number: The batch's number in the epoch, from 1.

        Returns:
            What it was like, or ``None`` if no rank had a batch.
        """
        taken = step(x, len(self.history.losses))
        if taken is not None:
            self.history.losses.append(taken.loss)
            self.epoch_loss += taken.loss * taken.n_rows
            self.epoch_samples += taken.n_rows
            self.batches_done, self.n_outputs = number, taken.n_outputs
            self.step_scheduler("batch")
        return taken

    def finish(self) -> None:
        """Leave a posterior that can be used: also after an exception."""
        self.optimizer.zero_grad(set_to_none=True)
        self.make_usable()

    def close_epoch(self) -> None:
        """Count an epoch whose steps are done."""
        self.history.epochs += 1
        self.batches_done = 0
        distributed.take_buffers_of_rank_zero(self.la.model)
        self.make_usable()

    def _end_epoch(self) -> None:
        history = self.history
        self.close_epoch()
        if self.validation_loader is not None:
            history.validation.append(self._validation_loss(self.validation_loader))
            self._consider_stopping()
        self.step_scheduler("epoch")
        for callback in self.callbacks:
            callback(self.la, history)
        self._save()

    def _consider_stopping(self) -> None:
        history, best = self.history, self.best
        if self.patience is None:
            return
        loss, samples = history.validation[-1], self.samples
        # Losses at the mean weights, in the warm-up, compare with each other alone.
        if best is None or best["samples"] != samples or not loss >= best["validation"]:
            history.best_epoch = history.epochs
            state = resuming.copy_of(resuming.posterior_state(self.la))
            self.best = {**state, "validation": loss, "samples": samples}
        history.stopped_early = history.epochs - history.best_epoch >= self.patience

    @property
    def samples(self) -> bool:
        """Whether networks are sampled, the warm-up being over."""
        return len(self.history.losses) > self.warmup_steps

    def _validation_loss(self, loader: Iterable[object]) -> float:
        """The loss per sample of sampled networks, over all ranks' data.

        Returns:
            The loss.
        """
        loss = self.sampled_loss()
        total, count = 0.0, 0
        states = random_states(loader, self.la._device)
        batches = checked_batches(loader, self.la.model, self.la.bernoulli)
        for number, x in enumerate(batches):
            total += loss(x, number)
            count += len(x)
        set_random_states(states, loader, self.la._device)
        totals, counts = zip(*distributed.gathered((total, count)), strict=True)
        return sum(totals) / sum(counts)

    def sampled_loss(self) -> SampledLoss:
        """What computes the validation loss at this moment.

        Returns:
            It; in the warm-up, with the mean weights instead of sampled ones.
        """
        antithetic = self.settings.antithetic
        return SampledLoss(self.la, self.seed, antithetic, self.samples)

    def step_scheduler(self, moment: Moment) -> None:
        """Let the scheduler step, if it is its time.

        Args:
            moment: What has just ended.
        """
        if self.scheduler is None or self.scheduler_steps != moment:
            return
        if isinstance(self.scheduler, ReduceLROnPlateau):
            watched = self.history.validation or self.history.losses
            self.scheduler.step(watched[-1])
        else:
            self.scheduler.step()

    def _save(self) -> None:
        if self.checkpoint is not None:
            resuming.save(self, self.checkpoint)

    def _watched(self) -> dict[str, str]:
        history = self.history
        watched = {
            "loss": statistics.fmean(history.losses[-100:]),
            "weight sd": self.la.posterior_scale.mean().item(),
            "lr": self.optimizer.param_groups[0]["lr"],
        }
        if history.validation:
            watched["validation"] = history.validation[-1]
        return {name: f"{value:.4g}" for name, value in watched.items()}

    def make_usable(self) -> None:
        """Tell the posterior what ``fit`` would."""
        la = self.la
        if not self.epoch_samples:
            return
        la.mean = as_vector(la.params)
        la.n_data, la.n_outputs = self.n_data, self.n_outputs
        per_sample = self.epoch_loss / self.epoch_samples
        la.loss = la.backend.factor * self.n_data * per_sample
