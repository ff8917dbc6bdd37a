"""One pass forwards: the variance of networks with independent Gaussian weights."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from backpack.custom_module.branching import SumModule
from laplace import Laplace
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lae_backpack.curvature.registry as registry
from lae_backpack import (
    AutoEncoder,
    DiagRule,
    LaplaceAE,
    UnsupportedLayerError,
    UnsupportedModelError,
    register_rule,
)
from lae_backpack.curvature import forward
from lae_backpack.curvature.call import Call
from lae_backpack.curvature.covariance import Covariance, Source, gram, pivoted_root
from lae_backpack.curvature.forward import propagate
from lae_backpack.curvature.policy import APPROX, EXACT, DensePolicy
from lae_backpack.curvature.registry import find_rule
from lae_backpack.curvature.rules.affine import LinearRule
from lae_backpack.curvature.squares import keep_square, squared
from lae_backpack.posterior.kept import Kept
from lae_backpack.posterior.sampling import weights_by_name
from lae_backpack.testing import explicit_jacobians
from tests.cases import LAYERS, Case
from tests.nets import NETS, Net, Residual

ROOT = Path(__file__).parents[1]


def random_variances(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: torch.rand_like(p) + 0.1
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def exact_variance(model: nn.Module, x: Tensor, variances: dict[str, Tensor]) -> Tensor:
    """``diag(J diag(v) J^T)`` from the whole net's Jacobian.  # [N, F]"""
    jacobians = explicit_jacobians(model, x)
    return sum(jacobians[n].square() @ v.flatten() for n, v in variances.items())


def assert_close(found: Tensor, true: Tensor, tolerance: float = 1e-9) -> None:
    assert found.shape == true.shape
    assert (found - true).abs().max() <= tolerance * true.abs().max()


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_layer_equals_explicit_jacobians(case: Case):
    module = case.module().double()
    for param in module.parameters():
        nn.init.normal_(param)
    x = torch.randn(case.x_shape)
    jacobians = explicit_jacobians(module, x)
    jx = jacobians.pop("x")  # [N, out, in]
    variances = random_variances(module)
    n, f_in = len(x), jx.shape[2]
    rest = torch.rand_like(x)
    columns = torch.randn(2, *x.shape)
    flat = columns.reshape(2, n, f_in)
    at_input = torch.diag_embed(rest.reshape(n, f_in))
    at_input = at_input + torch.einsum("kni,knj->nij", flat, flat)
    true = jx @ at_input @ jx.transpose(1, 2)
    for name, variance in variances.items():
        jw = jacobians[name]
        true = true + (jw * variance.flatten()) @ jw.transpose(1, 2)
    with torch.no_grad():
        call = Call(module, (x,), module(x))
        arrived = Covariance({Source(): columns}, rest)
        rule = find_rule(module)
        approx = rule.push(call, [arrived], variances, APPROX)
        exact = rule.push(call, [arrived], variances, EXACT)
    assert approx.n_columns() == 2
    diagonal = true.diagonal(dim1=1, dim2=2)
    assert_close(approx.variance(call.output).reshape(diagonal.shape), diagonal)
    assert_close(exact.matrix(call.output), true)


@pytest.mark.parametrize("net", NETS, ids=str)
def test_dense_everywhere_is_the_linearised_variance(net: Net):
    model, _, x, _ = net.build()
    variances = random_variances(model)
    mean, variance = propagate(model, x, variances, EXACT)
    torch.testing.assert_close(mean, model(x).detach())
    assert_close(variance.flatten(1), exact_variance(model, x, variances))


WITH_PARAMS = [c for c in LAYERS if list(c.module().parameters())]


@pytest.mark.parametrize("limit", [0, 30, None])
@pytest.mark.parametrize("case", WITH_PARAMS[::5], ids=str)
def test_one_layer_is_exact_in_every_mode(case: Case, limit: int | None):
    model = nn.Sequential(case.module())
    x, variances = torch.randn(case.x_shape), random_variances(model)
    _, variance = propagate(model, x, variances, DensePolicy(limit))
    assert_close(variance.flatten(1), exact_variance(model, x, variances))


def mlp(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(n_in, n_out), activation()]
    return nn.Sequential(*layers[:-1])


