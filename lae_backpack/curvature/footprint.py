"""How wide the matrices are that an exact pass carries backwards."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from lae_backpack.curvature.quantities import features
from lae_backpack.curvature.recorder import Recorder


@torch.no_grad()
def widest_carried(model: Module, x: Tensor, *, at_output: bool) -> int:
    """The most features that a tensor with a matrix has, for one sample.

    Args:
        model: The model.
        x: A batch, of which the first sample is used.  # [N, *in]
        at_output: The loss has a matrix at the model's output, not a diagonal.

    Returns:
        The number of features; 0 if there is no matrix.
    """
    with Recorder(model) as recorder:
        output = model(x[:1])
    carried = [
        features(tensor)
        for record in recorder.records
        for tensor, key in zip(record.call.inputs, record.input_keys, strict=True)
        if key in recorder.trainable
    ]
    return max([0, *carried, features(output) if at_output else 0])
