"""LatentLaplace against closed forms, autograd and direct solves."""

import copy

import pytest
import torch
from backpack import extend
from torch import Tensor, nn
from torch.func import hessian, jacrev, vmap

from lae_backpack.latent import LatentLaplace, halved_decay
from lae_backpack.latent.likelihoods import Bernoulli, Gaussian
from lae_backpack.latent.linearisation import ByJacobian
from lae_backpack.latent.shared_metric import ROUTES, BySharedMetric, by_jacobian
from lae_backpack.posterior.conjugate_gradients import conjugate_gradients

SIGMA = 0.3


def mlp(activation: type[nn.Module], *sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(n_in, n_out), activation()]
    return nn.Sequential(*layers[:-1])


def conv_decoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 8),
        nn.Tanh(),
        nn.Unflatten(1, (2, 2, 2)),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(2, 1, 3, padding=1),
    )


DECODERS = {
    "linear": lambda: nn.Linear(3, 7),
    "relu": lambda: mlp(nn.ReLU, 3, 20, 10, 7),
    "leaky": lambda: mlp(nn.LeakyReLU, 3, 20, 7),
    "tanh": lambda: mlp(nn.Tanh, 3, 20, 7),
    "conv": conv_decoder,
}


def data(decoder: nn.Module, likelihood: str = "gaussian") -> tuple[Tensor, Tensor]:
    """Images and codes."""
    z = torch.randn(6, 3)
    with torch.no_grad():
        x = decoder(z) + SIGMA * torch.randn_like(decoder(z))
    return (x > 0).to(x) if likelihood == "bernoulli" else x, torch.randn(6, 3)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("start", ["zero", "anywhere"])
def test_a_linear_decoder_is_probabilistic_pca(route: str, start: str):
    decoder = nn.Linear(4, 9)
    x, z0 = torch.randn(5, 9), torch.randn(5, 4)
    la = LatentLaplace(decoder, "gaussian", SIGMA, linearisation=route)
    q = la.posterior(x, z0 if start == "anywhere" else None, n_updates=1)
    weight, bias = decoder.weight.detach(), decoder.bias.detach()
    covariance = torch.linalg.inv(weight.T @ weight / SIGMA**2 + torch.eye(4))
    mean = (x - bias) @ weight @ covariance / SIGMA**2
    close = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(q.mean.detach(), mean, **close)
    found = q.covariance_matrix.detach()
    torch.testing.assert_close(found, covariance.expand_as(found), **close)


