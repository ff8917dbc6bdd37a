"""Fits of several ranks against the fit of one process, and ranks that fail."""

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from laplace import Laplace
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    Subset,
    TensorDataset,
)

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.posterior import distributed
from lae_backpack.posterior.calibrating import calibrated
from lae_backpack.posterior.shards import Shard, n_own_samples
from tests.ranks import outcomes_on_ranks, run_on_ranks

STRUCTURES = ["approx_diag", "mixed_diag", "block_diag"]


def images(n: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(n, 1, 4, 3, generator=generator, dtype=torch.float64)


def autoencoder() -> AutoEncoder:
    torch.manual_seed(5)
    return AutoEncoder(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2)),
        nn.Sequential(nn.Linear(2, 12), nn.Unflatten(1, (1, 4, 3))),
    ).double()


def pairs(n: int) -> TensorDataset:
    return TensorDataset(images(n), images(n).flip(0))


def regression(
    structure: str, model: nn.Module | None = None, backend_kwargs: dict | None = None
) -> Any:
    return Laplace(
        model or autoencoder(), "regression", "all", hessian_structure=structure,
        backend_kwargs=backend_kwargs,
    )  # fmt: skip


def numbers(la: Any) -> dict[str, Any]:
    """Everything a fit decides."""
    curvature = la.H.to_matrix() if hasattr(la.H, "to_matrix") else la.H
    return {
        "H": curvature,
        "loss": torch.as_tensor(la.loss),
        "n_data": la.n_data,
        "n_outputs": la.n_outputs,
        "mean": la.mean,
        "sigma_noise": la.sigma_noise,
        "evidence": la.log_marginal_likelihood().detach(),
    }


def assert_same(found: list[dict[str, Any]], true: dict[str, Any]) -> None:
    for one in found:
        torch.testing.assert_close(one, true, rtol=1e-12, atol=1e-12)
        # Ranks agree bit by bit, or they would drift apart.
        torch.testing.assert_close(one, found[0], rtol=0, atol=0)


def sampled(data: Any, batch_size: int = 3, **settings: Any) -> DataLoader:
    sampler = DistributedSampler(data, **settings)
    return DataLoader(data, batch_size, sampler=sampler)


# Equal to one process -----------------------------------------------------------------


def _padded(structure: str, n: int) -> dict[str, Any]:
    la = regression(structure, DistributedDataParallel(autoencoder()))
    la.fit(sampled(pairs(n), shuffle=True))
    return numbers(la)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("n_ranks", "n"), [(2, 11), (4, 13), (4, 3)])
def test_structures_equal_one_process_and_count_padding_once(structure, n_ranks, n):
    la = regression(structure)
    la.fit(DataLoader(pairs(n), 4))
    assert_same(run_on_ranks(n_ranks, _padded, structure, n), numbers(la))


UNEVEN = [[0, 1, 2, 3, 4, 5, 6], [], [7], [8, 9]]  # rank 1 has no data


def _uneven(structure: str) -> dict[str, Any]:
    own = Subset(pairs(10), UNEVEN[dist.get_rank()])
    la = regression(structure)
    la.fit(DataLoader(own, 3))
    la.fit(DataLoader(own, 2), override=False)
    return numbers(la)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_uneven_shards_and_a_rank_without_data(structure):
    la = regression(structure)
    la.fit(DataLoader(pairs(10), 4))
    la.fit(DataLoader(pairs(10), 4), override=False)
    assert la.n_data == 20
    assert_same(run_on_ranks(4, _uneven, structure), numbers(la))


def _autoencoders(noise: str, likelihood: str, n: int) -> list[dict[str, Any]]:
    results = []
    la = LaplaceAE(
        DistributedDataParallel(autoencoder()), likelihood, sigma_noise=noise
    )
    batches = BatchSampler(DistributedSampler(images(n)), 3, drop_last=False)
    la.fit(DataLoader(images(n), batch_sampler=batches))
    results.append(numbers(la))
    own = UNEVEN[dist.get_rank()]
    la.fit([images(10)[own]] if own else [], override=False)
    results.append(numbers(la))
    return results


@pytest.mark.parametrize(
    ("noise", "likelihood"),
    [("residual", "regression"), ("learned", "regression"), ("residual", "bernoulli")],
)
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_autoencoders_equal_one_process(n_ranks, noise, likelihood):
    la = LaplaceAE(autoencoder(), likelihood, sigma_noise=noise)
    la.fit(images(9).split(4))
    first = numbers(la)
    la.fit([images(10)[sum(UNEVEN[:n_ranks], [])]], override=False)
    found = run_on_ranks(n_ranks, _autoencoders, noise, likelihood, 9)
    assert_same([one for one, _ in found], first)
    assert_same([two for _, two in found], numbers(la))


SHRUNK = {"shrink": True}


def _calibrated(structure: str) -> tuple[Tensor, Tensor, Tensor]:
    """H, this rank's looks, and those of all."""
    if structure == "lae":
        la = LaplaceAE(
            autoencoder(), hessian_structure="calibrated_diag", backend_kwargs=SHRUNK
        )
        data: Any = list(images(8)[dist.get_rank() :: 2].split(2))
    else:
        la = regression("calibrated_diag", backend_kwargs=SHRUNK)
        data = sampled(pairs(8))
    seen, add_look = [], la.backend.add_look

    def remember(x: Tensor, y: Tensor, looks: Tensor) -> Tensor:
        now = torch.zeros_like(looks)
        loss = add_look(x, y, now)
        seen.append(now)
        looks += now
        return loss

    la.backend.add_look = remember
    la.fit(data)
    return la.H, torch.stack(seen).sum(0), la.looks


