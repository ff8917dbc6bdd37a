"""Curvature within a memory budget: in micro-batches, and by smaller matrices."""

from __future__ import annotations

import re
import warnings

from torch import Tensor
from torch.nn import Module

from lae_backpack.curvature.footprint import Footprint, footprint
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.suspended import autocasts
from lae_backpack.posterior.memory import in_words

UNITS = {"": 1, "B": 1} | {
    prefix + end: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for end, base in (("B", 1000), ("iB", 1024))
}
# Of each parameter's number: the look at a batch, the sum of looks, and one on the way.
COPIES_OF_LOOKS = 4


def bytes_of(budget: str | float) -> float:
    """Read a size.

    Args:
        budget: As in ``"2GB"``, ``"512 MiB"``, or a number of bytes.

    Returns:
        The bytes.

    Raises:
        ValueError: If it is none.
    """
    text = budget if isinstance(budget, str) else ""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    units = {name.lower(): size for name, size in UNITS.items()}
    if match and match[2].lower() in units:
        size = float(match[1]) * units[match[2].lower()]
    elif isinstance(budget, int | float) and not isinstance(budget, bool):
        size = float(budget)
    else:
        size = 0.0
    if not 0 < size < float("inf"):
        raise ValueError(
            f"memory_budget must be a positive size, got {budget!r}. Give a text such "
            "as '2GB' or '512MiB', or a number of bytes."
        )
    return size


class MemoryBudget:
    """What looking at curvature may take beside the model, the data and the result.

    The estimate is made from one sample before anything else is computed.
    """

    def __init__(self, budget: str | float) -> None:
        """Read the budget.

        Args:
            budget: As for ``bytes_of``.
        """
        self.bytes = bytes_of(budget)
        self._known: dict[object, Footprint] = {}

    def plan(
        self, model: Module, x: Tensor, policy: DensePolicy, n_rows: int, n_probes: int
    ) -> tuple[DensePolicy, int]:
        """Choose how to go through a batch.

        Args:
            model: The model.
            x: The batch.  # [N, *in]
            policy: Where matrices travel.
            n_rows: Numbers that are wanted of each parameter.
            n_probes: Random probes per sample.

        Returns:
            Where matrices may travel, and the samples of a micro-batch.

        Raises:
            MemoryError: If not even one sample fits.
        """
        params = [p for p in model.parameters() if p.requires_grad]
        itemsize = max((p.element_size() for p in params), default=4)
        n_params = sum(p.numel() for p in params)
        looks = COPIES_OF_LOOKS * n_rows * n_params * itemsize
        left = self.bytes - looks
        seen = self._footprint(model, x)
        for limit in (policy.max_dense_dim, *seen.limits(policy.max_dense_dim)[1:], 0):
            each = seen.bytes_per_sample(limit, n_probes)
            if each <= left:
                break
        else:
            raise MemoryError(
                f"Curvature needs {in_words(looks + each)} for a single sample of "
                f"shape {tuple(x.shape[1:])} ({in_words(looks)} of it for {n_params} "
                f"parameters), got memory_budget of {in_words(self.bytes)}. Raise it, "
                "freeze layers with requires_grad_(False), or give smaller inputs."
            )
        if limit != policy.max_dense_dim:
            wanted = seen.bytes_per_sample(policy.max_dense_dim, n_probes)
            warnings.warn(
                f"memory_budget of {in_words(self.bytes)} lowers max_dense_dim from "
                f"{policy.max_dense_dim} to {limit}: a single sample would need "
                f"{in_words(looks + wanted)}. Raise the budget for larger matrices.",
                stacklevel=2,
            )
            policy = DensePolicy(limit)
        return policy, int(min(len(x), left // each))

    def _footprint(self, model: Module, x: Tensor) -> Footprint:
        key = x.shape[1:], x.dtype, autocasts(x)
        if key not in self._known:
            self._known[key] = footprint(model, x)
        return self._known[key]
