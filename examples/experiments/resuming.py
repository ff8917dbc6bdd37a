"""Runs that are not repeated when their results are there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from comparing import write_json
from measuring import environment

Row = dict[str, Any]
# What a row is read with: rows of one file may be of different runs.
ABOUT = (
    "command",
    "threads",
    "torch",
    "laplace-torch",
    "backpack-for-pytorch",
    "matrix_products",
)


def rows_in(file: Path) -> list[Row]:
    """What was measured before.

    Args:
        file: The results.

    Returns:
        Its rows, none if there is no such file.
    """
    return json.loads(file.read_text())["rows"] if file.exists() else []


def run_missing(
    file: Path, planned: Iterable[Row], measure: Callable[[Row], list[Row]]
) -> list[Row]:
    """Measure what is not in a file of results, which is written after each run.

    Args:
        file: The results.
        planned: What identifies each run, with its seed.
        measure: Makes a run; each of its rows gets what identifies the run, the time
            that the run took, the command and the versions.

    Returns:
        All rows, those of other commands too.
    """
    rows = rows_in(file)
    for key in planned:
        if any(key.items() <= row.items() for row in rows):
            continue
        print(*(f"{name}={value}" for name, value in key.items()), flush=True)
        start = time.perf_counter()
        found = measure(key)
        about = {"seconds": time.perf_counter() - start}
        about |= {name: environment()[name] for name in ABOUT}
        rows += [{**key, **row, **about} for row in found]
        write_json(file, {"seed": min(row["seed"] for row in rows), "rows": rows})
        for row in found:
            print("   ", *_short(row), flush=True)
    return rows


def _short(row: Row) -> list[str]:
    """A row in a line; curves and the like would fill a screen."""
    return [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in row.items()
        if not isinstance(value, list)
    ]
