"""M at a narrow tensor that all outputs depend on, exactly: by going forwards.

Random columns are at their noisiest where features are few. There the Jacobian of all
that follows has few columns, too, and one push forwards for each gives M itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lae_backpack.curvature.covariance import Covariance, Source, pivoted_root
from lae_backpack.curvature.policy import APPROX, DensePolicy
from lae_backpack.curvature.probe import Probe
from lae_backpack.curvature.quantities import Dense, Diag, features, unit_columns
from lae_backpack.curvature.recorder import Record, Recorder, last_uses

Arrived = dict[int, Diag | Dense]  # M at each tensor, by the tensor's key
Travel = tuple[Arrived, DensePolicy]


@dataclass(frozen=True)
class Bottleneck:
    """A tensor where M is known.

    Attributes:
        maker: The call that made the tensor.
        quantity: M there.
    """

    maker: Record
    quantity: Dense

    def replace_random(self, travels: Sequence[Travel]) -> None:
        """Put M in the place of random columns.

        Args:
            travels: What has arrived where.
        """
        key = self.maker.output_key
        for arrived, policy in travels:
            if policy.draws_columns and key in arrived:
                arrived[key] = self.quantity


def exact_bottleneck(
    recorder: Recorder, output: Tensor, travels: Sequence[Travel]
) -> Bottleneck | None:
    """Compute M at the narrowest tensor that all outputs depend on.

    Args:
        recorder: Has listened to a forward pass.
        output: The model's output, where M has arrived.
        travels: Who travels backwards.

    Returns:
        The tensor with its M, if somebody needs it and it is narrow enough. Where M at
        the output is random already, it cannot be known.
    """
    seeded = [
        (arrived.get(id(output)), policy.max_code)
        for arrived, policy in travels
        if isinstance(policy, Probe)
    ]
    hessian, limit = seeded[0] if seeded else (None, 0)
    if not isinstance(hessian, Diag):
        return None
    cut = narrow_code(recorder, output, limit)
    if cut is None:
        return None
    before, after = recorder.records[: cut.start], recorder.records[cut.start :]
    makers = [record for record in before if record.output_key == cut.key]
    if not makers:
        return None
    columns = _jacobian(cut, after, id(output))
    root = _root(columns, hessian.values).reshape(-1, *cut.x.shape)
    return Bottleneck(makers[-1], Dense(root, root))


@dataclass(frozen=True)
class Cut:
    """A tensor without which nothing that comes after can be computed."""

    start: int  # the first call after it
    key: int
    x: Tensor


def narrow_code(recorder: Recorder, output: Tensor, limit: int) -> Cut | None:
    """The narrowest tensor that all outputs depend on, if it is narrow.

    Args:
        recorder: Has listened to a forward pass.
        output: The model's output.
        limit: The most features that are narrow.

    Returns:
        The tensor, unless the output itself is as narrow.
    """
    cut = _narrowest_cut(recorder, id(output))
    if cut is None or features(cut.x) > min(limit, features(output) - 1):
        return None
    return cut


def _narrowest_cut(recorder: Recorder, output_key: int) -> Cut | None:
    """Go backwards, and look where a single tensor is all that is needed."""
    needed, narrowest = {output_key}, None
    for start in reversed(range(len(recorder.records))):
        record = recorder.records[start]
        needed.discard(record.output_key)
        needed.update(k for k in record.input_keys if k in recorder.trainable)
        if len(needed) != 1:
            continue
        for key, x in zip(record.input_keys, record.call.inputs, strict=True):
            narrow = narrowest is None or features(x) < features(narrowest.x)
            if key in needed and narrow:
                narrowest = Cut(start, key, x)
    return narrowest


def _jacobian(cut: Cut, records: Sequence[Record], output_key: int) -> Tensor:
    """How the output depends on a tensor, in columns.  # [F, N, *out]."""
    source = Source()
    columns = unit_columns(cut.x).expand(-1, len(cut.x), *cut.x.shape[1:])
    arrived = {cut.key: Covariance({source: columns})}
    last = last_uses(records, output_key)
    for step, record in enumerate(records):
        inputs = [arrived.get(key, Covariance()) for key in record.input_keys]
        pushed = record.rule.push(record.call, inputs, {}, APPROX)
        for key in record.input_keys:
            if last[key] == step:  # no later call needs these columns
                arrived.pop(key, None)
        arrived[record.output_key] = pushed
    return arrived[output_key].columns[source]


def _root(columns: Tensor, hessian: Tensor) -> Tensor:
    """Columns whose outer products make ``J^T S J``, from those of J."""
    flat = (columns * hessian.sqrt()).flatten(2).transpose(0, 1)  # [N, F, out]
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    matrix = torch.bmm(flat, flat.transpose(1, 2))
    root, failed = torch.linalg.cholesky_ex(matrix)
    if failed.any():  # some matrix is singular
        root = pivoted_root(matrix, matrix.shape[1])[0]
    else:
        root = root.movedim(2, 0)  # [F, N, F]
    return root.to(columns).contiguous()
