"""Accelerate's loaders and processes: every sample counts once."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.posterior.shards import n_own_of_accelerate
from tests.ranks import run_on_ranks

ECOSYSTEM = Path(__file__).parents[1] / "examples" / "ecosystem"


def example(n_ranks: int) -> Any:
    """Run the example in this process, as torchrun would start it."""
    import torch.distributed as dist

    if n_ranks > 1:
        rank = str(dist.get_rank())
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(n_ranks)}
    torch.set_default_dtype(torch.float32)
    sys.path.insert(0, str(ECOSYSTEM))
    try:
        import accelerate_online

        found = accelerate_online.main(["--smoke"])
    finally:
        sys.path.remove(str(ECOSYSTEM))
    return {name: (way["n_data"], way["H"]) for name, way in found.items()}


def test_the_example_on_one_process_and_on_two():
    pytest.importorskip("accelerate", reason="needs accelerate, see the dev extra")
    one = run_on_ranks(1, example, 1)[0]
    both = run_on_ranks(2, example, 2)
    for name in ("post hoc", "online"):
        assert one[name][0] == both[0][name][0] == 1500
        assert torch.equal(both[0][name][1], both[1][name][1])
        # Not the same weights, because gradients are of twice as many images.
        assert 0.2 < (both[0][name][1].sum() / one[name][1].sum()).item() < 5


def prepared(dispatches: bool) -> Any:
    """Fit post hoc what Accelerate has prepared."""
    import torch.distributed as dist
    from accelerate import Accelerator, DataLoaderConfiguration

    rank, n_ranks = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n_ranks}
    settings = DataLoaderConfiguration(dispatch_batches=dispatches)
    loader = Accelerator(cpu=True, dataloader_config=settings).prepare(
        DataLoader(torch.linspace(0, 1, 105).reshape(21, 5), 4)
    )
    la = LaplaceAE(
        AutoEncoder(nn.Linear(5, 2), nn.Linear(2, 5)), hessian_structure="approx_diag"
    )
    try:
        la.fit(loader)
    except ValueError as error:
        return str(error)
    return la.n_data, la.H


def test_what_accelerate_prepares_is_fitted_as_by_one_process():
    pytest.importorskip("accelerate", reason="needs accelerate, see the dev extra")
    one, both = (run_on_ranks(n, prepared, False) for n in (1, 2))
    assert one[0][0] == both[0][0] == 21
    torch.testing.assert_close(one[0][1], both[0][1])


def test_batches_that_one_rank_hands_out_are_refused():
    pytest.importorskip("accelerate", reason="needs accelerate, see the dev extra")
    for message in run_on_ranks(2, prepared, True):
        assert "dispatch_batches=False" in message


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("n_data", [1, 5, 12, 23, 24, 25, 30])
def test_own_samples_are_those_before_the_repeated(n_data, n_ranks, drop_last, split):
    """Against what Accelerate's own sampler yields."""
    shards = pytest.importorskip("accelerate.data_loader", reason="needs accelerate")
    seen: list[int] = []
    for rank in range(n_ranks):
        inner = BatchSampler(range(n_data), 6, drop_last)
        shard = shards.BatchSamplerShard(inner, n_ranks, rank, split)
        rows = [row for batch in shard for row in batch]
        seen += rows[: n_own_of_accelerate(shard)]
        assert n_own_of_accelerate(shard) <= len(rows)
    if drop_last:
        together = 6 if split else 6 * n_ranks
        assert sorted(seen) == list(range(n_data // together * together))
    else:
        assert sorted(seen) == list(range(n_data))


def test_without_accelerate_the_count_is_the_same():
    """Batches of 4 of 10 images, in turn: 4 and 2 for rank 0, 4 for rank 1."""
    inner = DataLoader(torch.rand(10, 1), 4).batch_sampler
    counts = []
    for rank in range(2):
        shard = SimpleNamespace(
            batch_sampler=inner, num_processes=2, process_index=rank,
            split_batches=False,
        )  # fmt: skip
        counts.append(n_own_of_accelerate(shard))
    assert counts == [6, 4]