def test_linear_net_is_exact_with_dense_everywhere_and_not_with_diagonals():
    model, x = mlp(5, 7, 2, 6, activation=nn.Identity), torch.randn(4, 5)
    variances = random_variances(model)
    true = exact_variance(model, x, variances)
    for limit in (None, 7):
        assert_close(propagate(model, x, variances, DensePolicy(limit))[1], true)
    _, diagonal = propagate(model, x, variances, APPROX)
    assert (diagonal / true - 1).abs().max() > 1e-3


def test_diagonals_follow_the_recursion():
    model, x = mlp(5, 7, 2, 6), torch.randn(4, 5)
    variances = random_variances(model)
    true, value = torch.zeros(4, 5), x
    for name, layer in model.named_children():
        jacobians = explicit_jacobians(layer, value)
        true = torch.einsum("noi,ni->no", jacobians.pop("x").square(), true)
        for param, jac in jacobians.items():
            true = true + jac.square() @ variances[f"{name}.{param}"].flatten()
        value = layer(value).detach()
    assert_close(propagate(model, x, variances, APPROX)[1], true)


@pytest.mark.parametrize("branched", [False, True])
def test_what_a_code_carries_stays_correlated_through_wide_layers(branched: bool):
    encoder = nn.Sequential(nn.Linear(6, 2), nn.Tanh())
    decoder = mlp(2, 9, 8, 6)
    if branched:
        decoder = nn.Sequential(Residual(*mlp(2, 9, 2)), *decoder)
        decoder = nn.Sequential(decoder, Residual(*mlp(6, 9, 6)))
    for param in decoder.parameters():
        param.requires_grad_(False)
    model, x = nn.Sequential(encoder, decoder), torch.randn(3, 6)
    variances = random_variances(model)
    true = exact_variance(model, x, variances)
    _, found = propagate(model, x, variances, DensePolicy(2))
    assert_close(found, true)
    _, diagonal = propagate(model, x, variances, APPROX)
    assert (diagonal / true - 1).abs().max() > 1e-3


@pytest.mark.parametrize("net", NETS, ids=str)
@pytest.mark.parametrize("limit", [0, 2, 8])
def test_every_limit_gives_positive_variances_in_every_precision(net: Net, limit: int):
    model, _, x, _ = net.build()
    variances = random_variances(model)
    policy = DensePolicy(limit)
    _, true = propagate(model, x, variances, policy)
    assert (true > 0).all()
    for dtype, error in ((torch.float32, 1e-3), (torch.bfloat16, 0.2)):
        lower = {name: v.to(dtype) for name, v in variances.items()}
        _, found = propagate(model.to(dtype), x.to(dtype), lower, policy)
        assert found.dtype == dtype
        assert torch.dist(found.double(), true) <= error * true.norm()


def test_a_tensor_added_to_itself():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.sum = nn.Linear(3, 4), SumModule()

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return self.sum(y, y)

    model, x = Doubled(), torch.randn(2, 3)
    variances = random_variances(model)
    true = exact_variance(model, x, variances)
    for limit in (0, None):
        assert_close(propagate(model, x, variances, DensePolicy(limit))[1], true)


def test_activations_in_place_and_frozen_parts():
    plain = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))
    model = nn.Sequential(plain[0], nn.ReLU(inplace=True), plain[2])
    model[2].weight.requires_grad_(False)
    x, variances = torch.randn(4, 3), random_variances(model)
    assert "2.weight" not in variances
    for limit in (0, None):
        policy = DensePolicy(limit)
        found = propagate(model, x, variances, policy)
        torch.testing.assert_close(found, propagate(plain, x, variances, policy))
    assert_close(found[1], exact_variance(plain, x, variances))


def test_convolution_with_one_position():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 2, 1)
    )
    x, variances = torch.randn(3, 2, 3, 3), random_variances(model)
    _, found = propagate(model, x, variances, EXACT)
    assert_close(found.flatten(1), exact_variance(model, x, variances))


# Columns ------------------------------------------------------------------------------


def test_root_of_singular_matrices():
    half = torch.randn(3, 6, 2)
    matrix = half @ half.transpose(1, 2)
    matrix[1] = 0
    columns, missed = pivoted_root(matrix, 6)
    assert_close(gram(columns), matrix)
    assert missed.abs().max() < 1e-12
    found = Covariance.from_matrix(matrix, matrix[..., 0])
    assert_close(found.matrix(matrix[..., 0]), matrix)


