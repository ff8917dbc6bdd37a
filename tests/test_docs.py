"""README, pages, benchmarks and demo run, and say what is true."""

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lae_backpack
from lae_backpack import AutoEncoder
from tests.site import SITE, needs_site

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def script_of_docs(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs"))


def run(script: str, *args: str) -> str:
    command = [sys.executable, str(ROOT / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_code_runs(capsys):
    import lae_backpack.curvature.registry as registry

    before = dict(registry._RULES)
    torch.set_default_dtype(torch.float32)
    blocks = python_blocks(README)
    assert len(blocks) == 5
    namespace: dict[str, object] = {"__name__": "readme"}
    try:
        for block in blocks:
            exec(compile(block, "README.md", "exec"), namespace)
    finally:
        registry._RULES.clear()
        registry._RULES.update(before)
    assert namespace["variance"].shape == (32, 1, 8, 8)
    assert namespace["code_variance"].shape == (32, 2)
    printed = capsys.readouterr().out
    assert "torch.Size([8, 3, 3, 3])" in printed
    assert "'2.weight': (3, 8, 1, 1)" in printed
    assert namespace["mean"].shape == (32, 1, 8, 8)


PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_pages_runs(page: Path):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    x = torch.rand(4, 1, 8, 8)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 1))
    autoencoder = AutoEncoder(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 2)),
        nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8))),
    )
    namespace: dict[str, object] = {
        "Laplace": Laplace,
        "x": x,
        "target": x,
        "model": model,
        "autoencoder": autoencoder,
        "loader": DataLoader(TensorDataset(x, x), batch_size=2),
        "images": DataLoader(TensorDataset(x), batch_size=2),
    }
    for block in python_blocks(page.read_text()):
        exec(compile(block, page.name, "exec"), namespace)
    if page.stem == "index":
        assert namespace["variance"].shape == x.shape
        assert namespace["code_variance"].shape == (4, 2)
    if page.stem == "gotchas":
        assert "Pass subset_of_weights='all'" in str(namespace["said"])
        approx, exact = namespace["approx"], namespace["exact"]
        assert not torch.allclose(approx["0.weight"], exact["0.weight"], rtol=0.05)
        torch.testing.assert_close(approx["2.weight"], exact["2.weight"])


def test_every_public_name_is_in_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text()
    missing = [
        name
        for name in lae_backpack.__all__
        if not re.search(rf"^\.\. auto\w+:: {name}$", page, flags=re.MULTILINE)
    ]
    assert not missing


def test_every_page_is_in_the_table_of_contents():
    home = (ROOT / "docs" / "index.md").read_text()
    entries = home.split("{toctree}")[1].split("```")[0].split()
    assert {page.stem for page in PAGES} - {"index"} <= set(entries)
    assert "tutorials/index" in entries


def test_readme_shows_working_code_by_line_20():
    first = README.index("```python")
    assert README[: README.index("```\n", first + 3)].count("\n") < 20


def test_readme_lists_what_the_registry_has():
    made = script_of_docs("supported_layers").SECTION.within(README)
    assert made == README, "run: make readme"


def test_bad_inputs_are_as_many_as_the_tests_try():
    page = (ROOT / "docs" / "adversity.md").read_text()
    made = script_of_docs("bad_inputs").SECTION.within(page)
    assert made == page, "run: make readme"


def test_the_table_of_ranks_is_what_was_measured():
    page = (ROOT / "docs" / "scaling.md").read_text()
    made = script_of_docs("scaling_table").SECTION.within(page)
    assert made == page, "run: make readme"


def test_readme_has_the_measured_numbers():
    made = script_of_docs("readme_table").SECTION.within(README)
    assert made == README, "run: make readme"


