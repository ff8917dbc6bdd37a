"""The README's table of cost and error, made from measured results.

python docs/readme_table.py            # print it
python docs/readme_table.py --write    # put it into README.md
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from pathlib import Path

from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "examples" / "benchmarks" / "results"
MARKS = "<!-- cost and error: begin -->\n", "<!-- cost and error: end -->"
WAYS = {
    "exact": "`max_dense_dim=None`",
    "mixed": f"`max_dense_dim={DEFAULT_MAX_DENSE_DIM}`",
    "approx": "`max_dense_dim=0`",
}
STRUCTURES = {"mixed": f"mixed {DEFAULT_MAX_DENSE_DIM}", "approx": "approx"}


def engine_values(start: str, end: str) -> list[float]:
    """Measured numbers of the curvature engine.

    Args:
        start: How the row's name starts.
        end: How it ends.

    Returns:
        The values of all rows with such a name.
    """
    rows = json.loads((RESULTS / "engine.json").read_text())["rows"]
    found = [
        row["value"]
        for row in rows
        if row["what"].startswith(start) and row["what"].endswith(end)
    ]
    assert found, f"engine.json has no row {start!r} ... {end!r}"
    return found


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


def costs() -> dict[str, list[str]]:
    """Time and memory in units of approx, by way.

    Returns:
        Two cells each.
    """
    time, memory = (
        f"{engine_values('3 ch 32x32: BackPACK DiagGGNExact', what)[0]:,.0f}"
        for what in ("time", "memory")
    )
    held = json.loads((RESULTS / "engine.json").read_text())["growth"]["bytes"]
    ratios = [m / a for m, a in zip(held["mixed"], held["approx"], strict=True)]
    mixed = span(engine_values("FMNIST conv", "mixed / approx, in one pass"))
    return {
        "exact": [f"{time} x", f"{memory} x"],
        "mixed": [f"{mixed} x", f"{span(ratios)} x"],
        "approx": ["1", "1"],
    }


def errors() -> dict[str, list[str]]:
    """By which factor the median weight is off, before and after training, by way.

    Returns:
        Two cells each; nothing if errors have not been measured.
    """
    file = RESULTS / "error.json"
    if not file.exists():
        return {}
    rows = json.loads(file.read_text())["rows"]
    most = max(row["images"] for row in rows)
    epochs = [row["epoch"] for row in rows]
    found = {"exact": ["1"] * 2}
    for way, structure in STRUCTURES.items():
        found[way] = [
            span([
                math.exp(row["median_log"])
                for row in rows
                if (row["structure"], row["epoch"], row["images"])
                == (structure, epoch, most)
            ])
            + " x"
            for epoch in (min(epochs), max(epochs))
        ]
    return found


def table() -> str:
    """The whole table, with what has to be known to read it.

    Returns:
        Markdown.
    """
    cost, error = costs(), errors()
    titles = ["diagonal", "setting", "time", "memory"]
    if error:
        titles += ["off by, before training", "off by, after training"]
    lines = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles)]
    for way, setting in WAYS.items():
        cells = [way, setting, *cost[way], *error.get(way, [])]
        lines.append(f"| {' | '.join(cells)} |")
    powers = span(engine_values("exponent of peak memory", ""), digits=2)
    passes = span(engine_values("", "gradient + approx / plain forward+backward"))
    words = (
        f"Time and memory in units of `approx`, which takes {passes} plain forward and "
        "backward passes with its gradient included. `exact` is BackPACK's "
        "`DiagGGNExact` on 3x32x32 images; `mixed` was measured on convolutional "
        "autoencoders with small codes. From 32x32 to 256x256 pixels memory grows as "
        f"the number of pixels to the power {powers}."
    )
    if error:
        words += (
            " *Off by*: the factor of the median weight against the exact diagonal, "
            "the range over autoencoders of MNIST."
        )
    filled = textwrap.fill(words, 88, break_on_hyphens=False)
    return "\n".join(lines) + f"\n\n{filled}\n"


def with_table(readme: str) -> str:
    """A README with the current table in it.

    Args:
        readme: The README's text.

    Returns:
        The text, with what is between the marks replaced.
    """
    before, rest = readme.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}{table()}{MARKS[1]}{after}"


def main() -> None:
    """Print the table, or write it into the README."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into README.md")
    if parser.parse_args().write:
        README.write_text(with_table(README.read_text()))
    else:
        print(table())


if __name__ == "__main__":
    main()
