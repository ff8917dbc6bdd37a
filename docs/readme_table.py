"""The README's table of cost and error, made from measured results.

python docs/readme_table.py            # print it
python docs/readme_table.py --write    # put it into README.md
"""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import Any

from readme_section import Section

from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM

RESULTS = Path(__file__).parents[1] / "examples" / "benchmarks" / "results"
WAYS = {
    "exact": ("BackPACK exact", "BackPACK's `DiagGGNExact`"),
    "approx": ("approx", '`"approx_diag"`'),
    "mixed": (f"mixed {DEFAULT_MAX_DENSE_DIM}", '`"mixed_diag"`'),
    "calibrated": ("calibrated", '`"calibrated_diag"`'),
    "Monte Carlo": ("BackPACK MC 1", "BackPACK's `DiagGGNMC`"),
}
TITLES = ("diagonal", "where", "time", "median weight off by", "worst layer off by")
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """Measured rows.

    Args:
        name: Of the benchmark.

    Returns:
        Its rows.
    """
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def span(values: list[float], digits: int = 1) -> str:
    """The least and the largest of some numbers.

    Args:
        values: The numbers.
        digits: Behind the point.

    Returns:
        One number if they look equal, else both.
    """
    least, largest = (f"{v:,.{digits}f}" for v in (min(values), max(values)))
    return least if least == largest else f"{least} to {largest}"


def factors(rows: list[Row], structure: str, measure: str) -> str:
    """By which factors a structure is off.

    Args:
        rows: Of error.py, at one stage.
        structure: Which one.
        measure: ``"median_log"`` or ``"worst_ratio"``.

    Returns:
        The range over nets; the exact one is not off.
    """
    found = [row[measure] for row in rows if row["structure"] == structure]
    if not found:
        return "1"
    logs = [abs(math.log(f)) if measure == "worst_ratio" else f for f in found]
    off = [math.exp(log) for log in logs]
    return span(off, 0 if max(off) > 100 else 2)


def table() -> str:
    """The whole table, with what has to be known to read it.

    Returns:
        Markdown.
    """
    costs, errors = rows_of("pareto"), rows_of("error")
    epoch, images = (max(row[key] for row in errors) for key in ("epoch", "images"))
    trained = [r for r in errors if (r["epoch"], r["images"]) == (epoch, images)]
    lines = [f"| {' | '.join(TITLES)} |", "|" + " --- |" * len(TITLES)]
    for way, (structure, where) in WAYS.items():
        time = [row["cost"] for row in costs if row["structure"] == structure]
        off = [factors(trained, structure, m) for m in ("median_log", "worst_ratio")]
        digits = 0 if max(time) > 100 else 1
        lines.append(f"| {' | '.join([way, where, span(time, digits), *off])} |")
    n_nets = len({row["net"] for row in trained})
    words = (
        f"The range over {n_nets} autoencoders of MNIST. *Time* of a batch of 64 "
        "images, in plain forward and backward passes. *Off by*: the factor between "
        f"this and the exact diagonal of {images:,} images after {epoch} epochs of "
        "training, for the median weight and for the sum over the layer where it is "
        "worst. `make readme` writes this table from examples/benchmarks/results."
    )
    filled = textwrap.fill(words, 88, break_on_hyphens=False)
    return "\n".join(lines) + f"\n\n{filled}\n"


SECTION = Section("cost and error", table)

if __name__ == "__main__":
    SECTION.print_or_write(__doc__ or "")
