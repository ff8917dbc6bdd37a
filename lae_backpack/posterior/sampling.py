"""Networks drawn from a posterior, one at a time and in constant memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module

Weights = dict[str, Tensor]


_modes_lock = threading.Lock()
# How often a model is in eval mode for a while, and which modules were not before.
_evaluated: dict[Module, tuple[int, list[Module]]] = {}


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Put a model into eval mode for a while.

    Args:
        model: The model.

    Yields:
        Nothing; every module gets its mode back.
    """
    with _modes_lock:  # of several threads, the last one gives the mode back
        count, training = _evaluated.get(model, (0, []))
        training = training + [module for module in model.modules() if module.training]
        _evaluated[model] = count + 1, training
        for module in training:
            _set_training(module, False)
    try:
        yield
    finally:
        with _modes_lock:
            count, training = _evaluated.pop(model)
            if count > 1:
                _evaluated[model] = count - 1, training
            else:
                for module in training:
                    _set_training(module, True)


def _set_training(module: Module, training: bool) -> None:
    if type(module).__setattr__ is Module.__setattr__:
        vars(module)["training"] = training  # what that does, in a tenth of its time
    else:
        module.training = training


def without_hooks(model: Module) -> Module:
    """A model that ``torch.func`` can go through.

    Args:
        model: The model, maybe extended by BackPACK.

    Returns:
        The model itself, or a copy without hooks that shares nothing with it.
    """
    if not _is_extended(model):
        return model
    return bare_copy(model)


def bare_copy(model: Module, shared: Iterable[Tensor] = ()) -> Module:
    """Copy a model without what BackPACK may have hung on it.

    Args:
        model: The model.
        shared: Tensors that the copy shall share with it.

    Returns:
        The copy.
    """
    # BackPACK keeps activations on the modules, which deepcopy refuses.
    kept = (t for m in model.modules() for t in vars(m).values())
    activations = (t for t in kept if isinstance(t, Tensor) and not t.is_leaf)
    memo = {id(tensor): tensor for tensor in (*shared, *activations)}
    copied = copy.deepcopy(model, memo)
    if _is_extended(model):
        for module in copied.modules():
            module._forward_hooks.clear()
            module._backward_hooks.clear()
            module.__dict__.pop("_backpack_extend", None)
    return copied


def _is_extended(model: Module) -> bool:
    return any(getattr(m, "_backpack_extend", False) for m in model.modules())


def new_seed(generator: torch.Generator | None) -> int:
    """Start another generator.

    Args:
        generator: Where randomness comes from.

    Returns:
        A seed.
    """
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**31, (), generator=generator, device=device))


class WeightSampler:
    """Draws weights around a mean."""

    def __init__(
        self, model: Module, mean: Tensor, scale: Tensor | Callable[[Tensor], Tensor]
    ) -> None:
        """Prepare the buffers.

        Args:
            model: The model, for the names and shapes of its trainable parameters.
            mean: The mean.  # [P]
            scale: The standard deviations, or what makes a deviation from standard
                normal noise.  # [P]
        """
        self.mean = mean.detach()
        self._scale = scale.detach() if isinstance(scale, Tensor) else scale
        self._buffer = torch.empty_like(self.mean)
        self._shapes = _shapes(model)
        self._laid_out = _otherwise_laid_out(model)

    def deviations(
        self, n_samples: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Draw how far networks are from the mean.

        Args:
            n_samples: How many.
            generator: Where randomness comes from.

        Yields:
            A deviation, valid until the next one.  # [P]
        """
        for noise in self._noises(n_samples, generator):
            if isinstance(self._scale, Tensor):
                yield noise.mul_(self._scale)
            else:
                yield self._scale(noise)

    def draws(
        self, n_samples: int, generator: torch.Generator | None = None
    ) -> Iterator[Weights]:
        """Draw networks.

        Args:
            n_samples: How many.
            generator: Where randomness comes from.

        Yields:
            The weights of one by name, in the memory formats of the model's own and
            valid until the next one.
        """
        for noise in self._noises(n_samples, generator):
            if isinstance(self._scale, Tensor):  # both at once
                weights = torch.addcmul(self.mean, noise, self._scale, out=noise)
            else:
                weights = self._scale(noise).add_(self.mean)
            named = self.by_name(weights)
            laid_out = {n: b.copy_(named[n]) for n, b in self._laid_out.items()}
            yield named | laid_out

    def _noises(
        self, n_samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        for _ in range(n_samples):
            yield self._buffer.normal_(generator=generator)

    def by_name(self, vector: Tensor) -> Weights:
        """Cut a vector into parameters.

        Args:
            vector: All trainable parameters.  # [P]

        Returns:
            Views of it by name.
        """
        return _cut(vector, self._shapes)


def summing_dtype(dtype: torch.dtype) -> torch.dtype:
    """In what to add up many numbers.

    Args:
        dtype: What they are in.

    Returns:
        The same, or float32 where sums would soon stop growing.
    """
    return torch.promote_types(dtype, torch.float32)


def as_vector(params: Iterable[Tensor]) -> Tensor:
    """Join parameters, of any memory format.

    Args:
        params: The parameters.

    Returns:
        A copy of all their numbers.  # [P]
    """
    return torch.cat([param.detach().reshape(-1) for param in params])


def weights_by_name(
    model: Module, vectors: Iterable[Tensor], part: str = ""
) -> list[Weights]:
    """Cut vectors into a model's trainable parameters.

    Args:
        model: The model.
        vectors: Numbers for all trainable parameters.  # [P] each
        part: Only those of this part of the model, by their names in it.

    Returns:
        Views of each vector by name.
    """
    shapes = _shapes(model)
    cut = [_cut(vector, shapes) for vector in vectors]
    return [weights_of(part, weights) for weights in cut] if part else cut


def _shapes(model: Module) -> dict[str, torch.Size]:
    return {n: p.shape for n, p in model.named_parameters() if p.requires_grad}


def _otherwise_laid_out(model: Module) -> Weights:
    """Buffers for weights that do not lie row by row, as with channels last."""
    return {
        name: torch.empty_like(param, requires_grad=False)
        for name, param in model.named_parameters()
        if param.requires_grad
        and param.stride() != torch.empty(param.shape, device="meta").stride()
    }


def _cut(vector: Tensor, shapes: dict[str, torch.Size]) -> Weights:
    pieces = vector.split([shape.numel() for shape in shapes.values()])
    parts = zip(shapes.items(), pieces, strict=True)
    return {name: piece.view(shape) for (name, shape), piece in parts}


def weights_of(part: str, weights: Weights) -> Weights:
    """The weights of one part of a model.

    Args:
        part: The part's name in the model, ``"encoder"`` for instance.
        weights: The whole model's, by name.

    Returns:
        The part's, by the names it has for them.
    """
    prefix = f"{part}."
    own = {n: w for n, w in weights.items() if n.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in own.items()}


def run_with(model: Module, weights: Weights, x: object) -> Tensor:
    """Run a model with other weights; the model keeps its own.

    Args:
        model: The model.
        weights: The weights by name.
        x: A batch.  # [N, *in]

    Returns:
        The output.  # [N, *out]
    """
    return functional_call(model, weights, (x,))
