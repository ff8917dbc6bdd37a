"""The linear model that a linearised network is, by products with its Jacobian only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from typing import Any

import torch
from laplace.baselaplace import ParametricLaplace
from torch import Tensor
from torch.func import grad, jvp, vjp
from torch.nn import Module, MSELoss

from lae_backpack.posterior.batches import Pairs
from lae_backpack.posterior.reconstruction import Reconstructions
from lae_backpack.posterior.sampling import (
    Weights,
    bare_copy,
    evaluating,
    run_with,
    weights_by_name,
    without_hooks,
)

Loss = Callable[[Tensor], Tensor]


class LinearModel:
    """``h(x) = f(x) + J(x) deviation``: its loss on data, with the prior's penalty.

    The loss is convex in the deviation from the network's weights, whatever the net.
    """

    def __init__(self, la: ParametricLaplace, loader: Iterable[Any]) -> None:
        """Take a posterior's network, likelihood and prior.

        Args:
            la: A fitted posterior over all trainable weights.
            loader: The data it was fitted to.

        Raises:
            TypeError: If the posterior is about some of the weights only.
        """
        trainable = sum(p.numel() for p in la.model.parameters() if p.requires_grad)
        if len(la.mean) != trainable or hasattr(la, "n_params_subnet"):
            raise TypeError(
                f"{type(la).__name__} is about some of the weights only. The linear "
                "model needs all: use subset_of_weights='all', and freeze the others "
                "with requires_grad_(False)."
            )
        self.la = la
        self.network: Module = without_hooks(la.model)
        self.start = la.mean.detach()
        self._loader = Pairs(loader) if isinstance(la, Reconstructions) else loader
        self._lossfunc = bare_copy(la.backend.lossfunc)  # type: ignore[arg-type]
        self.is_quadratic = isinstance(self._lossfunc, MSELoss)

    @torch.no_grad()
    def loss_and_gradient(self, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """The likelihood's part, at unit noise and temperature.

        Args:
            deviation: Weights minus the network's.  # [P]

        Returns:
            The loss, as laplace-torch counts it, and its gradient.  # [], [P]
        """
        total, gradient = deviation.new_zeros(()), torch.zeros_like(deviation)
        for run, loss in self._batches():
            output = self._linear(run, deviation)
            total += loss(output)
            gradient += self._pull(run, grad(loss)(output))
        return total, gradient

    @torch.no_grad()
    def objective(self, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """What the optimum of the linear model minimises.

        Args:
            deviation: Weights minus the network's.  # [P]

        Returns:
            Minus the log joint density up to a constant, and its gradient.  # [], [P]
        """
        loss, gradient = self.loss_and_gradient(deviation)
        factor, prior = self.la._H_factor, self.la.prior_precision_diag
        from_prior = self.start + deviation - self.la.prior_mean
        value = factor * loss + 0.5 * (prior * from_prior.square()).sum()
        return value, factor * gradient + prior * from_prior

    @torch.no_grad()
    def curvature_times(self, deviation: Tensor, vector: Tensor) -> Tensor:
        """Multiply by the objective's Hessian.

        Args:
            deviation: Where it is taken.  # [P]
            vector: What is multiplied.  # [P]

        Returns:
            The product.  # [P]
        """
        product = torch.zeros_like(vector)
        for run, loss in self._batches():
            output, pushed = self._push(run, vector)
            if not self.is_quadratic:  # elsewhere the Hessian depends on the output
                output = self._linear(run, deviation)
            _, curved, *_ = jvp(grad(loss), (output,), (pushed,))
            product += self._pull(run, curved)
        return self.la._H_factor * product + self.la.prior_precision_diag * vector

    def _batches(self) -> Iterator[tuple[Callable[[Weights], Tensor], Loss]]:
        """The network and the loss as functions, for each batch."""
        factor, device = self.la.backend.factor, self.la._device
        with evaluating(self.network):
            for batch in self._loader:
                if isinstance(batch, MutableMapping):
                    x, y = batch, batch[self.la.dict_key_y].to(device)
                else:
                    x, y = batch[0].to(device), batch[1].to(device)
                run = partial(run_with, self.network, x=x)

                def loss(output: Tensor, y: Tensor = y) -> Tensor:
                    return factor * self._lossfunc(output, y)

                yield run, loss

    def _cut(self, vector: Tensor) -> Weights:
        return weights_by_name(self.network, [vector])[0]

    def _push(
        self, run: Callable[[Weights], Tensor], vector: Tensor
    ) -> tuple[Tensor, Tensor]:
        output, pushed, *_ = jvp(run, (self._cut(self.start),), (self._cut(vector),))
        return output, pushed

    def _linear(self, run: Callable[[Weights], Tensor], deviation: Tensor) -> Tensor:
        output, pushed = self._push(run, deviation)
        return output + pushed

    def _pull(self, run: Callable[[Weights], Tensor], vector: Tensor) -> Tensor:
        _, pull, *_ = vjp(run, self._cut(self.start))
        (weights,) = pull(vector)
        return torch.cat([w.reshape(-1) for w in weights.values()])
