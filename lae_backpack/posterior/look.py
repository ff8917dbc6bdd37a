"""What one batch shows of the curvature."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lae_backpack.posterior.finite import first_not_finite


class Look(NamedTuple):
    """Loss and curvature of a batch."""

    loss: Tensor
    rows: list[dict[str, Tensor]]  # one, or four to be calibrated, by parameter name

    def plus(self, other: Look) -> Look:
        """Add what other data show. Rows are changed.

        Args:
            other: Their look.

        Returns:
            The look at all of them.
        """
        for sums, seen in zip(self.rows, other.rows, strict=True):
            for name, value in seen.items():
                sums[name] = sums[name] + value if name in sums else value
        return Look(self.loss + other.loss, self.rows)


def require_finite(loss: Tensor, *curvature: Tensor) -> None:
    """Refuse what no posterior can be made of.

    Args:
        loss: The loss of all data.
        *curvature: Its curvature.

    Raises:
        ValueError: If a number is NaN or infinite.
    """
    named = (("loss", loss), *(("curvature", tensor) for tensor in curvature))
    if first_not_finite(named) is not None:
        raise ValueError(
            "The loss or its curvature is not finite: inputs, targets or the model's "
            "weights hold NaN or infinity. Clean the data, for instance with "
            "torch.nan_to_num, or train anew."
        )
