"""Outlier scores against densities and divergences written out, and scikit-learn."""

import itertools
import math

import pytest
import torch
from sklearn import metrics
from torch import Tensor
from torch.distributions import Bernoulli, Normal, kl_divergence

import lae_backpack.downstream.networks as networks
from lae_backpack.downstream.ood import (
    Detection,
    detection,
    mean_log_likelihood,
    outlier_scores,
)
from lae_backpack.posterior import chunks
from tests.fakes import Constant, Shifts, fitted, seeded

KEYS = [
    "log_likelihood",
    "typicality",
    "output_variance",
    "output_deviation",
    "latent_variance",
    "latent_deviation",
    "pairwise_divergence",
]


def log_mean_density(log_prob: Tensor) -> Tensor:
    """[S, N, *in] -> [N], the textbook way."""
    return log_prob.flatten(2).sum(2).exp().mean(0).log()


def mean_divergence(members: list) -> Tensor:
    """Over all ordered pairs of different members."""
    pairs = itertools.permutations(members, 2)
    return torch.stack([kl_divergence(p, q).flatten(1).sum(1) for p, q in pairs]).mean(
        0
    )


def test_known_gaussians():
    x, reference = torch.rand(6, 1, 2, 2), torch.rand(5, 1, 2, 2)
    la = Shifts(torch.tensor([0.1, -0.3, 0.5]), sigma_noise=0.7)
    scores = outlier_scores(la, x, reference, n_samples=3)
    assert list(scores) == KEYS
    # Every network is off by its shift at each of 4 pixels.
    each = 4 * Normal(0.0, 0.7).log_prob(la.shifts)
    log_likelihood = each.exp().mean().log().expand(6)
    torch.testing.assert_close(scores["log_likelihood"], -log_likelihood)
    torch.testing.assert_close(scores["typicality"], torch.zeros(6))
    variance = 4 * la.shifts.var().expand(6)
    torch.testing.assert_close(scores["output_variance"], variance)
    deviation = 4 * la.shifts.std().expand(6)
    torch.testing.assert_close(scores["output_deviation"], deviation)
    codes = (x.flatten(1)[:, :2] + la.shifts[:, None, None]).square()
    torch.testing.assert_close(scores["latent_variance"], codes.var(0).sum(1))
    torch.testing.assert_close(scores["latent_deviation"], codes.std(0).sum(1))
    members = [Normal(x + shift, 0.7) for shift in la.shifts]
    torch.testing.assert_close(scores["pairwise_divergence"], mean_divergence(members))


@pytest.mark.parametrize("likelihood", ["regression", "bernoulli"])
def test_laplace_autoencoder_against_its_own_samples(likelihood: str):
    la, x = fitted(likelihood)
    reference, x = x[:15], x[15:]
    scores = outlier_scores(la, x, reference, 7, seeded())
    assert list(scores) == KEYS
    same = torch.Generator().manual_seed(
        int(torch.randint(2**31, (), generator=seeded()))
    )
    both = la.samples(torch.cat((reference, x)), 7, same)

    def pixels(output: Tensor) -> Normal | Bernoulli:
        if likelihood == "bernoulli":
            return Bernoulli(output, validate_args=False)
        return Normal(output, la.sigma_noise)

    images = torch.cat((reference, x))
    true = log_mean_density(pixels(both).log_prob(images))
    torch.testing.assert_close(scores["log_likelihood"], -true[15:])
    usual = true[:15].mean()
    torch.testing.assert_close(scores["typicality"], (true[15:] - usual).abs())
    samples = both[:, 15:]
    variance = samples.var(0).flatten(1).sum(1)
    torch.testing.assert_close(scores["output_variance"], variance)
    deviation = samples.std(0).flatten(1).sum(1)
    torch.testing.assert_close(scores["output_deviation"], deviation)
    divergence = mean_divergence([pixels(sample) for sample in samples])
    torch.testing.assert_close(scores["pairwise_divergence"], divergence)
    codes = la.latent_samples(x, 7, same.manual_seed(same.initial_seed()))
    torch.testing.assert_close(scores["latent_variance"], codes.var(0).sum(1))
    torch.testing.assert_close(scores["latent_deviation"], codes.std(0).sum(1))
    assert not la.model.encoder._forward_hooks


def test_results_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch):
    la, x = fitted()
    whole = outlier_scores(la, x, x[:9], 5, seeded())
    shades = outlier_scores(Constant(), x, x[:9], 5, seeded())
    monkeypatch.setattr(chunks, "AUTOMATIC_BYTES", 8 * 12 * 5 * 3)  # 3 rows by 5 nets
    cut = outlier_scores(la, x, x[:9], 5, seeded())
    torch.testing.assert_close(cut, whole)
    cut = outlier_scores(Constant(), x, x[:9], 5, seeded())
    torch.testing.assert_close(cut, shades)
    fake = Shifts(torch.zeros(5))
    outlier_scores(fake, x, x[:9], 5)
    assert max(fake.seen) == 3


