"""The list of supported layers, made from the registry.

python docs/supported_layers.py            # print it
python docs/supported_layers.py --write    # put it into README.md
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

from lae_backpack.curvature.registry import find_family, supported_layers

README = Path(__file__).parents[1] / "README.md"
MARKS = "<!-- supported layers: begin -->\n", "<!-- supported layers: end -->"
FAMILIES = (
    "affine",
    "convolution",
    "elementwise",
    "selection",
    "averaging",
    "normalization",
    "branching",
    "losses",
)


def table() -> str:
    """The layers by family.

    Returns:
        A Markdown table; 1d, 2d and 3d versions of a layer share an entry.
    """
    names = {layer.__name__ for layer in supported_layers()}
    families: dict[str, set[str]] = defaultdict(set)
    for layer in supported_layers():
        stem = re.sub(r"[1-3]d$", "", layer.__name__)
        in_all = names >= {f"{stem}{dim}d" for dim in (1, 2, 3)}
        in_all = in_all and stem != layer.__name__
        name = f"{stem}1d-3d" if in_all else layer.__name__
        families[find_family(layer)].add(name)
    lines = ["| family | layers |", "| --- | --- |"]
    for family in FAMILIES:
        lines.append(f"| {family} | {', '.join(sorted(families.pop(family)))} |")
    assert not families, f"say where {list(families)} stand in the table"
    return "\n".join(lines) + "\n"


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
