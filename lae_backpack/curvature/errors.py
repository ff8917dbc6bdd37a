"""What cannot be done, in words that say where and what to do instead."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import suppress

from torch import Tensor
from torch.nn import Module

SHARED_REMEDY = (
    "Its curvature has cross terms that no layer sees: give each use a parameter of "
    "its own, or freeze it with requires_grad_(False)."
)


class UnsupportedModelError(NotImplementedError):
    """A model is wired in a way that curvature cannot follow."""


class UnsupportedLayerError(UnsupportedModelError):
    """A layer has no rule, or is set up in a way its rule cannot handle."""


def no_rule(module: Module, place: str, supported: Iterable[type[Module]]) -> str:
    """Words for a layer without a rule.

    Args:
        module: The layer.
        place: Where it is in the model, for instance ``decoder.3``.
        supported: The layers that have a rule.

    Returns:
        The message.
    """
    name = type(module).__name__
    return (
        f"No rule for {name} ({place!r}). Supported: "
        f"{', '.join(cls.__name__ for cls in supported)}. Register one with "
        f"@register_rule({name}), see 'Your own layer' in the README."
    )


def cannot_handle(module: Module, place: str, problem: str) -> str:
    """Words for a layer whose settings a rule refuses.

    Args:
        module: The layer.
        place: Where it is in the model.
        problem: What is wrong, what is allowed, what to do.

    Returns:
        The message.
    """
    return f"{type(module).__name__} ({place!r}): {problem}"


def chain_is_broken(where: str) -> str:
    """Words for a net that computes something between its modules.

    Args:
        where: A place next to the break.

    Returns:
        The message.
    """
    return (
        f"Curvature cannot get past {where}: something is computed outside a module, "
        "for instance x + f(x), x.view(...) or F.relu(x), a module is called more than "
        "once, or the loss is not extended. Use one module for each operation, such as "
        "backpack.custom_module.branching.SumModule, nn.Unflatten, nn.ReLU."
    )


def used_twice(what: str, remedy: str) -> str:
    """Words for a parameter or a module that a net uses more than once.

    Args:
        what: Its name.
        remedy: What to do.

    Returns:
        The message.
    """
    return f"{what} is used more than once in one forward pass. {remedy}"


def used_outside(name: str) -> str:
    """Words for a parameter that no module with a rule uses.

    Args:
        name: Its name in the model.

    Returns:
        The message.
    """
    return (
        f"The parameter {name!r} is used outside a module that has a rule, so its "
        "curvature cannot be told. Put its use into a module of its own and register a "
        "rule for that, or freeze it with requires_grad_(False)."
    )


def not_extended(output: str) -> str:
    """Words for a model that the extension cannot see.

    Args:
        output: What made the model's output, as autograd calls it.

    Returns:
        The message.
    """
    return (
        f"The model's output comes from {output}, which no extended module made. "
        "Extend the model, and compute nothing between it and the loss. If it was "
        "extended, laplace-torch's BackPACK backend has removed all hooks: delete "
        "_backpack_extend from its modules and extend it again."
    )


def find_place(wanted: Module | Tensor) -> str:
    """Find out what a module or a parameter is called in the model it belongs to.

    BackPACK's hooks know a module but not its model, so this looks through all living
    modules; it is only for error messages.

    Args:
        wanted: The module or parameter.

    Returns:
        Its longest dotted name, or its class name if it stands alone.
    """
    names = [""]
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), Module):
            continue
        with suppress(AttributeError):  # one that never called super().__init__()
            parameters, modules = candidate.named_parameters, candidate.named_modules
            members = parameters() if isinstance(wanted, Tensor) else modules()
            names += [name for name, member in members if member is wanted]
    longest = max(names, key=lambda name: (name.count("."), len(name)))
    return longest or type(wanted).__name__
