"""Measured numbers beside what they are held to."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One measured number and what it is held to."""

    what: str
    value: float
    limit: float | None = None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Whether the number is within its limit."""
        if self.limit is None:
            return ""
        met = self.value >= self.limit if self.at_least else self.value <= self.limit
        return "ok" if met else "MISSED"

    def __str__(self) -> str:
        """The row of the printed table."""
        sign = ">=" if self.at_least else "<="
        limit = "" if self.limit is None else f"{sign} {self.limit:g}"
        return f"{self.what:<74} {self.value:9.2f} {limit:>8} {self.verdict}"


class Table:
    """Rows that are printed as soon as they are known."""

    def __init__(self) -> None:
        """Start with none."""
        self.rows: list[Row] = []

    def show(self, rows: list[Row]) -> None:
        """Print rows and keep them.

        Args:
            rows: The rows.
        """
        self.rows.extend(rows)
        print(*rows, sep="\n", flush=True)

    def content(self) -> list[dict[str, object]]:
        """The rows as they are written to files.

        Returns:
            One dict for each.
        """
        return [{**asdict(row), "verdict": row.verdict} for row in self.rows]


def arguments(doc: str | None, results: Path) -> argparse.Namespace:
    """Read the command line that all benchmarks share.

    Args:
        doc: The script's docstring.
        results: The folder for results.

    Returns:
        ``smoke``, ``rounds``, ``seed`` and ``out``.
    """
    return command_line(doc, results).parse_args()


def command_line(doc: str | None, results: Path) -> argparse.ArgumentParser:
    """The command line that all benchmarks share, to be added to.

    Args:
        doc: The script's docstring.
        results: The folder for results.

    Returns:
        The parser.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--rounds", type=int, default=21, help="rounds that count")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--out", type=Path, default=results, help="folder for results")
    return parser
