"""Networks drawn from a posterior, one at a time and in constant memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module

Weights = dict[str, Tensor]


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Put a model into eval mode for a while.

    Args:
        model: The model.

    Yields:
        Nothing; every module gets its mode back.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def without_hooks(model: Module) -> Module:
    """A model that ``torch.func`` can go through.

    Args:
        model: The model, maybe extended by BackPACK.

    Returns:
        The model itself, or a copy without hooks that shares nothing with it.
    """
    if not any(getattr(m, "_backpack_extend", False) for m in model.modules()):
        return model
    copied = copy.deepcopy(model)
    for module in copied.modules():
        module._forward_hooks.clear()
        module._backward_hooks.clear()
        module.__dict__.pop("_backpack_extend", None)
    return copied


class WeightSampler:
    """Draws weights around a mean with independent standard deviations."""

    def __init__(self, model: Module, mean: Tensor, scale: Tensor) -> None:
        """Prepare the buffers.

        Args:
            model: The model, for the names and shapes of its trainable parameters.
            mean: The mean.  # [P]
            scale: The standard deviations.  # [P]
        """
        self.model = model
        self.mean, self.scale = mean.detach(), scale.detach()
        self._buffer = torch.empty_like(self.mean)

    def deviation(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw how far a network is from the mean.

        Args:
            generator: Where randomness comes from.

        Returns:
            The deviation, valid until the next draw.  # [P]
        """
        return self._buffer.normal_(generator=generator).mul_(self.scale)

    def draw(self, generator: torch.Generator | None = None) -> Weights:
        """Draw a network.

        Args:
            generator: Where randomness comes from.

        Returns:
            Its weights by name, valid until the next draw.
        """
        return self.by_name(self.deviation(generator).add_(self.mean))

    def by_name(self, vector: Tensor) -> Weights:
        """Cut a vector into parameters.

        Args:
            vector: All trainable parameters.  # [P]

        Returns:
            Views of it by name.
        """
        return weights_by_name(self.model, vector)

    def of_part(self, name: str) -> WeightSampler:
        """The sampler of one part of the model.

        Args:
            name: The part's name.

        Returns:
            A sampler of its weights, by their names in the part.
        """
        mean, scale = (
            torch.cat([
                v[:0],
                *(w.flatten() for w in weights_by_name(self.model, v, name).values()),
            ])
            for v in (self.mean, self.scale)
        )
        return WeightSampler(self.model.get_submodule(name), mean, scale)


def weights_by_name(model: Module, vector: Tensor, part: str = "") -> Weights:
    """Cut a vector into a model's trainable parameters.

    Args:
        model: The model.
        vector: Numbers for all trainable parameters.  # [P]
        part: Only those of this part of the model, by their names in it.

    Returns:
        Views of the vector by name.
    """
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    pieces = vector.split([p.numel() for p in params.values()])
    prefix = f"{part}." if part else ""
    return {
        name.removeprefix(prefix): piece.view(param.shape)
        for (name, param), piece in zip(params.items(), pieces, strict=True)
        if name.startswith(prefix)
    }


def run_with(model: Module, weights: Weights, x: Tensor) -> Tensor:
    """Run a model with other weights; the model keeps its own.

    Args:
        model: The model.
        weights: The weights by name.
        x: A batch.  # [N, *in]

    Returns:
        The output.  # [N, *out]
    """
    return functional_call(model, weights, (x,))


class Moments:
    """Mean and variance of a stream of tensors, by Welford's updates."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def add(self, value: Tensor) -> None:
        """Take in one more tensor.

        Args:
            value: The tensor, of the same shape each time.
        """
        self.count += 1
        if self._mean is None or self._squares is None:
            self._mean, self._squares = value.clone(), torch.zeros_like(value)
            return
        before = value - self._mean
        self._mean += before / self.count
        self._squares.addcmul_(before, value - self._mean)

    @property
    def mean(self) -> Tensor:
        """The mean so far."""
        assert self._mean is not None, "nothing was added"
        return self._mean

    @property
    def variance(self) -> Tensor:
        """The unbiased variance so far; zero after one tensor."""
        assert self._squares is not None, "nothing was added"
        return self._squares / max(1, self.count - 1)


def moments_of(stream: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance of a stream, in memory that does not grow with it.

    Args:
        stream: Tensors of one shape.

    Returns:
        Mean and unbiased variance.
    """
    moments = Moments()
    for value in stream:
        moments.add(value)
    return moments.mean, moments.variance
