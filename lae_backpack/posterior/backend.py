"""laplace-torch's curvature interface on our engine."""

from __future__ import annotations

from typing import Any

import torch
from laplace.curvature.curvature import CurvatureInterface
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.quantities import features
from lae_backpack.curvature.sweep import sweep
from lae_backpack.posterior.sampling import without_hooks


class EngineCurvature(CurvatureInterface):
    """Diagonals at a cost linear in the outputs; frozen parameters are left out.

    The name holds neither "backpack" nor "asdl", which laplace-torch treats specially.

    Attributes:
        n_outputs: Outputs per sample of the last batch.
    """

    def __init__(
        self,
        model: Module,
        likelihood: str,
        last_layer: bool = False,
        subnetwork_indices: torch.LongTensor | None = None,
        dict_key_x: str = "input_ids",
        dict_key_y: str = "labels",
        max_dense_dim: int | None = 0,
    ) -> None:
        """Keep model, likelihood and limit.

        Args:
            model: The model.
            likelihood: ``"regression"`` or ``"classification"``.
            last_layer: Not supported; see the structures.
            subnetwork_indices: Not supported; see the structures.
            dict_key_x: Where a dict-like batch has its input.
            dict_key_y: Where a dict-like batch has its target.
            max_dense_dim: The limit of the mixed diagonal.
        """
        super().__init__(
            model, likelihood, last_layer, subnetwork_indices, dict_key_x, dict_key_y
        )
        self.policy = DensePolicy(max_dense_dim)
        self.n_outputs = 0

    @override
    def jacobians(
        self, x: Tensor, enable_backprop: bool = False
    ) -> tuple[Tensor, Tensor]:
        # torch.func, which this uses, does not go through BackPACK's hooks.
        own, self.model = self.model, without_hooks(self.model)
        try:
            return super().jacobians(x, enable_backprop)
        finally:
            self.model = own

    @override
    def diag(
        self, x: Tensor, y: Tensor, N: int | None = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(self.lossfunc, Module)
        swept = sweep(self.model, self.lossfunc, x, y, self.policy, per_sample=False)
        self.n_outputs = features(swept.output)
        diagonals = [
            swept.curvature[name].flatten()
            if name in swept.curvature
            else torch.zeros_like(param).flatten()  # the model does not use it
            for name, param in self.params_dict.items()
        ]
        return self.factor * swept.loss, self.factor * torch.cat(diagonals)


def require_finite(curvature: Tensor, loss: Tensor) -> None:
    """Refuse what no posterior can be made of.

    Args:
        curvature: The diagonal of all data.  # [P]
        loss: The loss of all data.

    Raises:
        ValueError: If a number is NaN or infinite.
    """
    if not (torch.isfinite(curvature).all() and torch.isfinite(loss)):
        raise ValueError(
            "The loss or its curvature is not finite: inputs, targets or the model's "
            "weights hold NaN or infinity. Clean the data, for instance with "
            "torch.nan_to_num, or train anew."
        )