@pytest.mark.parametrize("name", ["relu", "leaky"])
def test_the_linearisation_is_the_jacobian_and_exact_nearby(name: str):
    decoder = DECODERS[name]().requires_grad_(False)
    z = torch.randn(6, 3)
    weight, bias = LatentLaplace(decoder).linear_model(z)
    torch.testing.assert_close(weight, vmap(jacrev(decoder))(z))
    near = z + 1e-6 * torch.randn_like(z)
    modelled = (weight @ near[:, :, None])[:, :, 0] + bias
    torch.testing.assert_close(decoder(near), modelled, rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_the_update_is_the_papers_equation_22(alpha: float):
    decoder = DECODERS["relu"]()
    x, mu = data(decoder)
    la = LatentLaplace(decoder, sigma=SIGMA, alpha=alpha, guarded=False)
    weight = vmap(jacrev(decoder))(mu)
    bias = decoder(mu) - torch.einsum("ndk,nk->nd", weight, mu)
    transposed = weight.transpose(1, 2)
    covariance = torch.linalg.inv(transposed @ weight / SIGMA**2 + torch.eye(3))
    right = transposed @ (x - bias)[:, :, None]
    solution = (covariance @ right)[:, :, 0] / SIGMA**2
    expected = (1 - alpha) * mu + alpha * solution
    torch.testing.assert_close(la.path(x, mu, n_updates=1)[1], expected)


def test_the_bernoulli_update_is_the_papers_equation_41():
    decoder = DECODERS["relu"]()
    x, mu = data(decoder, "bernoulli")
    la = LatentLaplace(decoder, "bernoulli", guarded=False)
    weight, y = vmap(jacrev(decoder))(mu), decoder(mu).sigmoid()
    curvature = torch.diag_embed(y * (1 - y))
    transposed = weight.transpose(1, 2)
    covariance = torch.linalg.inv(transposed @ curvature @ weight + torch.eye(3))
    bias = y[:, :, None] - curvature @ weight @ mu[:, :, None]
    expected = covariance @ transposed @ (x[:, :, None] - bias)
    torch.testing.assert_close(la.path(x, mu, n_updates=1)[1], expected[:, :, 0])


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_precision_is_the_hessian_without_the_decoders_second_derivative(
    likelihood: str, name: str
):
    decoder = DECODERS[name]()
    x, z = data(decoder, likelihood)
    la = LatentLaplace(decoder, likelihood, SIGMA)

    def log_joint(code: Tensor, image: Tensor, at: Tensor) -> Tensor:
        output = decoder(at) + jacrev(decoder)(at) @ (code - at)
        if likelihood == "bernoulli":
            pixels = image * output - nn.functional.softplus(output)
        else:
            pixels = -0.5 * ((image - output) / SIGMA) ** 2
        return pixels.sum() - 0.5 * (code**2).sum()

    expected = -vmap(hessian(log_joint))(z, x, z)
    found = la.posterior(x, z, n_updates=0).precision_matrix
    torch.testing.assert_close(found, expected)
    if name == "relu":  # it has no second derivative: this is the whole Hessian
        whole = hessian(lambda code: la.log_joint(x, code).sum())(z)
        blocks = whole[range(6), :, range(6), :]
        torch.testing.assert_close(found, -blocks)


@pytest.mark.parametrize("likelihood", [Gaussian(SIGMA), Bernoulli()])
def test_likelihoods_know_their_derivatives(likelihood: Gaussian | Bernoulli):
    x, output = torch.rand(4, 3).round(), torch.randn(4, 3, requires_grad=True)
    total = likelihood.log_prob(x, output).sum()
    (slope,) = torch.autograd.grad(total, output, create_graph=True)
    torch.testing.assert_close(likelihood.gradient(x, output), slope)
    (bend,) = torch.autograd.grad(slope.sum(), output)
    torch.testing.assert_close(likelihood.curvature(output), -bend)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("name", DECODERS)
def test_the_three_routes_agree(likelihood: str, name: str):
    decoder = DECODERS[name]()
    x, z = data(decoder, likelihood)
    settings = {"likelihood": likelihood, "sigma": SIGMA, "guarded": False}
    q = {
        route: LatentLaplace(decoder, linearisation=route, **settings).posterior(
            x, z, n_updates=2
        )
        for route in ROUTES
    }
    for route in ("engine", "products"):
        torch.testing.assert_close(q[route].mean, q["jacobian"].mean)
        torch.testing.assert_close(
            q[route].precision_matrix, q["jacobian"].precision_matrix
        )


def test_the_shared_metric_changes_nothing():
    decoder = nn.Sequential(*mlp(nn.Tanh, 3, 8, 20), nn.Unflatten(1, (4, 5)))
    x, z = torch.randn(6, 4, 5), torch.randn(6, 3)
    fast, plain = (
        route(decoder, Gaussian(SIGMA)) for route in (by_jacobian, ByJacobian)
    )
    assert isinstance(fast, BySharedMetric)
    found, expected = fast.at(x, z), plain.at(x, z)
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.precision(), expected.precision())
    others = [(decoder, Bernoulli()), (mlp(nn.Tanh, 3, 8, 5), Gaussian(SIGMA))]
    listened = mlp(nn.Tanh, 3, 8, 20)
    listened.register_forward_hook(lambda module, inputs, output: None)
    for other, likelihood in [*others, (listened, Gaussian(SIGMA))]:
        assert type(by_jacobian(other, likelihood)) is ByJacobian


def test_products_are_the_jacobians():
    decoder = DECODERS["tanh"]()
    x, z = data(decoder)
    local = ROUTES["products"](decoder, Gaussian(1.0)).at(x, z)
    weight, v = vmap(jacrev(decoder))(z), torch.randn_like(z)
    expected = weight.transpose(1, 2) @ (weight @ v[:, :, None])
    torch.testing.assert_close(local.pixels_precision(v), expected[:, :, 0])


