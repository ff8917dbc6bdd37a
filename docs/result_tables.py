"""Tables of measured results, as Markdown."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from reproduction import RESULTS, Row, chosen, content_of, rows_of, seeds_together

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        title: What stands above.
        measure: Which number of a row.
        where: Of which rows.
    """

    title: str
    measure: str
    where: Row = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Numbers of an experiment.

    Attributes:
        index: What identifies a line.
        columns: The numbers.
        where: Of which rows.
        caption: What has to be known to read it.
    """

    index: tuple[str, ...]
    columns: tuple[Column, ...]
    where: Row = field(default_factory=dict)
    caption: str = ""

    def markdown(self, rows: list[Row]) -> list[str]:
        """The lines.

        Args:
            rows: All rows of the experiment.

        Returns:
            Markdown; nothing if there are no numbers.
        """
        own = chosen(rows, self.where)
        if not own:
            return []
        lines = head([*self.index, *(column.title for column in self.columns)])
        for key in dict.fromkeys(tuple(row[i] for i in self.index) for row in own):
            line = chosen(own, dict(zip(self.index, key, strict=True)))
            cells = [
                seeds_together([
                    r[c.measure] for r in chosen(line, c.where) if c.measure in r
                ])
                for c in self.columns
            ]
            lines.append(line_of([*map(str, key), *cells]))
        return [filled(self.caption), "", *lines, ""]


def measures(names: dict[str, str]) -> tuple[Column, ...]:
    """One column for each measure.

    Args:
        names: Titles by measure.

    Returns:
        The columns.
    """
    return tuple(Column(title, measure) for measure, title in names.items())


@dataclass(frozen=True)
class Experiment:
    """A part of the page."""

    name: str
    title: str
    tables: tuple[Table, ...]
    figures: tuple[str, ...] = ()  # more of them, by how their files' names begin
    shares_models: bool = True  # with other experiments

    def markdown(self) -> list[str]:
        """The part.

        Returns:
            Markdown, which says so if nothing was run yet.
        """
        content, title = content_of(self.name), [f"## {self.title}", ""]
        if content is None:
            return [*title, f"Not run yet: `examples/experiments/{self.name}.py`.", ""]
        rows = rows_of(self.name)
        figures = chain.from_iterable(
            sorted(RESULTS.glob(pattern))
            for pattern in (f"{self.name}.png", *(f"{f}*.png" for f in self.figures))
        )
        drawn = [
            f"![{figure.stem}](../{figure.relative_to(ROOT).as_posix()})"
            for figure in figures
        ]
        tables = chain.from_iterable(table.markdown(rows) for table in self.tables)
        return [
            *title,
            *tables,
            *chain(*([d, ""] for d in drawn)),
            *about(content, rows, self.shares_models),
        ]


def about(content: Row, rows: list[Row], shares_models: bool) -> list[str]:
    """How an experiment was made.

    Args:
        content: Of its file.
        rows: Those of it that are shown.
        shares_models: Whether models may be trained by another experiment.

    Returns:
        Markdown.
    """
    commands = ", ".join(
        f"`{c}`" for c in dict.fromkeys(row["command"] for row in rows)
    )
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    epochs = ", ".join(map(str, sorted({row["epochs"] for row in rows})))
    minutes = sum({row["seconds"] for row in rows}) / 60
    # Rows that do not say how matrices were multiplied are of torch's default.
    usual = content["environment"] | {"matrix_products": "highest"}

    def each(name: str) -> str:
        found = dict.fromkeys(str(row.get(name, usual[name])) for row in rows)
        return " or ".join(found)

    words = (
        f"By {commands}; seeds {seeds}; epochs {epochs}; {minutes:.0f} minutes on "
        f"{each('threads')} threads; torch {each('torch')}, laplace-torch "
        f"{each('laplace-torch')}, BackPACK {each('backpack-for-pytorch')}; matrix "
        f"products in {each('matrix_products')} precision."
    )
    if shares_models:
        words += " Models that another experiment has trained are not trained again."
    return [filled(words), ""]


def head(titles: list[str]) -> list[str]:
    """The head of a table.

    Args:
        titles: Of its columns.

    Returns:
        Markdown.
    """
    return [line_of(titles), "|" + " --- |" * len(titles)]


def line_of(cells: list[str]) -> str:
    """A line of a table.

    Args:
        cells: Its cells.

    Returns:
        Markdown.
    """
    return f"| {' | '.join(cells)} |"


def filled(words: str) -> str:
    """Break lines.

    Args:
        words: The text.

    Returns:
        The same in lines of 88 characters.
    """
    return textwrap.fill(words, 88, break_on_hyphens=False, break_long_words=False)
