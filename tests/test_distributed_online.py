"""Online training on several ranks: one step of all batches, one precision."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.posterior import distributed
from lae_backpack.posterior.online.noisy_copy import NoisyCopy
from lae_backpack.posterior.online.settings import History, OnlineSettings
from tests.ranks import outcomes_on_ranks, run_on_ranks
from tests.test_distributed_fit import autoencoder, images

MEAN = OnlineSettings(alpha=0.1, warmup_steps=10**6)  # never samples


def outcome(la: LaplaceAE, history: History) -> dict[str, Any]:
    return {
        "weights": torch.cat([p.detach().reshape(-1) for p in la.params]),
        "H": la.H,
        "sigma_noise": la.sigma_noise,
        "loss": torch.as_tensor(la.loss),
        "losses": history.losses,
        "validation": history.validation,
        "n_data": la.n_data,
        "n_outputs": la.n_outputs,
        "steps": len(history.losses),
    }


def assert_close(found: list[dict[str, Any]], true: dict[str, Any]) -> None:
    for one in found:
        torch.testing.assert_close(one, true, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(one, found[0], rtol=0, atol=0)


def interleaved(n: int, n_ranks: int, batch: int) -> list[Tensor]:
    """What ranks with batches of so many samples see together, step by step."""
    return list(images(n).split(n_ranks * batch))


class WithSize(list):
    """A loader of given batches."""

    dataset = range(13)


def train(la: LaplaceAE, loader: Any, n_epochs: int = 3, **settings: Any) -> dict:
    settings.setdefault("settings", MEAN)
    history = la.fit_online(loader, n_epochs, progress_bar=False, **settings)
    return outcome(la, history)


def _train(structure: str, n: int, **settings: Any) -> dict[str, Any]:
    model = DistributedDataParallel(autoencoder())
    la = LaplaceAE(model, hessian_structure=structure, sigma_noise="learned")
    sampler = DistributedSampler(images(n), shuffle=False)
    loader = DataLoader(images(n), 2, sampler=sampler)
    checks = DataLoader(images(7), 2, sampler=DistributedSampler(images(7)))
    return train(la, loader, validation_loader=checks, **settings)


@pytest.mark.parametrize("structure", ["approx_diag", "mixed_diag"])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_steps_at_the_mean_equal_those_of_one_process(n_ranks, structure):
    la = LaplaceAE(autoencoder(), hessian_structure=structure, sigma_noise="learned")
    steps = WithSize(interleaved(13, n_ranks, 2))
    true = train(la, steps, validation_loader=[images(7)])
    assert true["steps"] == 3 * -(-13 // (2 * n_ranks))
    assert_close(run_on_ranks(n_ranks, _train, structure, 13), true)


def _uneven(at: str) -> dict[str, Any]:
    own = [[0, 1, 2, 3, 4, 5], [], [6, 7], [8]][dist.get_rank()]
    la = LaplaceAE(autoencoder())
    settings = OnlineSettings(
        alpha=0.1, warmup_steps=10**6, curvature_at=at, refresh_every=2
    )
    return train(la, DataLoader(Subset(images(9), own), 2), settings=settings)


@pytest.mark.parametrize("at", ["sample", "mean"])
def test_ranks_with_fewer_batches_or_none(at):
    x = images(9)
    steps = WithSize([x[[0, 1, 6, 7, 8]], x[[2, 3]], x[[4, 5]]])
    steps.dataset = range(9)
    la = LaplaceAE(autoencoder())
    settings = OnlineSettings(
        alpha=0.1, warmup_steps=10**6, curvature_at=at, refresh_every=2
    )
    true = train(la, steps, settings=settings)
    assert_close(run_on_ranks(4, _uneven, at), true)


# Samples ------------------------------------------------------------------------------


def _one_sampled_step() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights before, this rank's sampled weights and gradient there, weights after."""
    la = LaplaceAE(autoencoder())
    la.H = torch.full_like(la.H, 50.0)
    before = torch.cat([p.detach().reshape(-1).clone() for p in la.params])
    drawn: list[Tensor] = []
    draw = NoisyCopy.draw

    def remember(copy: NoisyCopy, number: int) -> None:
        draw(copy, number)
        drawn.append(torch.cat([p.detach().reshape(-1) for p in copy.params]))

    NoisyCopy.draw = remember
    own = images(5)[:3] if dist.get_rank() == 0 else images(5)[3:]
    sgd = torch.optim.SGD(la.params, 1e-3)
    settings = OnlineSettings(warmup_steps=0)
    loader = DataLoader(own, 3)
    la.fit_online(loader, 1, settings=settings, optimizer=sgd, progress_bar=False)
    model, vector = autoencoder(), drawn[0]
    nn.utils.vector_to_parameters(vector, model.parameters())
    ((model(own) - own) ** 2).sum().backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    after = torch.cat([p.detach().reshape(-1) for p in la.params])
    return before, vector, gradient, after


def test_each_rank_has_its_own_sample_and_gradients_are_averaged():
    (before, first, one, after), (_, second, two, same) = run_on_ranks(
        2, _one_sampled_step
    )
    assert torch.equal(after, same)
    torch.testing.assert_close(after, before - 1e-3 * (one + two) / 5)
    noise = torch.stack([first - before, second - before])
    assert torch.corrcoef(noise)[0, 1].abs() < 0.3
    assert 0.5 < noise.std() * 51**0.5 < 1.5


def _long_run() -> dict[str, Any]:
    sampler = DistributedSampler(images(12))
    la = LaplaceAE(autoencoder(), hessian_structure="calibrated_diag")
    loader = DataLoader(images(12), 2, sampler=sampler)
    return train(la, loader, 5, settings=OnlineSettings(alpha=0.1, n_samples=2))


