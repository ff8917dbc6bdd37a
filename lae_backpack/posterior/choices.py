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


def require_at_least(name: str, value: object, least: int) -> None:
    """Refuse what is not a count.

    Args:
        name: The argument.
        value: What was given.
        least: The least that is allowed.

    Raises:
        ValueError: If the value is not an integer of at least that.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} must be at least {least} and an integer, got {value!r}."
        )


def require_at_least_one(name: str, value: object) -> None:
    """As ``require_at_least``, for counts that must not be zero.

    Args:
        name: The argument.
        value: What was given.
    """
    require_at_least(name, value, 1)
