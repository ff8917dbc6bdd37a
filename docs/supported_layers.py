"""The list of supported layers, made from the registry.

python docs/supported_layers.py            # print it
python docs/supported_layers.py --write    # put it into README.md
"""

from __future__ import annotations

import re
from collections import defaultdict

from readme_section import Section

from lae_backpack.curvature.registry import find_family, supported_layers

HOSTS = ("torch.", "backpack.", "lae_backpack.")
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
    # Rules that others have registered in this process are theirs.
    layers = [x for x in supported_layers() if x.__module__.startswith(HOSTS)]
    names = {layer.__name__ for layer in layers}
    families: dict[str, set[str]] = defaultdict(set)
    for layer in layers:
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


SECTION = Section("supported layers", table)

if __name__ == "__main__":
    SECTION.print_or_write(__doc__ or "")
