"""The contract between the engine and a layer.

A layer ``y = f(x; w)`` with Jacobians ``Jx`` and ``Jw`` has to say two things, both
with *squared* Jacobians: what a diagonal ``d`` at its output becomes at its input, and
what it means for each parameter. Everything dense has an exact default, and so has the
way forwards, which is in ``pushing``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lae_backpack.curvature.call import Call, Layer
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.quantities import Dense, Diag, features, unit_columns
from lae_backpack.curvature.rules import by_autograd, param_block
from lae_backpack.curvature.rules.by_autograd import chunks
from lae_backpack.curvature.rules.pushing import PushRule


class DiagRule(PushRule):
    """How curvature passes through one layer; subclass and ``register_rule`` it.

    Write ``input_diag`` and, for every name in ``params``, a method of that name with
    the same arguments that returns ``(Jw o Jw)^T d``, summed over the batch. The other
    methods are what the engine calls; override one to be faster.

    Attributes:
        params: The names of the layer's parameters.
        constant_jacobian: ``Jx`` is the same for every input, so what all samples share
            at the output they share at the input.
        many_inputs: The layer takes several tensors, and the rule writes ``pull``.
        one_input_per_output: Each output depends on one input at most (activations,
            pads, pools that select). Then ``Jx^T diag(d) Jx`` is diagonal again, and
            carrying a diagonal loses nothing.
        one_output_per_input: Each input reaches one output at most. The same forwards.
    """

    constant_jacobian: bool = False
    many_inputs: bool = False
    one_input_per_output: bool = False

    def check(self, module: Layer, x: Tensor) -> str | None:
        """Say what the rule cannot do.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]

        Returns:
            ``None``, or a sentence with the setting, what is allowed, what to do.
        """
        return None

    def keeps_diagonal(self, module: Layer) -> bool:
        """Whether a diagonal loses nothing on its way through this layer.

        Args:
            module: The layer.

        Returns:
            ``one_input_per_output``, unless it depends on the layer's settings.
        """
        return self.one_input_per_output

    def is_random(self, module: Layer) -> bool:
        """Whether the layer draws random numbers, and its derivative with them.

        Args:
            module: The layer.

        Returns:
            True if ``call.derivative`` is needed.
        """
        return False

    def hands_on(self, module: Layer) -> bool:
        """Whether the layer hands on the very tensor it gets.

        Args:
            module: The layer.

        Returns:
            True for layers that do nothing; several calls of one are harmless.
        """
        return False

    # What the engine calls ---------------------------------------------------------

    def pull(
        self,
        call: Call,
        quantity: Diag | Dense,
        policy: DensePolicy,
        inputs: Sequence[Tensor],
    ) -> list[Diag | Dense]:
        """Pull what arrived at the output back to the inputs.

        Args:
            call: The use of the layer.
            quantity: M at the output.
            policy: Where M is kept dense.
            inputs: The inputs that want it; a layer of its own has one at most.

        Returns:
            M at each of these inputs.
        """
        if not inputs:
            return []
        keep_dense = policy.carries_dense(call.x)
        if isinstance(quantity, Diag):
            if not keep_dense or self.keeps_diagonal(call.module):
                return [Diag(self.pull_diag(call, quantity.values))]
            if not policy.draws_columns:
                return [self.diag_to_dense(call, quantity.values)]
            quantity = policy.columns(quantity, len(call.x))
        pulled = quantity.each(lambda columns: self.pull_columns(call, columns))
        if keep_dense:
            return [pulled.compressed()]
        pulled.leave_fork()
        return [Diag(pulled.diag())]

    def pull_diag(self, call: Call, diag: Tensor) -> Tensor:
        """As ``input_diag``, for a diagonal that all samples may share.

        Args:
            call: The use of the layer.
            diag: Diagonal at the output.  # [N or 1, *out]

        Returns:
            Diagonal at the input.  # [N or 1, *in]
        """
        x = self._samples_that_matter(call, diag)
        return self.input_diag(call.module, x, diag.expand(len(x), *diag.shape[1:]))

    def pull_columns(self, call: Call, columns: Tensor) -> Tensor:
        """Pull vectors back through the layer: ``Jx^T v``.

        Args:
            call: The use of the layer.
            columns: Vectors at the output.  # [K, N or 1, *out]

        Returns:
            Vectors at the input.  # [K, N or 1, *in]
        """
        x = self._samples_that_matter(call, columns[0])
        return by_autograd.pull_columns(call.module, x, columns)

    def diag_to_dense(self, call: Call, diag: Tensor) -> Dense:
        """Pull a diagonal back and keep all of ``Jx^T diag(d) Jx``.

        Goes forwards along the inputs' unit vectors: they are few where a dense
        quantity is wanted, while the outputs may be many.

        Args:
            call: The use of the layer.
            diag: Diagonal at the output.  # [N or 1, *out]

        Returns:
            M at the input.
        """
        x = self._samples_that_matter(call, diag)
        units = unit_columns(x)
        left = [
            self.pull_columns(call, diag * self.push_columns(call, x, unit))
            for unit in chunks(units, len(x) * max(features(x), features(diag)))
        ]
        return Dense(torch.cat(left), units)

    def param_diag(
        self, name: str, call: Call, diag: Tensor, per_sample: bool
    ) -> Tensor:
        """Curvature of a parameter under a diagonal: ``(Jw o Jw)^T d``.

        Args:
            name: The parameter's name.
            call: The use of the layer.
            diag: Diagonal at the output.  # [N or 1, *out]
            per_sample: Keep the samples apart.

        Returns:
            The curvature.  # [N, *param] if per_sample else [*param]
        """
        curvature = getattr(self, name)
        diag = diag.expand(len(call.x), *diag.shape[1:])
        if not per_sample:
            return curvature(call.module, call.x, diag)
        samples = zip(call.x.split(1), diag.split(1), strict=True)
        return torch.stack([curvature(call.module, x, d) for x, d in samples])

    def param_dense(
        self, name: str, call: Call, dense: Dense, per_sample: bool
    ) -> Tensor:
        """Curvature of a parameter under a dense M: ``diag(Jw^T M Jw)``.

        Args:
            name: The parameter's name.
            call: The use of the layer.
            dense: M at the output.
            per_sample: Keep the samples apart.

        Returns:
            The curvature.  # [N, *param] if per_sample else [*param]
        """
        batch, param = len(call.x), getattr(call.module, name)
        total = param.new_zeros(batch if per_sample else 1, *param.shape)
        size = batch * max(param.numel(), features(call.x), features(call.output))
        pairs = zip(chunks(dense.left, size), chunks(dense.right, size), strict=True)
        for left, right in pairs:
            piece = Dense(left, left if dense.is_root else right)
            pulled = piece.each(
                lambda columns: self.pull_columns_to_param(
                    name, call, columns.expand(-1, batch, *columns.shape[2:])
                )
            )
            total += pulled.diag().sum_to_size(total.shape)
        return total if per_sample else total[0]

    def pull_columns_to_param(self, name: str, call: Call, columns: Tensor) -> Tensor:
        """Pull vectors back to a parameter, sample by sample: ``Jw^T v``.

        Args:
            name: The parameter's name.
            call: The use of the layer.
            columns: Vectors at the output.  # [K, N, *out]

        Returns:
            Vectors at the parameter.  # [K, N, *param]
        """
        return by_autograd.pull_columns_to_param(call.module, name, call.x, columns)

    def param_block(
        self, names: Sequence[str], call: Call, quantity: Diag | Dense
    ) -> Tensor:
        """Curvature of all parameters with each other: ``sum_n Jw^T M Jw``.

        Args:
            names: The parameters, in the order of rows and columns.
            call: The use of the layer.
            quantity: M at the output.

        Returns:
            The block.  # [B, B]
        """
        return param_block.by_columns(self, names, call, quantity)

    def _samples_that_matter(self, call: Call, shared: Tensor) -> Tensor:
        return call.x[: len(shared)] if self.constant_jacobian else call.x