def test_table_tells_ranges_of_what_was_measured(tmp_path: Path, monkeypatch):
    script = script_of_docs("readme_table")
    ways = {name: structure for name, (structure, _) in script.WAYS.items()}
    costs = [
        {"net": net, "structure": s, "cost": cost}
        for s in ways.values()
        for net, cost in (("a", 1.0), ("b", 2.5))
    ]
    errors = [
        {"net": net, "structure": ways["approx"], "epoch": epoch, "images": images,
         "median_log": log * images / 8, "worst_ratio": ratio}
        for net, log, ratio in (("a", 0.1, 0.5), ("b", 0.7, 1.25))
        for epoch in (0, 20) for images in (4, 8)
    ]  # fmt: skip
    for name, rows in (("pareto", costs), ("error", errors)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    lines = script.table().splitlines()
    assert lines[2].endswith("| 1.0 to 2.5 | 1 | 1 |")
    assert lines[3].endswith("| 1.0 to 2.5 | 1.11 to 2.01 | 1.25 to 2.00 |")


def test_drawing_is_made(tmp_path: Path):
    run("docs/drawing.py", "--out", str(tmp_path / "drawing.svg"))
    assert (tmp_path / "drawing.svg").read_text().count("<image") == 18


def test_broken_links_are_found(tmp_path: Path):
    broken_links = script_of_docs("check_links").broken_links
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html#there">1</a><a href="#top">2</a>'
        '<a href="https://elsewhere.org/x">3</a><img src="gone.png">'
        '<a href="b.html#gone">4</a><a href="c.html">5</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    assert broken_links(tmp_path) == [
        "a.html: gone.png (no such file)",
        "a.html: b.html#gone (no such anchor)",
        "a.html: c.html (no such file)",
    ]


@needs_site
def test_site_has_no_broken_links():
    assert script_of_docs("check_links").broken_links(SITE) == []


def test_readme_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", README)
    inside = [link for link in links if not link.startswith("https://")]
    assert len(inside) > 5
    assert [link for link in inside if not (ROOT / link).exists()] == []


def test_engine_benchmark_runs(tmp_path: Path):
    printed = run("examples/benchmarks/engine.py", "--smoke", "--out", str(tmp_path))
    rows = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert len(rows) == 13 == len(printed.strip().splitlines())
    assert all(math.isfinite(row["value"]) for row in rows)


def test_posterior_costs_are_within_their_limits():
    file = ROOT / "examples" / "benchmarks" / "results" / "posterior.json"
    rows = json.loads(file.read_text())["rows"]
    verdicts = {row["what"]: row["verdict"] for row in rows if row["limit"] is not None}
    missed = {what for what, verdict in verdicts.items() if verdict != "ok"}
    assert len(verdicts) >= 10
    assert not missed


def test_posterior_benchmark_runs(tmp_path: Path):
    printed = run("examples/benchmarks/posterior.py", "--smoke", "--out", str(tmp_path))
    rows = json.loads((tmp_path / "posterior.json").read_text())["rows"]
    assert len(rows) == 14 == len(printed.strip().splitlines())
    assert all(math.isfinite(row["value"]) for row in rows)


def test_online_experiment_runs(tmp_path: Path):
    script = "examples/experiments/online.py"
    printed = run(script, "--smoke", "--only", "default", "--out", str(tmp_path))
    rows = json.loads((tmp_path / "online.json").read_text())["rows"]
    ways = ["plain autoencoder", "post hoc, default", "online, default"]
    assert [row["way"] for row in rows] == ways
    assert all(way in printed for way in ways)
    assert all(math.isfinite(row["error_of_networks"]) for row in rows)


def test_growth_runs(tmp_path: Path):
    printed = run("examples/benchmarks/growth.py", "--smoke", "--out", str(tmp_path))
    assert "16x16" in printed
    assert (tmp_path / "growth.png").stat().st_size > 10_000


def test_committed_results_say_how_they_were_made():
    files = sorted((ROOT / "examples").glob("*/results/*.json"))
    assert files
    for file in files:
        content = json.loads(file.read_text())
        assert {"command", "torch", "threads"} <= content["environment"].keys()
        assert "--smoke" not in content["environment"]["command"]
        assert isinstance(content["seed"], int)


@pytest.mark.parametrize("word", ["http://", "/work/", "/root/", "/home/"])
def test_commits_name_no_machine(word: str):
    tracked = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT
    ).stdout.split()
    names_of_xml = (".svg",) if word == "http://" else ()
    no_text = (".png", ".pt", *names_of_xml)
    texts = [ROOT / f for f in tracked if not f.endswith(no_text)]
    mine = Path(__file__)
    named = [t.name for t in texts if t != mine and word in t.read_text()]
    assert not named
