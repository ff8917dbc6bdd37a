"""The posterior's part of Lightning's checkpoints."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lae_backpack.lightning.installed import LightningModule
from lae_backpack.posterior.autoencoder import LaplaceAE
from lae_backpack.posterior.online import resuming
from lae_backpack.posterior.online.checkpoint import CheckpointError
from lae_backpack.posterior.online.randomness import random_states, set_random_states
from lae_backpack.posterior.online.run import OnlineRun
from lae_backpack.posterior.sampling import as_vector

KEY = "lae_backpack"
BY_LIGHTNING = ("model", "optimizer", "scheduler")  # it saves them by itself
NAME = "The checkpoint"


class Checkpoints(LightningModule):
    """Saves and restores what Lightning does not know of."""

    def __init__(self, la: LaplaceAE) -> None:
        """Keep the posterior.

        Args:
            la: The posterior.
        """
        super().__init__()
        self.la, self.model = la, la.model
        self._run: OnlineRun | None = None
        self._loaded: resuming.State | None = None
        self._resumes = False

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.make_usable()
            state = resuming.state_of(self._run)
            own = {
                name: part for name, part in state.items() if name not in BY_LIGHTNING
            }
            checkpoint[KEY] = own

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint.get(KEY)
        if not isinstance(state, dict):
            raise CheckpointError(
                f"{NAME} has no part of {KEY!r}: it was not written while "
                "LaplaceAEModule trained. Give another one."
            )
        la = self.la
        la.choose_structure(post_hoc=False)
        weights = {
            name.removeprefix("model."): value
            for name, value in checkpoint["state_dict"].items()
        }
        loaded = {**state, "model": weights}
        resuming.require_same_model(resuming.posterior_state(la), loaded, NAME)
        resuming.restore_posterior(la, loaded)
        la.mean = as_vector(la.params)
        la.n_data, la.n_outputs = loaded["n_data"], loaded["n_outputs"]
        if self._resumes:
            self._loaded = loaded
            # Before the Trainer asks its loader for an order of the data.
            set_random_states(loaded["now"][0], None, la._device)

    def take_up(self) -> None:
        """Bring the run to where the checkpoint was, if one was loaded."""
        run, loaded, self._loaded = self._run, self._loaded, None
        if run is None or loaded is None:
            return
        now = random_states(None, run.la._device)
        own = resuming.state_of(run)
        by_lightning = {name: own[name] for name in BY_LIGHTNING}
        resuming.take_up(run, {**loaded, **by_lightning}, NAME)
        # The Trainer has made an iterator before the loader's generators were restored,
        # and making one draws from them: draw the same.
        if getattr(run.loader, "num_workers", None) == 0:
            iter(run.loader)
        set_random_states(now, None, run.la._device)
