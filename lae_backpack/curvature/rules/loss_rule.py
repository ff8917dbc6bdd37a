"""The contract between the engine and a loss."""

from __future__ import annotations

from torch import Tensor

from lae_backpack.curvature.call import Layer
from lae_backpack.curvature.probe import Probe
from lae_backpack.curvature.quantities import Dense, Diag


class LossRule:
    """Where curvature starts: the Hessian of a loss at the model's output.

    Write ``seed_diag``, and ``seed_dense`` if the Hessian is not diagonal.
    """

    def check(self, module: Layer, x: Tensor, target: Tensor) -> str | None:
        """Say what the rule cannot do.

        Args:
            module: The loss.
            x: The model's output.  # [N, *out]
            target: The target.

        Returns:
            ``None``, or a sentence with the setting, what is allowed, what to do.
        """
        return None

    def seed_diag(self, module: Layer, x: Tensor, target: Tensor) -> Tensor:
        """The diagonal of the loss Hessian.

        Args:
            module: The loss.
            x: The model's output.  # [N, *out]
            target: The target.

        Returns:
            The diagonal.  # [N or 1, *out]

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write seed_diag")

    def seed_dense(self, module: Layer, x: Tensor, target: Tensor) -> Diag | Dense:
        """The whole loss Hessian.

        Args:
            module: The loss.
            x: The model's output.  # [N, *out]
            target: The target.

        Returns:
            M at the model's output; by default it is diagonal.
        """
        return Diag(self.seed_diag(module, x, target))

    def seed_random(
        self, module: Layer, x: Tensor, target: Tensor, probe: Probe
    ) -> Diag | Dense:
        """Something with the loss Hessian as its expectation, for random probes.

        Args:
            module: The loss.
            x: The model's output.  # [N, *out]
            target: The target.
            probe: Draws random signs.

        Returns:
            By default the Hessian itself, which needs no chance.
        """
        return self.seed_dense(module, x, target)
