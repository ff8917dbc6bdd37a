"""VLAE: bounds against exact likelihoods, gradients against finite differences."""

import copy
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import functional_call

from lae_backpack.latent import VLAE, LatentLaplace
from lae_backpack.latent.code_model import divergence_from_prior, draw
from tests.test_latent import mlp


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vlae(activation: Callable[[], nn.Module] = nn.Tanh, **settings: object) -> VLAE:
    torch.manual_seed(1)
    encoder, decoder = mlp(activation, 5, 3, 2), mlp(activation, 2, 3, 5)
    return VLAE(encoder, decoder, **settings)


def images(model: VLAE) -> Tensor:
    torch.manual_seed(2)
    x = torch.rand(3, 5)
    return x.round() if model.likelihood_name == "bernoulli" else x


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, partial(nn.LayerNorm, 3)])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize(
    "settings",
    [
        {"linearisation": "jacobian", "n_updates": 0},
        {"linearisation": "jacobian", "n_updates": 2},
        {"linearisation": "products", "n_updates": 2},
        {"linearisation": "jacobian", "n_updates": 2, "guarded": True, "alpha": 1.0},
    ],
    ids=str,
)
def test_gradients_of_the_elbo_by_finite_differences(activation, likelihood, settings):
    model = vlae(activation, likelihood=likelihood, sigma=0.5, **settings)
    x, names = images(model), [name for name, _ in model.named_parameters()]

    def elbo(*values: Tensor) -> Tensor:
        weights = dict(zip(names, values, strict=True))
        # Not through forward, which gives reconstructions.
        return functional_call(Bound(model), with_prefix(weights), (x,))

    values = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    # Along random directions; all entries one by one where the paper's own case is.
    paper = {"linearisation": "jacobian", "n_updates": 2}
    whole = likelihood == "gaussian" and settings == paper
    assert torch.autograd.gradcheck(elbo, values, fast_mode=not whole)


class Bound(nn.Module):
    """The ELBO as a forward pass, always with the same noise."""

    def __init__(self, model: VLAE):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.elbo(x, 2, seeded())


def with_prefix(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"model.{name}": value for name, value in weights.items()}


def test_both_routes_give_the_same_bound_and_gradients():
    gradients = []
    for route in ("jacobian", "products"):
        model = vlae(nn.ReLU, linearisation=route, n_updates=3)
        model.elbo(images(model), 4, seeded()).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients)


def linear_model() -> tuple[VLAE, Tensor, Tensor]:
    """A VLAE that is probabilistic PCA, with images and their exact likelihood."""
    model = VLAE(nn.Linear(6, 2), nn.Linear(2, 6), sigma=0.4, n_updates=1, alpha=1.0)
    x, weight = torch.randn(5, 6), model.decoder.weight.detach()
    covariance = weight @ weight.T + 0.4**2 * torch.eye(6)
    marginal = MultivariateNormal(model.decoder.bias.detach(), covariance)
    return model, x, marginal.log_prob(x)


def test_importance_sampling_is_exact_under_the_true_posterior():
    model, x, exact = linear_model()
    torch.testing.assert_close(model.log_likelihood(x, n_importance=1), exact)
    torch.testing.assert_close(model.log_likelihood(x, n_importance=5), exact)


def test_the_bound_is_tight_under_the_true_posterior_and_loose_otherwise():
    model, x, exact = linear_model()
    bound = model.elbo(x, 4000, seeded()).detach()
    assert (bound - exact).abs().max() < 0.15
    model.n_updates = 0  # the encoder's code is not the mode
    assert (model.elbo(x, 4000, seeded()) < exact - 0.15).any()


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_likelihood_against_a_grid_of_codes(likelihood: str):
    torch.manual_seed(0)
    encoder, decoder = mlp(nn.Tanh, 5, 4, 1), mlp(nn.Tanh, 1, 4, 5)
    model = VLAE(encoder, decoder, likelihood, sigma=0.5, n_updates=4)
    x = images(model)
    z = torch.linspace(-8, 8, 4001)[:, None]
    spacing = (z[1] - z[0]).item()
    with torch.no_grad():
        output = decoder(z)[:, None]  # [G, 1, 5]
        if likelihood == "bernoulli":
            pixels = torch.distributions.Bernoulli(logits=output).log_prob(x)
        else:
            pixels = torch.distributions.Normal(output, 0.5).log_prob(x)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z)
        exact = torch.logsumexp(pixels.sum(-1) + prior, 0) + math.log(spacing)
    found = model.log_likelihood(x, 3000, seeded())
    torch.testing.assert_close(found, exact, rtol=0, atol=0.03)
    assert (model.elbo(x, 3000, seeded()) < exact + 0.03).all()