def test_few_columns_keep_the_variances_and_never_claim_too_much():
    half = torch.randn(3, 6, 6)
    matrix = half @ half.transpose(1, 2)
    few = Covariance.from_matrix(matrix, matrix[..., 0], max_columns=2)
    assert few.n_columns() == 2
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(few.variance(diagonal), diagonal)
    left = matrix - Covariance(few.columns).matrix(diagonal)
    assert torch.linalg.eigvalsh(left).min() > -1e-12


@pytest.mark.parametrize("hidden", [(), (9,)])
def test_a_large_code_leaves_with_few_columns(hidden, monkeypatch):
    seen: list[int] = []
    original = LinearRule.push_columns

    def spy(self, call, x, columns):
        seen.append(len(columns))
        return original(self, call, x, columns)

    monkeypatch.setattr(LinearRule, "push_columns", spy)
    monkeypatch.setattr(forward, "MAX_COLUMNS", 3)
    model, x = mlp(12, *hidden, 6, 12, 12), torch.randn(2, 12)
    variances = random_variances(model)
    _, few = propagate(model, x, variances, DensePolicy(6))
    assert seen == [3, 3]
    monkeypatch.setattr(forward, "MAX_COLUMNS", 6)
    _, all_of_them = propagate(model, x, variances, DensePolicy(6))
    assert seen == [3, 3, 6, 6]
    true = exact_variance(model, x, variances)
    assert torch.dist(all_of_them, true) < torch.dist(few, true)


# Layers of one's own, and models that cannot be followed ------------------------------


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (x + x.flip(1))


class MixerRule(DiagRule):
    params = ("gain",)

    def input_diag(self, module, x, diag):
        return module.gain**2 * (diag + diag.flip(1))

    def gain(self, module, x, diag):
        return ((x + x.flip(1)) ** 2 * diag).sum().reshape(1)


@pytest.fixture
def mixer_rule():
    before = dict(registry._RULES)
    register_rule(Mixer)(MixerRule)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


@pytest.mark.usefixtures("mixer_rule")
def test_own_layer_needs_nothing_more():
    model, x = nn.Sequential(Mixer()), torch.randn(3, 4)
    variances = random_variances(model)
    true = exact_variance(model, x, variances)
    for limit in (0, None):
        assert_close(propagate(model, x, variances, DensePolicy(limit))[1], true)
    deep = nn.Sequential(nn.Linear(4, 4), Mixer(), nn.Tanh(), nn.Linear(4, 2), Mixer())
    variances = random_variances(deep)
    true = exact_variance(deep, x, variances)
    assert_close(propagate(deep, x, variances, EXACT)[1], true)


class Outside(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(1).values


@pytest.mark.parametrize(
    "model, error",
    [
        (Outside(), UnsupportedModelError),
        (nn.Sequential(nn.Linear(3, 3), Unknown()), UnsupportedLayerError),
        (nn.Sequential(*[nn.Linear(3, 3)] * 2), UnsupportedModelError),
    ],
)
def test_what_cannot_be_followed_is_refused_and_left_alone(model, error):
    model.double()
    hooks = [len(m._forward_hooks) for m in model.modules()]
    with pytest.raises(error):
        propagate(model, torch.randn(2, 3), random_variances(model), APPROX)
    assert [len(m._forward_hooks) for m in model.modules()] == hooks


# Posteriors ---------------------------------------------------------------------------


def autoencoder() -> AutoEncoder:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2))
    decoder = nn.Sequential(
        nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 12), nn.Unflatten(1, (1, 4, 3))
    )
    return AutoEncoder(encoder, decoder)


def fitted(**settings: object) -> tuple[LaplaceAE, Tensor]:
    x = torch.rand(10, 1, 4, 3)
    la = LaplaceAE(autoencoder(), **settings)
    la.fit(x.split(5))
    return la, x


