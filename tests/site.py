"""The built site, if there is one that belongs to what is in the repository now."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "_build" / "html"


def is_fresh() -> bool:
    built = SITE / "tutorials" / "index.html"
    sources = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "examples" / "tutorials").glob("*.py"),
    ]
    if not built.exists():
        return False
    time = built.stat().st_mtime
    return all(source.stat().st_mtime <= time for source in sources)


needs_site = pytest.mark.skipif(not is_fresh(), reason="make docs has not been run")
