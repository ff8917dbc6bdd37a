"""laplace-torch's curvature interface on our engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch
from laplace.curvature.curvature import CurvatureInterface
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lae_backpack.curvature.errors import SHARED_REMEDY, UnsupportedModelError
from lae_backpack.curvature.policy import APPROX, DensePolicy
from lae_backpack.curvature.probe import Probe
from lae_backpack.curvature.quantities import features
from lae_backpack.curvature.step import block_rows, half_curvature, param_curvature
from lae_backpack.curvature.sweep import Journey, Sweep, sweep
from lae_backpack.posterior.blocks import BlockDiag
from lae_backpack.posterior.budget import MemoryBudget
from lae_backpack.posterior.calibrating import calibrated
from lae_backpack.posterior.choices import require_at_least
from lae_backpack.posterior.layers import Layer
from lae_backpack.posterior.look import Look
from lae_backpack.posterior.sampling import summing_dtype, without_hooks


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
        n_probes: int = 0,
        shrink: bool = False,
        memory_budget: str | float | None = None,
    ) -> None:
        """Keep model, likelihood and settings.

        Args:
            model: The model.
            likelihood: ``"regression"`` or ``"classification"``.
            last_layer: Not supported; see the structures.
            subnetwork_indices: Not supported; see the structures.
            dict_key_x: Where a dict-like batch has its input.
            dict_key_y: Where a dict-like batch has its target.
            max_dense_dim: The limit of the mixed diagonal.
            n_probes: Random probes per sample, for the calibrated diagonal.
            shrink: Shrink what the probes say to the mixed diagonal's shape; otherwise
                they speak for themselves.
            memory_budget: What one look may take, as in ``"2GB"``; batches that would
                take more are cut, and matrices that do not fit are left out.
        """
        super().__init__(
            model, likelihood, last_layer, subnetwork_indices, dict_key_x, dict_key_y
        )
        self.policy = DensePolicy(max_dense_dim)
        require_at_least("n_probes", n_probes, 0)
        self.n_probes, self.shrink = n_probes, shrink
        self.n_outputs = 0
        self._budget = None if memory_budget is None else MemoryBudget(memory_budget)

    @property
    def calibrates(self) -> bool:
        """Whether curvature is estimated from looks, which are more than itself."""
        return self.n_probes > 0 and self.shrink

    @property
    def n_rows(self) -> int:
        """How many rows a look has."""
        return 4 if self.calibrates else 1

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
        loss, look = self.look(x, y)
        return loss, self.estimate(look)

    def look(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What is summed over data, and curvature estimated from.

        Args:
            x: A batch.  # [N, *in]
            y: Its targets.

        Returns:
            Loss and look; the look is the curvature itself unless it is calibrated.
            # [R, P] with R = 1 or 4
        """
        params = list(self.params_dict.values())
        size = sum(param.numel() for param in params)
        dtype, device = summing_dtype(params[0].dtype), params[0].device
        look = torch.zeros(self.n_rows, size, dtype=dtype, device=device)
        return self.add_look(x, y, look), look

    def add_look(self, x: Tensor, y: Tensor, looks: Tensor) -> Tensor:
        """As ``look``, added to what was seen before.

        Args:
            x: A batch.  # [N, *in]
            y: Its targets.
            looks: The sum, which is changed.  # [R, P]

        Returns:
            The loss.
        """
        seen = self.sweep(self.model, x, y)
        self.add_rows(looks, seen.rows, self.factor)
        return self.factor * seen.loss.to(looks.dtype)

    def add_rows(
        self,
        looks: Tensor,
        rows: list[dict[str, Tensor]],
        weight: float,
    ) -> None:
        """Add what was seen to a sum.

        Args:
            looks: The sum, which is changed.  # [R, P]
            rows: What was seen.
            weight: How much it counts.
        """
        sizes = [param.numel() for param in self.params_dict.values()]
        for sums, seen in zip(looks, rows, strict=True):
            for name, part in zip(self.params_dict, sums.split(sizes), strict=True):
                if name in seen:  # the model may not use it
                    part.add_(seen[name].flatten(), alpha=weight)

    def estimate(self, looks: Tensor) -> Tensor:
        """The curvature, from looks at it.

        Args:
            looks: Their sum.  # [R, P]

        Returns:
            The diagonal.  # [P]
        """
        if not self.calibrates:
            return looks[0]
        return calibrated(looks, [p.shape for p in self.params_dict.values()])

    def sweep(
        self,
        model: Module,
        x: Tensor,
        y: Tensor,
        gradient_scale: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Look:
        """Look at the curvature of one batch.

        Args:
            model: The model, or a copy of it with other weights.
            x: A batch.  # [N, *in]
            y: Its targets.
            gradient_scale: As for the engine's ``sweep``.
            generator: Where probes come from.

        Returns:
            What was seen, by parameter.
        """
        if self._budget is None:
            return self._sweep(model, x, y, gradient_scale, generator)
        needs_matrices = not self.n_probes or self.shrink
        policy, size = self._budget.plan(
            model,
            x,
            self.policy if needs_matrices else APPROX,
            self.n_rows,
            self.n_probes,
        )
        self.policy = policy if needs_matrices else self.policy
        pieces = zip(x.split(size), y.split(size), strict=True)
        looks = (self._sweep(model, *p, gradient_scale, generator) for p in pieces)
        return reduce(Look.plus, looks)

    def _sweep(
        self,
        model: Module,
        x: Tensor,
        y: Tensor,
        gradient_scale: float | None,
        generator: torch.Generator | None,
    ) -> Look:
        whole = partial(param_curvature, per_sample=False)
        probe = Probe(n_columns=max(1, self.n_probes), generator=generator)
        if not self.calibrates:
            journey = Journey(probe if self.n_probes else self.policy, whole)
            swept = self._swept(model, x, y, [journey], gradient_scale)
            return Look(swept.loss, swept.curvatures)
        halves = [partial(half_curvature, which=i) for i in (0, 1)]
        # Which half is the larger one must not be the same each time.
        turns = torch.rand((), device=x.device, generator=generator) < 0.5
        halves = halves[::-1] if turns else halves
        journeys = [Journey(policy, *halves) for policy in (self.policy, probe)]
        swept = self._swept(model, x, y, journeys, gradient_scale)
        return Look(swept.loss, swept.curvatures)

    def blocks(
        self, x: Tensor, y: Tensor, layers: Sequence[Layer]
    ) -> tuple[Tensor, BlockDiag]:
        """One full block per layer.

        Args:
            x: A batch.  # [N, *in]
            y: Its targets.
            layers: The layers.

        Returns:
            Loss and curvature.

        Raises:
            UnsupportedModelError: If parameters do not belong to one layer each.
        """
        journey = Journey(self.policy, block_rows)
        swept = self._swept(self.model, x, y, [journey])
        rows, blocks = swept.curvatures[0], BlockDiag.zeros([i.size for i in layers], x)
        for i, layer in enumerate(layers):
            own = [rows.pop(name) for name in layer.sizes if name in rows]
            if not own:
                continue  # the model does not use it
            block = own[0] if len(own) == 1 else torch.cat(own)
            if block.shape != (layer.size, layer.size):
                raise UnsupportedModelError(_not_one_layer(layer.name))
            blocks.blocks[i] = block.mul_(self.factor)
        if rows:
            raise UnsupportedModelError(_not_one_layer(next(iter(rows))))
        return self.factor * swept.loss, blocks

    def _swept(
        self,
        model: Module,
        x: Tensor,
        y: Tensor,
        journeys: Sequence[Journey],
        gradient_scale: float | None = None,
    ) -> Sweep:
        assert isinstance(self.lossfunc, Module)
        swept = sweep(model, self.lossfunc, x, y, journeys, gradient_scale)
        self.n_outputs = features(swept.output)
        return swept


def _not_one_layer(name: str) -> str:
    return f"{name!r} shares a trainable parameter with another module. {SHARED_REMEDY}"
