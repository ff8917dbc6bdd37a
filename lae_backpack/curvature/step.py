"""One module, backwards: what the extensions and the sweep share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.probe import Probe
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.loss_rule import LossRule
from lae_backpack.curvature.samples import samples_in_pieces

Key = TypeVar("Key")
# What a pass wants to know of each module: a tensor for each trainable parameter.
Measure = Callable[[DiagRule, Call, Diag | Dense], dict[str, Tensor]]


def seed(rule: LossRule, call: Call, policy: DensePolicy) -> Diag | Dense:
    """Start at the loss.

    Args:
        rule: The loss's rule.
        call: The use of the loss.
        policy: Where M is kept dense.

    Returns:
        M at the model's output.
    """
    x, target = call.inputs[:2]
    if isinstance(policy, Probe):
        return rule.seed_random(call.module, x, target, policy)
    if policy.carries_dense(x):
        return rule.seed_dense(call.module, x, target)
    return Diag(rule.seed_diag(call.module, x, target))


def param_curvature(
    rule: DiagRule, call: Call, quantity: Diag | Dense, per_sample: bool
) -> dict[str, Tensor]:
    """Curvature of a module's trainable parameters.

    Args:
        rule: The module's rule.
        call: The use of the module.
        quantity: M at its output.
        per_sample: Keep the samples apart.

    Returns:
        The curvature by parameter name.  # [N, *param] if per_sample else [*param]
    """
    curvature = {}
    for name in _trainable(rule, call):
        if isinstance(quantity, Diag):
            value = rule.param_diag(name, call, quantity.values, per_sample)
        else:
            value = rule.param_dense(name, call, quantity, per_sample)
        curvature[name] = value
    return curvature


def half_curvature(
    rule: DiagRule, call: Call, quantity: Diag | Dense, which: int
) -> dict[str, Tensor]:
    """As ``param_curvature``, summed over one half of the batch.

    Args:
        rule: The module's rule.
        call: The use of the module.
        quantity: M at its output.
        which: 0 for the first half, 1 for the second.

    Returns:
        The curvature by parameter name; nothing for the second half of one sample.
    """
    halves = list(samples_in_pieces(call, quantity, -(-len(call.x) // 2)))
    if which >= len(halves):
        return {}
    return param_curvature(rule, *halves[which], per_sample=False)


def block_rows(rule: DiagRule, call: Call, quantity: Diag | Dense) -> dict[str, Tensor]:
    """Curvature of a module's trainable parameters with each other.

    Args:
        rule: The module's rule.
        call: The use of the module.
        quantity: M at its output.

    Returns:
        Each parameter's rows of the module's block.  # [param.numel(), B]
    """
    # Rows and columns are in the order of model.parameters().
    order = list(call.module._parameters)
    names = sorted(_trainable(rule, call), key=order.index)
    if not names:
        return {}
    block = rule.param_block(names, call, quantity)
    sizes = [getattr(call.module, name).numel() for name in names]
    return dict(zip(names, block.split(sizes), strict=True))


def _trainable(rule: DiagRule, call: Call) -> list[str]:
    params = ((name, getattr(call.module, name, None)) for name in rule.params)
    return [name for name, p in params if p is not None and p.requires_grad]


def add_to(arrived: dict[Key, Diag | Dense], key: Key, quantity: Diag | Dense) -> None:
    """Add what a module pulled back to what is at that tensor already.

    Args:
        arrived: What has arrived at each tensor.
        key: The tensor's key.
        quantity: What arrives.
    """
    arrived[key] = arrived[key] + quantity if key in arrived else quantity


def tensors_among(inputs: Iterable[object]) -> tuple[Tensor, ...]:
    """The tensors a module was called with.

    Args:
        inputs: All its positional arguments.

    Returns:
        The tensors among them.
    """
    return tuple(x for x in inputs if isinstance(x, Tensor))