def test_conjugate_gradients_equal_the_direct_solve():
    root = torch.randn(7, 12, 12)
    scales = torch.logspace(-3, 3, 7)[:, None, None]
    matrix = scales * root @ root.transpose(1, 2) + torch.eye(12)
    right = torch.randn(7, 12)
    right[3] = 0.0  # a sample that is done before it begins
    found = conjugate_gradients(lambda v: (matrix @ v[:, :, None])[:, :, 0], right)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, right))


@pytest.mark.parametrize("route", ROUTES)
def test_truncation_keeps_the_leading_directions(route: str):
    decoder = mlp(nn.ReLU, 6, 30, 20)
    x, z = torch.randn(4, 20), torch.randn(4, 6)
    settings = {"sigma": SIGMA, "linearisation": route, "n_iterations": 150}
    full = LatentLaplace(decoder, **settings).posterior(x, z, 0).precision_matrix
    found = LatentLaplace(decoder, rank=2, **settings).posterior(x, z, 0)
    values, vectors = torch.linalg.eigh(full.detach() - torch.eye(6))
    leading = vectors[:, :, -2:]
    kept = leading @ torch.diag_embed(values[:, -2:]) @ leading.transpose(1, 2)
    torch.testing.assert_close(found.precision_matrix, kept + torch.eye(6))
    wider = found.covariance_matrix - torch.linalg.inv(full)
    assert torch.linalg.eigvalsh(wider).min() > -1e-10
    whole = LatentLaplace(decoder, rank=6, **settings).posterior(x, z, 0)
    torch.testing.assert_close(whole.precision_matrix, full)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_guarded_steps_never_lower_the_log_joint(likelihood: str, record_property):
    lowered = {}
    for guarded, alpha in ((True, 1.0), (True, halved_decay), (False, halved_decay)):
        steps = []
        for seed in range(10):
            torch.manual_seed(seed)
            decoder = mlp(nn.ReLU, 3, 30, 30, 20)
            for layer in decoder[::2]:  # far from linear
                nn.init.normal_(layer.weight, std=2 / layer.in_features**0.5)
            x = decoder(torch.randn(20, 3)).detach()
            x = (x > 0).to(x) if likelihood == "bernoulli" else x
            settings = {"alpha": alpha, "guarded": guarded}
            la = LatentLaplace(decoder, likelihood, SIGMA, **settings)
            path = la.path(x, torch.randn(20, 3), n_updates=8).detach()
            steps.append(torch.stack([la.log_joint(x, z) for z in path]).diff(dim=0))
        lowered[guarded, alpha] = (torch.stack(steps) < 0).double().mean().item()
    assert lowered[True, 1.0] == lowered[True, halved_decay] == 0
    share = lowered[False, halved_decay]
    record_property("share of decayed steps that lower log p(x, z)", share)
    assert 0 < share < 0.02  # the guard has something to do, if little


def test_updates_find_the_mode():
    decoder = DECODERS["tanh"]()
    x, _ = data(decoder)
    la = LatentLaplace(decoder, sigma=SIGMA)
    z = la.posterior(x, n_updates=30).mean.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(la.log_joint(x, z).sum(), z)
    assert gradient.abs().max() < 1e-5


def test_the_decoder_stays_as_it_was():
    decoder = nn.Sequential(nn.Linear(3, 7), nn.Dropout(0.5), nn.Linear(7, 7))
    before = copy.deepcopy(decoder.state_dict())
    x, z = torch.randn(4, 7), torch.randn(4, 3)
    start = z.clone()
    draws = [LatentLaplace(decoder).posterior(x, z).mean for _ in range(2)]
    assert torch.equal(*draws)  # in eval mode, nothing is dropped
    assert all(module.training for module in decoder.modules())
    assert torch.equal(z, start)
    for name, value in decoder.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("route", ROUTES)
