"""The page of results of the paper's experiments, made from measured results.

python docs/results_page.py            # print it
python docs/results_page.py --write    # put it into docs/results.md
"""

from __future__ import annotations

import sys
from itertools import chain

from paper_experiments import EXPERIMENTS
from published_numbers import CLAIMS, CODE, PAPER
from published_statements import STATEMENTS
from readme_section import Section
from reproduction import RESULTS, Verdict, rows_of, seeds_together
from result_tables import ROOT, filled, head, line_of

sys.path.insert(0, str(RESULTS.parent))
from paper_set import QUEUES  # noqa: E402


def failures() -> list[str]:
    """What did not reproduce, and what was not tried.

    Returns:
        Markdown.
    """
    verdicts = [Verdict.of(claim) for claim in CLAIMS]
    said = [(s, *s.verdict()) for s in STATEMENTS]
    wrong = [
        f"- {v.claim.what}: {seeds_together(v.ours)} where "
        f"{v.claim.target:,g} is reported ({v}). Ours is different in this: "
        f"{v.claim.why}."
        for v in verdicts
        if v.holds is False
    ]
    wrong += [
        f"- *{s.words}*: no. {text}." for s, holds, text in said if holds is False
    ]
    verdict_of = {
        "comparisons with published numbers": [v.holds for v in verdicts],
        "statements of the paper": [holds for s, holds, _ in said if s.of_paper],
        "statements of ours": [holds for s, holds, _ in said if not s.of_paper],
    }
    count = " ".join(
        f"Of {len(found)} {what}, {found.count(True)} reproduced, "
        f"{found.count(False)} did not, {found.count(None)} were not run yet."
        for what, found in verdict_of.items()
    )
    never = (
        "Not tried, because the data are not to be had: CelebA (table 4, figure 13), "
        "and KMNIST as outliers. The parts below say what replaces them."
    )
    blank = [""] if wrong else []
    title = ["## What did not reproduce", ""]
    rest = filled(f"{never} {time_of_all()}")
    return [*title, filled(count), "", *wrong, *blank, rest, ""]


def hours_of_queues() -> list[float]:
    """How long the runs that are shown took, one after the other in each queue.

    Returns:
        Hours of one core for each queue; rows of one run have the same time, which
        counts once.
    """
    scripts = [{command.split(".py")[0] for command in queue} for queue in QUEUES]
    times = [
        {row["seconds"] for name in names for row in rows_of(name)} for names in scripts
    ]
    return [sum(seconds) / 3600 for seconds in times]


def time_of_all() -> str:
    """How long all runs took.

    Returns:
        A sentence.
    """
    hours = hours_of_queues()
    return (
        f"The runs that are shown took {sum(hours):.1f} hours of one core; `make "
        f"experiments` shares them out to two, and those of the busier one add up to "
        f"{max(hours):.1f} hours."
    )


def comparison() -> list[str]:
    """The table "paper / published code / ours".

    Returns:
        Markdown.
    """
    titles = ("number", "paper", "published code", "ours", "verdict", "what differs")
    lines = head(list(titles))
    for verdict in map(Verdict.of, CLAIMS):
        claim = verdict.claim
        theirs = ["" if n is None else f"{n:,g}" for n in (claim.paper, claim.code)]
        ours = seeds_together(verdict.ours)
        lines.append(line_of([claim.what, *theirs, ours, str(verdict), claim.why]))
    statements = head(["statement", "said by", "verdict", "evidence"])
    for statement in STATEMENTS:
        holds, text = statement.verdict()
        word = {True: "holds", False: "does not hold", None: ""}[holds]
        whose = "the paper" if statement.of_paper else "us"
        statements.append(line_of([statement.words, whose, word, text]))
    words = (
        f"Paper: {PAPER}. Published code: {CODE}. Ours has to be at least as good, "
        "within the paper's own spread or a few hundredths; baselines have to be "
        "neither better nor worse."
    )
    title = ["## Paper, published code, ours", "", filled(words), ""]
    return [*title, *lines, "", *statements, ""]


def page() -> str:
    """The whole page, failures first.

    Returns:
        Markdown.
    """
    parts = chain.from_iterable(experiment.markdown() for experiment in EXPERIMENTS)
    return "\n".join([*failures(), *comparison(), *parts])


SECTION = Section("results", page, ROOT / "docs" / "results.md")

if __name__ == "__main__":
    SECTION.print_or_write(__doc__ or "")
