"""All checks of a hooked pass, made at the loss before anything is computed."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from functools import partial
from weakref import WeakSet

from torch import Tensor
from torch.nn import Module

from lae_backpack.curvature import graph
from lae_backpack.curvature.errors import (
    SHARED_REMEDY,
    UnsupportedModelError,
    chain_is_broken,
    find_place,
    used_twice,
)
from lae_backpack.curvature.rules.base import Call
from lae_backpack.curvature.step import (
    check_output,
    checked_rule,
    is_container,
    tensors_among,
)

# Hooks know a module, not its model. Modules are looked for among all living objects
# when a model is met for the first time, and remembered.
_remembered: WeakSet[Module] = WeakSet()


def check_model(output: Tensor) -> None:
    """Refuse a model that some step of the pass could not handle.

    Args:
        output: The model's output.

    Raises:
        UnsupportedModelError: If parameters are shared, a module is called twice, or
            something is computed outside a module.
    """
    shared = graph.parameter_used_twice(output)
    if shared is not None:
        what = f"The parameter {find_place(shared)!r}"
        raise UnsupportedModelError(used_twice(what, SHARED_REMEDY))
    made = graph.made_by_modules(output)
    modules = _modules_that_made(made, _remembered)
    if len(modules) < len(made):
        found = (o for o in gc.get_objects() if issubclass(type(o), Module))
        modules = _modules_that_made(made, found)
        _remembered.update(m for several in modules.values() for m in several)
    for origin in made:
        if origin not in modules and graph.comes_from_a_module(origin):
            raise UnsupportedModelError(chain_is_broken(f"a {origin[0].name()}"))
        for module in modules.get(origin, ()):
            place = partial(find_place, module)
            call = stored_call(module)
            checked_rule(module, call.inputs, place)
            check_output(call, place)


def _modules_that_made(
    made: set[graph.Origin], candidates: Iterable[Module]
) -> dict[graph.Origin, list[Module]]:
    modules: dict[graph.Origin, list[Module]] = {}
    for module in candidates:
        output = module.__dict__.get("output")
        if isinstance(output, Tensor) and not is_container(module):
            origin = graph.origin(output)
            if origin in made:
                modules.setdefault(origin, []).append(module)
    return modules


def stored_call(module: Module) -> Call:
    """What BackPACK's forward hook has stored of a module's last call.

    Args:
        module: An extended module.

    Returns:
        The call.

    Raises:
        UnsupportedModelError: If there is nothing, or a hook has used it up.
    """
    if not hasattr(module, "output"):
        what = f"{type(module).__name__} ({find_place(module)!r})"
        remedy = (
            "BackPACK keeps one input per module: use one module for each call, or "
            "lae_backpack.diag_ggn, which needs no hooks."
        )
        raise UnsupportedModelError(used_twice(what, remedy))
    inputs = []
    while hasattr(module, f"input{len(inputs)}"):
        inputs.append(getattr(module, f"input{len(inputs)}"))
    output = module.output
    assert isinstance(output, Tensor)
    return Call(module, tensors_among(inputs), output)
