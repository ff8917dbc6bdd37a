"""Whole nets: against the oracle, BackPACK's exact diagonal, and each other."""

import pytest
import torch
from backpack import backpack, extend
from backpack.extensions import BatchGrad, DiagGGNExact
from torch import Tensor, nn

from lae_backpack import (
    BatchDiagGGNApprox,
    BatchDiagGGNMixed,
    DiagGGNApprox,
    DiagGGNMixed,
    diag_ggn,
)
from tests import oracle
from tests.nets import NETS, Net

LIMITS = [0, 8, None]


def run(
    model: nn.Module, loss: nn.Module, x: Tensor, target: Tensor, *extensions: object
) -> None:
    extend(model)
    extend(loss)
    with backpack(*extensions):
        loss(model(x), target).backward()


def results(model: nn.Module, savefield: str) -> dict[str, Tensor]:
    return {name: getattr(p, savefield) for name, p in model.named_parameters()}


def assert_equal(
    found: dict[str, Tensor], true: dict[str, Tensor], rtol: float = 1e-9
) -> None:
    assert found.keys() == true.keys()
    atol = rtol * max(value.abs().max().item() for value in true.values())
    for name in true:
        torch.testing.assert_close(
            found[name], true[name], rtol=rtol, atol=atol, msg=name
        )


def summed(per_sample: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.sum(0) for name, value in per_sample.items()}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("net", NETS, ids=str)
def test_nets_equal_the_oracle(net: Net, limit: int | None):
    model, loss, x, target = net.build()
    true = oracle.diag_ggn(model, loss, x, target, limit)
    alone = diag_ggn(model, loss, x, target, max_dense_dim=limit)
    apart = diag_ggn(model, loss, x, target, max_dense_dim=limit, per_sample=True)
    run(model, loss, x, target, DiagGGNMixed(limit), BatchDiagGGNMixed(limit))
    assert_equal(results(model, "diag_ggn_mixed_batch"), true)
    assert_equal(results(model, "diag_ggn_mixed"), summed(true))
    assert_equal(alone, summed(true))
    assert_equal(apart, true)


@pytest.mark.parametrize("net", NETS, ids=str)
def test_no_limit_is_the_exact_diagonal(net: Net):
    model, loss, x, target = net.build()
    true = oracle.exact_diag_ggn(model, loss, x, target)
    assert_equal(diag_ggn(model, loss, x, target, max_dense_dim=None), summed(true))


@pytest.mark.parametrize("net", [n for n in NETS if n.in_backpack], ids=str)
def test_no_limit_equals_backpack_in_the_same_pass(net: Net):
    model, loss, x, target = net.build()
    run(model, loss, x, target, DiagGGNExact(), DiagGGNMixed(None), BatchGrad())
    mixed = results(model, "diag_ggn_mixed")
    assert_equal(mixed, results(model, "diag_ggn_exact"))
    gradients = summed(results(model, "grad_batch"))
    assert_equal(gradients, {n: p.grad for n, p in model.named_parameters()})


@pytest.mark.parametrize("net", NETS, ids=str)
def test_limit_zero_is_approx_and_batches_sum_up(net: Net):
    model, loss, x, target = net.build()
    extensions = DiagGGNApprox(), DiagGGNMixed(0), BatchDiagGGNApprox()
    run(model, loss, x, target, *extensions)
    approx = results(model, "diag_ggn_approx")
    assert_equal(results(model, "diag_ggn_mixed"), approx)
    assert_equal(summed(results(model, "diag_ggn_approx_batch")), approx)
