"""Online training in a Lightning Trainer: the same as our own loop."""

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset

from lae_backpack import LaplaceAE
from lae_backpack.posterior.online.checkpoint import CheckpointError
from lae_backpack.posterior.online.settings import OnlineSettings
from tests.test_autoencoder import images, seeded
from tests.test_checkpoints import noisy_model
from tests.test_online import Watched, weights_of

with warnings.catch_warnings():  # of Lightning's own imports
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")
    from lae_backpack.lightning import LaplaceAEModule
    from lae_backpack.lightning.trainer import follow_device, require_trainer_that_fits

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]
SETTINGS = OnlineSettings(alpha=0.1, refresh_every=2)


def trainer(
    n_epochs: int = 4, num_sanity_val_steps: int | None = 0, **settings: Any
) -> Any:
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": num_sanity_val_steps,
    }
    return lightning.Trainer(max_epochs=n_epochs, **(quiet | settings))


def unfitted(structure: str | None = None) -> LaplaceAE:
    la = LaplaceAE(noisy_model(), hessian_structure=structure, sigma_noise="learned")
    la.model.train()
    return la


def loader(own_generator: bool = True) -> DataLoader:
    generator = seeded() if own_generator else None
    return DataLoader(images(14), 4, shuffle=True, generator=generator)


def module(la: LaplaceAE, **arguments: Any) -> LaplaceAEModule:
    return LaplaceAEModule(la, **({"settings": SETTINGS, "lr": 1e-2} | arguments))


def results(la: LaplaceAE) -> tuple[Tensor, ...]:
    return (
        weights_of(la), la.mean, la.H, la.sigma_noise, torch.as_tensor(la.loss),
        torch.tensor([la.n_data, la.n_outputs]),
    )  # fmt: skip


