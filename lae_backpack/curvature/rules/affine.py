"""Layers that are affine in their input and in their weight.

Their squared Jacobians are the same maps with squared numbers: ``(Jx o Jx)^T d`` is
the layer's own input gradient with ``W o W`` for the weight, and ``(Jw o Jw)^T d`` its
weight gradient with ``x o x`` for the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from lae_backpack.curvature.call import Call, Layer
from lae_backpack.curvature.quantities import Dense, Diag
from lae_backpack.curvature.registry import register_rule
from lae_backpack.curvature.rules import param_block
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.by_autograd import chunks
from lae_backpack.curvature.squares import squared


class AffineRule(DiagRule):
    """Says everything in terms of the layer with another weight and its gradients."""

    params = ("weight", "bias")
    constant_jacobian = True

    def apply(self, call: Call, weight: Tensor, x: Tensor) -> Tensor:
        """The layer without its bias.

        Args:
            call: The use of the layer.
            weight: The weight to use.
            x: The input to use.  # [N, *in]

        Returns:
            The output.  # [N, *out]

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write apply")

    def input_gradient(
        self, module: Layer, weight: Tensor, x: Tensor, grad: Tensor
    ) -> Tensor:
        """The layer's gradient with respect to its input.

        Args:
            module: The layer.
            weight: The weight to use.
            x: An input, of which only the shape counts.  # [N, *in]
            grad: Gradient at the output.  # [N, *out]

        Returns:
            Gradient at the input.  # [N, *in]

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write input_gradient")

    def weight_gradient(self, module: Layer, x: Tensor, grad: Tensor) -> Tensor:
        """The layer's gradient with respect to its weight, summed over the batch.

        Args:
            module: The layer.
            x: The input to use.  # [N, *in]
            grad: Gradient at the output.  # [N, *out]

        Returns:
            Gradient at the weight.  # [*weight]

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write weight_gradient")

    def weight_gradients(self, module: Layer, x: Tensor, grads: Tensor) -> Tensor:
        """As ``weight_gradient``, sample by sample and for several gradients at once.

        Args:
            module: The layer.
            x: The input to use.  # [N, *in]
            grads: Gradients at the output.  # [K, N, *out]

        Returns:
            Gradients at the weight.  # [K, N, *weight]

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write weight_gradients")

    def bias_gradient(self, module: Layer, grad: Tensor) -> Tensor:
        """The layer's gradient with respect to its bias, one per sample.

        Args:
            module: The layer.
            grad: Gradient at the output.  # [N, *out]

        Returns:
            Gradient at the bias.  # [N, *bias]

        Raises:
            NotImplementedError: If a subclass does not write this.
        """
        raise NotImplementedError(f"{type(self).__name__} must write bias_gradient")

    @override
    def input_diag(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        weight = module.weight.detach()
        return self.input_gradient(module, weight * weight, x, diag)

    @override
    def pull_columns(self, call: Call, columns: Tensor) -> Tensor:
        x = call.x[:1].expand(columns.shape[:2].numel(), *call.x.shape[1:])
        weight = call.module.weight.detach()
        pulled = self.input_gradient(call.module, weight, x, columns.flatten(0, 1))
        return pulled.unflatten(0, columns.shape[:2])

    def weight(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        """Curvature of the weight.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]
            diag: Diagonal at the output.  # [N, *out]

        Returns:
            The curvature.  # [*weight]
        """
        return self.weight_gradient(module, x * x, diag)

    def bias(self, module: Layer, x: Tensor, diag: Tensor) -> Tensor:
        """Curvature of the bias.

        Args:
            module: The layer.
            x: Its input.  # [N, *in]
            diag: Diagonal at the output.  # [N, *out]

        Returns:
            The curvature.  # [*bias]
        """
        return self.bias_gradient(module, diag).sum(0)

    @override
    def param_diag(
        self, name: str, call: Call, diag: Tensor, per_sample: bool
    ) -> Tensor:
        module, x = call.module, call.x
        if per_sample:
            diag = diag.expand(len(x), *diag.shape[1:])
            if name == "bias":
                return self.bias_gradient(module, diag)
            return self.weight_gradients(module, x * x, diag[None])[0]
        if len(diag) == len(x):
            return super().param_diag(name, call, diag, per_sample)
        # Linear in x o x: what all samples share meets the samples' sum.
        if name == "bias":
            return self.bias_gradient(module, diag)[0] * len(x)
        squares = (x * x).sum(0, keepdim=True)
        return self.weight_gradient(module, squares, diag)

    @override
    def push_diag(self, call: Call, variance: Tensor) -> Tensor:
        return self.apply(call, squared(call.module.weight), variance)

    @override
    def push_columns(self, call: Call, x: Tensor, columns: Tensor) -> Tensor:
        pushed = self.apply(call, call.module.weight.detach(), columns.flatten(0, 1))
        return pushed.unflatten(0, columns.shape[:2])

    @override
    def push_param_diag(self, name: str, call: Call, variance: Tensor) -> Tensor:
        if name == "weight":
            return self.apply(call, variance, call.x * call.x)
        return super().push_param_diag(name, call, variance)

    @override
    def pull_columns_to_param(self, name: str, call: Call, columns: Tensor) -> Tensor:
        if name == "weight":
            return self.weight_gradients(call.module, call.x, columns)
        pulled = self.bias_gradient(call.module, columns.flatten(0, 1))
        return pulled.unflatten(0, columns.shape[:2])


@register_rule(nn.Linear)
class LinearRule(AffineRule):
    """Linear, on vectors or along the last of several dimensions."""

    @override
    def apply(self, call: Call, weight: Tensor, x: Tensor) -> Tensor:
        return x @ weight.T

    @override
    def separates_params(self, call: Call) -> bool:
        return call.x.dim() == 2

    @override
    def push_param_diag(self, name: str, call: Call, variance: Tensor) -> Tensor:
        if name == "bias":
            return variance
        return super().push_param_diag(name, call, variance)

    @override
    def push_variances(
        self, call: Call, rest: Tensor | None, variances: Mapping[str, Tensor]
    ) -> Tensor:
        if call.x.dim() > 2 or "weight" not in variances:
            return super().push_variances(call, rest, variances)
        # The same sum without a pass over the output for each of its terms.
        x = call.x
        pushed = F.linear(x * x, variances["weight"], variances.get("bias"))
        if rest is None:
            return pushed
        return pushed.addmm_(rest, squared(call.module.weight).T)

    @override
    def rest_matrix(self, call: Call, rest: Tensor) -> Tensor:
        if rest.dim() > 2:
            return super().rest_matrix(call, rest)
        weight = call.module.weight.detach()  # [out, in]
        matrix = [
            (weight * v[:, None]) @ weight.T for v in chunks(rest, weight.numel())
        ]
        return torch.cat(matrix)

    @override
    def input_gradient(
        self, module: Layer, weight: Tensor, x: Tensor, grad: Tensor
    ) -> Tensor:
        return grad @ weight

    @override
    def weight_gradient(self, module: Layer, x: Tensor, grad: Tensor) -> Tensor:
        grads, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        if len(grads) == 1:  # a matrix product is slow at that
            return torch.outer(grads[0], inputs[0])
        return grads.T @ inputs

    @override
    def weight_gradients(self, module: Layer, x: Tensor, grads: Tensor) -> Tensor:
        return torch.einsum("kn...o,n...i->knoi", grads, x)

    @override
    def bias_gradient(self, module: Layer, grad: Tensor) -> Tensor:
        return grad.flatten(1, -2).sum(1) if grad.dim() > 2 else grad

    @override
    def diag_to_dense(self, call: Call, diag: Tensor) -> Dense:
        if diag.dim() > 2:
            return super().diag_to_dense(call, diag)
        weight = call.module.weight.detach()  # [out, in]
        # W^T diag(d) W directly: never [N, out, out].
        matrix = [
            (weight.T * d[:, None]) @ weight for d in chunks(diag, weight.numel())
        ]
        return Dense.from_matrix(torch.cat(matrix), call.x)

    @override
    def param_dense(
        self, name: str, call: Call, dense: Dense, per_sample: bool
    ) -> Tensor:
        if call.x.dim() > 2:
            return super().param_dense(name, call, dense, per_sample)
        # Each weight reaches one output, so only the diagonal of M is read.
        return self.param_diag(name, call, dense.diag(), per_sample)

    @override
    def param_block(
        self, names: Sequence[str], call: Call, quantity: Diag | Dense
    ) -> Tensor:
        if call.x.dim() > 2:
            return super().param_block(names, call, quantity)
        return param_block.by_kronecker(names, call, quantity)