@pytest.mark.parametrize("kind", ["lae", "calibrated_diag"])
def test_calibration_is_that_of_all_looks(kind):
    found = run_on_ranks(2, _calibrated, kind)
    looks = found[0][1] + found[1][1]
    shapes = [p.shape for p in autoencoder().parameters()]
    for H, _, summed in found:
        torch.testing.assert_close(summed, looks)
        torch.testing.assert_close(H, calibrated(looks, shapes))
    # Same seed, but probes of their own.
    ratio = found[0][1][2:].sum(0) / found[1][1][2:].sum(0)
    assert ratio.std() > 0.1


def _alone() -> int:
    la = LaplaceAE(autoencoder())
    if dist.get_rank() == 1:
        with distributed.alone():
            la.fit([images(4)])
    return la.n_data


def test_one_rank_may_fit_alone():
    assert run_on_ranks(2, _alone) == [0, 4]


# Padding ------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 8, 9])
def test_shards_have_each_sample_once(n, drop_last):
    seen: list[int] = []
    for rank in range(4):
        data = torch.arange(n)
        sampler = DistributedSampler(data, 4, rank, shuffle=True, drop_last=drop_last)
        shard = Shard(DataLoader(data, 2, sampler=sampler))
        own = [int(i) for batch in shard for i in batch]
        assert shard.n_seen == len(own)
        seen += own
    assert len(seen) == len(set(seen)) == (n // 4 * 4 if drop_last else n)


@pytest.mark.parametrize("place", ["batch_sampler", "sampler"])
def test_samples_of_a_rank_are_counted_below_batches(place: str):
    data = TensorDataset(torch.arange(5))
    sampler = DistributedSampler(data, 2, rank=1, shuffle=False)  # 1, 3, and 0 again
    batches: dict[str, Any] = {place: BatchSampler(sampler, 2, drop_last=False)}
    if place == "sampler":
        batches["batch_size"] = None
    loader = DataLoader(data, **batches)
    assert n_own_samples(loader) == 2
    assert torch.cat([rows for (rows,) in Shard(loader)]).tolist() == [1, 3]


def test_shards_cut_all_kinds_of_batches():
    sampler = DistributedSampler(range(1), 2, 0)
    for batch in (
        (torch.ones(2, 3), torch.ones(2)),
        {"x": torch.ones(2, 3), "y": torch.ones(2)},
        torch.ones(2, 3),
    ):
        loader = DataLoader([batch], batch_size=None)
        loader.__dict__["sampler"] = sampler
        (cut,) = Shard(loader)
        if isinstance(cut, Tensor):
            assert cut.shape == (1, 3)
        else:
            assert all(
                len(p) == 1 for p in (cut.values() if isinstance(cut, dict) else cut)
            )


# Failing ------------------------------------------------------------------------------


def _fails(how: str) -> None:
    la = LaplaceAE(autoencoder())
    x = images(4)
    if dist.get_rank() == 1 and how == "data":
        x[2] = torch.nan
    if dist.get_rank() == 1 and how == "weights":
        with torch.no_grad():
            la.params[0].mul_(2)
    if how == "nothing":
        la.fit([])
    try:
        la.fit([x])
    finally:
        assert la.n_data == 0 and not la.H.any()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("data", ["rank 1: ValueError: Batch 1 has pixels", "Batch 1 has pixels"]),
        ("weights", ["Rank 1 has another model than rank 0"] * 2),
        ("nothing", ["The loader yields no batch"] * 2),
    ],
)
def test_an_error_on_one_rank_ends_all(how, words):
    outcomes = outcomes_on_ranks(2, _fails, how)
    for (came_through, message), expected in zip(outcomes, words, strict=True):
        assert not came_through and expected in message


def _dies() -> None:
    la = LaplaceAE(autoencoder())
    la.fit([images(4)])
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    la.fit([images(4)])


def test_a_rank_that_dies_ends_all_with_a_message():
    # The process group would wait for longer than a job may take at all.
    outcomes = outcomes_on_ranks(3, _dies, patience=600)
    assert outcomes[2] == (False, "died")
    for i in range(2):
        assert not outcomes[i][0]
        assert f"RankFailedError: Rank {i} of 3 has lost another rank" in outcomes[i][1]


def _stuck() -> None:
    la = LaplaceAE(autoencoder())
    la.fit([images(4)])
    if dist.get_rank() == 1:
        time.sleep(6)
    la.fit([images(4)])


def test_a_rank_that_is_stuck_ends_all_with_a_message():
    outcomes = outcomes_on_ranks(2, _stuck, patience=3)
    assert not outcomes[0][0] and "has lost another rank" in outcomes[0][1]
    assert not outcomes[1][0] and "RankFailedError" in outcomes[1][1]


class _Piece(nn.Parameter):
    pass


_Piece.__name__ = "DTensor"


def test_sharded_parameters_are_refused():
    model = autoencoder()
    model.decoder[0].weight = _Piece(model.decoder[0].weight.data)
    with pytest.raises(ValueError, match="in pieces on several ranks"):
        LaplaceAE(model)
