"""The forward half of the contract between the engine and a layer.

At a layer ``y = f(x; w)`` the covariance of its output is, to first order,

    cov_y = Jx cov_x Jx^T + Jw diag(v) Jw^T

with ``v`` the variances of its weights. All of it follows from what a rule says about
the way back: ``input_diag`` and the parameters' methods are linear in ``d``, and their
transposes are ``(Jx o Jx)`` and ``(Jw o Jw)``. So a rule need not write anything here;
what it overrides is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lae_backpack.curvature.call import Call, Layer
from lae_backpack.curvature.covariance import Covariance, gram
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.quantities import features, unit_columns
from lae_backpack.curvature.rules import by_autograd
from lae_backpack.curvature.rules.by_autograd import chunks


class PushRule:
    """How a covariance passes through one layer.

    Attributes:
        params: The names of the layer's parameters.
        one_output_per_input: Each input reaches one output at most (activations,
            reshapes). Then what is independent stays so.
    """

    params: tuple[str, ...] = ()
    one_output_per_input: bool = False

    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        """Pull a diagonal back through the layer: ``(Jx o Jx)^T d``.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]
            diag: Diagonal at the output.  # [N, *out]

        Returns:
            Diagonal at the input.  # [N, *in]

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write input_diag")

    def separates_inputs(self, module: Layer) -> bool:
        """Whether independent inputs have independent outputs.

        Args:
            module: The layer.

        Returns:
            ``one_output_per_input``, unless it depends on the layer's settings.
        """
        return self.one_output_per_input

    def separates_params(self, call: Call) -> bool:
        """Whether each parameter reaches one output at most.

        Args:
            call: The use of the layer.

        Returns:
            True if independent parameters make independent outputs.
        """
        return False

    def push(
        self,
        call: Call,
        arrived: Sequence[Covariance],
        variances: Mapping[str, Tensor],
        policy: DensePolicy,
    ) -> Covariance:
        """Push what arrived at the inputs to the output.

        Args:
            call: The use of the layer.
            arrived: The covariance of each input; a layer of its own has one.
            variances: The variances of the layer's parameters by name.
            policy: Where the covariance is kept dense.

        Returns:
            The covariance of the output.

        Raises:
            NotImplementedError: If a layer of several inputs does not write this.
        """
        if len(arrived) != 1:
            raise NotImplementedError(
                f"{type(self).__name__} takes several inputs and must write push"
            )
        dense = policy.carries_dense(call.output)
        columns = {
            source: self._push_all(call, c) for source, c in arrived[0].columns.items()
        }
        rest, matrix = arrived[0].rest, None
        if rest is not None and dense and not self.separates_inputs(call.module):
            matrix, rest = self.rest_matrix(call, rest), None
        if variances and dense and not self.separates_params(call):
            noise, variances = self.noise_matrix(call, variances), {}
            matrix = noise if matrix is None else matrix + noise
        if rest is not None or variances:
            rest = self.push_variances(call, rest, variances)
        if matrix is None:
            return Covariance(columns, rest)
        whole = Covariance({}, rest).matrix(call.output) + matrix
        return Covariance(columns) + Covariance.from_matrix(whole, call.output)

    def push_variances(
        self, call: Call, rest: Tensor | None, variances: Mapping[str, Tensor]
    ) -> Tensor:
        """Push what is independent: ``(Jx o Jx) r + (Jw o Jw) v``.

        Args:
            call: The use of the layer.
            rest: Variances at the input, if there are any.  # [N, *in]
            variances: The variances of parameters by name.

        Returns:
            Variances at the output.  # [N, *out]
        """
        total = 0.0 if rest is None else self.push_diag(call, rest)
        for name, variance in variances.items():
            total = total + self.push_param_diag(name, call, variance)
        return torch.as_tensor(total).expand_as(call.output)

    def push_diag(self, call: Call, variance: Tensor) -> Tensor:
        """Push independent variances through the layer: ``(Jx o Jx) v``.

        Args:
            call: The use of the layer.
            variance: Variances at the input.  # [N, *in]

        Returns:
            Variances at the output.  # [N, *out]
        """

        def pull(diag: Tensor) -> Tensor:
            return self.input_diag(call.module, call.x, diag)

        return by_autograd.transposed(pull, call.output, variance)

    def push_columns(self, call: Call, x: Tensor, columns: Tensor) -> Tensor:
        """Push vectors through the layer: ``Jx v``.

        Args:
            call: The use of the layer.
            x: The samples that matter.  # [N or 1, *in]
            columns: Vectors at the input.  # [K, N or 1, *in]

        Returns:
            Vectors at the output.  # [K, N or 1, *out]
        """
        return by_autograd.push_columns(call.module, x, columns)

    def push_param_diag(self, name: str, call: Call, variance: Tensor) -> Tensor:
        """Push a parameter's variances to the output: ``(Jw o Jw) v``.

        Args:
            name: The parameter's name.
            call: The use of the layer.
            variance: The variances.  # [*param]

        Returns:
            Variances that broadcast to the output.  # [N, *out]
        """

        def pull(diag: Tensor) -> Tensor:
            return getattr(self, name)(call.module, call.x, diag)

        return by_autograd.transposed(pull, call.output, variance)

    def rest_matrix(self, call: Call, rest: Tensor) -> Tensor:
        """Push independent variances and keep all of ``Jx diag(v) Jx^T``.

        Args:
            call: The use of the layer.
            rest: Variances at the input.  # [N, *in]

        Returns:
            The covariance at the output.  # [N, F, F]
        """
        total = Covariance().matrix(call.output)
        for unit in chunks(unit_columns(call.x), _numbers_each(call)):
            total += gram(self.push_columns(call, call.x, unit * rest.sqrt()))
        return total

    def noise_matrix(self, call: Call, variances: Mapping[str, Tensor]) -> Tensor:
        """Push the parameters' variances and keep all of ``Jw diag(v) Jw^T``.

        Args:
            call: The use of the layer.
            variances: The variances by name.

        Returns:
            The covariance at the output.  # [N, F, F]
        """
        total = Covariance().matrix(call.output)
        for name, variance in variances.items():
            scaled = unit_columns(variance[None])[:, 0] * variance.sqrt()
            for columns in chunks(scaled, _numbers_each(call)):
                pushed = by_autograd.push_columns_from_param(
                    call.module, name, call.x, columns
                )
                total += gram(pushed)
        return total

    def _push_all(self, call: Call, columns: Tensor) -> Tensor:
        return by_autograd.in_chunks(
            lambda piece: self.push_columns(call, call.x, piece),
            columns,
            _numbers_each(call),
        )


def _numbers_each(call: Call) -> int:
    return len(call.x) * max(features(call.x), features(call.output))
