"""Where branches meet.

Backwards, a sum hands what it gets to each of its inputs; forwards, it adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from backpack.custom_module.branching import SumModule
from torch import Tensor
from typing_extensions import override

from lae_backpack.curvature.call import Call
from lae_backpack.curvature.covariance import Covariance
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.registry import register_rule
from lae_backpack.curvature.rules.base import DiagRule


@register_rule(SumModule)
class SumRule(DiagRule):
    """Every input's Jacobian is the identity.

    Dense columns stay pieces of one M until the branches meet again, so nothing is
    lost; of two diagonals the cross term between the branches is.
    """

    many_inputs = True
    one_output_per_input = True

    @override
    def pull(
        self,
        call: Call,
        quantity: Diag | Dense,
        policy: DensePolicy,
        inputs: Sequence[Tensor],
    ) -> list[Diag | Dense]:
        if policy.carries_dense(call.output) and isinstance(quantity, Diag):
            quantity = policy.columns(quantity, len(call.output))
        if isinstance(quantity, Dense):
            pieces = quantity.compressed().split(len(inputs))
            return [pieces] * len(inputs)
        # The same tensor added n times is multiplied by n: n^2 in all, n for each.
        same = Counter((x.data_ptr(), x.stride()) for x in inputs)
        return [Diag(same[x.data_ptr(), x.stride()] * quantity.values) for x in inputs]

    @override
    def push(
        self,
        call: Call,
        arrived: Sequence[Covariance],
        variances: Mapping[str, Tensor],
        policy: DensePolicy,
    ) -> Covariance:
        total = Covariance()
        for covariance, times in Counter(arrived).items():  # the same tensor n times
            total += covariance.scaled(times)
        return total
