"""What the new structures say about laplace-torch's default, the last layer."""

from __future__ import annotations

from typing import Any

from laplace.baselaplace import DiagLaplace


class LastLayerApproxDiag(DiagLaplace):
    """Explains itself: laplace-torch's default ``subset_of_weights`` is the last layer.

    One linear layer has nothing to approximate, and its exact diagonal is
    laplace-torch's own ``"diag"``.
    """

    _key = ("last_layer", "approx_diag")
    own_structure = "diag"

    def __init__(self, *_: Any, **__: Any) -> None:
        """Refuse.

        Args:
            *_: Anything.
            **__: Anything.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"hessian_structure={self._key[1]!r} is for all weights, got "
            "subset_of_weights='last_layer' (laplace-torch's default). Pass "
            "subset_of_weights='all', or "
            f"hessian_structure={self.own_structure!r} for the last layer, where "
            "nothing needs approximating."
        )


class LastLayerMixedDiag(LastLayerApproxDiag):
    """As ``LastLayerApproxDiag``."""

    _key = ("last_layer", "mixed_diag")


class LastLayerBlockDiag(LastLayerApproxDiag):
    """As ``LastLayerApproxDiag``; one layer's block is laplace-torch's ``"full"``."""

    _key = ("last_layer", "block_diag")
    own_structure = "full"
