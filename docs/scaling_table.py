"""The table of ranks against time in docs/scaling.md, made from measured results.

python docs/scaling_table.py            # print it
python docs/scaling_table.py --write    # put it into docs/scaling.md
"""

from __future__ import annotations

import json
import textwrap
from operator import itemgetter
from pathlib import Path

from readme_section import Section

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "examples" / "benchmarks" / "results" / "scaling.json"
TITLES = ("work", "ranks", "seconds", "times as fast", "spent on communication")


def table() -> str:
    """The whole table, with what has to be known to read it.

    Returns:
        Markdown.
    """
    content = json.loads(RESULT.read_text())
    lines = [f"| {' | '.join(TITLES)} |", "|" + " --- |" * len(TITLES)]
    for row in sorted(content["rows"], key=itemgetter("work", "ranks")):
        cells = (
            f"`{row['work']}`",
            str(row["ranks"]),
            f"{row['seconds']:.2f}",
            f"{row['speed_up']:.2f}",
            f"{row['communication_share']:.0%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    cores = content["environment"]["threads"]
    paper = " and ".join(
        f"{share:.0%} ({network})"
        for network, share in content["efficiency_on_paper"].items()
    )
    words = (
        f"{content['parameters']:,} parameters on a machine with {cores} cores, one "
        "thread for each rank (gloo), the same data for any number of ranks: more "
        "ranks than cores only share them. Online steps exchange gradients and "
        "curvature each time, `fit` once. On paper, 64 ranks in a ring, each with a "
        "core and a batch of its own, would spend this share of an online step on "
        f"computation: {paper}. `make readme` writes this table."
    )
    return "\n".join(lines) + f"\n\n{textwrap.fill(words, 88)}\n"


SECTION = Section("ranks", table, ROOT / "docs" / "scaling.md")

if __name__ == "__main__":
    SECTION.print_or_write(__doc__ or "")
