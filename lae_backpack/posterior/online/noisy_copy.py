"""A copy of the model whose weights are drawn around the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lae_backpack.posterior.sampling import bare_copy

if TYPE_CHECKING:
    from lae_backpack.posterior.structures import EngineDiagLaplace


# Drawing normal numbers costs as much as a forward pass. So the same ones serve several
# draws, shifted along the weights: no weight gets one twice, and each draw by itself is
# as random as if its numbers were fresh.
SHIFTS = 8


class NoisyCopy:
    """Takes the noise, so that the model holds the mean at every moment.

    The noise of a draw is a function of the seed and the draw's number alone: a run
    that is taken up again needs nothing but these.

    Attributes:
        model: The copy. It shares buffers and frozen parameters with the model.
        params: Its trainable parameters.
    """

    def __init__(self, la: EngineDiagLaplace, seed: int, antithetic: bool) -> None:
        """Copy the model.

        Args:
            la: The posterior of a model.
            seed: Where randomness comes from.
            antithetic: Mirror every other draw.
        """
        self._la, self._seed, self._antithetic = la, seed, antithetic
        frozen = (p for p in la.model.parameters() if not p.requires_grad)
        self.model = bare_copy(la.model, shared=(*la.model.buffers(), *frozen))
        self.params = [p for p in self.model.parameters() if p.requires_grad]
        self._noise = la.H.new_empty(2 * len(la.H))  # twice the same, to shift within
        self._scale = torch.empty_like(la.H)
        self._generator = torch.Generator(la.H.device)
        self._drawn: int | None = None
        self._sizes = [p.numel() for p in self.params]
        scales = self._scale.split(self._sizes)
        self._parts = list(zip(self.params, la.params, scales, strict=True))

    @torch.no_grad()
    def follow_precision(self) -> None:
        """Take over the posterior's standard deviations, in as few passes as can be."""
        la = self._la
        scaled = torch.mul(la.H, la._H_factor, out=self._scale)
        scaled.add_(la.prior_precision_diag).rsqrt_()

    @torch.no_grad()
    def be_mean(self) -> None:
        """Take over the model's weights."""
        for own, mean, _ in self._parts:
            own.copy_(mean)
        torch.clear_autocast_cache()  # of the weights before

    @torch.no_grad()
    def draw(self, number: int) -> None:
        """Draw weights around the model's.

        Args:
            number: Which draw this is.
        """
        pair, mirrored = divmod(number, 2) if self._antithetic else (number, 0)
        drawn, shift = divmod(pair, SHIFTS)
        size = len(self._scale)
        if self._drawn != drawn:
            self._generator.manual_seed(self._seed + drawn)
            fresh = self._noise[:size].normal_(generator=self._generator)
            self._noise[size:] = fresh
            self._drawn = drawn
        start = shift * size // SHIFTS
        noises = self._noise[start : start + size].split(self._sizes)
        sign = -1.0 if mirrored else 1.0
        for (own, mean, scale), noise in zip(self._parts, noises, strict=True):
            shape = own.shape
            torch.addcmul(
                mean, noise.view(shape), scale.view(shape), value=sign, out=own
            )
        torch.clear_autocast_cache()  # of the weights before

    def forget_gradients(self) -> None:
        """Start a step anew."""
        for param in self.params:
            param.grad = None
