"""What takes a while to compute, kept until something it depends on has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from torch import Tensor

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """Makes a value anew only if the tensors and numbers it is made of have changed.

    A tensor has changed if it is another one, or was written to: torch counts that.
    Of writing to ``tensor.data`` torch knows nothing, and neither does this.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        # In one attribute, so that threads find what belongs together.
        self._last: tuple[list[tuple[Tensor, int]], tuple[float, ...], Value] | None = (
            None
        )

    def get(
        self, make: Callable[[], Value], tensors: Sequence[Tensor], *numbers: float
    ) -> Value:
        """The value as it has to be now.

        Args:
            make: Makes it, of nothing else than what follows.
            tensors: Which tensors it is made of.
            *numbers: Which numbers it is made of.

        Returns:
            The value, the last one if possible.
        """
        if any(tensor.is_inference() for tensor in tensors):
            return make()  # of these torch does not count
        now = [(tensor, tensor._version) for tensor in tensors]
        if self._last is not None:
            before, old_numbers, value = self._last
            same = len(before) == len(now) and all(
                new is old and version == old_version
                for (new, version), (old, old_version) in zip(now, before, strict=True)
            )
            if same and numbers == old_numbers:
                return value
        value = make()
        self._last = now, numbers, value
        return value

    def __reduce__(self) -> tuple[type[Kept[Value]], tuple[()]]:
        """Copy and pickle it empty: torch counts anew for copies of tensors.

        Returns:
            How to make another one.
        """
        return type(self), ()
