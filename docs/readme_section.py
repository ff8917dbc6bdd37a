"""A part of README.md, or of another page, that a script writes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


@dataclass(frozen=True)
class Section:
    """What stands between two marks.

    Attributes:
        name: The marks' name.
        content: Makes the text.
        page: Where it stands.
    """

    name: str
    content: Callable[[], str]
    page: Path = README

    def within(self, page: str) -> str:
        """A page with the current text in it.

        Args:
            page: The page's text.

        Returns:
            The text, with what is between the marks replaced.
        """
        begin, end = f"<!-- {self.name}: begin -->\n", f"<!-- {self.name}: end -->"
        before, rest = page.split(begin)
        _, after = rest.split(end)
        return f"{before}{begin}{self.content()}{end}{after}"

    def print_or_write(self, description: str) -> None:
        """Do what the command line says.

        Args:
            description: Of the script.
        """
        parser = argparse.ArgumentParser(description=description.splitlines()[0])
        parser.add_argument(
            "--write", action="store_true", help=f"into {self.page.name}"
        )
        if parser.parse_args().write:
            self.page.write_text(self.within(self.page.read_text()))
        else:
            print(self.content())
