"""Choices that users make by name."""

from __future__ import annotations

# Sampled networks, the linearised model, the linearised model in one pass.
PRED_TYPES = ("nn", "glm", "propagated")


def require_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a choice that there is not.

    Args:
        name: The argument.
        value: What was given.
        allowed: What there is.

    Raises:
        ValueError: If the value is not allowed.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}.")
