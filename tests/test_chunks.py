"""Predictives do not depend on chunks, and their memory does not grow."""

from collections.abc import Callable

import pytest
import torch
from laplace import Laplace
from measuring import peak_memory
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.posterior import chunks, jacobians
from tests.test_autoencoder import images, model, seeded
from tests.test_structures import classification_net, image_net, regression_net

SIZES = [1, 3, 10, 99, None]


def fitted(likelihood: str = "regression") -> LaplaceAE:
    la = LaplaceAE(model(), likelihood)
    la.fit(images().split(4))
    return la


PREDICTIVES: dict[str, Callable[[LaplaceAE, int | None], object]] = {
    "nn": lambda la, n: la(images(), "nn", 5, seeded(), chunk_size=n),
    "glm": lambda la, n: la(images(), "glm", 5, seeded(), chunk_size=n),
    "latent": lambda la, n: la.latent(images(), 5, seeded(), chunk_size=n),
    "samples": lambda la, n: la.samples(images(), 5, seeded(), chunk_size=n),
    "codes": lambda la, n: la.latent_samples(images(), 5, seeded(), chunk_size=n),
}


@pytest.mark.parametrize("name", PREDICTIVES)
def test_an_autoencoder_predicts_the_same_in_any_chunks(name: str):
    la = fitted()
    found = [PREDICTIVES[name](la, size) for size in SIZES]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-14)


def test_bernoulli_probabilities_are_the_same_in_any_chunks():
    la = fitted("bernoulli")
    found = [la(images(), "nn", 5, seeded(), chunk_size=size) for size in SIZES]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("pred_type", ["nn", "glm"])
@pytest.mark.parametrize("likelihood", ["regression", "classification"])
def test_structures_predict_the_same_in_any_chunks(pred_type: str, likelihood: str):
    x, labels = torch.randn(6, 1, 5, 4), torch.randint(2, (6, 5, 4))
    target = torch.randn(6, 2, 5, 4) if likelihood == "regression" else labels
    la = Laplace(image_net(), likelihood, "all", "approx_diag")
    la.fit(DataLoader(TensorDataset(x, target), 4))
    for link in ("probit", "mc"):
        settings = {"pred_type": pred_type, "link_approx": link, "n_samples": 5}
        found = [la(x, **settings, generator=seeded(), chunk_size=n) for n in SIZES]
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-14)


def test_moments_over_chunks_are_those_of_the_samples():
    la = fitted()
    samples = la.samples(images(), 7, seeded(), chunk_size=4)
    mean, variance = la(images(), n_samples=7, generator=seeded(), chunk_size=3)
    torch.testing.assert_close(mean, samples.mean(0))
    torch.testing.assert_close(variance, samples.var(0))
    mean, variance = la(images(), n_samples=1, generator=seeded())
    assert torch.equal(mean, la.samples(images(), 1, seeded())[0])
    assert (variance == 0).all()


def test_a_large_batch_is_cut_unasked(monkeypatch):
    x = torch.zeros(100, 3)
    assert [len(c) for c in chunks.chunks_of(x)] == [100]
    monkeypatch.setattr(chunks, "AUTOMATIC_BYTES", 40 * 3 * 8)
    assert [len(c) for c in chunks.chunks_of(x)] == [40, 40, 20]
    assert len(chunks.chunks_of(x, n_outputs=40 * 3 * 8)[0]) == 1  # never none
    assert len(chunks.chunks_of(x, n_outputs=12)[0]) == 10  # the larger side counts


@pytest.mark.parametrize("net", [regression_net, classification_net])
def test_exact_jacobians_are_built_a_few_at_a_time(net, monkeypatch):
    x = torch.randn(10, 3)
    outputs = net()(x)
    likelihood = "regression" if net is regression_net else "classification"
    y = outputs.detach() if net is regression_net else outputs.argmax(1)
    la = Laplace(net(), likelihood, "all", "approx_diag")
    la.fit(DataLoader(TensorDataset(x, y), 4))
    whole, samples = la(x), la.functional_samples(x, n_samples=3, generator=seeded())
    sizes = []
    original = la.backend.jacobians
    monkeypatch.setattr(
        la.backend, "jacobians", lambda x, **k: sizes.append(len(x)) or original(x, **k)
    )
    limit = 3 * la.n_params * outputs.shape[1]
    monkeypatch.setattr(jacobians, "SMALL_JACOBIAN", limit)
    torch.testing.assert_close(la(x), whole)
    torch.testing.assert_close(
        la.functional_samples(x, n_samples=3, generator=seeded()), samples
    )
    assert sizes == 2 * [3, 3, 3, 1]


def test_mc_link_is_reproducible():
    x = torch.randn(10, 3)
    la = Laplace(classification_net(), "classification", "all", "approx_diag")
    la.fit(DataLoader(TensorDataset(x, torch.arange(10) % 4), 4))
    found = [la(x, link_approx="mc", generator=seeded()) for _ in range(2)]
    assert torch.equal(*found)
    samples = la.predictive_samples(x, generator=seeded())
    torch.testing.assert_close(found[0], samples.mean(0))


@pytest.mark.parametrize("size", [0, -2, 1.5, True])
def test_a_bad_chunk_size_is_refused(size):
    la = fitted()
    for call in (la, la.latent, la.samples, la.latent_samples):
        with pytest.raises(ValueError, match=f"chunk_size must be .* got {size!r}"):
            call(images(), chunk_size=size)
    net = Laplace(regression_net(), "regression", "all", "approx_diag")
    x = torch.randn(10, 3)
    net.fit(DataLoader(TensorDataset(x, x[:, :2]), 4))
    with pytest.raises(ValueError, match=f"chunk_size must be .* got {size!r}"):
        net(x, chunk_size=size)


def wide_net() -> LaplaceAE:
    """Its activations are far larger than its inputs and codes."""
    encoder = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.Flatten())
    decoder = nn.Sequential(
        nn.Unflatten(1, (16, 16, 16)), nn.Tanh(), nn.Conv2d(16, 1, 3, padding=1)
    )
    la = LaplaceAE(AutoEncoder(encoder, decoder), hessian_structure="approx_diag")
    la.fit([torch.rand(2, 1, 16, 16)])
    return la


def bytes_of(x: Tensor) -> int:
    return x.numel() * x.element_size()


@pytest.mark.parametrize("pred_type", ["nn", "glm"])
def test_memory_does_not_grow_with_the_number_of_samples(pred_type: str):
    la, x = wide_net(), torch.rand(8, 1, 16, 16)
    few, many = (
        peak_memory(lambda n=n: la(x, pred_type, n_samples=n)) for n in (4, 40)
    )
    assert many <= 1.02 * few
    assert 36 * bytes_of(x) > 0.1 * few  # samples that are kept would show


@pytest.mark.parametrize("pred_type", ["nn", "glm"])
def test_memory_does_not_grow_with_the_batch(pred_type: str):
    la = wide_net()

    def beyond_outputs(n: int, chunk_size: int) -> int:
        x = torch.rand(n, 1, 16, 16)
        call = lambda: la(x, pred_type, n_samples=2, chunk_size=chunk_size)  # noqa: E731
        return peak_memory(call) - 2 * bytes_of(x)

    small, large = beyond_outputs(16, 8), beyond_outputs(128, 8)
    assert large <= 1.1 * small
    assert beyond_outputs(128, 128) > 5 * large  # what chunks are for
