"""What makes one use of a module something the engine cannot handle."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.utils.parametrize import is_parametrized

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.errors import UnsupportedLayerError, cannot_handle, no_rule
from lae_backpack.curvature.registry import (
    find_rule,
    registered_class,
    supported_layers,
)
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.loss_rule import LossRule


def is_container(module: Module) -> bool:
    """Whether a module only calls others, which then do the work.

    Args:
        module: The module.

    Returns:
        True if it has no rule but may have children.
    """
    if find_rule(module) is not None:
        return False
    return isinstance(module, nn.Sequential) or any(True for _ in module.children())


def checked_rule(
    module: Module, inputs: tuple[Tensor, ...], place: Callable[[], str]
) -> DiagRule | LossRule:
    """Look up the rule for a call that is about to be made, or has been.

    Args:
        module: The module.
        inputs: The tensors it is called with.
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
    """Refuse a module that did not compute what its rule is about.

    Args:
        call: The use of a module that has a rule.
        place: Finds where the module is in the model.

    Raises:
        UnsupportedLayerError: If it drops or adds samples, or if it is a subclass or
            has a hook that changes what the class with the rule computes.
    """
    module, base = call.module, registered_class(call.module)
    assert base is not None
    problem = None
    if isinstance(find_rule(module), DiagRule) and len(call.output) != len(call.x):
        problem = (
            f"it makes {len(call.output)} samples of {len(call.x)}. Leave the batch "
            "dimension alone."
        )
    elif _may_differ(module, base) and not torch.equal(_as(base, call), call.output):
        problem = (
            f"it is a {base.__name__} that computes something else. Register a rule "
            "for a class of its own."
        )
    if problem is not None:
        raise UnsupportedLayerError(cannot_handle(module, place(), problem))


def _problem(
    rule: DiagRule | LossRule, module: Module, inputs: tuple[Tensor, ...]
) -> str | None:
    wanted = 2 if isinstance(rule, LossRule) else 1
    if len(inputs) != wanted and not getattr(rule, "many_inputs", False):
        return (
            f"it is called with {len(inputs)} tensors by position, {wanted} wanted. "
            "Call it with positional tensors, and no other."
        )
    if len(inputs[0]) == 0:
        return "its batch is empty. Leave out empty batches."
    if isinstance(rule, LossRule):
        return rule.check(module, *inputs)
    if "parametrizations" in module._modules and is_parametrized(module):
        return (
            "its weights are parametrized, and the curvature of what is behind them is "
            "not known. Call torch.nn.utils.parametrize.remove_parametrizations first."
        )
    unknown = [
        name
        for name, param in module._parameters.items()
        if param is not None and name not in rule.params
    ]
    if unknown:
        return (
            f"its parameter {unknown[0]!r} is not one of {type(rule).__name__}'s "
            f"{list(rule.params)}. Register a rule for a class of its own."
        )
    return rule.check(module, inputs[0])


def _may_differ(module: Module, base: type[Module]) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.training:
        return False  # another mask each time
    hosts = ("backpack", "lae_backpack")
    hooks = (getattr(h, "__module__", "") for h in module._forward_hooks.values())
    if "forward" in vars(module) or any(h.split(".")[0] not in hosts for h in hooks):
        return True
    if type(module) is base:
        return False
    order = type(module).__mro__
    subclasses = order[: order.index(base)]
    written = {n for cls in subclasses for n in vars(cls) if not n.startswith("__")}
    return any(callable(getattr(base, name, None)) for name in written)


def _as(base: type[Module], call: Call) -> Tensor:
    """What a plain instance of a class computes with the module's parameters."""
    twin = base.__new__(base)
    twin.__dict__.update(vars(call.module))
    twin.__dict__.pop("forward", None)
    inputs = call.inputs
    if getattr(call.module, "inplace", False):
        inputs = tuple(x.clone() for x in inputs)
    return base.forward(twin, *inputs)
