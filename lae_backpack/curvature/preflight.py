"""All checks of a hooked pass, made at the loss before anything is computed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from lae_backpack.curvature import graph
from lae_backpack.curvature.call import Call
from lae_backpack.curvature.checks import check_output, checked_rule, is_container
from lae_backpack.curvature.errors import (
    SHARED_REMEDY,
    UnsupportedLayerError,
    UnsupportedModelError,
    cannot_handle,
    chain_is_broken,
    find_place,
    not_extended,
    used_outside,
    used_twice,
)
from lae_backpack.curvature.registry import find_rule
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.step import tensors_among

Makers = dict[graph.Origin, list[Module]]

# Hooks know a module, not its model. Modules are looked for among all living objects
# when a model is met for the first time, and remembered.
_remembered: WeakSet[Module] = WeakSet()


def find_makers(made: set[graph.Origin]) -> Makers:
    """Which modules made what.

    Args:
        made: What modules handed to each other in a forward pass.

    Returns:
        The modules by what they made; several if some hand on what they get.
    """
    makers = _makers_among(_remembered, made)
    if any(o not in makers and graph.parameters_behind(o) for o in made):
        living = (o for o in gc.get_objects() if issubclass(type(o), Module))
        makers = _makers_among(living, made)
        _remembered.update(m for several in makers.values() for m in several)
    return makers


def _makers_among(candidates: Iterable[Module], made: set[graph.Origin]) -> Makers:
    makers: Makers = {}
    for module in candidates:
        output = vars(module).get("output")
        if isinstance(output, Tensor) and not is_container(module):
            origin = graph.origin(output)
            if origin in made:
                makers.setdefault(origin, []).append(module)
    return makers


def check_model(output: Tensor, made: set[graph.Origin], makers: Makers) -> None:
    """Refuse a model that some step of the pass could not handle.

    Args:
        output: The model's output.
        made: What modules handed to each other.
        makers: What ``find_makers`` found.

    Raises:
        UnsupportedModelError: If something is computed outside a module, or a module is
            called twice.
    """
    for module in {m for several in makers.values() for m in several}:
        _check_module(module)
    _check_parameters(made, makers)
    for origin in made:
        if origin in makers:
            continue
        name = origin[0].name()
        if origin == graph.origin(output):
            raise UnsupportedModelError(not_extended(name))
        if graph.parameters_behind(origin):
            raise UnsupportedModelError(chain_is_broken(f"a {name}"))


def _check_module(module: Module) -> None:
    place, call = partial(find_place, module), stored_call(module)
    checked_rule(module, call.inputs, place)
    if any(True for _ in module.children()):
        problem = (
            "it has children, whose BackPACK hooks run as well. Write its forward "
            "without modules, or use lae_backpack.diag_ggn."
        )
        raise UnsupportedLayerError(cannot_handle(module, place(), problem))
    check_output(call, place)


def _check_parameters(made: set[graph.Origin], makers: Makers) -> None:
    readers: dict[Parameter, int] = {}
    for origin in made:
        owned = {p for m in makers.get(origin, ()) for p in m.parameters()}
        for param in graph.parameters_read(origin):
            readers[param] = readers.get(param, 0) + 1
            if readers[param] > 1:
                what = f"The parameter {find_place(param)!r}"
                raise UnsupportedModelError(used_twice(what, SHARED_REMEDY))
            if origin in makers and param not in owned:
                raise UnsupportedModelError(used_outside(find_place(param)))


def drawn_derivatives(makers: Makers) -> dict[Module, Tensor]:
    """The derivatives that random layers have drawn, while autograd still has them.

    Args:
        makers: What ``find_makers`` found.

    Returns:
        The derivative of each random elementwise layer.
    """
    derivatives = {}
    for (node, _), modules in makers.items():
        for module in modules:
            rule = find_rule(module)
            if isinstance(rule, DiagRule) and rule.is_random(module):
                ones = torch.ones_like(stored_call(module).output)
                pulled = cast(Callable[[Tensor], Any], node)(ones)
                derivatives[module] = pulled[0] if isinstance(pulled, tuple) else pulled
    return derivatives


def stored_call(module: Module) -> Call:
    """What BackPACK's forward hook has stored of a module's last call.

    Args:
        module: An extended module.

    Returns:
        The call.

    Raises:
        UnsupportedModelError: If there is nothing, or a hook has used it up.
    """
    output = vars(module).get("output")
    if not isinstance(output, Tensor):
        raise UnsupportedModelError(
            f"BackPACK has no input of {type(module).__name__} "
            f"({find_place(module)!r}) any more. It keeps one per module: use one "
            "module for each call, pass "
            "retain_graph=True to backpack(...) for a second backward pass, and run "
            "the forward pass outside backpack.disable()."
        )
    inputs = []
    while hasattr(module, f"input{len(inputs)}"):
        inputs.append(getattr(module, f"input{len(inputs)}"))
    return Call(module, tensors_among(inputs), output)
