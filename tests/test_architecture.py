"""The house rules: which way imports point, how long files are."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lae_backpack"
FILES = sorted(PACKAGE.rglob("*.py"))
# What each part may import of the package, besides itself.
MAY_IMPORT = {
    "curvature": set(),
    "posterior": {"curvature"},
    "latent": {"curvature", "posterior"},
    "variational": {"curvature", "posterior"},
    "downstream": {"curvature", "posterior", "latent", "variational", "datasets"},
    "datasets": set(),
    "lightning": {"posterior"},
    "testing": {"curvature"},
    "__init__": {"curvature", "posterior", "latent", "variational", "downstream"},
}
HOSTS = {"curvature": {"laplace"}, "datasets": {"laplace", "backpack"}}  # forbidden


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path):
    own = part(path)
    assert own in MAY_IMPORT, f"say in MAY_IMPORT what {own} may import"
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in HOSTS.get(own, set()), f"{own} must not import {top}"
        if top == "lae_backpack" and rest and rest[0] != own:
            assert rest[0] in MAY_IMPORT[own], f"{own} must not import {rest[0]}"


def test_rules_do_not_know_the_engine():
    engine = ("extensions", "sweep", "preflight", "graph", "step")
    for path in PACKAGE.glob("curvature/rules/*.py"):
        for name in imports(path):
            assert not name.startswith(
                tuple(f"lae_backpack.curvature.{e}" for e in engine)
            ), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_readable(path: Path):
    assert path.name != "utils.py"
    assert len(path.read_text().splitlines()) <= 300
