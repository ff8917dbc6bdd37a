"""One module, backwards: what the extensions and the sweep share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.parametrize import is_parametrized

from lae_backpack.curvature.errors import (
    UnsupportedLayerError,
    cannot_handle,
    no_rule,
)
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.registry import (
    find_rule,
    registered_class,
    supported_layers,
)
from lae_backpack.curvature.rules.base import Call, DiagRule, LossRule

Key = TypeVar("Key")


def is_container(module: Module) -> bool:
    """Whether a module only calls others, which then do the work.

    Args:
        module: The module.

    Returns:
        True if it has no rule but has children.
    """
    return find_rule(module) is None and next(module.children(), None) is not None


def checked_rule(
    module: Module, inputs: tuple[Tensor, ...], place: Callable[[], str]
) -> DiagRule | LossRule:
    """Look up the rule for a call that is about to be made, or has been.

    Args:
        module: The module.
        inputs: What it is called with.
        place: Finds where the module is in the model.

    Returns:
        The rule.

    Raises:
        UnsupportedLayerError: If there is none, or none for these settings.
    """
    rule = find_rule(module)
    if rule is None:
        raise UnsupportedLayerError(no_rule(module, place(), supported_layers()))
    problem = _problem(rule, module, inputs)
    if problem is not None:
        raise UnsupportedLayerError(cannot_handle(module, place(), problem))
    return rule


def check_output(call: Call, place: Callable[[], str]) -> None:
    """Refuse a subclass whose ``forward`` is not the one the rule was written for.

    Args:
        call: The use of a module that has a rule.
        place: Finds where the module is in the model.

    Raises:
        UnsupportedLayerError: If its output is not what the class with the rule gives.
    """
    module, base = call.module, registered_class(call.module)
    if base is None or type(module).forward is base.forward:
        return
    if not torch.equal(base.forward(module, *call.inputs), call.output):
        problem = (
            f"it is a {base.__name__} whose forward computes something else. Register "
            f"a rule for {type(module).__name__}."
        )
        raise UnsupportedLayerError(cannot_handle(module, place(), problem))


def _problem(
    rule: DiagRule | LossRule, module: Module, inputs: tuple[Tensor, ...]
) -> str | None:
    if isinstance(rule, LossRule):
        return rule.check(module, *inputs[:2])
    if is_parametrized(module):
        return (
            "its weights are parametrized, and the curvature of what is behind them is "
            "not known. Call torch.nn.utils.parametrize.remove_parametrizations first."
        )
    own = dict(module.named_parameters(recurse=False))
    unknown = [name for name in own if name not in rule.params]
    if unknown:
        return (
            f"its parameter {unknown[0]!r} is not one of {type(rule).__name__}'s "
            f"{list(rule.params)}. Register a rule for {type(module).__name__}."
        )
    return rule.check(module, inputs[0])


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
    for name in rule.params:
        param = getattr(call.module, name, None)
        if param is None or not param.requires_grad:
            continue
        if isinstance(quantity, Diag):
            value = rule.param_diag(name, call, quantity.values, per_sample)
        else:
            value = rule.param_dense(name, call, quantity, per_sample)
        curvature[name] = value
    return curvature


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
