"""Runs that are cut off and taken up again."""

import copy
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.posterior.online.checkpoint import CheckpointError
from lae_backpack.posterior.online.settings import History, OnlineSettings
from tests.test_autoencoder import images
from tests.test_online import Watched, weights_of


class CutOff(Exception):
    """The power fails."""


def noisy_model() -> AutoEncoder:
    """Dropout draws from torch's own randomness, too."""
    torch.manual_seed(5)
    return AutoEncoder(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2)),
        nn.Sequential(
            nn.Linear(2, 5),
            nn.Dropout(0.2),
            nn.Linear(5, 12),
            nn.Unflatten(1, (1, 4, 3)),
        ),
    )


class Run:
    """A run that can be cut off after some samples; everything random is in it."""

    def __init__(self, path: Path | None, own_generator: bool = False):
        self.la = LaplaceAE(noisy_model(), sigma_noise="learned")
        self.la.model.train()
        self.path, self.left = path, 10**9
        generator = torch.Generator().manual_seed(1) if own_generator else None
        data = Watched(images(14), self._look)
        self.loader = DataLoader(data, 4, shuffle=True, generator=generator)

    def _look(self, _: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise CutOff

    def fit(self, n_epochs: int = 4, **arguments: object) -> History:
        if "optimizer" not in arguments:
            optimizer = torch.optim.Adam(self.la.params, 1e-2)
            arguments["optimizer"] = optimizer
            arguments["scheduler"] = StepLR(optimizer, 2, gamma=0.3)
        return self.la.fit_online(
            self.loader, n_epochs, checkpoint=self.path, progress_bar=False,
            settings=OnlineSettings(alpha=0.1, refresh_every=2),
            validation_loader=[images(6)], patience=3, **arguments,
        )  # fmt: skip


def results(run: Run, history: History) -> tuple[Tensor, Tensor, Tensor, History]:
    return weights_of(run.la), run.la.H, run.la.sigma_noise, history


def assert_identical(found, true):
    assert found[3] == true[3]  # all losses, bit by bit
    for a, b in zip(found[:3], true[:3], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("cut_after", [14, 18, 33, 40])
def test_a_resumed_run_is_bit_identical(tmp_path, cut_after, own_generator):
    torch.manual_seed(0)
    whole = Run(None, own_generator)
    true = results(whole, whole.fit())

    torch.manual_seed(0)
    first = Run(tmp_path / "run.pt", own_generator)
    first.left = cut_after
    with pytest.raises(CutOff):
        first.fit(checkpoint_every=1)
    torch.manual_seed(1234)  # another process, another state
    second = Run(tmp_path / "run.pt", own_generator)
    torch.rand(7)
    assert_identical(results(second, second.fit(checkpoint_every=1, resume=True)), true)
    assert sorted(os.listdir(tmp_path)) == ["run.pt"]


def test_checkpoints_at_epochs_lose_the_steps_since_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    whole = Run(None)
    true = results(whole, whole.fit())
    torch.manual_seed(0)
    first = Run(tmp_path / "run.pt")
    first.left = 14 * 2 + 5  # in the third epoch
    with pytest.raises(CutOff):
        first.fit()
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    assert saved["history"]["epochs"] == 2 and len(saved["history"]["losses"]) == 8
    second = Run(tmp_path / "run.pt")
    assert_identical(results(second, second.fit(resume=True)), true)


def test_our_own_adam_and_cosine_resume(tmp_path):
    def build() -> tuple[LaplaceAE, DataLoader]:
        la = LaplaceAE(noisy_model())
        return la, DataLoader(images(14), 4, shuffle=True)

    outcomes = []
    for cut in (False, True):
        torch.manual_seed(0)
        la, data = build()
        arguments = {"checkpoint": tmp_path / f"{cut}.pt", "progress_bar": False}
        if cut:

            def stop(_: LaplaceAE, history: History) -> None:
                if history.epochs == 2:
                    raise CutOff

            with pytest.raises(CutOff):
                la.fit_online(
                    data, 4, callbacks=[stop], checkpoint_every=2, **arguments
                )
            la, data = build()
        history = la.fit_online(data, 4, resume=cut, **arguments)
        outcomes.append((weights_of(la), la.H, la.sigma_noise, history))
    assert_identical(*outcomes)


class Augmented(Watched):
    """Draws from python's and numpy's randomness, too."""

    def __getitem__(self, index: int) -> Tensor:
        noise = random.random() + np.random.rand()
        return super().__getitem__(index) + 0.1 * noise


def test_other_randomness_and_samplers_resume(tmp_path):
    def run(path: Path, look, resume: bool):
        la = LaplaceAE(noisy_model())
        data = Augmented(images(14), look)
        order = RandomSampler(data, generator=torch.Generator().manual_seed(1))
        batches = DataLoader(data, batch_sampler=BatchSampler(order, 4, False))
        history = la.fit_online(
            batches, 3, checkpoint=path, checkpoint_every=1, resume=resume,
            lr=np.float64(1e-2), settings=OnlineSettings(alpha=np.float64(0.1)),
            progress_bar=False,
        )  # fmt: skip
        return weights_of(la), la.H, la.sigma_noise, history

    def start():
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)

    start()
    true = run(tmp_path / "whole.pt", lambda _: None, False)
    left = iter(range(20))

    def cut(_: int) -> None:
        if next(left, None) is None:
            raise CutOff

    start()
    with pytest.raises(CutOff):
        run(tmp_path / "run.pt", cut, False)
    random.seed(5)
    np.random.seed(5)
    assert_identical(run(tmp_path / "run.pt", lambda _: None, True), true)


def test_resuming_without_a_file_starts_and_a_finished_run_stays(tmp_path):
    torch.manual_seed(0)
    run = Run(tmp_path / "run.pt")
    true = results(run, run.fit(2, resume=True))
    again = Run(tmp_path / "run.pt")
    assert_identical(results(again, again.fit(2, resume=True)), true)
    assert again.la.n_data == 14 and (again.la(images())[1] > 0).all()


# Files that are something else --------------------------------------------------------


class Evil:
    """Runs code when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


def written(tmp_path: Path) -> Path:
    run = Run(tmp_path / "run.pt")
    run.fit(1)
    return tmp_path / "run.pt"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def corrupt(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    del content["precision"]
    torch.save(content, path)


def future(path: Path) -> None:
    torch.save(torch.load(path, weights_only=True) | {"version": 99}, path)


def strange_optimizer(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["optimizer"]["param_groups"] = []
    torch.save(content, path)


FILES = {
    "truncated": (truncate, "cut short"),
    "empty": (lambda p: p.write_bytes(b""), "cut short"),
    "text": (lambda p: p.write_text("hello"), "cut short"),
    "a tensor": (lambda p: torch.save(torch.ones(3), p), "not a checkpoint of"),
    "a state dict": (
        lambda p: torch.save(noisy_model().state_dict(), p), "not a checkpoint of",
    ),
    "evil": (lambda p: p.write_bytes(pickle.dumps(Evil())), "cut short"),
    "incomplete": (corrupt, r"lacks \['precision'\]"),
    "from the future": (future, "has version 99"),
    "of a strange optimiser": (strange_optimizer, "does not fit this run"),
}  # fmt: skip


def snapshot(run: Run, optimizer: torch.optim.Optimizer) -> tuple:
    return (
        weights_of(run.la),
        run.la.H.clone(),
        copy.deepcopy(optimizer.state_dict()["state"]),
        torch.get_rng_state(),
    )


def assert_unchanged(before: tuple, after: tuple) -> None:
    torch.testing.assert_close(before, after, rtol=0, atol=0)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_none_changes_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path)
    spoil, words = FILES[kind]
    spoil(path)
    content = path.read_bytes()
    run = Run(path)
    optimizer = torch.optim.Adam(run.la.params, 1e-2)
    scheduler = StepLR(optimizer, 2, gamma=0.3)
    before = snapshot(run, optimizer)
    with pytest.raises(CheckpointError, match=words):
        run.fit(2, resume=True, optimizer=optimizer, scheduler=scheduler)
    after = snapshot(run, optimizer)
    # Choosing the run's seed is all that may have used randomness.
    assert_unchanged(before[:3], after[:3])
    assert run.la.n_data == 0
    assert path.read_bytes() == content and not (tmp_path / "evil").exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = written(tmp_path)

    def resume(la: LaplaceAE, words: str, **arguments: object) -> None:
        before = weights_of(la)
        data = DataLoader(images(arguments.pop("n", 14)), 4)
        arguments.setdefault("settings", OnlineSettings(alpha=0.1, refresh_every=2))
        with pytest.raises(CheckpointError, match=words):
            la.fit_online(data, 2, checkpoint=path, resume=True, **arguments)
        assert torch.equal(weights_of(la), before)

    wider = noisy_model()
    wider.encoder[1] = nn.Linear(12, 6)
    wider.encoder[3] = nn.Linear(6, 2)
    la = LaplaceAE(noisy_model(), sigma_noise="learned")
    resume(la, "optimizer_class Adam", optimizer=torch.optim.SGD(la.params, 0.1))
    resume(la, "settings", settings=OnlineSettings(alpha=0.2))
    resume(la, "n_data 14, this run has 15", n=15)
    bernoulli = LaplaceAE(noisy_model(), "bernoulli")
    adam = torch.optim.Adam(bernoulli.params)
    step = StepLR(adam, 2)
    resume(bernoulli, "likelihood", optimizer=adam, scheduler=step)
    other = LaplaceAE(wider, sigma_noise="learned")
    adam = torch.optim.Adam(other.params)
    step = StepLR(adam, 2)
    resume(other, "encoder.1.weight", optimizer=adam, scheduler=step)


# kill -9 ------------------------------------------------------------------------------

SCRIPT = """
    import os, signal, sys
    from pathlib import Path
    import torch
    from lae_backpack.posterior.online import checkpoint
    from tests.test_checkpoints import Run

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def write_half_and_die(content, file):
        import io
        whole = io.BytesIO()
        torch_save(content, whole)
        file.write(whole.getvalue()[: whole.tell() // 2])
        file.flush()
        os.fsync(file.fileno())
        die()

    torch.set_default_dtype(torch.float64)
    torch_save = torch.save
    path, mode = Path(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    run = Run(path)
    if mode == "in an epoch":
        run._look = lambda index: None
        count = iter(range(10**6))
        run.loader.dataset.look = lambda _: die() if next(count) == 35 else None
    if mode == "in a write":
        saves = iter(range(10**6))
        checkpoint.torch.save = lambda content, file: (
            write_half_and_die if next(saves) == 7 else torch_save
        )(content, file)
    run.fit(checkpoint_every=1)
"""


@pytest.mark.parametrize("mode", ["in an epoch", "in a write"])
def test_killed_and_resumed(mode, tmp_path):
    path = tmp_path / "run.pt"
    killed = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            textwrap.dedent(SCRIPT),
            str(path),
            mode,
        ],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    saved = torch.load(path, weights_only=True)
    # Killed in step 9 (of 4 each epoch, 14 samples), or while writing the eighth time.
    done = len(saved["history"]["losses"])
    assert done == {"in an epoch": 9, "in a write": 6}[mode]

    torch.manual_seed(0)
    whole = Run(None)
    true = results(whole, whole.fit())
    resumed = Run(path)
    history = resumed.fit(checkpoint_every=1, resume=True)
    assert_identical(results(resumed, history), true)
