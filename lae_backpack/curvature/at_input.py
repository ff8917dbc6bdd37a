"""The dense GGN of a model's input: what arrives when M is pulled back all the way."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.checks import checked_rule
from lae_backpack.curvature.policy import EXACT
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.recorder import Recorder
from lae_backpack.curvature.rules.loss_rule import LossRule
from lae_backpack.curvature.step import seed
from lae_backpack.curvature.sweep import backwards, require_loss


@torch.no_grad()
def input_ggn(model: Module, loss: Module, x: Tensor, target: Tensor) -> Tensor:
    """The GGN of a loss with respect to a model's input, one matrix per sample.

    With ``J`` the model's Jacobian and ``S`` the loss Hessian at the output it is
    ``J^T S J``; where all samples share a matrix on the way, it is pulled back once.
    Parameters may be frozen and may be used several times.

    Args:
        model: The model.
        loss: The loss module, called with the model's output and the target.
        x: A batch.  # [N, *in]
        target: The target.

    Returns:
        The matrices over the flattened input.  # [N, F, F]
    """
    require_loss(loss)
    x = x.detach().clone()  # an activation in place may come first
    with Recorder(model, wanted=x) as recorder:
        output = model(x)
    recorder.require_known(output)
    rule = checked_rule(loss, (output, target), lambda: "loss")
    assert isinstance(rule, LossRule)
    call = Call(loss, (output, target), output)
    arrived: dict[int, Diag | Dense] = {id(output): seed(rule, call, EXACT)}
    for _ in backwards(recorder, [(arrived, EXACT)]):
        pass
    quantity = arrived[id(x)]
    dense = quantity.to_dense() if isinstance(quantity, Diag) else quantity
    return dense.matrix().expand(len(x), -1, -1)