def test_decoders_extended_by_backpack_work(route: str):
    decoder = DECODERS["relu"]()
    x, z = data(decoder)
    expected = LatentLaplace(decoder, linearisation=route).posterior(x, z)
    q = LatentLaplace(extend(decoder), linearisation=route).posterior(x, z)
    torch.testing.assert_close(q.mean, expected.mean)
    if route != "engine":
        q.mean.sum().backward()
        assert decoder[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_is_dropped_in_extended_decoders_either(route: str):
    decoder = nn.Sequential(nn.Linear(3, 9), nn.Dropout(0.5), nn.Linear(9, 7))
    x, z = torch.randn(4, 7), torch.randn(4, 3)
    expected = LatentLaplace(decoder, linearisation=route).posterior(x, z)
    q = LatentLaplace(extend(decoder), linearisation=route).posterior(x, z)
    torch.testing.assert_close(q.mean, expected.mean)
    assert all(module.training for module in decoder.modules())


def test_the_engine_gives_no_half_gradients():
    decoder = DECODERS["relu"]()
    x, z = data(decoder)
    q = LatentLaplace(decoder, linearisation="engine").posterior(x, z.requires_grad_())
    assert not q.mean.requires_grad and not q.covariance_matrix.requires_grad


def test_float32():
    decoder = DECODERS["relu"]().float()
    x = torch.randn(4, 7, dtype=torch.float32)
    for route in ROUTES:
        q = LatentLaplace(decoder, sigma=0.01, linearisation=route).posterior(x)
        assert q.covariance_matrix.dtype == torch.float32
        assert torch.isfinite(q.rsample()).all()


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"likelihood": "poisson"}, "likelihood must be one of .* got 'poisson'"),
        ({"sigma": 0.0}, "sigma must be one positive number, got 0.0"),
        ({"sigma": torch.ones(7)}, "sigma must be one positive number"),
        ({"linearisation": "svd"}, "linearisation must be one of"),
        ({"alpha": 1.5}, r"alpha must be within \(0, 1\], got 1.5"),
        ({"alpha": []}, "alpha has 0 numbers, and update 1 needs one more"),
        ({"rank": 0}, "rank must be at least 1 and an integer, got 0"),
        ({"n_iterations": 0}, "n_iterations must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        LatentLaplace(nn.Linear(3, 7), **settings)


X = torch.zeros(4, 7, dtype=torch.float64)


@pytest.mark.parametrize(
    "x, arguments, error, words",
    [
        (X[0], {}, ValueError, r"x has shape \(7,\), \[N, ...\]"),
        (X[:0], {}, ValueError, "N of at least 1"),
        (X.float(), {}, TypeError, "x has dtype torch.float32"),
        (X * float("nan"), {}, ValueError, "not finite"),
        (X[:, :5], {}, ValueError, r"makes \(4, 7\) of these codes, but x is \(4, 5\)"),
        (X, {"z0": X[:3, :3]}, ValueError, r"Codes must be \[4, K\], .* got \(3, 3\)"),
        (X, {"z0": X[:, :3].float()}, TypeError, "Codes have dtype torch.float32"),
        (X, {"n_updates": -1}, ValueError, "n_updates must be at least 0"),
    ],
)
def test_bad_input_is_refused(x, arguments, error, words):
    with pytest.raises(error, match=words):
        LatentLaplace(nn.Linear(3, 7)).posterior(x, **arguments)


def test_more_errors_that_say_what_to_do():
    with pytest.raises(ValueError, match=r"within \[0, 1\], got -1 to -1"):
        LatentLaplace(nn.Linear(3, 7), "bernoulli").posterior(X - 1)
    unflatten = nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Flatten(), nn.Linear(3, 7))
    with pytest.raises(ValueError, match="cannot be told from Unflatten"):
        LatentLaplace(unflatten).posterior(X)
    assert LatentLaplace(unflatten, code_dim=3).posterior(X).mean.shape == (4, 3)
    with pytest.raises(ValueError, match="update 3 needs one more"):
        LatentLaplace(nn.Linear(3, 7), alpha=[1, 0.5]).posterior(X, n_updates=3)
