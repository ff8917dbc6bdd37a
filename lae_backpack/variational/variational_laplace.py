"""Variational Laplace: a mean-field Gaussian learned without sampling weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from tqdm import tqdm
from typing_extensions import override

from lae_backpack.posterior.batches import require_countable
from lae_backpack.posterior.choices import require_at_least_one, require_one_of
from lae_backpack.posterior.online.optimizers import adam
from lae_backpack.posterior.structures import ApproxDiagLaplace
from lae_backpack.variational.activations import require_smooth, require_smooth_graph
from lae_backpack.variational.bridge import as_laplace, inputs_and_targets
from lae_backpack.variational.likelihoods import likelihood_named
from lae_backpack.variational.objective import (
    Terms,
    divergence,
    fisher_penalty,
    hessian_penalty,
)
from lae_backpack.variational.prior import default_scale

CURVATURES = ("fisher", "hessian")
BELOW_THE_PRIOR = 3.0  # where log-sigma starts
# In train mode a sample's output depends on the others, or on the pass.
DEPENDS_ON_PASS = (_BatchNorm, _DropoutNd)


class VariationalLaplace(nn.Module):
    """A Gaussian over the weights of any smooth network, trained with them.

    The model's own parameters are the means. The objective is the log-likelihood at the
    means, minus half the variance-weighted squared gradient for targets drawn from the
    model, minus ``beta`` times the divergence from the prior.
    """

    def __init__(
        self,
        model: Module,
        likelihood: str = "classification",
        prior_scale: float | None = None,
        beta: float = 1.0,
        *,
        sigma_noise: float = 1.0,
        curvature: str = "fisher",
        penalty_samples: int | None = 16,
    ) -> None:
        """Choose likelihood, prior and tempering.

        Args:
            model: The network; training changes its parameters.
            likelihood: ``"classification"`` or ``"regression"``.
            prior_scale: The prior's standard deviation; by default
                ``1 / sqrt(fan_in)`` for each tensor.
            beta: How much the prior counts; below 1 is a cold posterior.
            sigma_noise: The standard deviation of a regression's noise.
            curvature: ``"fisher"``; ``"hessian"`` shows why not.
            penalty_samples: How many samples of a batch the penalty is estimated from;
                ``None`` takes all, as the paper does. Fewer give a noisier penalty with
                the same mean and a cheaper step: on Fashion-MNIST, 16 of 128 learned as
                well (within 0.007 nats for beta up to 0.1, 0.015 at 1) in three fifths
                of the time. With batch norm or dropout in train mode a step costs as
                much as with all.

        Raises:
            ValueError: If an activation has kinks, or a number is not positive.
        """
        super().__init__()
        require_smooth(model)
        require_one_of("curvature", curvature, CURVATURES)
        if penalty_samples is not None:
            require_at_least_one("penalty_samples", penalty_samples)
        for name, value in (("prior_scale", prior_scale), ("beta", beta)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(
                    f"{name} must be finite and above 0, got {value}. Give a positive "
                    "number."
                )
        self.model, self.beta, self.curvature = model, beta, curvature
        self.likelihood = likelihood_named(likelihood, sigma_noise)
        self.likelihood_name, self.sigma_noise = likelihood, sigma_noise
        self.penalty_samples = penalty_samples
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        scales = [
            p.new_tensor(prior_scale or default_scale(model, name)) for name, p in named
        ]
        self.log_sigmas = nn.ParameterList(
            torch.full_like(p, float(scale.log()) - BELOW_THE_PRIOR)
            for (_, p), scale in zip(named, scales, strict=True)
        )
        for number, scale in enumerate(scales):
            self.register_buffer(f"prior_scale_{number}", scale)
        self.n_data = self.n_outputs = 0
        self._is_checked = False

    @override
    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.n_data, self.n_outputs])

    @override
    def set_extra_state(self, state: Tensor) -> None:
        self.n_data, self.n_outputs = state.tolist()

    @property
    def means(self) -> list[Tensor]:
        """The trained parameters of the model."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def prior_scales(self) -> list[Tensor]:
        """The prior's standard deviations, one for each of the means.  # [] each."""
        names = range(len(self.log_sigmas))
        return [self.get_buffer(f"prior_scale_{number}") for number in names]

    def forward(self, x: Tensor) -> Tensor:
        """Run the network at its mean weights.

        Args:
            x: A batch.  # [N, *in]

        Returns:
            The output.  # [N, *out]
        """
        return self.model(x)

    def kl(self) -> Tensor:
        """The divergence from the prior.

        Returns:
            The sum over weights.  # []
        """
        return divergence(self.means, list(self.log_sigmas), self.prior_scales)

    def terms(
        self,
        x: Tensor,
        y: Tensor,
        n_data: int,
        generator: torch.Generator | None = None,
    ) -> Terms:
        """The objective's terms on a batch (eq. 30).

        Args:
            x: The inputs.  # [N, *in]
            y: The targets.
            n_data: The samples of all data, of which this is a batch.
            generator: Where randomness comes from.

        Returns:
            The terms per sample, with their graph.
        """
        n, weights = len(x), (self.means, list(self.log_sigmas))
        output = self.model(x)
        if not self._is_checked:
            require_smooth_graph(output)
            self._is_checked = True
        self.n_data, self.n_outputs = n_data, output[0].numel()
        log_likelihood = self.likelihood.log_prob(output, y)
        if self.curvature == "hessian":
            penalty = hessian_penalty(log_likelihood, n, *weights, generator)
        else:
            some = self._outputs_of_some(x, output, generator)
            drawn = self.likelihood.sample(some.detach(), generator)
            believed = self.likelihood.log_prob(some, drawn)
            penalty = fisher_penalty(believed, len(some), *weights)
        kl = self.beta * self.kl() / n_data
        return Terms(log_likelihood / n, penalty, kl)

    def _outputs_of_some(
        self, x: Tensor, output: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """What the penalty is estimated from.  # [K, *out]."""
        n, count = len(x), self.penalty_samples
        if count is None or count >= n:
            return output
        device = "cpu" if generator is None else generator.device
        start = int(torch.randint(n, (), generator=generator, device=device))
        rows = torch.arange(start, start + count, device=x.device) % n
        if any(m.training and isinstance(m, DEPENDS_ON_PASS) for m in self.modules()):
            return output[rows]
        # A forward pass of its own, so that only this part of the batch goes backwards
        # twice.
        return self.model(x[rows])

    def loss(
        self,
        x: Tensor,
        y: Tensor,
        n_data: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """What an optimiser minimises.

        Args:
            x: The inputs.  # [N, *in]
            y: The targets.
            n_data: The samples of all data, of which this is a batch.
            generator: Where randomness comes from.

        Returns:
            Minus the bound per sample.  # []
        """
        return -self.terms(x, y, n_data, generator).bound

    def parameter_groups(
        self, lr: float, multiplier: float = 10.0
    ) -> list[dict[str, Any]]:
        """What an optimiser is made with.

        Args:
            lr: The learning rate of the means.
            multiplier: How much faster log-sigma learns. Adam moves a number by no more
                than ``lr`` a step, and log-sigma has far to go.

        Returns:
            The means and log-sigmas with their rates.
        """
        return [
            {"params": self.means, "lr": lr},
            {"params": list(self.log_sigmas), "lr": lr * multiplier},
        ]

    def fit(
        self,
        loader: Iterable[Any],
        n_epochs: int,
        lr: float = 1e-3,
        multiplier: float = 10.0,
        generator: torch.Generator | None = None,
        progress_bar: bool = False,
    ) -> list[float]:
        """Train means and variances with Adam.

        Args:
            loader: Yields ``(x, y)``, or ``x`` or ``(x,)`` for autoencoders.
            n_epochs: How often all data are seen.
            lr: The learning rate of the means, which falls to zero as a cosine.
            multiplier: How much faster log-sigma learns.
            generator: Where randomness comes from.
            progress_bar: Show one.

        Returns:
            The bound per sample, the mean of each epoch.
        """
        require_at_least_one("n_epochs", n_epochs)
        n_data = require_countable(loader)
        optimizer = adam(self.parameter_groups(lr, multiplier), lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_epochs)
        device = self.log_sigmas[0].device
        history = []
        for _ in tqdm(range(n_epochs), "fit", disable=not progress_bar):
            total, count = 0.0, 0
            for batch in loader:
                x, y = inputs_and_targets(batch, device)
                optimizer.zero_grad()
                loss = self.loss(x, y, n_data, generator)
                loss.backward()
                optimizer.step()
                total, count = total - loss.item() * len(x), count + len(x)
            schedule.step()
            history.append(total / count)
        return history

    def to_laplace(self, loader: Iterable[Any] | None = None) -> ApproxDiagLaplace:
        """The same Gaussian as laplace-torch's, with all its predictives.

        Its precision is ``1 / sigma^2`` exactly, so where a variance is above the
        prior's its ``H`` is negative.

        Args:
            loader: The data, for ``la.loss``, without which
                ``la.log_marginal_likelihood()`` is not a number.

        Returns:
            A fitted posterior around the model's present weights.

        Raises:
            RuntimeError: If no batch was seen, so the outputs are unknown.
        """
        if not self.n_data:
            raise RuntimeError(
                "Nothing was learned yet. Call fit, or terms with a batch, first."
            )
        return as_laplace(self, loader)
