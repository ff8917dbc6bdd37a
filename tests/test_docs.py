"""README, benchmarks and demo run, and say what is true."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def run(script: str, *args: str) -> str:
    command = [sys.executable, str(ROOT / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_code_runs(capsys):
    import lae_backpack.curvature.registry as registry

    before = dict(registry._RULES)
    torch.set_default_dtype(torch.float32)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
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
    assert printed.count("torch.Size([4, 3, 126, 126])") == 2


def test_readme_shows_working_code_by_line_20():
    first = README.index("```python")
    assert README[: README.index("```\n", first + 3)].count("\n") < 20


def test_readme_lists_what_the_registry_has():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import supported_layers
    finally:
        sys.path.remove(str(ROOT / "docs"))
    assert README == supported_layers.with_table(README), "run: make readme"


def test_engine_benchmark_runs(tmp_path: Path):
    printed = run("examples/benchmarks/engine.py", "--smoke", "--out", str(tmp_path))
    rows = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert len(rows) == 13 == len(printed.strip().splitlines())
    assert all(math.isfinite(row["value"]) for row in rows)


def test_posterior_benchmark_runs(tmp_path: Path):
    printed = run("examples/benchmarks/posterior.py", "--smoke", "--out", str(tmp_path))
    rows = json.loads((tmp_path / "posterior.json").read_text())["rows"]
    assert len(rows) == 12 == len(printed.strip().splitlines())
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
    texts = [ROOT / f for f in tracked if not f.endswith(".png")]
    mine = Path(__file__)
    named = [t.name for t in texts if t != mine and word in t.read_text()]
    assert not named
