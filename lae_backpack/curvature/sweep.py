"""The engine without gradients: one recorded forward pass, then one sweep backwards."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from lae_backpack.curvature import graph
from lae_backpack.curvature.allocator import keep_freed_memory
from lae_backpack.curvature.bottleneck import (
    Arrived,
    Bottleneck,
    Travel,
    exact_bottleneck,
)
from lae_backpack.curvature.call import Call
from lae_backpack.curvature.checks import check_output, checked_rule
from lae_backpack.curvature.errors import UnsupportedModelError, used_outside
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.recorder import Record, Recorder
from lae_backpack.curvature.registry import find_rule
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.loss_rule import LossRule
from lae_backpack.curvature.step import Measure, add_to, param_curvature, seed
from lae_backpack.curvature.suspended import (
    autocasts,
    without_autocast,
    without_storing,
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
    measure = partial(param_curvature, per_sample=per_sample)
    journey = Journey(DensePolicy(max_dense_dim), measure)
    return sweep(model, loss, x, target, [journey]).curvatures[0]


class Journey:
    """One way of going backwards."""

    def __init__(self, policy: DensePolicy, *measures: Measure) -> None:
        """Choose the way.

        Args:
            policy: Where M is kept dense.
            *measures: What is wanted of each module: ``param_curvature``,
                ``block_rows``.
        """
        self.policy, self.measures = policy, measures


@dataclass(frozen=True)
class Sweep:
    """What one sweep gives.

    Attributes:
        output: The model's output.
        loss: The loss.
        curvatures: Of each journey's measures, the curvature by parameter name.
    """

    output: Tensor
    loss: Tensor
    curvatures: list[dict[str, Tensor]]


@torch.no_grad()
def sweep(
    model: Module,
    loss: Module,
    x: Tensor,
    target: Tensor,
    journeys: Sequence[Journey],
    gradient_scale: float | None = None,
) -> Sweep:
    """As ``diag_ggn``, for who needs the model's output or gradients, too.

    All journeys share one forward pass.

    Args:
        model: The model.
        loss: The loss module.
        x: A batch.  # [N, *in]
        target: The target.
        journeys: What travels backwards, and what is wanted of it.
        gradient_scale: If given, the same forward pass also adds the gradients of this
            many losses to the parameters' ``grad``.

    Returns:
        Output, loss and curvature.
    """
    require_loss(loss)
    keep_freed_memory()
    wants_gradients = gradient_scale is not None
    with Recorder(model) as recorder, torch.set_grad_enabled(wants_gradients):
        output = model(x)
    recorder.require_known(output)
    names = recorder.parameter_names()
    require_rules_for_all_parameters(model, x, recorder.all_names, names)
    loss_rule = checked_rule(loss, (output, target), lambda: "loss")
    assert isinstance(loss_rule, LossRule)
    # Autocast rounds activations; what follows from them is computed exactly.
    exact = next(model.parameters()).dtype if autocasts(output) else None
    with without_autocast(output):
        with torch.set_grad_enabled(wants_gradients):
            end = output if exact is None else output.to(exact)
            loss_call = Call(loss, (end, target), loss.forward(end, target))
        check_output(loss_call, lambda: "loss")
        if wants_gradients:
            scale = torch.full_like(loss_call.output, gradient_scale)
            torch.autograd.backward(loss_call.output, scale)

        results: list[list[dict[str, Tensor]]] = [
            [{} for _ in journey.measures] for journey in journeys
        ]
        arrived: list[Arrived] = [{} for _ in journeys]
        if id(output) in recorder.trainable:
            for at, journey in zip(arrived, journeys, strict=True):
                at[id(output)] = seed(loss_rule, loss_call, journey.policy)
        travels = list(zip(arrived, [j.policy for j in journeys], strict=True))
        code = None
        if exact is None:
            code = exact_bottleneck(recorder, output, travels)
        for record, quantities in backwards(recorder, travels, code, exact):
            call = record.call
            for own, journey, m in zip(results, journeys, quantities, strict=True):
                for found, measure in zip(own, journey.measures, strict=True):
                    for name, value in measure(record.rule, call, m).items():
                        found[names[getattr(call.module, name)]] = value
    in_order = [
        {name: found[name] for name in names.values() if name in found}
        for own in results
        for found in own
    ]
    return Sweep(output.detach(), loss_call.output.detach(), in_order)


def require_loss(loss: Module) -> None:
    """Refuse a layer in the place of a loss.

    Args:
        loss: What was given.

    Raises:
        TypeError: If it is not a loss.
    """
    if isinstance(find_rule(loss), DiagRule):
        raise TypeError(
            f"loss must be a loss module, got {type(loss).__name__}. Use nn.MSELoss(), "
            "nn.BCEWithLogitsLoss() or nn.CrossEntropyLoss()."
        )


def backwards(
    recorder: Recorder,
    travels: Sequence[Travel],
    bottleneck: Bottleneck | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[Record, list[Diag | Dense]]]:
    """Go through the recorded calls, the last one first, and pull M back.

    Args:
        recorder: Has listened to a forward pass; its records are used up.
        travels: Each with M at the output, and in the end M at what entered the model
            if wanted; and where M is kept dense.
        bottleneck: A tensor where M is known, for those who travel with random columns.
        dtype: What calls shall be in; ``None`` leaves them as they were.

    Yields:
        Each call that something arrives at, with each M at its output.
    """
    while recorder.records:
        record = recorder.records.pop()
        if bottleneck is not None and record is bottleneck.maker:
            bottleneck.replace_random(travels)
        if dtype is not None:
            record = replace(record, call=record.call.to(dtype))
        quantities = [at.pop(record.output_key, None) for at, _ in travels]
        there = [quantity for quantity in quantities if quantity is not None]
        if not there:
            continue
        yield record, there
        wanted = [k in recorder.trainable for k in record.input_keys]
        inputs = list(compress(record.call.inputs, wanted))
        keys = list(compress(record.input_keys, wanted))
        for (at, policy), quantity in zip(travels, there, strict=True):
            pulled = record.rule.pull(record.call, quantity, policy, inputs)
            for key, piece in zip(keys, pulled, strict=True):
                add_to(at, key, piece)
        recorder.forget(record)


def require_rules_for_all_parameters(
    model: Module,
    x: Tensor,
    names: Mapping[Parameter, str],
    covered: Container[Parameter],
) -> None:
    """Refuse a parameter that the model uses, but no module with a rule does.

    Args:
        model: The model.
        x: A batch.  # [N, *in]
        names: The names of all parameters.
        covered: The parameters of modules with a rule.

    Raises:
        UnsupportedModelError: If there is one.
    """
    others = {
        p: name for p, name in names.items() if p.requires_grad and p not in covered
    }
    if not others:
        return
    # They may just be idle. Whether they are used, only autograd can tell.
    with torch.enable_grad(), torch.random.fork_rng(), without_storing():
        used = graph.parameters_below(model(x))
    outside = [name for p, name in others.items() if p in used]
    if outside:
        raise UnsupportedModelError(used_outside(outside[0]))
