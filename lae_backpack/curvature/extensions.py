"""The engine as BackPACK extensions, run by BackPACK's hooks in a backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

import torch
from backpack import memory_cleanup
from backpack.extensions.backprop_extension import BackpropExtension
from backpack.extensions.module_extension import ModuleExtension
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lae_backpack.curvature import graph
from lae_backpack.curvature.allocator import keep_freed_memory
from lae_backpack.curvature.call import Call
from lae_backpack.curvature.checks import check_output, checked_rule, is_container
from lae_backpack.curvature.errors import (
    SHARED_REMEDY,
    UnsupportedModelError,
    chain_is_broken,
    find_place,
    used_twice,
)
from lae_backpack.curvature.policy import APPROX, DEFAULT_MAX_DENSE_DIM, DensePolicy
from lae_backpack.curvature.preflight import (
    check_model,
    drawn_derivatives,
    find_makers,
    stored_call,
)
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.registry import find_rule
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.loss_rule import LossRule
from lae_backpack.curvature.step import add_to, param_curvature, seed


@dataclass
class BackwardPass:
    """What is under way in one backward pass.

    Attributes:
        task: Torch's number of the backward pass.
        modules: The modules of the model.
        idle: What no trainable parameter is behind, and no stored call.
        arrived: M at each tensor, by the graph node that made the tensor.
        derivatives: Those of random layers, as drawn in the forward pass.
        done: The ids of parameters that have got a result.
    """

    task: int
    modules: list[Module] = field(default_factory=list)
    idle: set[graph.Origin] = field(default_factory=set)
    arrived: dict[graph.Origin, Diag | Dense] = field(default_factory=dict)
    derivatives: dict[Module, Tensor] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


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
        keep_freed_memory()
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
        return self._pass

    def remove_results(self, state: BackwardPass) -> None:
        """Take results off the parameters of a pass, this one's or an older one's.

        Args:
            state: The pass.
        """
        for module in state.modules:
            for param in module.parameters(recurse=False):
                if self.savefield in vars(param):
                    delattr(param, self.savefield)

    def undo(self) -> None:
        """Leave nothing of a pass that failed: no results, no stored inputs."""
        self.remove_results(self._pass)
        for module in self._pass.modules:
            memory_cleanup(module)
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
        rule = find_rule(module)
        if rule is None and is_container(module):
            return
        state = extension.current_pass()
        if isinstance(rule, DiagRule):
            used_up = "output" not in vars(module)
            if used_up and (state.idle or rule.hands_on(module)):
                return  # an earlier call, before anything trainable or without effect
            self._pass_layer(extension, state, rule, stored_call(module))
        else:
            self._start(extension, state, stored_call(module))

    @staticmethod
    def _start(extension: DiagGGNExtension, state: BackwardPass, call: Call) -> None:
        """Begin at the loss, which comes first."""
        place = partial(find_place, call.module)
        rule = checked_rule(call.module, call.inputs, place)
        assert isinstance(rule, LossRule)
        check_output(call, place)
        made = graph.made_by_modules(call.x)
        makers = find_makers(made)
        state.modules += [m for several in makers.values() for m in several]
        extension.remove_results(state)
        check_model(call.x, made, makers)
        state.idle |= made - makers.keys()
        state.derivatives |= drawn_derivatives(makers)
        # Never the target, even if it requires a gradient.
        ByRule._hand_on(state, [call.x], [seed(rule, call, extension.policy)])

    @staticmethod
    def _pass_layer(
        extension: DiagGGNExtension, state: BackwardPass, rule: DiagRule, call: Call
    ) -> None:
        quantity = ByRule._take(state, call)
        call = replace(call, derivative=state.derivatives.pop(call.module, None))
        results = param_curvature(rule, call, quantity, extension.per_sample)
        for name, value in results.items():
            param = getattr(call.module, name)
            if id(param) in state.done:
                what = f"The parameter {find_place(param)!r}"
                raise UnsupportedModelError(used_twice(what, SHARED_REMEDY))
            setattr(param, extension.savefield, value)
            state.done.add(id(param))
        inputs = [x for x in call.inputs if x.requires_grad]
        pulled = rule.pull(call, quantity, extension.policy, inputs)
        ByRule._hand_on(state, inputs, pulled)

    @staticmethod
    def _take(state: BackwardPass, call: Call) -> Diag | Dense:
        origin = graph.origin(call.output)
        if origin is None or origin not in state.arrived:
            module = call.module
            where = f"{type(module).__name__} ({find_place(module)!r})"
            raise UnsupportedModelError(chain_is_broken(where))
        return state.arrived.pop(origin)

    @staticmethod
    def _hand_on(
        state: BackwardPass,
        inputs: Iterable[Tensor],
        quantities: Iterable[Diag | Dense],
    ) -> None:
        for x, quantity in zip(inputs, quantities, strict=True):
            origin = graph.origin(x)
            # The net's own input, and what is made of it alone, want nothing.
            if origin is not None and origin not in state.idle:
                add_to(state.arrived, origin, quantity)


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
