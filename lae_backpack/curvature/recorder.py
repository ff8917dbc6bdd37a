"""Writes down every call of a module while a model runs without gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.checks import check_output, checked_rule, is_container
from lae_backpack.curvature.errors import (
    SHARED_REMEDY,
    UnsupportedModelError,
    chain_is_broken,
    used_twice,
)
from lae_backpack.curvature.registry import find_rule
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.step import tensors_among
from lae_backpack.curvature.suspended import uncompiled

_locks: WeakKeyDictionary[Module, Any] = WeakKeyDictionary()
_locks_guard = threading.Lock()

# A call that is under way: its rule, its inputs, and their keys.
_Waiting = tuple[DiagRule, tuple[Tensor, ...], tuple[int, ...]]


def lock_of(model: Module) -> Any:
    """What threads hold while they run a model that others may record.

    Args:
        model: The model.

    Returns:
        Its lock, which a thread may hold several times.
    """
    with _locks_guard:
        return _locks.setdefault(model, threading.RLock())


@dataclass(frozen=True)
class Record:
    """A call with its rule.

    The tensors in the call keep their values even if the model overwrites them in
    place; the keys tell which tensors of the model they are.
    """

    call: Call
    rule: DiagRule
    input_keys: tuple[int, ...]
    output_key: int


class Recorder:
    """Listens to a model's modules for one forward pass.

    Only what depends on a trainable parameter, or on the wanted input, is recorded:
    what comes before may be anything.

    Attributes:
        records: The calls in order.
        trainable: The keys of tensors that depend on one of these.
    """

    def __init__(self, model: Module, wanted: Tensor | None = None) -> None:
        """Prepare to listen.

        Args:
            model: The model.
            wanted: An input that is treated like a trainable parameter.
        """
        self.records: list[Record] = []
        self.trainable: set[int] = set()
        self._places = {module: name for name, module in model.named_modules()}
        # Tensors that modules made, kept alive so that their ids stay their own.
        self._made: dict[int, tuple[Tensor, int]] = {}
        if wanted is not None:
            self.trainable.add(id(wanted))
            self._made[id(wanted)] = wanted, wanted._version
        self._waiting: list[_Waiting | None] = []
        # Others may run the same modules, but not while hooks come and go.
        self._thread, self._lock = threading.get_ident(), lock_of(model)
        self._random_state: Tensor

    def __enter__(self) -> Recorder:
        """Listen to all modules that are neither containers nor parts of a layer.

        Returns:
            Itself.
        """
        layers = [m for m in self._places if m._modules and find_rule(m) is not None]
        parts = {part for m in layers for part in m.modules() if part is not m}
        key = id(self)
        with ExitStack() as held:
            held.enter_context(self._lock)
            held.enter_context(uncompiled(self._places))
            for module in self._places:
                if module not in parts and not is_container(module):
                    # What register_forward_hook comes to for plain hooks, in a fraction
                    # of its time.
                    held.callback(module._forward_pre_hooks.pop, key, None)
                    held.callback(module._forward_hooks.pop, key, None)
                    module._forward_pre_hooks[key] = self._before
                    module._forward_hooks[key] = self._after
            self._held = held.pop_all()  # until it is closed; nothing if this fails
        return self

    def __exit__(self, *error: object) -> None:
        """Take all hooks off again.

        Args:
            *error: What went wrong, if anything.
        """
        self._held.close()

    @cached_property
    def all_names(self) -> dict[Parameter, str]:
        """The names of all parameters; a shared one goes by its first name."""
        names: dict[Parameter, str] = {}
        for module, place in self._places.items():
            for name, param in module._parameters.items():
                if param is not None:
                    names.setdefault(param, f"{place}.{name}" if place else name)
        return names

    def parameter_names(self) -> dict[Parameter, str]:
        """The names of the recorded modules' parameters, each of which is used once.

        Returns:
            The names in the model.

        Raises:
            UnsupportedModelError: If a trainable parameter is used twice.
        """
        used: dict[Parameter, str] = {}
        for record in self.records:
            module = record.call.module
            for param in module._parameters.values():
                if param is None:
                    continue
                if param in used and param.requires_grad:
                    what = f"The parameter {used[param]!r}"
                    raise UnsupportedModelError(used_twice(what, SHARED_REMEDY))
                used[param] = self.all_names[param]
        return used

    def require_known(self, tensor: Tensor) -> None:
        """Refuse a tensor that may come from a module by way of something else.

        Args:
            tensor: The tensor.

        Raises:
            UnsupportedModelError: If something was computed outside a module.
        """
        _, version = self._made.get(id(tensor), (None, None))
        if version != tensor._version and self.trainable:
            last = [repr(self._places[r.call.module]) for r in self.records[-1:]]
            where = f"what follows {(last or ['the input'])[0]}"
            raise UnsupportedModelError(chain_is_broken(where))

    def made(self) -> list[Tensor]:
        """What modules have made and is still there.

        Returns:
            The tensors, values of in-place modules aside.
        """
        return [tensor for tensor, _ in self._made.values()]

    def forget(self, record: Record) -> None:
        """Let go of what only this call needed.

        Args:
            record: A call that has been dealt with, in the order of the pass or
                against it.
        """
        self._made.pop(record.output_key, None)

    def _place_of(self, module: Module) -> Callable[[], str]:
        return partial(self._places.__getitem__, module)

    def _before(self, module: Module, args: tuple[object, ...]) -> None:
        if threading.get_ident() != self._thread:
            return
        inputs = tensors_among(args)
        params = module._parameters.values()
        own = any(p is not None and p.requires_grad for p in params)
        for x in inputs:
            if id(x) not in self._made and not self.trainable:
                self._made[id(x)] = x, x._version
            self.require_known(x)
        if not own and not any(id(x) in self.trainable for x in inputs):
            self._waiting.append(None)
            return
        rule = checked_rule(module, inputs, self._place_of(module))
        assert isinstance(rule, DiagRule)
        keys = tuple(id(x) for x in inputs)
        if vars(module).get("inplace") or getattr(type(module), "inplace", False):
            inputs = tuple(self._keep_value(x) for x in inputs)
        self._waiting.append((rule, inputs, keys))
        if rule.is_random(module):
            self._random_state = _random_state(inputs[0].device)

    def _keep_value(self, x: Tensor) -> Tensor:
        kept = x.clone()
        for i, record in enumerate(self.records):
            call = record.call
            inputs = tuple(kept if t is x else t for t in call.inputs)
            output = kept if call.output is x else call.output
            call = replace(call, inputs=inputs, output=output)
            self.records[i] = replace(record, call=call)
        return kept

    def _drawn(self, module: Module, output: Tensor) -> Tensor:
        """What a random layer multiplied with: the same draw, applied to ones."""
        device = output.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if device.type == "cuda":
                torch.cuda.set_rng_state(self._random_state, device)
            else:
                torch.set_rng_state(self._random_state)
            return module.forward(torch.ones_like(output))

    def _after(self, module: Module, _: object, output: Tensor) -> None:
        if threading.get_ident() != self._thread:
            return
        waiting = self._waiting.pop()
        if waiting is not None:
            rule, inputs, keys = waiting
            derivative = self._drawn(module, output) if rule.is_random(module) else None
            call = Call(module, inputs, output, derivative)
            check_output(call, self._place_of(module))
            self.records.append(Record(call, rule, keys, id(output)))
            self.trainable.add(id(output))
        if isinstance(output, Tensor):
            self._made[id(output)] = output, output._version


def last_uses(records: Sequence[Record], output: int) -> dict[int, int]:
    """When each tensor is used for the last time.

    Args:
        records: The calls in order.
        output: The key of what is wanted in the end.

    Returns:
        The number of the call by the tensor's key; the output is used after all calls.
    """
    last = {key: step for step, r in enumerate(records) for key in r.input_keys}
    return last | {output: len(records)}


def _random_state(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()
