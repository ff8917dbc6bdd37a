"""Proof that a rule is right: explicit Jacobians, built row by row in float64."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from torch.nn import Module

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.checks import checked_rule
from lae_backpack.curvature.policy import APPROX, EXACT
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.loss_rule import LossRule
from lae_backpack.curvature.step import block_rows, param_curvature, seed


def check_rule(
    module: Module, x: Tensor, target: Tensor | None = None, tolerance: float = 1e-9
) -> None:
    """Compare everything a rule says with explicit Jacobians.

    Works on a copy in float64. For a layer: the diagonal and the dense step to the
    input, and the curvature of each parameter under both, summed and per sample, and of
    all parameters with each other. For a loss: the diagonal and the whole Hessian.

    Args:
        module: The layer or loss; it must not be random (dropout in train mode is).
        x: A batch of inputs.  # [N, *in]
        target: The target, if the module is a loss.
        tolerance: The largest error allowed, relative to the largest true number.
    """
    module = _plain_copy(module)
    x = x.detach().double()
    inputs = (x,) if target is None else (x, _double(target))
    rule = checked_rule(module, inputs, lambda: type(module).__name__)
    with torch.no_grad():
        call = Call(module, inputs, module(*inputs))
    if isinstance(rule, LossRule):
        _check_loss(rule, call, tolerance)
    else:
        _check_layer(rule, call, tolerance)


def _check_loss(rule: LossRule, call: Call, tolerance: float) -> None:
    loss, (x, target) = call.module, call.inputs
    whole = hessian(lambda out: loss(out, target), x)
    assert isinstance(whole, Tensor)
    n, f = len(x), x[0].numel()
    true = whole.reshape(n, f, n, f)[range(n), :, range(n), :]  # [N, F, F]
    diag = true.diagonal(dim1=1, dim2=2).reshape(x.shape)
    approx, exact = (seed(rule, call, policy) for policy in (APPROX, EXACT))
    assert isinstance(approx, Diag)
    _compare("loss Hessian's diagonal", approx.values.expand_as(x), diag, tolerance)
    dense = exact.to_dense() if isinstance(exact, Diag) else exact
    _compare("loss Hessian", dense.matrix().expand_as(true), true, tolerance)


def _check_layer(rule: DiagRule, call: Call, tolerance: float) -> None:
    n, f_in, f_out = len(call.x), call.x[0].numel(), call.output[0].numel()
    generator = torch.Generator().manual_seed(0)
    diag = torch.rand(n, f_out, generator=generator).to(call.x) + 0.1
    root = torch.randn(n, f_out, f_out, generator=generator).to(call.x)
    jacobians = explicit_jacobians(call.module, call.x)
    for shared in (False, True):  # one M for each sample, one M for all
        d = diag[:1] if shared else diag
        m = (root @ root.transpose(1, 2))[:1] if shared else root @ root.transpose(1, 2)
        for kind, matrix, quantity in (
            ("Diag", torch.diag_embed(d), Diag(d.reshape(-1, *call.output.shape[1:]))),
            ("Dense", m, Dense.from_matrix(m, call.output)),
        ):
            label = f"{kind}{' shared by the batch' if shared else ''}"
            matrix = matrix.expand(n, f_out, f_out)
            to_input = jacobians.pop("x")
            true = to_input.transpose(1, 2) @ matrix @ to_input  # [N, F, F]
            (dense,) = rule.pull(call, quantity, EXACT, [call.x])
            found = dense.to_dense() if isinstance(dense, Diag) else dense
            found = found.matrix().expand(n, f_in, f_in)
            _compare(f"{label} -> Dense at the input", found, true, tolerance)
            (pulled,) = rule.pull(call, quantity, APPROX, [call.x])
            assert isinstance(pulled, Diag)
            found = pulled.values.expand_as(call.x).flatten(1)
            true = true.diagonal(dim1=1, dim2=2)
            _compare(f"{label} -> Diag at the input", found, true, tolerance)
            for per_sample in (False, True):
                results = param_curvature(rule, call, quantity, per_sample)
                assert set(results) == set(jacobians), (
                    "not all parameters have a result"
                )
                for name, found in results.items():
                    jw = jacobians[name]
                    true = (jw * (matrix @ jw)).sum(1)  # [N, P]
                    true = true if per_sample else true.sum(0)
                    assert found.shape[per_sample:] == getattr(call.module, name).shape
                    what = f"{label} -> {name}{' per sample' if per_sample else ''}"
                    _compare(what, found.reshape(true.shape), true, tolerance)
            rows = block_rows(rule, call, quantity)
            if rows:
                jw = torch.cat([jacobians[name] for name in rows], 2)  # [N, F, B]
                true = (jw.transpose(1, 2) @ matrix @ jw).sum(0)
                found = torch.cat(list(rows.values()))
                _compare(f"{label} -> block of parameters", found, true, tolerance)
            jacobians["x"] = to_input


def explicit_jacobians(module: Module, x: Tensor) -> dict[str, Tensor]:
    """A module's Jacobians, one sample and one output at a time.

    Args:
        module: The module.
        x: A batch of inputs.  # [N, *in]

    Returns:
        The Jacobian to the input under ``"x"`` and those to trainable parameters under
        their names.  # [N, F_out, F_in], [N, F_out, P]
    """
    params = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}

    def forward(sample: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(params, values, strict=True))
        return functional_call(module, named, (sample,)).flatten()

    rows: dict[str, list[Tensor]] = {name: [] for name in ("x", *params)}
    for sample in x.split(1):
        found = jacobian(forward, (sample, *params.values()))
        assert isinstance(found, tuple)
        for name, jac in zip(rows, found, strict=True):
            rows[name].append(jac.flatten(1))
    return {name: torch.stack(jacs) for name, jacs in rows.items()}


def _plain_copy(module: Module) -> Module:
    copy = deepcopy(module).double()
    for part in copy.modules():  # BackPACK's hooks must not fire in here
        part._forward_hooks.clear()
        part._backward_hooks.clear()
    return copy


def _double(target: Tensor) -> Tensor:
    return target.double() if target.is_floating_point() else target


def _compare(what: str, found: Tensor, true: Tensor, tolerance: float) -> None:
    assert found.shape == true.shape, f"{what}: shape {found.shape}, not {true.shape}"
    scale = true.abs().max().item() if true.numel() else 0.0
    error = (found - true).abs().max().item() if true.numel() else 0.0
    assert error <= tolerance * max(scale, 1e-300), (
        f"{what}: off by {error:.2e} where the largest number is {scale:.2e}"
    )