@pytest.mark.parametrize("limit", [None, 12])
def test_laplace_ae_gives_the_linearised_variance_of_pixels_and_codes(limit):
    la, x = fitted(backend_kwargs={"max_dense_dim": limit})
    for part, found in (
        ("", la(x, pred_type="propagated")),
        ("encoder", la.latent(x, pred_type="propagated")),
    ):
        net = la.model.get_submodule(part)
        (variances,) = weights_by_name(la.model, [1 / la.posterior_precision], part)
        torch.testing.assert_close(found[0], net(x).detach())
        assert_close(found[1].flatten(1), exact_variance(net, x, variances))


def test_linearised_codes_approach_the_propagated_ones():
    la, x = fitted()
    generator = torch.Generator().manual_seed(0)
    mean, sampled = la.latent(x, 1000, generator, pred_type="glm")
    exact_mean, exact = la.latent(x, pred_type="propagated")
    torch.testing.assert_close(mean, exact_mean)
    torch.testing.assert_close(sampled, exact, rtol=0.25, atol=0.0)


@pytest.mark.parametrize("structure", ["approx_diag", "mixed_diag"])
def test_structures_predict_in_one_pass(structure: str):
    model, x, y = mlp(4, 6, 3), torch.randn(8, 4), torch.randn(8, 3)
    la = Laplace(model, "regression", "all", structure)
    la.fit(DataLoader(TensorDataset(x, y), 4))
    mean, variance = la(x, pred_type="propagated")
    (variances,) = weights_by_name(model, [la.posterior_variance])
    torch.testing.assert_close(mean, model(x).detach())
    assert_close(variance, exact_variance(model, x, variances))
    labels = torch.arange(8) % 3
    la = Laplace(mlp(4, 6, 3), "classification", "all", structure)
    la.fit(DataLoader(TensorDataset(x, labels), 4))
    (variances,) = weights_by_name(la.model, [la.posterior_variance])
    variance = exact_variance(la.model, x, variances)
    true = (la.model(x) / (1 + torch.pi / 8 * variance).sqrt()).softmax(1)
    torch.testing.assert_close(la(x, pred_type="propagated"), true.detach())


def test_bernoulli_pixels_are_probabilities():
    la, x = fitted(likelihood="bernoulli", prior_precision=20.0)
    mean, variance = la(x, pred_type="propagated")
    logit, spread = la.propagated(x)
    noise = torch.randn(20_000, *x.shape)
    sampled = (logit + spread.sqrt() * noise).sigmoid()
    torch.testing.assert_close(mean, sampled.mean(0), rtol=0.0, atol=0.02)
    torch.testing.assert_close(variance, sampled.var(0), rtol=0.35, atol=0.0)


def test_the_posterior_counts_and_not_what_the_model_holds_meanwhile():
    la, x = fitted()
    la.model.train()
    before = la(x, pred_type="propagated")
    kept = [p.clone() for p in la.model.parameters()]
    with torch.no_grad():
        for param in la.model.parameters():
            param += 1
    torch.testing.assert_close(la(x, pred_type="propagated"), before)
    for param, old in zip(la.model.parameters(), kept, strict=True):
        torch.testing.assert_close(param.detach(), old.detach() + 1)
        assert param.requires_grad and param.grad is None
    for module in la.model.modules():
        assert module.training
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_bad_choices_are_refused():
    la, x = fitted()
    for predict in (la, la.latent):
        with pytest.raises(ValueError, match="pred_type must be one of"):
            predict(x, pred_type="propagate")
    with pytest.raises(RuntimeError, match="not fitted"):
        LaplaceAE(autoencoder())(x, pred_type="propagated")
    y = torch.randn(4, 3)
    la = Laplace(mlp(4, 3), "regression", "all", "approx_diag")
    la.fit(DataLoader(TensorDataset(torch.randn(4, 4), y), 4))
    with pytest.raises(ValueError, match="joint=False"):
        la(torch.randn(4, 4), pred_type="propagated", joint=True)


def test_experiment_runs(tmp_path: Path):
    script = ROOT / "examples/experiments/propagated.py"
    command = [sys.executable, str(script), "--smoke", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    for name in ("linear", "conv"):
        figures = json.loads((tmp_path / f"propagated_{name}.json").read_text())
        assert figures["against"].keys() == {"sampled", "linearised"}
        for correlations in figures["against"].values():
            assert all(math.isfinite(value) for value in correlations.values())


def test_threads_leave_the_model_its_own_weights():
    one, x = fitted()
    model = one.model
    other = LaplaceAE(model, hessian_structure="approx_diag")
    other.fit([x])
    other.mean = other.mean + 1.0  # as if the model had been trained since
    own = list(model.parameters())
    expected = [la(x, pred_type="propagated")[0].clone() for la in (one, other)]

    def all_right(i: int) -> bool:
        found = ((one, other)[i](x, pred_type="propagated")[0] for _ in range(60))
        return all(torch.equal(mean, expected[i]) for mean in found)

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(all_right, range(2)))
    assert all(a is b for a, b in zip(own, model.parameters(), strict=True))


