"""How much memory a pass takes, told by one sample before the others follow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from lae_backpack.curvature.bottleneck import narrow_code
from lae_backpack.curvature.probe import Probe
from lae_backpack.curvature.quantities import features
from lae_backpack.curvature.recorder import Recorder

# Of a layer at work, in numbers at its output and input: what arrives, what leaves, and
# what is made on the way. Measured on whole nets, with room to spare.
COPIES_OF_DIAGONALS = 6
COPIES_OF_COLUMNS = 5


@dataclass(frozen=True)
class Footprint:
    """What one sample takes.

    Attributes:
        held: The bytes of its activations.
        widths: Of each layer, the features at its output and at its inputs together.
        carried: The features of each tensor that may carry a matrix.
        n_outputs: The features of the model's output.
        itemsize: The bytes of a number.
        code: The features of a code so narrow that probes are exact before it, or 0.
    """

    held: int
    widths: tuple[tuple[int, int], ...]
    carried: frozenset[int]
    n_outputs: int
    itemsize: int
    code: int = 0

    def bytes_per_sample(self, max_dense_dim: int | None, n_probes: int = 0) -> int:
        """The most that is there at one time while M travels backwards.

        Args:
            max_dense_dim: Where M is a matrix, as for ``DensePolicy``.
            n_probes: Random columns that travel as well.

        Returns:
            An estimate for one sample.
        """
        dense = set(self.limits(max_dense_dim))
        # As many columns as the code has features go forwards from it, and others
        # backwards: those are never there together with the probes.
        n_probes = max(n_probes, self.code) if n_probes else 0
        n_columns = self.n_outputs if self.n_outputs in dense else 0
        at_work = 0
        for n_out, n_in in reversed(self.widths):
            numbers = COPIES_OF_DIAGONALS * (1 + 2 * n_probes) * (n_out + n_in)
            arriving, n_columns = n_columns, n_in if n_in in dense else 0
            # Columns come in two sets; they are made even where diagonals go on.
            numbers += 2 * COPIES_OF_COLUMNS * (arriving * n_out + n_columns * n_in)
            numbers += COPIES_OF_COLUMNS * arriving * n_in
            at_work = max(at_work, numbers)
        return self.held + self.itemsize * at_work

    def limits(self, max_dense_dim: int | None) -> list[int]:
        """The values of ``max_dense_dim`` that make a difference.

        Args:
            max_dense_dim: The largest one.

        Returns:
            All widths that carry a matrix under it, the largest first.
        """
        limit = float("inf") if max_dense_dim is None else max_dense_dim
        return sorted((n for n in self.carried if n <= limit), reverse=True)


@torch.no_grad()
def footprint(model: Module, x: Tensor) -> Footprint:
    """Run one sample and look at what it leaves.

    Args:
        model: The model.
        x: A batch, of which the first sample is used.  # [N, *in]

    Returns:
        What one sample takes.
    """
    with Recorder(model) as recorder:
        output = model(x[:1])
    calls = [record.call for record in recorder.records]
    kept = [output, *recorder.made()]
    kept += [tensor for call in calls for tensor in (*call.inputs, call.output)]
    # Views share memory, and the parameters' own is there anyway.
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in kept}
    for tensor in (x, *model.parameters(), *model.buffers()):
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    inputs = [
        [features(t) for t in record.call.inputs if isinstance(t, Tensor)]
        for record in recorder.records
    ]
    code = narrow_code(recorder, output, Probe.max_code)
    return Footprint(
        held=sum(storage.nbytes() for storage in storages.values()),
        widths=tuple(
            (features(call.output), sum(n))
            for call, n in zip(calls, inputs, strict=True)
        ),
        carried=frozenset([features(output), *_carried(recorder)]),
        n_outputs=features(output),
        itemsize=max(output.dtype.itemsize, 4),
        code=0 if code is None else features(code.x),
    )


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
    at_end = [features(output)] if at_output else []
    return max([0, *_carried(recorder), *at_end])


def _carried(recorder: Recorder) -> list[int]:
    return [
        features(tensor)
        for record in recorder.records
        for tensor, key in zip(record.call.inputs, record.input_keys, strict=True)
        if key in recorder.trainable
    ]
