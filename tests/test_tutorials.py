"""Tutorials run, end in assertions, and are in the gallery."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site import SITE, needs_site

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
LIMIT = 60  # seconds, on one thread


def test_they_are_numbered():
    numbers = [re.match(r"(\d\d)_", t.name) for t in TUTORIALS]
    assert [n and int(n[1]) for n in numbers] == list(range(1, len(TUTORIALS) + 1))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda t: t.stem)
def test_tutorial_has_a_title_and_ends_in_an_assertion(tutorial: Path):
    tree = ast.parse(tutorial.read_text())
    title, underline, *_ = (ast.get_docstring(tree) or "").splitlines()
    assert underline == "=" * len(title)
    assert isinstance(tree.body[-1], ast.Assert) or "assert_close" in ast.unparse(
        tree.body[-1]
    )


RUN_ALL = """
import json, runpy, sys, time
import matplotlib.pyplot as plt
for tutorial in sys.argv[1:]:
    start = time.process_time()  # a busy machine is no fault of a tutorial
    runpy.run_path(tutorial)
    plt.close("all")
    print(json.dumps([tutorial, time.process_time() - start]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def seconds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Run all in one process, as the site does: torch is imported once."""
    folder = tmp_path_factory.mktemp("reader")
    settings = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN_ALL, *map(str, TUTORIALS)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **settings},
    )
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())  # a reader's folder stays clean
    lines = [line for line in done.stderr.splitlines() if line.startswith("[")]
    return dict(map(json.loads, lines))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda t: t.stem)
def test_tutorial_runs_in_time(tutorial: Path, seconds: dict[str, float]):
    assert seconds[str(tutorial)] < LIMIT


@needs_site
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda t: t.stem)
def test_tutorial_is_in_the_built_gallery(tutorial: Path):
    gallery = (SITE / "tutorials" / "index.html").read_text()
    assert f'href="{tutorial.stem}.html"' in gallery
    page = (SITE / "tutorials" / f"{tutorial.stem}.html").read_text()
    assert "Total running time" in page  # it was executed, not only shown


def test_home_links_to_every_tutorial():
    home = (ROOT / "docs" / "index.md").read_text()
    assert all(f"(tutorials/{t.stem})" in home for t in TUTORIALS)
