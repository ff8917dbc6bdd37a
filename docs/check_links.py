"""Check every link and picture of the built site that does not leave it.

python docs/check_links.py docs/_build/html
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from typing_extensions import override


@dataclass
class Page(HTMLParser):
    """What a page links to, and what can be linked to in it.

    Attributes:
        links: Addresses as they stand in the page.
        anchors: Ids and names.
    """

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Prepare for reading."""
        super().__init__()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Find links within a site that lead nowhere.

    Args:
        site: The folder of the built site.

    Returns:
        One line for each.
    """
    pages = {}
    for file in sorted(site.rglob("*.html")):
        page = Page()
        page.feed(file.read_text(encoding="utf-8"))
        pages[file.resolve()] = page
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue  # it leaves the site
            path = unquote(parts.path)
            start = site.resolve() if path.startswith("/") else file.parent
            target = (start / path.lstrip("/")).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists():
                problem = "no such file"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                problem = "no such anchor"
            else:
                continue
            broken.append(f"{file.relative_to(site.resolve())}: {link} ({problem})")
    return broken


def main() -> None:
    """Check, and say what is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, help="folder of the built site")
    site = parser.parse_args().site
    n_pages = sum(1 for _ in site.rglob("*.html"))
    broken = broken_links(site)
    print(*broken, sep="\n", end="\n" if broken else "")
    if broken or not n_pages:
        raise SystemExit(f"{len(broken)} broken links in {n_pages} pages")
    print(f"links of {n_pages} pages lead somewhere")


if __name__ == "__main__":
    main()