def test_ranks_stay_bit_identical_with_samples_and_probes():
    first, second = run_on_ranks(2, _long_run)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


# Checkpoints --------------------------------------------------------------------------


class CutOff(Exception):
    """The power fails."""


def noisy_model() -> AutoEncoder:
    model = autoencoder()
    model.decoder = nn.Sequential(nn.Dropout(0.2), *model.decoder)
    return model


def _resumable(
    path: Path | None, cut_after: int | None, resume: bool, mean: bool = False
) -> dict[str, Any]:
    torch.manual_seed(100 + distributed.rank())  # dropout of its own
    la = LaplaceAE(autoencoder() if mean else noisy_model(), sigma_noise="learned")
    la.model.train()
    seen = iter(range(10**9))

    class Watched(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Tensor:
            if next(seen) == cut_after:
                raise CutOff
            return images(16)[index]

    data = Watched()
    sampler = DistributedSampler(
        data, dist.get_world_size() if dist.is_initialized() else 1,
        distributed.rank(), seed=3,
    )  # fmt: skip
    every = 1 if path else None
    settings = MEAN if mean else OnlineSettings(alpha=0.1, warmup_steps=2)
    loader = DataLoader(data, 2, sampler=sampler)
    return train(
        la, loader, 3, settings=settings, checkpoint=path, checkpoint_every=every,
        resume=resume, lr_decay="constant",
    )  # fmt: skip


def _whole_and_resumed(folder: Path) -> tuple[dict, dict, list[str]]:
    whole = _resumable(None, None, False)
    try:
        _resumable(folder / "run.pt", 13, False)
    except (CutOff, distributed.RankFailedError):
        pass
    else:
        raise AssertionError("not cut off")
    resumed = _resumable(folder / "run.pt", None, True)
    return whole, resumed, sorted(p.name for p in folder.iterdir())


def test_a_resumed_run_is_bit_identical(tmp_path):
    for whole, resumed, files in run_on_ranks(2, _whole_and_resumed, tmp_path):
        torch.testing.assert_close(resumed, whole, rtol=0, atol=0)
        assert files == ["run.pt"]


def _cut(path: Path) -> None:
    try:
        _resumable(path, 5, False, True)
    except (CutOff, distributed.RankFailedError):
        return
    raise AssertionError("not cut off")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 4), (1, 2)])
def test_a_run_resumes_on_another_number_of_ranks(tmp_path, before, after):
    path = tmp_path / "run.pt"
    run_on_ranks(before, _cut, path)
    saved = torch.load(path, weights_only=True)
    done = saved["epoch_samples"]
    assert saved["n_ranks"] == before and 0 < done < 16
    found = run_on_ranks(after, _resumable, path, None, True, True)
    for one in found:
        torch.testing.assert_close(one, found[0], rtol=0, atol=0)
    # Every sample is seen once an epoch: in the first, what was left of it.
    steps = len(saved["history"]["losses"])
    assert found[0]["steps"] == steps + (48 - done) // (2 * after)
    assert found[0]["losses"][:steps] == saved["history"]["losses"]
    assert found[0]["losses"][-1] < found[0]["losses"][0]


def _cosine(path: Path, n_epochs: int, resume: bool) -> float:
    la = LaplaceAE(autoencoder())
    sampler = DistributedSampler(
        range(16), max(1, distributed.n_ranks()), distributed.rank()
    )
    loader = DataLoader(images(16), 2, sampler=sampler)
    rates: list[float] = []

    def stop(_: LaplaceAE, history: History) -> None:
        if history.epochs == n_epochs:
            raise CutOff

    step = torch.optim.Adam.step

    def remember(self: torch.optim.Adam, *args: Any, **kwargs: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    torch.optim.Adam.step = remember
    try:
        la.fit_online(
            loader, 4, settings=MEAN, checkpoint=path, checkpoint_every=1,
            resume=resume, callbacks=[stop], progress_bar=False,
        )  # fmt: skip
    except CutOff:
        pass
    finally:
        torch.optim.Adam.step = step
    return rates[-1]


def test_our_cosine_goes_on_where_it_was(tmp_path):
    path = tmp_path / "run.pt"
    run_on_ranks(2, _cosine, path, 2, False)
    end = run_on_ranks(4, _cosine, path, 0, True)[0]
    assert end < 1e-3 * 0.1  # at the end of a half cosine from 1e-3, not in its middle


# Failing ------------------------------------------------------------------------------


def _fails(how: str) -> None:
    la = LaplaceAE(autoencoder())
    x = images(8)[dist.get_rank() :: 2]
    settings: dict[str, Any] = {}
    if dist.get_rank() == 1:
        if how == "data":
            x[2] = torch.nan
        if how == "settings":
            settings["checkpoint_every"], settings["checkpoint"] = 3, "run.pt"
        if how == "callback":

            def stop(*_: Any) -> None:
                raise CutOff("stop it")

            settings["callbacks"] = [stop]
    train(la, DataLoader(x, 1), **settings)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("data", ["rank 1: ValueError: Batch 3", "Batch 3 has pixels"]),
        ("settings", ["Rank 1 has another setting"] * 2),
        ("callback", ["rank 1: CutOff: stop it", "CutOff: stop it"]),
    ],
)
def test_an_error_on_one_rank_ends_all(how, words):
    outcomes = outcomes_on_ranks(2, _fails, how)
    for (came_through, message), expected in zip(outcomes, words, strict=True):
        assert not came_through and expected in message
