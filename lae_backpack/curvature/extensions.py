"""The engine as BackPACK extensions, run by BackPACK's hooks in a backward pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import torch
from backpack.extensions.backprop_extension import BackpropExtension
from backpack.extensions.module_extension import ModuleExtension
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lae_backpack.curvature import graph
from lae_backpack.curvature.errors import chain_is_broken, find_place, used_twice
from lae_backpack.curvature.policy import APPROX, DEFAULT_MAX_DENSE_DIM, DensePolicy
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.rules.base import Call, LossRule
from lae_backpack.curvature.step import (
    add_to,
    check_output,
    checked_rule,
    is_container,
    param_curvature,
    seed,
    tensors_among,
)


@dataclass
class BackwardPass:
    """What is under way in one backward pass.

    Attributes:
        task: Torch's number of the backward pass.
        arrived: M at each tensor, by the graph node that made the tensor.
        wrote_to: The parameters that have got a result.
    """

    task: int
    arrived: dict[graph.Origin, Diag | Dense] = field(default_factory=dict)
    wrote_to: list[Tensor] = field(default_factory=list)


class DiagGGNExtension(BackpropExtension):
    """Diagonal of the generalised Gauss-Newton matrix under a policy."""

    def __init__(self, savefield: str, policy: DensePolicy, per_sample: bool) -> None:
        """Choose what is carried and where results go.

        Args:
            savefield: The parameters' attribute for the result.
            policy: Where M is kept dense.
            per_sample: Keep the samples apart.
        """
        super().__init__(savefield, {})
        self.policy = policy
        self.per_sample = per_sample
        self._by_rule = ByRule()
        self._pass = BackwardPass(task=-1)

    @override
    def expects_backpropagation_quantities(self) -> bool:
        return True

    @override
    def set_module_extension(
        self, module: type[Module], extension: ModuleExtension, overwrite: bool = False
    ) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} takes rules, not module extensions. Use "
            f"@lae_backpack.register_rule({module.__name__}, overwrite={overwrite})."
        )

    @override
    def __call__(
        self, module: Module, g_inp: tuple[Tensor, ...], g_out: tuple[Tensor, ...]
    ) -> None:
        try:
            self._by_rule(self, module, g_inp, g_out)
        except BaseException:
            self.undo()
            raise

    def current_pass(self) -> BackwardPass:
        """The pass torch is in, begun if this is its first module.

        Returns:
            Its state; nothing of an earlier pass is in it.
        """
        task = torch._C._current_graph_task_id()
        if self._pass.task != task:
            self._pass = BackwardPass(task)
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        return self._pass

    def undo(self) -> None:
        """Leave nothing of a pass that failed."""
        for param in self._pass.wrote_to:
            if hasattr(param, self.savefield):
                delattr(param, self.savefield)
        self._pass = BackwardPass(task=-1)

    def _finish(self) -> None:
        """Runs when torch's backward pass is through."""
        lost = any(map(graph.comes_from_a_module, self._pass.arrived))
        if lost:
            self.undo()
            raise chain_is_broken("a module")
        self._pass = BackwardPass(task=-1)


class ByRule(ModuleExtension):
    """Every module's extension: looks up the rule and applies it."""

    @override
    def __call__(
        self,
        extension: DiagGGNExtension,
        module: Module,
        g_inp: tuple[Tensor, ...],
        g_out: tuple[Tensor, ...],
    ) -> None:
        if is_container(module):
            return
        call = stored_call(module)
        rule = checked_rule(module, call.inputs, partial(find_place, module))
        check_output(call, partial(find_place, module))
        state = extension.current_pass()
        if isinstance(rule, LossRule):
            refuse_shared_parameters(call.x)
            inputs = [call.x]  # never the target, even if it requires a gradient
            pulled = [seed(rule, call, extension.policy)]
        else:
            quantity = self._take(state, call)
            results = param_curvature(rule, call, quantity, extension.per_sample)
            for name, value in results.items():
                param = getattr(module, name)
                setattr(param, extension.savefield, value)
                state.wrote_to.append(param)
            inputs = [x for x in call.inputs if graph.origin(x) is not None]
            pulled = rule.pull(call, quantity, extension.policy, inputs)
        for x, quantity in zip(inputs, pulled, strict=True):
            add_to(state.arrived, graph.origin(x), quantity)

    @staticmethod
    def _take(state: BackwardPass, call: Call) -> Diag | Dense:
        origin = graph.origin(call.output)
        if origin is None or origin not in state.arrived:
            module = call.module
            raise chain_is_broken(f"{type(module).__name__} ({find_place(module)!r})")
        return state.arrived.pop(origin)


