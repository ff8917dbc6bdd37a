"""The state of a run: written down, and taken up again all or not at all."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lae_backpack.posterior import distributed
from lae_backpack.posterior.online import checkpoint
from lae_backpack.posterior.online.checkpoint import CheckpointError
from lae_backpack.posterior.online.randomness import random_states, set_random_states
from lae_backpack.posterior.online.settings import History

if TYPE_CHECKING:
    from lae_backpack.posterior.autoencoder import LaplaceAE
    from lae_backpack.posterior.online.run import OnlineRun

State = dict[str, Any]
copy_of = copy.deepcopy
BEST = {
    "model", "precision", "looks", "sigma_noise", "loss", "validation", "samples",
}  # fmt: skip
# What a run may have or not, by its name in a file.
MAY_BE_MISSING: dict[str, tuple[type, ...]] = {
    "best": (dict, type(None)),
    "batches": (int, type(None)),
    "scheduler": (dict, type(None)),
    "scheduler_class": (str, type(None)),
}


def posterior_state(la: LaplaceAE) -> State:
    """What training changes of a posterior.

    Args:
        la: The posterior.

    Returns:
        Mean, precision and noise; not copied.
    """
    return {
        "model": dict(la.model.state_dict()),
        "precision": la.H,
        "looks": la.looks if la.backend.calibrates else None,
        "sigma_noise": la.sigma_noise,
        "loss": float(la.loss),
    }


def restore_posterior(la: LaplaceAE, state: State) -> None:
    """Undo what training has changed since.

    Args:
        la: The posterior.
        state: What ``posterior_state`` gave.
    """
    la.model.load_state_dict(state["model"])
    precision = state["precision"].to(la.H)
    if la.backend.calibrates:
        la.take_looks(state["looks"].to(la.H))
    la.H = precision
    la.sigma_noise = state["sigma_noise"].to(la.H)
    la.loss = state["loss"]


def save(run: OnlineRun, path: Path) -> None:
    """Write a checkpoint.

    Args:
        run: The run.
        path: Where to.
    """
    state = state_of(run)
    if distributed.rank() == 0:
        checkpoint.save(path, state)


def resume(run: OnlineRun, path: Path) -> None:
    """Take a run up where its checkpoint left it.

    Args:
        run: The run, not started yet.
        path: Where the checkpoint is.
    """
    take_up(run, distributed.of_rank_zero(lambda: checkpoint.load(path)), path.name)


def take_up(
    run: OnlineRun, state: State, name: str, leave: tuple[str, ...] = ()
) -> None:
    """Bring a run to where another one was.

    Args:
        run: The run, not started yet.
        state: What ``state_of`` gave.
        name: What the state came from.
        leave: Parts that someone else restores: the optimizer, the scheduler.

    Raises:
        CheckpointError: If it is of another run; nothing has changed then.
    """
    own, state = (
        {part: value for part, value in whole.items() if part not in leave}
        for whole in (state_of(run), state)
    )
    before = copy_of(own)
    try:
        require_same_kinds(before, state, name)
        _require_best(state, name)
        _require_same_run(before, state, name)
        _restore(run, state)
    except CheckpointError:
        raise  # nothing has changed yet
    except Exception as error:  # whatever a damaged file leads to
        _restore(run, before)
        raise CheckpointError(
            f"{name} does not fit this run: {error} Build model, optimiser and "
            "scheduler as they were, or delete the file to start anew."
        ) from error


def state_of(run: OnlineRun) -> State:
    """Everything that a run is at this moment.

    Args:
        run: The run.

    Returns:
        Tensors, numbers, texts, and lists and dicts of them; not copied.
    """
    la, scheduler = run.la, run.scheduler
    return {
        **posterior_state(la),
        "settings": asdict(run.settings),
        "posterior": {
            "likelihood": str(la.likelihood),
            # As it was set; a memory budget may have lowered it since.
            "max_dense_dim": la._backend_kwargs["max_dense_dim"],
            "n_probes": la.backend.n_probes,
            "shrink": la.backend.calibrates,
            "learns_noise": la.learns_noise,
            "dtype": str(la.H.dtype),
            "temperature": float(la.temperature),
        },
        "n_ranks": distributed.n_ranks(),
        "batches": run.n_batches,
        "scheduler_steps": run.scheduler_steps,
        "n_data": run.n_data,
        "optimizer_class": type(run.optimizer).__name__,
        "optimizer": run.optimizer.state_dict(),
        "scheduler_class": None if scheduler is None else type(scheduler).__name__,
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "history": asdict(run.history),
        "seed": run.seed,
        "warmup_steps": run.warmup_steps,
        "n_outputs": run.n_outputs,
        "epoch_loss": run.epoch_loss,
        "epoch_samples": run.epoch_samples,
        "batches_done": run.batches_done,
        "epoch_start": distributed.gathered(run.epoch_start),
        "now": distributed.gathered(random_states(run.loader, la._device)),
        "best": run.best,
    }


def require_same_kinds(own: State, state: State, name: str) -> None:
    """Refuse a file that lacks a part, or has something else in its place.

    Args:
        own: What is needed.
        state: What there is.
        name: What that came from.

    Raises:
        CheckpointError: If it does not fit.
    """
    missing = sorted(own.keys() - state.keys())
    if missing:
        raise CheckpointError(f"{name} lacks {missing}. Delete it to start anew.")
    for part, value in own.items():
        kinds = type(value), *MAY_BE_MISSING.get(part, ())
        if not isinstance(state[part], kinds):
            raise CheckpointError(
                f"{name} has a {type(state[part]).__name__} as {part}, a "
                f"{type(value).__name__} is needed. Delete it to start anew."
            )


def _require_best(state: State, name: str) -> None:
    """Refuse a file that lacks something of the best epoch.

    Raises:
        CheckpointError: If it does.
    """
    best = state["best"]
    if best is not None and not best.keys() >= BEST:
        raise CheckpointError(
            f"{name} lacks {sorted(BEST - best.keys())} of the best epoch. Delete it "
            "to start anew."
        )


def _require_same_run(own: State, state: State, name: str) -> None:
    """Compare what has to be equal.

    Raises:
        CheckpointError: If it is not.
    """
    same = (
        "settings",
        "posterior",
        "n_data",
        "batches",
        "optimizer_class",
        "scheduler_class",
        "scheduler_steps",
    )
    for part in same:
        if part == "batches" and own["n_ranks"] != state["n_ranks"]:
            continue  # more ranks have fewer batches each
        if own[part] != state[part]:
            raise CheckpointError(
                f"{name} was written with {part} {state[part]}, this run has "
                f"{own[part]}. Use the same, or delete the file to start anew."
            )
    require_same_model(own, state, name)


def require_same_model(own: State, state: State, name: str) -> None:
    """Compare the shapes of weights and precision.

    Args:
        own: What ``posterior_state`` gives.
        state: What it gave.
        name: What that came from.

    Raises:
        CheckpointError: If they differ.
    """
    shapes, theirs = (
        {key: value.shape for key, value in s["model"].items()} for s in (own, state)
    )
    if shapes != theirs or own["precision"].shape != state["precision"].shape:
        differing = sorted(
            key
            for key in shapes.keys() | theirs.keys()
            if shapes.get(key) != theirs.get(key)
        )
        raise CheckpointError(
            f"{name} is of another model: {differing or 'trainable parameters'} "
            "differ. Build the model as it was, or give another path."
        )


def _restore(run: OnlineRun, state: State) -> None:
    restore_posterior(run.la, state)
    if "optimizer" in state:
        run.optimizer.load_state_dict(state["optimizer"])
    if run.scheduler is not None and "scheduler" in state:
        run.scheduler.load_state_dict(state["scheduler"])
    run.history = History(**state["history"])
    run.seed, run.warmup_steps = state["seed"], state["warmup_steps"]
    run.n_outputs = state["n_outputs"]
    run.epoch_loss, run.epoch_samples = state["epoch_loss"], state["epoch_samples"]
    run.batches_done, run.best = state["batches_done"], state["best"]
    rank, device = distributed.rank(), run.la._device
    if rank < state["n_ranks"]:
        run.epoch_start = state["epoch_start"][rank]
        set_random_states(state["now"][rank], run.loader, device)
    else:  # a rank there was not goes on from its own randomness
        run.epoch_start = random_states(run.loader, device)
    if state["n_ranks"] != distributed.n_ranks():
        _fit_to_ranks(run, state["batches"])


def _fit_to_ranks(run: OnlineRun, batches_before: int | None) -> None:
    """Go on at the same place of the epoch, with steps of another size."""
    size = getattr(run.loader, "batch_size", None)
    n_together = sum(n or 0 for n in distributed.gathered(size))
    run.batches_done = run.epoch_samples // n_together if n_together else 0
    scheduler = run.scheduler
    if run.own_schedule and scheduler is not None and batches_before:
        steps = scheduler.last_epoch * (run.n_batches or 0) / batches_before
        scheduler.last_epoch = round(steps)
