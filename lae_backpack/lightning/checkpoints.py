"""The posterior's part of Lightning's checkpoints."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lae_backpack.lightning.installed import LightningModule
from lae_backpack.lightning.trainer import follow_device
from lae_backpack.posterior.autoencoder import LaplaceAE
from lae_backpack.posterior.online import resuming
from lae_backpack.posterior.online.checkpoint import CheckpointError
from lae_backpack.posterior.online.randomness import random_states, set_random_states
from lae_backpack.posterior.online.run import OnlineRun
from lae_backpack.posterior.online.settings import History
from lae_backpack.posterior.sampling import as_vector

KEY = "lae_backpack"
BY_LIGHTNING = ("model", "optimizer", "scheduler")  # it saves them by itself
NAME = "The checkpoint"
# What loading sets anew and never changes in place, besides the weights.
REPLACED = ("H", "_looks", "sigma_noise", "mean", "loss", "n_data", "n_outputs")


class Checkpoints(LightningModule):
    """Saves and restores what Lightning does not know of."""

    def __init__(self, la: LaplaceAE) -> None:
        """Keep the posterior.

        Args:
            la: The posterior.
        """
        super().__init__()
        self.la, self.model = la, la.model
        self._run: OnlineRun | None = None  # there is one while training, only
        self._loaded: resuming.State | None = None
        self._before: resuming.State | None = None  # a checkpoint was loaded
        self._resumes = False
        # Of the last run, after its end:
        self._history = History()
        self._validates: tuple[int, bool, bool] | None = None  # as SampledLoss has it
        self._rest: resuming.State | None = None  # what taking it up needs

    def end_run(self) -> None:
        """Make a fitted posterior of what the run has reached, and let it go."""
        run, self._run = self._run, None
        if run is None:
            return
        run.finish()
        run.undo_start_without_steps()
        self._history = run.history
        self._validates = run.seed, run.settings.antithetic, run.samples
        if run.history.losses:
            posterior = self._posterior_state()
            rest = {k: v for k, v in _own(run).items() if k not in posterior}
            self._rest = rest | {"of": _fingerprint(self.la)}

    def _posterior_state(self) -> resuming.State:
        la = self.la
        state = resuming.posterior_state(la)
        return state | {"n_data": la.n_data, "n_outputs": la.n_outputs}

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.make_usable()
            checkpoint[KEY] = _own(self._run)
            return
        rest = dict(self._rest or {})
        if rest.pop("of", None) != _fingerprint(self.la):
            rest = {}  # fitted to something else since
        state = self._posterior_state()
        del state["model"]
        checkpoint[KEY] = rest | state

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint.get(KEY)
        if not isinstance(state, dict):
            raise CheckpointError(
                f"{NAME} has no part of {KEY!r}: it was not written by "
                "LaplaceAEModule. Give another one."
            )
        self._before = self._at_this_moment()
        try:
            loaded = self._load(state, checkpoint.get("state_dict"))
        except Exception as error:
            self.undo_load()
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"{NAME} is damaged or of another model: {error} Build the model as it "
                "was, or give another one."
            ) from error
        if self._resumes:
            self._loaded = loaded  # the run may yet refuse it
        else:
            self._before = self._rest = None

    def _load(self, state: resuming.State, weights: object) -> resuming.State:
        """Check what there is, then make it the posterior.

        Returns:
            The state with the model's weights.

        Raises:
            CheckpointError: If something is missing, or does not fit.
        """
        la = self.la
        if not isinstance(weights, dict):
            raise CheckpointError(f"{NAME} has no 'state_dict'. Give another one.")
        model = {key.removeprefix("model."): w for key, w in weights.items()}
        loaded = {**state, "model": model}
        la.choose_structure(post_hoc=False)
        own = self._posterior_state()
        if own["looks"] is None:
            del own["looks"]
        resuming.require_same_kinds({"precision": own["precision"]}, loaded, NAME)
        resuming.require_same_model(own, loaded, NAME)
        if self._resumes and "now" not in loaded:
            raise CheckpointError(
                f"{NAME} holds a posterior but no run to take up: it was saved outside "
                "of training. Use LaplaceAEModule.load_from_checkpoint, or give "
                "ckpt_path a file that was written while training."
            )
        resuming.require_same_kinds(own, loaded, NAME)
        resuming.restore_posterior(la, loaded)
        la.mean = as_vector(la.params)
        la.n_data, la.n_outputs = loaded["n_data"], loaded["n_outputs"]
        if self._resumes:
            # Before the Trainer asks its loader for an order of the data.
            set_random_states(loaded["now"][0], None, la._device)
        return loaded

    def _at_this_moment(self) -> resuming.State:
        la = self.la
        return {
            "model": resuming.copy_of(dict(la.model.state_dict())),
            "replaced": {name: getattr(la, name) for name in REPLACED},
            "n_probes": la.backend.n_probes,
            "random": random_states(None, la._device),
        }

    def undo_load(self) -> None:
        """Go back to before a checkpoint, unless it was taken up."""
        before, self._before, self._loaded = self._before, None, None
        if before is None:
            return
        la = self.la
        la.model.load_state_dict(before["model"])
        la.backend.n_probes = before["n_probes"]
        for name, value in before["replaced"].items():
            setattr(la, name, value)
        set_random_states(before["random"], None, la._device)
        follow_device(la)

    def take_up(self) -> None:
        """Bring the run to where the checkpoint was, if one was loaded."""
        run, loaded, self._loaded = self._run, self._loaded, None
        if run is None or loaded is None:
            return
        now = random_states(None, run.la._device)
        resuming.take_up(run, loaded, NAME, leave=("optimizer", "scheduler"))
        self._before = None
        # The Trainer has made an iterator before the loader's generators were restored,
        # and making one draws from them: draw the same.
        if getattr(run.loader, "num_workers", None) == 0:
            iter(run.loader)
        set_random_states(now, None, run.la._device)


def _own(run: OnlineRun) -> resuming.State:
    """What Lightning does not save of a run."""
    state = resuming.state_of(run)
    return {name: part for name, part in state.items() if name not in BY_LIGHTNING}


def _fingerprint(la: LaplaceAE) -> tuple[float, int]:
    """What differs between two fits."""
    return float(la.loss), la.n_data