def test_draws_and_divergence_are_those_of_torch():
    root = torch.randn(3, 4, 4)
    q = MultivariateNormal(torch.randn(3, 4), root @ root.transpose(1, 2))
    prior = MultivariateNormal(torch.zeros(4), torch.eye(4))
    torch.testing.assert_close(divergence_from_prior(q), kl_divergence(q, prior))
    generator = seeded()
    draws = torch.stack([draw(q, generator) for _ in range(20000)])
    torch.testing.assert_close(draws.mean(0), q.mean, rtol=0, atol=0.1)
    centred = draws - q.mean
    covariance = torch.einsum("sni,snj->nij", centred, centred) / len(draws)
    torch.testing.assert_close(covariance, q.covariance_matrix, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_it_trains_in_anyones_loop(likelihood: str):
    torch.manual_seed(0)
    encoder, decoder = mlp(nn.ReLU, 8, 16, 2), mlp(nn.ReLU, 2, 16, 8)
    model = VLAE(encoder, decoder, likelihood, n_updates=2)
    truth = torch.randn(64, 2) @ torch.randn(2, 8) / 2
    x = (truth > 0).to(truth) if likelihood == "bernoulli" else truth
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    before = model.elbo(x, 10, seeded()).mean().item()
    for _ in range(80):
        optimizer.zero_grad()
        (-model.elbo(x).mean()).backward()
        optimizer.step()
    assert model.elbo(x, 10, seeded()).mean().item() > before + 1
    assert all(p.grad is not None for p in model.parameters())
    if likelihood == "gaussian":
        assert model.log_sigma.item() < -0.5  # the noise was learned


@pytest.mark.parametrize("route", ["jacobian", "products"])
def test_truncated_covariances_train(route: str):
    model = vlae(nn.ReLU, linearisation=route, rank=1, n_updates=2)
    model.elbo(images(model)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert model.encoder[0].weight.grad.abs().sum() > 0


def test_shapes_of_images():
    decoder = nn.Sequential(nn.Linear(2, 12), nn.Unflatten(1, (1, 4, 3)))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    model, x = VLAE(encoder, decoder, "bernoulli"), torch.rand(5, 1, 4, 3).round()
    assert model.elbo(x).shape == model.log_likelihood(x, 3).shape == (5,)
    assert model.reconstruct(x).shape == model(x).shape == x.shape
    samples = model.sample(7, seeded())
    assert samples.shape == (7, 1, 4, 3)
    assert samples.min() > 0 and samples.max() < 1
    assert torch.equal(samples, model.sample(7, seeded()))
    q = model.posterior(x)
    assert isinstance(q, MultivariateNormal)
    assert q.mean.shape == (5, 2) and q.covariance_matrix.shape == (5, 2, 2)


def test_the_posterior_is_latent_laplace_from_the_encoders_code():
    model = vlae(sigma=0.5, n_updates=3, alpha=[1.0, 0.5, 0.25])
    x = images(model)
    la = LatentLaplace(model.decoder, sigma=0.5, alpha=[1.0, 0.5, 0.25], guarded=False)
    expected = la.posterior(x, model.encoder(x), 3)
    torch.testing.assert_close(model.posterior(x).mean, expected.mean)
    found = model.posterior(x, n_updates=0).mean
    torch.testing.assert_close(found, model.encoder(x))


def test_state_goes_round_and_copies_are_independent():
    model = vlae(sigma=0.5)
    other = vlae(sigma=2.0)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    x = images(model)
    torch.testing.assert_close(
        model.elbo(x, 1, seeded()), other.elbo(x, 1, seeded()), rtol=0, atol=0
    )
    assert vlae(likelihood="bernoulli").log_sigma is None
    assert model.float().elbo(x.float()).dtype == torch.float32


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"linearisation": "engine"}, "has no gradients"),
        ({"likelihood": "poisson"}, "likelihood must be one of"),
        ({"sigma": -1.0}, "sigma must be one positive number, got -1.0"),
        ({"n_updates": -1}, "n_updates must be at least 0 and an integer, got -1"),
        ({"alpha": 0.0}, "alpha must be within"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        vlae(**settings)


def test_errors_say_what_to_do():
    model = vlae()
    x = images(model)
    for name in ("elbo", "log_likelihood"):
        with pytest.raises(ValueError, match="must be at least 1 and an integer"):
            getattr(model, name)(x, 0)
    with pytest.raises(ValueError, match="must be at least 1 and an integer"):
        model.sample(0)
    with pytest.raises(TypeError, match="x has dtype torch.float32"):
        LatentLaplace(model.decoder).posterior(x.float())
