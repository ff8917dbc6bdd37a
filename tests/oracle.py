"""The papers' recursion with explicit Jacobians; knows nothing of rules or hooks."""

from __future__ import annotations

import torch
from backpack.custom_module.branching import Parallel
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call

from tests.nets import AutoEncoder, Residual

Matrices = Tensor  # [N, F, F]


def diag_ggn(
    model: nn.Module, loss: nn.Module, x: Tensor, target: Tensor, limit: int | None
) -> dict[str, Tensor]:
    """Per-sample curvature ``[N, *param]`` of every parameter by name."""
    with torch.no_grad():
        out = model(x)
    n, f = len(out), out[0].numel()
    whole = hessian(lambda o: loss(o, target), out).reshape(n, f, n, f)
    seed = whole[range(n), :, range(n), :]
    results: dict[str, Tensor] = {}
    _pull(model, "", x, _kept(seed, limit), limit, results)
    return results


def exact_diag_ggn(
    model: nn.Module, loss: nn.Module, x: Tensor, target: Tensor
) -> dict[str, Tensor]:
    """The same from the whole net's Jacobian, for any net."""
    with torch.no_grad():
        out = model(x)
    n, f = len(out), out[0].numel()
    whole = hessian(lambda o: loss(o, target), out).reshape(n, f, n, f)
    jacobians = _jacobians(model, x)
    jacobians.pop("")
    return {
        name: torch.stack([
            (j * (whole[i, :, i, :] @ j)).sum(0) for i, j in enumerate(jac)
        ]).reshape(n, *model.get_parameter(name).shape)
        for name, jac in jacobians.items()
    }


def _kept(matrices: Matrices, limit: int | None) -> Matrices:
    if limit is None or matrices.shape[-1] <= limit:
        return matrices
    return torch.diag_embed(matrices.diagonal(dim1=1, dim2=2))


def _jacobians(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Under ``""`` to the input, else to the parameter.  # [N, F_out, F_in or P]"""
    params = {name: p.detach() for name, p in module.named_parameters()}

    def forward(sample: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(params, values, strict=True))
        return functional_call(module, named, (sample,)).flatten()

    found = [jacobian(forward, (s, *params.values())) for s in x.split(1)]
    return {
        name: torch.stack([jac[i].flatten(1) for jac in found])
        for i, name in enumerate(["", *params])
    }


def _pull(
    module: nn.Module,
    name: str,
    x: Tensor,
    matrices: Matrices,
    limit: int | None,
    results: dict[str, Tensor],
) -> Matrices:
    """Add a module's curvature to the results and return M at its input."""
    if isinstance(module, nn.Sequential | AutoEncoder):
        children, inputs = list(module.named_children()), [x]
        with torch.no_grad():
            for _, child in children:
                inputs.append(child(inputs[-1]))
        for (part, child), inp in zip(reversed(children), inputs[-2::-1], strict=True):
            matrices = _pull(child, f"{name}{part}.", inp, matrices, limit, results)
        return matrices
    if isinstance(module, Parallel | Residual):
        if isinstance(module, Parallel):
            branches = [(f"branch.{n}.", b) for n, b in module.branch.named_children()]
        else:
            branches = [("body.", module.body), ("", nn.Identity())]
        ends = [
            _pull(b, f"{name}{part}", x, matrices, limit, results)
            for part, b in branches
        ]
        if limit is None or matrices.shape[-1] <= limit:  # with their cross terms
            total = _jacobians(module, x)[""]
            return total.transpose(1, 2) @ matrices @ total
        return torch.stack(ends).sum(0)
    jacobians = _jacobians(module, x)
    to_input = jacobians.pop("")
    for param, jac in jacobians.items():
        values = (jac * (matrices @ jac)).sum(1)
        results[name + param] = values.reshape(
            len(x), *module.get_parameter(param).shape
        )
    return _kept(to_input.transpose(1, 2) @ matrices @ to_input, limit)