def test_the_networks_of_a_laplace_autoencoder_come_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
):
    la, x = fitted()
    alive, most = [], 0
    original = networks.Network

    def counting(output: Tensor, code: Tensor, log_density: Tensor):
        import weakref

        nonlocal most
        alive.append(weakref.ref(output))
        most = max(most, sum(ref() is not None for ref in alive))
        return original(output, code, log_density)

    monkeypatch.setattr(networks, "Network", counting)
    outlier_scores(la, x, 0.0, 30)
    assert len(alive) == 30 and most <= 2


def test_a_model_without_codes_has_no_latent_variance():
    x = torch.rand(4, 3)
    scores = outlier_scores(Constant(), x, x, 5, seeded())
    assert list(scores) == [key for key in KEYS if not key.startswith("latent")]


def test_a_model_with_its_own_density():
    class Own(Constant):
        def log_densities(self, x, n_samples, generator=None):
            return torch.arange(n_samples).double()[:, None] * x.sum(1)

    x = torch.rand(4, 3)
    scores = outlier_scores(Own(), x, 0.0, 2)
    true = ((1 + x.sum(1).exp()) / 2).log()
    torch.testing.assert_close(scores["log_likelihood"], -true)


def test_the_reference_may_be_its_mean_log_likelihood():
    la, x = fitted()
    usual = mean_log_likelihood(la, x[:20], 6, seeded())
    scores = outlier_scores(la, x, usual, 6, seeded())
    torch.testing.assert_close(scores, outlier_scores(la, x, x[:20], 6, seeded()))


def test_one_network_has_no_variance():
    la, x = fitted()
    scores = outlier_scores(la, x, x, 1)
    for name in KEYS[2:]:
        assert scores[name].eq(0).all()


def test_float32_with_far_images():
    la = Shifts(torch.tensor([0.0, 1e-3]), sigma_noise=1e-2)
    la.shifts = la.shifts.float()
    scores = outlier_scores(la, 1e3 * torch.rand(3, 784).float(), 0.0, 2)
    assert all(s.isfinite().all() and s.dtype == torch.float32 for s in scores.values())


def rate(inside: Tensor, outside: Tensor, level: float) -> float:
    """All thresholds, one by one."""
    rates = [
        (float((inside >= t).double().mean()), float((outside >= t).double().mean()))
        for t in torch.cat((inside, outside)).unique()
    ]
    return min(false for false, true in rates if true >= level)


@pytest.mark.parametrize("ties", [False, True])
def test_detection_against_scikit_learn(ties: bool):
    inside, outside = 1e3 * torch.randn(57), 1e3 * torch.randn(40) + 800
    if ties:
        inside, outside = (inside / 500).round(), (outside / 500).round()
    found = detection(inside, outside)
    scores = torch.cat((inside, outside)).numpy()
    labels = [0] * 57 + [1] * 40
    assert found.auroc == pytest.approx(metrics.roc_auc_score(labels, scores))
    true = metrics.average_precision_score(labels, scores)
    assert found.auprc == pytest.approx(true)
    assert found.fpr80 == pytest.approx(rate(inside, outside, 0.80))
    assert found.fpr95 == pytest.approx(rate(inside, outside, 0.95))


def test_detection_at_the_extremes():
    low, high = torch.zeros(5), torch.ones(20)
    assert detection(low, high) == Detection(1.0, 1.0, 0.0, 0.0)
    assert detection(high, high).auroc == 0.5
    assert detection(high, low).fpr95 == 1.0
    # 19 of 20 are 95%, exactly.
    scores = torch.cat((torch.ones(19), -torch.ones(1)))
    assert detection(low, scores).fpr95 == 0.0
    assert detection(low, torch.tensor([math.inf])).auroc == 1.0


def test_bad_input():
    la, x = fitted()
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        outlier_scores(la, x, x, 0)
    with pytest.raises(ValueError, match="x has shape .*x\\[None\\]"):
        outlier_scores(la, x[:0], x)
    with pytest.raises(ValueError, match="reference has shape"):
        outlier_scores(la, x, x[:0])
    with pytest.raises(TypeError, match="floating point numbers, got torch.int64"):
        outlier_scores(la, x.long(), x)
    with pytest.raises(TypeError, match="object has no samples"):
        outlier_scores(object(), x, x)
    with pytest.raises(ValueError, match="Shifts.samples gave"):
        outlier_scores(Shifts(torch.zeros(2)), x, x, 5)
    with pytest.raises(ValueError, match="does not take x of shape"):
        outlier_scores(la, torch.rand(3, 7), 0.0)
    with pytest.raises(ValueError, match=r"within \[0, 1\]"):
        outlier_scores(fitted("bernoulli")[0], 2 * x, x)
    with pytest.raises(ValueError, match="inside must be .*1 nan"):
        detection(torch.tensor([math.nan]), torch.zeros(2))
    with pytest.raises(ValueError, match="outside must be"):
        detection(torch.zeros(2), torch.zeros(0))