def test_a_model_that_was_changed_since_is_not_given_old_weights():
    la, x = fitted()
    la(x, pred_type="propagated")
    assert isinstance(la.model.decoder, nn.Sequential)
    la.model.decoder.append(nn.Linear(3, 3))  # along the last dimension
    with pytest.raises(ValueError, match=r"decoder\.4\.weight.*Fit it again"):
        la(x, pred_type="propagated")


def test_codes_of_an_encoder_that_only_reshapes_are_the_users_no_more():
    la = LaplaceAE(AutoEncoder(nn.Flatten(), mlp(4, 4)))
    x = torch.rand(3, 4)
    la.fit([x])
    code, _ = la.latent(x, pred_type="propagated")
    code.zero_()
    assert x.any()


def true_moments(la: LaplaceAE, x: Tensor) -> tuple[Tensor, Tensor]:
    """As ``la(x, pred_type="propagated")``, of what the posterior is now."""
    model = copy.deepcopy(la.model)
    nn.utils.vector_to_parameters(la.mean.clone(), model.parameters())
    (variances,) = weights_by_name(model, [1 / la.posterior_precision])
    return propagate(model, x, variances, DensePolicy(2))


def test_moments_are_those_of_the_posterior_as_it_is_now():
    encoder = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    decoder = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 6))
    settings = {"max_dense_dim": 2}  # the rest is pushed with the weights' squares
    la = LaplaceAE(AutoEncoder(encoder, decoder), backend_kwargs=settings)
    x = torch.rand(5, 6)
    la.fit([x])
    before = torch.zeros(2, 5, 6)
    for change in (
        lambda: None,
        lambda: la.H.mul_(3),
        lambda: setattr(la, "H", la.H / 2),
        lambda: setattr(la, "prior_precision", 7.0),
        lambda: la.prior_precision.mul_(2),
        lambda: setattr(la, "prior_precision", torch.rand(8) + 1),
        lambda: setattr(la, "sigma_noise", 0.3),
        lambda: setattr(la, "temperature", 2.0),
        lambda: la.mean.mul_(1.5),
        lambda: la.mean[:20].add_(0.1),
        lambda: setattr(la, "mean", la.mean - 0.1),
        lambda: la.load_state_dict(la.state_dict() | {"mean": la.mean / 2}),
        lambda: la.fit([torch.rand(5, 6)]),
    ):
        change()
        for _ in range(2):
            found = torch.stack(la(x, pred_type="propagated"))
            torch.testing.assert_close(found, torch.stack(true_moments(la, x)))
            code = la.latent(x, pred_type="propagated")[0]
            assert code.shape == (5, 2)
        assert not torch.allclose(found[1], before[1], rtol=1e-3)
        before = found


def test_a_copy_does_not_keep_what_its_original_had_computed():
    tensor, kept = torch.ones(1).mul_(1), Kept[float]()
    assert kept.get(lambda: 1.0, [tensor]) == 1.0
    assert kept.get(lambda: 2.0, [tensor]) == 1.0
    tensor.mul_(3)
    # Copies of tensors have versions that the originals had before.
    same, copied = copy.deepcopy((tensor, kept))
    assert same._version < tensor._version
    assert copied.get(lambda: 3.0, [same]) == 3.0


def test_squares_are_kept_on_weights_that_ask_for_it_until_these_change():
    vector = torch.rand(6)
    weight = keep_square(vector.view(2, 3).detach().requires_grad_())
    plain = torch.rand(2, 3)
    assert squared(weight) is squared(weight)
    assert squared(plain) is not squared(plain)
    vector.mul_(2)  # a view is written to with its base
    torch.testing.assert_close(squared(weight), vector.square().view(2, 3))
    assert not squared(weight).requires_grad