def stored_call(module: Module) -> Call:
    """What BackPACK's forward hook has stored of a module's last call.

    Args:
        module: An extended module.

    Returns:
        The call.

    Raises:
        UnsupportedModelError: If an earlier hook has used it up.
    """
    if not hasattr(module, "output"):
        raise used_twice(
            f"{type(module).__name__} ({find_place(module)!r})",
            "BackPACK keeps one input per module: use one module for each call, or "
            "lae_backpack.diag_ggn, which needs no hooks.",
        )
    inputs = []
    while hasattr(module, f"input{len(inputs)}"):
        inputs.append(getattr(module, f"input{len(inputs)}"))
    return Call(module, tensors_among(inputs), module.output)


def refuse_shared_parameters(output: Tensor) -> None:
    """Stop before anything is computed if two modules share a parameter.

    Args:
        output: The model's output.

    Raises:
        UnsupportedModelError: If one is found.
    """
    shared = graph.parameter_used_twice(output)
    if shared is not None:
        raise used_twice(
            f"The parameter {find_place(shared)!r}",
            "Its curvature has cross terms that no layer sees: give each use a "
            "parameter of its own, or freeze it with requires_grad_(False).",
        )


class DiagGGNApprox(DiagGGNExtension):
    """The approximate diagonal: only diagonals travel, at about a gradient's cost.

    Saves to ``diag_ggn_approx``, shaped like the parameter and summed over the batch.
    """

    def __init__(self) -> None:
        """Takes no arguments."""
        super().__init__("diag_ggn_approx", APPROX, per_sample=False)


class BatchDiagGGNApprox(DiagGGNExtension):
    """As ``DiagGGNApprox``, one per sample.

    Saves to ``diag_ggn_approx_batch``, shaped ``[N, *param]``.
    """

    def __init__(self) -> None:
        """Takes no arguments."""
        super().__init__("diag_ggn_approx_batch", APPROX, per_sample=True)


class DiagGGNMixed(DiagGGNExtension):
    """The mixed diagonal: matrices travel where features are few.

    Saves to ``diag_ggn_mixed``, shaped like the parameter and summed over the batch.
    """

    def __init__(self, max_dense_dim: int | None = DEFAULT_MAX_DENSE_DIM) -> None:
        """Set the limit.

        Args:
            max_dense_dim: The largest number of features per sample at which a matrix
                travels. ``0`` is the approximate, ``None`` the exact diagonal.
        """
        policy = DensePolicy(max_dense_dim)
        super().__init__("diag_ggn_mixed", policy, per_sample=False)


class BatchDiagGGNMixed(DiagGGNExtension):
    """As ``DiagGGNMixed``, one per sample.

    Saves to ``diag_ggn_mixed_batch``, shaped ``[N, *param]``.
    """

    def __init__(self, max_dense_dim: int | None = DEFAULT_MAX_DENSE_DIM) -> None:
        """Set the limit.

        Args:
            max_dense_dim: As for ``DiagGGNMixed``.
        """
        policy = DensePolicy(max_dense_dim)
        super().__init__("diag_ggn_mixed_batch", policy, per_sample=True)
