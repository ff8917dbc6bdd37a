"""la.latent(x, include=...): uncertainty from the weights, from the code, from both."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from lae_backpack import LaplaceAE
from lae_backpack.latent import sampled_posteriors
from tests.test_autoencoder import images, model, seeded


def fitted(likelihood: str = "regression") -> LaplaceAE:
    la = LaplaceAE(model(), likelihood)
    la.fit(images().split(4))
    return la


@pytest.mark.parametrize("likelihood", ["regression", "bernoulli"])
def test_the_codes_part_is_its_posterior_under_the_mean_weights(likelihood: str):
    x, la = images(), fitted(likelihood)
    encoder, decoder = la.model.encoder, la.model.decoder
    z = encoder(x).detach()
    weight = vmap(jacrev(lambda code: decoder(code[None]).flatten()))(
        z
    ).detach()  # [N, D, K]
    pixels = torch.full((10, 12), 1.0) / la.sigma_noise**2
    if likelihood == "bernoulli":
        p = decoder(z).flatten(1).sigmoid().detach()
        pixels = p * (1 - p)
    precision = weight.transpose(1, 2) @ (pixels[:, :, None] * weight) + torch.eye(2)
    mean, variance = la.latent(x, include="code")
    torch.testing.assert_close(mean, z)
    expected = torch.linalg.inv(precision).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(variance, expected)


def test_both_parts_add_up():
    x, la = images(), fitted()
    mean, variance = la.latent(x, 20, seeded(), include="both")
    from_weights = la.latent(x, 20, seeded(), include="weights")
    posteriors = list(sampled_posteriors(la, x, 20, seeded()))
    from_code = torch.stack([q.variance for q in posteriors]).mean(0)
    torch.testing.assert_close(mean, from_weights[0])
    torch.testing.assert_close(variance, from_weights[1] + from_code)
    assert (from_code > 0).all() and (from_weights[1] > 0).all()
    one = la.latent(x, 1, seeded(), include="both")
    assert torch.isfinite(one[1]).all()


def test_sampled_posteriors_belong_to_the_sampled_networks():
    x, la = images(), fitted()
    draws = sampled_posteriors(la, x, 3, seeded(), n_updates=300)
    networks = la.sampler().draws(3, seeded())
    for q, weights in zip(draws, networks, strict=True):
        decoder = {
            n.removeprefix("decoder."): w for n, w in weights.items() if "decoder" in n
        }
        z = q.mean.clone().requires_grad_()
        output = functional_call(la.model.decoder, decoder, (z,))
        log_joint = -0.5 * ((x - output) / la.sigma_noise).square().sum()
        log_joint = log_joint - 0.5 * z.square().sum()
        (gradient,) = torch.autograd.grad(log_joint, z)
        assert gradient.abs().max() < 1e-5  # at the mode of its own network


@pytest.mark.parametrize("include", ["code", "both"])
def test_chunks_change_nothing(include: str):
    x, la = images(), fitted()
    whole = la.latent(x, 3, seeded(), include=include)
    for size in (1, 4):
        chunked = la.latent(x, 3, seeded(), size, include)
        torch.testing.assert_close(chunked, whole)
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        la.latent(x, chunk_size=0, include=include)


def test_the_default_is_unchanged_and_the_model_too():
    x, la = images(), fitted()
    before = {k: v.clone() for k, v in la.model.state_dict().items()}
    plain, said = (
        la.latent(x, 5, seeded()),
        la.latent(x, 5, seeded(), include="weights"),
    )
    assert torch.equal(plain[1], said[1])
    la.latent(x, 5, include="both")
    for name, value in la.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_errors_say_what_to_do():
    x = images()
    with pytest.raises(ValueError, match="include must be one of .*'both'.* got 'all'"):
        fitted().latent(x, include="all")
    with pytest.raises(ValueError, match="n_samples must be at least 1 and an integer"):
        fitted().latent(x, 0, include="both")
    for include in ("code", "both"):
        with pytest.raises(RuntimeError, match="not fitted"):
            LaplaceAE(model()).latent(x, include=include)
    spatial = nn.Module()
    spatial.encoder = nn.Conv2d(1, 2, 3, padding=1)
    spatial.decoder = nn.Conv2d(2, 1, 3, padding=1)
    spatial.forward = lambda x: spatial.decoder(spatial.encoder(x))
    la = LaplaceAE(spatial)
    la.fit(x.split(4))
    with pytest.raises(ValueError, match=r"Codes must be \[10, K\]"):
        la.latent(x, include="code")
