"""Noise in blocks: normal, reproducible, whatever the number of threads."""

import pytest
import torch
from scipy.stats import kstest

from lae_backpack.posterior.noise import BLOCK, normal_noise


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def drawn(size: int, seed: int, times: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    with normal_noise(generator) as draw:
        return torch.stack([draw(torch.empty(size)) for _ in range(times)])


@pytest.mark.parametrize("size", [3, BLOCK, BLOCK + 1, 5 * BLOCK - 7])
def test_threads_do_not_matter(size, threads):
    found = []
    for count in (1, 2, 5):
        threads(count)
        found.append(drawn(size, seed=0, times=2))
    for other in found[1:]:
        assert torch.equal(found[0], other)


def test_numbers_are_normal_and_blocks_are_not_copies():
    noise = drawn(4 * BLOCK, seed=1, times=2).double()
    assert kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
    blocks = noise.reshape(8, BLOCK)
    correlation = torch.corrcoef(blocks) - torch.eye(8)
    assert correlation.abs().max() < 5 / BLOCK**0.5


def test_seeds_and_torchs_own_generator_decide():
    assert not torch.equal(drawn(2 * BLOCK, 0), drawn(2 * BLOCK, 1))
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        with normal_noise(None) as draw:
            found.append(draw(torch.empty(3, BLOCK)))
    assert torch.equal(*found)