def assert_identical(la: LaplaceAE, true: LaplaceAE) -> None:
    for found, expected in zip(results(la), results(true), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("own_generator", [True, False])
@pytest.mark.parametrize("structure", [None, "calibrated_diag"])
def test_a_trainer_does_what_fit_online_does(structure, own_generator):
    true, la = unfitted(structure), unfitted(structure)
    torch.manual_seed(0)
    history = true.fit_online(
        loader(own_generator), 4, settings=SETTINGS, lr=1e-2, generator=seeded(),
        progress_bar=False,
    )  # fmt: skip
    torch.manual_seed(0)
    trained = module(la, generator=seeded())
    used = trainer()
    used.fit(trained, loader(own_generator))
    assert_identical(la, true)
    assert trained.history == history
    assert used.global_step == 16
    found = used.callback_metrics
    assert found["train_loss"] == pytest.approx(history.losses[-1], rel=1e-5)
    evidence = la.log_marginal_likelihood().item()
    assert found["evidence"] == pytest.approx(evidence, rel=1e-5)
    assert la.samples(images(3), 2).shape == (2, 3, 1, 4, 3)
    assert (la(images(3))[1] > 0).all()
    assert all(p.grad is None for p in la.params)


@pytest.mark.parametrize("own_generator", [True, False])
@pytest.mark.parametrize("looks_first", [False, True])
def test_validation_and_a_scheduler_of_ones_own(own_generator, looks_first):
    sanity = None if looks_first else 0  # None is Lightning's default
    runs = []
    for by_trainer in (False, True):
        la = unfitted()
        optimizer = torch.optim.SGD(la.params, 1e-3)
        arguments = {
            "optimizer": optimizer,
            "scheduler": StepLR(optimizer, 2, gamma=0.3),
            "generator": seeded(),
            "settings": SETTINGS,
        }
        data, generator = loader(own_generator), seeded() if own_generator else None
        held_out = DataLoader(images(6), 4, generator=generator)
        torch.manual_seed(0)
        if by_trainer:
            trained = LaplaceAEModule(la, **arguments)
            trainer(num_sanity_val_steps=sanity).fit(trained, data, held_out)
            history = trained.history
        else:
            history = la.fit_online(
                data, 4, validation_loader=held_out, progress_bar=False, **arguments
            )
        runs.append((la, history, optimizer.param_groups[0]["lr"]))
    assert_identical(runs[1][0], runs[0][0])
    assert runs[1][1:] == runs[0][1:]


def test_bf16_mixed_is_autocast():
    true, la = (LaplaceAE(noisy_model().float()) for _ in range(2))
    data = DataLoader(images(8).float(), 4)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        true.fit_online(data, 2, generator=seeded(), progress_bar=False)
    torch.manual_seed(0)
    trained = LaplaceAEModule(la, generator=seeded())
    trainer(2, precision="bf16-mixed").fit(trained, data)
    assert torch.equal(la.H, true.H) and torch.equal(la.mean, true.mean)


# Checkpoints --------------------------------------------------------------------------


class Stop(lightning.Callback):
    """Ends training after an epoch, as a crash would: nothing more is saved."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            raise RuntimeError("the power fails")


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize("own_generator", [True, False])
def test_a_resumed_run_is_bit_identical(tmp_path: Path, own_generator, validates):
    held_out = [DataLoader(images(6), 4)] if validates else []
    torch.manual_seed(0)
    true = unfitted("calibrated_diag")
    whole = module(true)
    trainer().fit(whole, loader(own_generator), *held_out)

    torch.manual_seed(0)
    saving = lightning.callbacks.ModelCheckpoint(
        tmp_path, "{epoch}", monitor="val_loss" if validates else None, save_top_k=-1
    )
    first = trainer(enable_checkpointing=True, callbacks=[saving, Stop(2)])
    cut = unfitted("calibrated_diag")
    with pytest.raises(RuntimeError, match="the power fails"):
        first.fit(module(cut), loader(own_generator), *held_out)
    assert torch.equal(cut.mean, weights_of(cut)) and cut.n_data == 14

    torch.manual_seed(1234)  # another process, another state
    la = unfitted("calibrated_diag")
    second, data = module(la), loader(own_generator)
    torch.rand(7)
    trainer().fit(second, data, *held_out, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert_identical(la, true)
    assert second.history == whole.history and len(whole.history.losses) == 16

    # A checkpoint is enough to ask for uncertainty, without a Trainer.
    other = unfitted("calibrated_diag")
    LaplaceAEModule.load_from_checkpoint(tmp_path / "epoch=1.ckpt", la=other)
    assert_identical(other, cut)
    assert torch.equal(other(images(2), generator=seeded())[1],
                       cut(images(2), generator=seeded())[1])  # fmt: skip


def test_early_stopping_and_the_best_epoch(tmp_path: Path):
    stopping = lightning.callbacks.EarlyStopping("val_loss", patience=2, min_delta=1e9)
    best = lightning.callbacks.ModelCheckpoint(tmp_path, "best", "val_loss")
    trained, held_out = module(unfitted()), DataLoader(images(6), 4)
    used = trainer(50, enable_checkpointing=True, callbacks=[stopping, best])
    used.fit(trained, loader(), held_out)
    assert len(trained.history.validation) == trained.history.epochs == 3
    losses = used.validate(trained, held_out, verbose=False)
    assert losses[0]["val_loss"] == pytest.approx(trained.history.validation[-1])
    again = used.validate(trained, held_out, ckpt_path=best.best_model_path,
                          verbose=False)  # fmt: skip
    assert again[0]["val_loss"] == pytest.approx(min(trained.history.validation))
    ((mean, variance), *_) = used.predict(trained, held_out)
    assert mean.shape == variance.shape == (4, 1, 4, 3)
    trained.la.fit(images(8).split(4))  # nothing is left of inference mode


def test_other_checkpoints_change_nothing(tmp_path: Path):
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, "run")
    used = trainer(1, enable_checkpointing=True, callbacks=[saving])
    used.fit(module(unfitted()), loader())
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert "model" not in saved["lae_backpack"]  # Lightning has it
    la = unfitted()
    before = weights_of(la)
    for spoilt, words in (
        ({k: v for k, v in saved.items() if k != "lae_backpack"}, "has no part of"),
        (saved | {"lae_backpack": {"precision": torch.ones(3)}}, "of another model"),
    ):
        torch.save(spoilt, tmp_path / "spoilt.ckpt")
        with pytest.raises(CheckpointError, match=words):
            trainer(2).fit(module(la), loader(), ckpt_path=tmp_path / "spoilt.ckpt")
        assert torch.equal(weights_of(la), before) and not la.H.any()
    with pytest.raises(CheckpointError, match="was written with settings"):
        other = module(la, settings=OnlineSettings())
        trainer(2).fit(other, loader(), ckpt_path=tmp_path / "run.ckpt")
    assert torch.equal(weights_of(la), before) and not la.H.any() and la.n_data == 0


def test_damaged_checkpoints_change_nothing(tmp_path: Path):
    saved, path = saved_checkpoint(tmp_path), tmp_path / "spoilt.ckpt"
    own = saved["lae_backpack"]
    la = unfitted()
    la.fit(images(8).split(4))
    before = [part.clone() for part in results(la)]
    parts = "sigma_noise", "now", "precision", "n_data", "history"
    cuts = [{k: v for k, v in own.items() if k != part} for part in parts]
    wrong = [own | {"loss": "much"}, own | {"sigma_noise": torch.ones(2, 2)}]
    for part in (*cuts, *wrong, own | {"now": []}, own | {"history": {"a": 1}}):
        torch.save(saved | {"lae_backpack": part}, path)
        with pytest.raises(CheckpointError):
            trainer(2).fit(module(la), loader(), ckpt_path=path)
        assert all(map(torch.equal, results(la), before))
        assert la.backend.n_probes == 1  # calibrated, as it was fitted
    for part in (cuts[0], wrong[1]):
        torch.save(saved | {"lae_backpack": part}, path)
        with pytest.raises(CheckpointError):
            LaplaceAEModule.load_from_checkpoint(path, la=la)
        assert all(map(torch.equal, results(la), before))
    strange = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
    torch.save(saved, path)
    with pytest.raises(Exception, match="parameter group|optimizer"):
        trainer(2).fit(module(la, optimizer=strange), loader(), ckpt_path=path)
    assert all(map(torch.equal, results(la), before))


def saved_checkpoint(directory: Path, n_epochs: int = 1, **arguments: Any) -> Any:
    saving = lightning.callbacks.ModelCheckpoint(directory, "{epoch}", save_top_k=-1)
    used = trainer(n_epochs, enable_checkpointing=True, callbacks=[saving])
    used.fit(module(unfitted(), **arguments), loader())
    return torch.load(directory / "epoch=0.ckpt", weights_only=True)


def test_what_is_saved_is_the_posterior_of_now(tmp_path: Path):
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    used = trainer(3, enable_checkpointing=True, callbacks=[saving])
    trained, held_out = module(unfitted()), DataLoader(images(6), 4)
    used.fit(trained, loader())
    used.save_checkpoint(tmp_path / "end.ckpt")
    used.validate(trained, held_out, ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)
    first, path = [part.clone() for part in results(trained.la)], tmp_path / "new.ckpt"
    used.save_checkpoint(path)
    assert all(map(torch.equal, results(trained.la), first))
    again = LaplaceAEModule.load_from_checkpoint(path, la=unfitted())
    assert all(map(torch.equal, results(again.la), first))

    # Also by a module that has never trained, and of what was fitted post hoc.
    used = trainer(1)
    used.validate(again, held_out, verbose=False)
    again.la.fit(images(8).split(4))
    used.save_checkpoint(path)
    third = LaplaceAEModule.load_from_checkpoint(path, la=unfitted())
    assert_identical(third.la, again.la)
    assert torch.equal(third.la.looks, again.la.looks)
    with pytest.raises(CheckpointError, match="no run to take up"):
        trainer(4).fit(module(unfitted()), loader(), ckpt_path=path)

    # What was saved after training can be taken up.
    for name in ("epoch=2.ckpt", "end.ckpt"):
        more = module(unfitted())
        trainer(4).fit(more, loader(), ckpt_path=tmp_path / name)
        assert len(more.history.losses) == 16


def test_a_resumed_optimiser_is_the_one_that_lightning_shows(tmp_path: Path):
    saved_checkpoint(tmp_path, lr_decay="constant")
    trained = module(unfitted(), lr_decay="constant")
    trainer(2).fit(trained, loader(), ckpt_path=tmp_path / "epoch=0.ckpt")
    shown: Any = trained.optimizers()
    assert shown.param_groups is shown.optimizer.param_groups


# What it refuses ----------------------------------------------------------------------


def test_an_exception_leaves_a_usable_posterior():
    seen = []

    def look(index: int) -> None:
        seen.append(index)
        if len(seen) > 9:
            raise OSError("the disk fails")

    la = unfitted()
    data = DataLoader(Watched(images(14), look), 4)
    with pytest.raises(OSError, match="the disk fails"):
        trainer().fit(module(la), data)
    assert torch.equal(la.mean, weights_of(la)) and la.n_data == 14
    assert (la(images(2))[1] > 0).all()
    other, still = unfitted(), unfitted()
    with pytest.raises(OSError):
        start = OnlineSettings(initial_precision=5)
        trainer().fit(module(other, settings=start), data)
    assert not other.H.any() and other.sigma_noise == still.sigma_noise
    assert other.n_data == 0


def test_later_exceptions_leave_the_posterior_alone():
    la = unfitted()
    trained = module(la)
    trainer(1).fit(trained, loader())
    history = trained.history
    la.fit(images(8).split(4))
    before = [part.clone() for part in results(la)]
    wrong = DataLoader(torch.zeros(4, 2), 4)
    with pytest.raises(ValueError, match="does not take x of shape"):
        trainer(1).predict(trained, wrong)
    with pytest.raises(ValueError):
        trainer(1).validate(trained, wrong, verbose=False)
    with pytest.raises(ValueError, match="is not supported"):
        trainer(1, precision="64-true").fit(trained, loader())
    with pytest.raises(ValueError):  # in the look before training
        trainer(1, num_sanity_val_steps=2).fit(trained, loader(), wrong)
    assert all(map(torch.equal, results(la), before))
    assert len(history.losses) == 4 and trained._sampled_loss is None


class Fail(lightning.Callback):
    def on_validation_batch_end(self, *_, **__):
        raise OSError("the disk fails")


def test_an_exception_in_validation_frees_the_copy_of_the_model():
    trained, held_out = module(unfitted()), DataLoader(images(6), 4)
    with pytest.raises(OSError):
        trainer(1, callbacks=[Fail()]).fit(trained, loader(), held_out)
    assert trained._sampled_loss is None and trained._run is None
    assert trained.la.n_data == 14 and len(trained.history.losses) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"accumulate_grad_batches": 2}, "gradient accumulation is not supported"),
        ({"gradient_clip_val": 1.0}, "gradient clipping is not supported"),
        ({"precision": "64-true"}, "precision='64-true'. is not supported, allowed"),
        ({"precision": "bf16-true"}, "Convert the model before"),
        ({"max_epochs": -1}, "has no end that is known"),
    ],
)
def test_trainers_that_do_not_fit_are_refused(settings, words):
    n_epochs = settings.pop("max_epochs", 1)
    la = unfitted()
    with pytest.raises(Exception, match=words):
        trainer(n_epochs, **settings).fit(module(la), loader())
    assert la.n_data == 0 and not la.H.any()


def test_several_processes_are_refused():
    strategy = SimpleNamespace()
    fake = SimpleNamespace(strategy=strategy, world_size=2, precision="32-true")
    with pytest.raises(ValueError, match="in one process, got 2 and SimpleNamespace"):
        require_trainer_that_fits(fake)


class Pairs(torch.utils.data.Sampler):
    """Batches of two, and nobody knows how many."""

    def __iter__(self):
        return iter([[0, 1], [2, 3]])


def test_a_loader_without_a_length_is_enough():
    trained = module(unfitted(), lr_decay="constant")
    data = DataLoader(images(4), batch_sampler=Pairs())
    trainer(1, max_steps=3).fit(trained, data)
    assert len(trained.history.losses) == 2 and trained.la.n_data == 4


class Stream(IterableDataset):
    def __iter__(self):
        return iter(images(4))


def test_data_and_optimisers_that_do_not_fit_are_refused():
    la = unfitted()
    with pytest.raises(TypeError, match="a dataset without a length"):
        used = trainer(1, max_steps=3)
        used.fit(module(la, lr_decay="constant"), DataLoader(Stream(), 2))
    with pytest.raises(ValueError, match="Batch 1 has pixels that are not finite"):
        trainer(1).fit(module(la), DataLoader(images(8) / 0, 4))
    strange = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
    with pytest.raises(ValueError, match="does not hold all trainable parameters"):
        trainer(1).fit(module(la, optimizer=strange), loader())
    with pytest.raises(ValueError, match="LBFGS"):
        module(la, optimizer=torch.optim.LBFGS(la.params))
    assert la.n_data == 0 and not la.H.any()


def test_a_posterior_follows_its_model():
    la = unfitted("calibrated_diag")
    la.fit(images(8).split(4))
    la.model.to("meta")  # a device that every machine has
    follow_device(la)
    for name in ("H", "looks", "mean", "sigma_noise", "prior_precision", "prior_mean"):
        assert torch.as_tensor(getattr(la, name)).device.type == "meta", name


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("stage", ["fit", "validate", "predict"])
def test_a_posterior_is_where_the_trainer_leaves_its_model(monkeypatch, stage, fails):
    la = unfitted("calibrated_diag")
    la.fit(images(8).split(4))
    trained = module(la)
    trained_on = []

    def leave(self):  # what the Trainer does at the end, also after an exception
        trained_on.append(la.H.device.type)
        return self.to("meta")

    monkeypatch.setattr(LaplaceAEModule, "cpu", leave)
    data = DataLoader(torch.zeros(4, 2) if fails else images(6), 4)
    with pytest.raises(ValueError) if fails else nullcontext():
        getattr(trainer(1), stage)(trained, data)
    assert trained_on == ["cpu"]
    for name in ("H", "looks", "mean", "sigma_noise", "prior_precision", "prior_mean"):
        assert torch.as_tensor(getattr(la, name)).device.type == "meta", name


def test_without_lightning_there_is_a_hint(monkeypatch):
    for name in list(sys.modules):
        if name.split(".")[0] in ("lightning", "pytorch_lightning"):
            monkeypatch.delitem(sys.modules, name)
        elif name.startswith("lae_backpack.lightning"):
            monkeypatch.delitem(sys.modules, name)
    for name in ("lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "lae-backpack\[lightning\]"'):
        import lae_backpack.lightning  # noqa: F401
