"""Holds measured results against what others report."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from published_numbers import Claim

RESULTS = Path(__file__).parents[1] / "examples" / "experiments" / "results"
Row = dict[str, Any]
SIZES = ("epochs", "networks", "copies", "repetitions", "test_images")


def content_of(experiment: str) -> dict[str, Any] | None:
    """What was measured.

    Args:
        experiment: Its name.

    Returns:
        The file's content, ``None`` if it was not run yet.
    """
    file = RESULTS / f"{experiment}.json"
    return json.loads(file.read_text()) if file.exists() else None


def rows_of(experiment: str) -> list[Row]:
    """The rows of an experiment's largest runs.

    Args:
        experiment: Its name.

    Returns:
        Rows; of each net, data set, task, learning rate and recipe those with most
        epochs, then networks and so on, none if it was not run.
    """
    content = content_of(experiment) or {"rows": []}
    largest: dict[Any, list[int]] = {}
    for row in content["rows"]:
        largest[_world(row)] = max(largest.get(_world(row), []), _size(row))
    return [row for row in content["rows"] if _size(row) == largest[_world(row)]]


def _world(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("net", "data", "task", "lr", "recipe"))


def _size(row: Row) -> list[int]:
    return [row.get(name, 0) for name in SIZES]


def chosen(rows: Iterable[Row], where: Row) -> list[Row]:
    """Some rows.

    Args:
        rows: All rows.
        where: What these have.

    Returns:
        Those that have it.
    """
    return [row for row in rows if where.items() <= row.items()]


def number(value: float) -> str:
    """A number with as many digits as can be told apart.

    Args:
        value: The number.

    Returns:
        Its text.
    """
    size = abs(value)
    digits = 3 if size < 2 else 2 if size < 100 else 1
    return f"{value:,.{digits}f}"


def seeds_together(values: list[float]) -> str:
    """Numbers of several seeds.

    Args:
        values: The numbers.

    Returns:
        Their mean, and their standard deviation if there are several.
    """
    if not values:
        return ""
    if len(values) == 1:
        return number(values[0])
    return f"{number(mean(values))} ± {number(stdev(values))}"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: The claim.
        ours: Our numbers, one for each seed.
        holds: Whether ours are as good, ``None`` if there are none.
    """

    claim: Claim
    ours: list[float]
    holds: bool | None

    @classmethod
    def of(cls, claim: Claim) -> Verdict:
        """Judge a claim.

        Args:
            claim: The claim.

        Returns:
            The verdict.
        """
        rows = chosen(rows_of(claim.experiment), claim.where)
        ours = [row[claim.measure] for row in rows]
        if not ours:
            return cls(claim, ours, None)
        above = mean(ours) - claim.target
        worse = {"lower": above, "higher": -above, "same": abs(above)}[claim.better]
        return cls(claim, ours, worse <= claim.tolerance)

    def __str__(self) -> str:
        """The verdict in a word or two."""
        if self.holds is None:
            return "not run yet"
        better = self.claim.better
        if self.holds and better == "same":
            return "as there"
        if self.holds:
            ahead = abs(mean(self.ours) - self.claim.target) > self.claim.tolerance
            return "better" if ahead else "reached"
        side = "higher" if mean(self.ours) > self.claim.target else "lower"
        return f"differs: {side}" if better == "same" else f"not reached: {side}"
