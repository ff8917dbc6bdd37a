"""The scripts about long runs and many ranks run, and say what they must."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(script: str, out: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, "--smoke", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_soak(tmp_path):
    assert "growth after the first fifth" in run(
        "examples/experiments/soak.py", tmp_path
    )
    rows = json.loads((tmp_path / "soak.json").read_text())["rows"]
    assert [row["step"] for row in rows] == [50, 100, 150, 200]
    # Nothing is kept from one epoch to the next.
    assert rows[-1]["tensors"] <= rows[0]["tensors"]
    assert (tmp_path / "soak.png").stat().st_size > 1000


def test_scaling(tmp_path):
    assert "on paper, 64 ranks" in run("examples/benchmarks/scaling.py", tmp_path)
    rows = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    assert [(r["work"], r["ranks"]) for r in rows] == [
        ("fit", 1), ("fit_online", 1), ("fit", 2), ("fit_online", 2),
    ]  # fmt: skip
    assert all(0 <= r["communication_share"] < 1 for r in rows)
    assert rows[0]["communication_share"] == 0 and rows[2]["communication_share"] > 0


def test_ten_thousand_steps_held_memory_flat():
    """What docs/scaling.md says is what was measured."""
    file = ROOT / "examples" / "experiments" / "results" / "soak.json"
    content = json.loads(file.read_text())
    assert content["steps"] >= 10_000
    assert content["growth"]["tensors"] <= 0
    assert content["growth"]["resident_bytes"] < 2**20
