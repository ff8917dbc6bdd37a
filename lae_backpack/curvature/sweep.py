"""The engine without gradients: one recorded forward pass, then one sweep backwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils.hooks import RemovableHandle

from lae_backpack.curvature.allocator import keep_freed_memory
from lae_backpack.curvature.errors import (
    SHARED_REMEDY,
    UnsupportedModelError,
    chain_is_broken,
    used_twice,
)
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.rules.base import Call, DiagRule, LossRule
from lae_backpack.curvature.step import (
    add_to,
    check_output,
    checked_rule,
    is_container,
    param_curvature,
    seed,
    tensors_among,
)


def diag_ggn(
    model: Module,
    loss: Module,
    x: Tensor,
    target: Tensor,
    *,
    max_dense_dim: int | None = 0,
    per_sample: bool = False,
) -> dict[str, Tensor]:
    """Curvature alone: no gradients, nothing to extend, nothing left on the model.

    Modules may be called several times and activations may work in place, which
    BackPACK's hooks cannot follow.

    Args:
        model: The model. Its parameters that require gradients get a result.
        loss: The loss module, called with the model's output and the target.
        x: A batch.  # [N, *in]
        target: The target.
        max_dense_dim: The largest number of features per sample at which a matrix
            travels; ``0`` gives the approximate, ``None`` the exact diagonal.
        per_sample: Keep the samples apart.

    Returns:
        The curvature by parameter name.  # [N, *param] if per_sample else [*param]
    """
    policy = DensePolicy(max_dense_dim)
    return sweep(model, loss, x, target, policy, per_sample).curvature


@dataclass(frozen=True)
class Sweep:
    """What one sweep gives.

    Attributes:
        output: The model's output.
        curvature: The curvature by parameter name.
    """

    output: Tensor
    curvature: dict[str, Tensor]


@torch.no_grad()
def sweep(
    model: Module,
    loss: Module,
    x: Tensor,
    target: Tensor,
    policy: DensePolicy,
    per_sample: bool,
) -> Sweep:
    """As ``diag_ggn``, for who needs the model's output, too.

    Args:
        model: The model.
        loss: The loss module.
        x: A batch.  # [N, *in]
        target: The target.
        policy: Where M is kept dense.
        per_sample: Keep the samples apart.

    Returns:
        Output and curvature.

    Raises:
        TypeError: If ``loss`` is not a loss.
    """
    keep_freed_memory()
    with Recorder(model, x) as recorder:
        output = model(x)
    recorder.require_module_output(output)
    names = recorder.parameter_names()
    loss_rule = checked_rule(loss, (output, target), lambda: "loss")
    if not isinstance(loss_rule, LossRule):
        raise TypeError(
            f"loss must be a loss module, got {type(loss).__name__}. Use nn.MSELoss(), "
            "nn.BCEWithLogitsLoss() or nn.CrossEntropyLoss()."
        )

    results: dict[str, Tensor] = {}
    arrived: dict[int, Diag | Dense] = {}
    if id(output) in recorder.trainable:
        loss_call = Call(loss, (output, target), output)
        arrived[id(output)] = seed(loss_rule, loss_call, policy)
    while recorder.calls:
        call, rule = recorder.calls.pop()  # and let go of what it holds
        quantity = arrived.pop(id(call.output), None)
        if quantity is None:
            continue
        for name, value in param_curvature(rule, call, quantity, per_sample).items():
            results[names[getattr(call.module, name)]] = value
        inputs = [i for i in call.inputs if id(i) in recorder.trainable]
        pulled = rule.pull(call, quantity, policy, inputs)
        for i, quantity in zip(inputs, pulled, strict=True):
            add_to(arrived, id(i), quantity)
    in_order = {name: results[name] for name in names.values() if name in results}
    return Sweep(output, in_order)


class Recorder:
    """Writes down every call of a module while a model runs.

    Attributes:
        calls: The calls in order, with their rules.
        trainable: The ids of tensors that depend on a trainable parameter.
    """

    def __init__(self, model: Module, x: Tensor) -> None:
        """Prepare to listen.

        Args:
            model: The model.
            x: Its input.
        """
        self.calls: list[tuple[Call, DiagRule]] = []
        self.trainable: set[int] = set()
        self._model = model
        self._places = {module: name for name, module in model.named_modules()}
        self._version = {id(x): x._version}
        self._waiting: list[tuple[tuple[Tensor, ...], DiagRule]] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Recorder:
        """Listen to all modules that are not containers.

        Returns:
            Itself.
        """
        for module in self._places:
            if not is_container(module):
                self._handles += [
                    module.register_forward_pre_hook(self._before),
                    module.register_forward_hook(self._after),
                ]
        return self

    def __exit__(self, *error: object) -> None:
        """Take all hooks off again.

        Args:
            *error: What went wrong, if anything.
        """
        for handle in self._handles:
            handle.remove()

    def parameter_names(self) -> dict[Parameter, str]:
        """The names of the parameters in use, which have to be used once each.

        Returns:
            The names in the model.

        Raises:
            UnsupportedModelError: If a trainable parameter is used twice.
        """
        names = {p: name for name, p in self._model.named_parameters()}
        seen: set[Parameter] = set()
        for call, _ in self.calls:
            for param in call.module.parameters(recurse=False):
                if param in seen and param.requires_grad:
                    what = f"The parameter {names[param]!r}"
                    raise UnsupportedModelError(used_twice(what, SHARED_REMEDY))
                seen.add(param)
        return names

    def require_module_output(self, tensor: Tensor) -> None:
        """Refuse a tensor that was not handed on as some module made it.

        Args:
            tensor: The tensor.

        Raises:
            UnsupportedModelError: If something was computed outside a module.
        """
        if self._version.get(id(tensor)) != tensor._version:
            last = self._places[self.calls[-1][0].module] if self.calls else ""
            raise UnsupportedModelError(chain_is_broken(f"what follows {last!r}"))

    def _place_of(self, module: Module) -> Callable[[], str]:
        return partial(self._places.__getitem__, module)

    def _before(self, module: Module, inputs: tuple[Tensor, ...]) -> object:
        inputs = tensors_among(inputs)
        rule = checked_rule(module, inputs, self._place_of(module))
        assert isinstance(rule, DiagRule)
        for x in inputs:
            if not self.calls:  # the model may prepare its input as it likes
                self._version.setdefault(id(x), x._version)
            self.require_module_output(x)
        self._waiting.append((inputs, rule))
        if getattr(module, "inplace", False):
            return tuple(x.clone() for x in inputs)
        return None

    def _after(self, module: Module, _: object, output: Tensor) -> None:
        inputs, rule = self._waiting.pop()
        call = Call(module, inputs, output)
        check_output(call, self._place_of(module))
        self.calls.append((call, rule))
        self._version[id(output)] = output._version
        own = any(p.requires_grad for p in module.parameters(recurse=False))
        if own or any(id(x) in self.trainable for x in call.inputs):
            self.trainable.add(id(output))
