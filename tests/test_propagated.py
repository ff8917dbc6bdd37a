"""One pass forwards: the variance of networks with independent Gaussian weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.covariance import Covariance, Source
from lae_backpack.curvature.forward import propagate
from lae_backpack.curvature.policy import APPROX, EXACT, DensePolicy
from lae_backpack.curvature.registry import find_rule
from lae_backpack.testing import explicit_jacobians
from tests.cases import LAYERS, Case
from tests.nets import NETS, Net


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


@pytest.mark.parametrize("limit", [0, 3, None])
@pytest.mark.parametrize("case", LAYERS[:60:4], ids=str)
def test_one_layer_is_exact_in_every_mode(case: Case, limit: int | None):
    model = nn.Sequential(case.module().double())
    x, variances = torch.randn(case.x_shape), random_variances(model)
    _, variance = propagate(model, x, variances, DensePolicy(limit))
    assert_close(variance.flatten(1), exact_variance(model, x, variances))
