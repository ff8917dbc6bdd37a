"""The pages of results say what was measured, and committed rows reach the lines."""

import importlib
import json
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType

import paper_set
import pytest
import resuming
import torch

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "examples" / "experiments"


def page_script(name: str = "results_page") -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.mark.parametrize("name", ["results_page", "codes_page"])
def test_page_has_the_measured_numbers(name: str):
    section = page_script(name).SECTION
    page = section.page.read_text()
    assert section.within(page) == page, "run: make readme"


def test_the_lead_over_the_vae_is_judged_by_the_papers(tmp_path: Path, monkeypatch):
    script = page_script("codes_page")
    monkeypatch.setattr(sys.modules["reproduction"], "RESULTS", tmp_path)
    by_margin, by_order, at_best, by_updates, clipped = (
        next(s for s in script.STATEMENTS if words in s.words)
        for words in (
            "With one update",
            "Householder flow",
            "its best",
            "Eight updates",
            "clipped, eight",
        )
    )
    nats = {("vae", 0): 10.0, ("savae", 1): 12.0, ("hf", 1): 11.0, ("vlae", 1): 13.0}
    rows = [
        {"data": "mnist", "model": m, "updates": t, "lr": lr, "seed": seed,
         "test_log_likelihood": found + seed - (lr > 1)}
        for (m, t), found in nats.items()
        for lr, seed in ((1, 0), (1, -1), (1, 1), (2, 0))
    ]  # fmt: skip
    (tmp_path / "vlae.json").write_text(json.dumps({"rows": rows}))
    assert by_margin.verdict() == (False, "nats: 3.00")
    assert by_order.verdict() == (True, "nats: 1.000")
    assert by_updates.verdict()[0] is None
    of_vlae = [row for row in rows if row["model"] == "vlae"]
    eight = [{**row, "updates": 8, "test_log_likelihood": 15.0} for row in of_vlae]
    (tmp_path / "vlae.json").write_text(json.dumps({"rows": rows + eight}))
    assert by_updates.verdict() == (True, "nats: 2.00")
    assert at_best.verdict() == (True, "nats: 3.00")
    assert clipped.verdict()[0] is None
    binary = [{**row, "data": "binary"} for row in of_vlae + eight]
    (tmp_path / "clipped_vlae.json").write_text(json.dumps({"rows": binary}))
    assert clipped.verdict() == (True, "nats: 2.00")


@pytest.mark.parametrize("data", ["MNIST", "Fashion-MNIST", "binarised MNIST"])
def test_vlae_leads_by_the_papers_margin(data: str):
    margins = [
        statement.verdict()[0]
        for statement in page_script("codes_page").STATEMENTS
        if statement.words.endswith(f" nats on {data}")
    ]
    assert len(margins) >= 2
    assert any(margins)


def test_page_says_first_what_did_not_reproduce(tmp_path: Path, monkeypatch):
    script = page_script()
    for module in ("reproduction", "result_tables"):
        monkeypatch.setattr(sys.modules[module], "RESULTS", tmp_path)
    monkeypatch.setattr(sys.modules["result_tables"], "ROOT", tmp_path)
    empty = script.page()
    assert empty.startswith("## What did not reproduce")
    assert empty.count("Not run yet: `examples/experiments/") == len(script.EXPERIMENTS)
    about = {"epochs": 9, "seconds": 60.0, "command": "python table2.py"}
    recipe = sys.modules["published_numbers"].BETTER["recipe"]
    rows = [
        {"way": "online", "structure": structure, "noise": "unit", "seed": seed,
         "recipe": recipe, "error_of_networks": error + seed, "error_of_mean": error,
         **about}
        for structure, error in (("exact", 31.0), ("approx", 24.0))
        for seed in (0, 1)
    ]  # fmt: skip
    rows.append({**rows[0], "epochs": 1, "error_of_networks": 1e6})
    environment = {"threads": 2, "torch": "1"}
    environment |= {"laplace-torch": "2", "backpack-for-pytorch": "3"}
    content = {"environment": environment, "seed": 0, "rows": rows}
    (tmp_path / "table2.json").write_text(json.dumps(content))
    (tmp_path / "table2.png").touch()
    failed, rest = script.page().split("## Paper, published code, ours")
    assert "31.50 ± 0.707 where 25.8 is reported (not reached: higher)" in failed
    assert "approx" not in failed and "2 reproduced, 2 did not" in failed
    line = f"| online | approx | unit | {recipe} | 24.50 ± 0.707 | 24.00 ± 0.000 |"
    assert line in rest
    assert "![table2](../table2.png)" in rest and "seeds 0, 1; epochs 9;" in rest


def test_the_whole_set_takes_less_than_six_hours_on_two_cores():
    script = page_script()
    assert all(script.rows_of(experiment.name) for experiment in script.EXPERIMENTS)
    assert max(script.hours_of_queues()) < 6


def test_a_run_counts_once_in_the_hours_of_its_queue(tmp_path: Path, monkeypatch):
    script = page_script()
    monkeypatch.setattr(sys.modules["reproduction"], "RESULTS", tmp_path)
    for name, seconds in (("table2", (3600, 3600, 1800)), ("ablations", (720,))):
        rows = [{"epochs": 1, "seconds": time} for time in seconds]
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": rows}))
    assert script.hours_of_queues() == [1.5, 0.2]
    assert "took 1.7 hours of one core" in script.time_of_all()
    assert script.time_of_all().endswith("add up to 1.5 hours.")


def verdicts_of(words: str) -> list:
    script = page_script()
    found = [claim for claim in script.CLAIMS if claim.what.startswith(words)]
    return [script.Verdict.of(claim) for claim in found]


@pytest.mark.parametrize("structure", ["exact", "mixed", "approx"])
def test_online_training_is_at_or_below_the_papers_errors(structure: str):
    verdicts = verdicts_of(f"online, {structure}, trained better")
    for verdict, error in zip(verdicts, (25.8, 25.7), strict=True):
        assert verdict.claim.target >= error
        assert len(verdict.ours) == 3
        assert all(ours <= error for ours in verdict.ours)


@pytest.mark.parametrize("structure", ["KFAC", "exact", "approx"])
def test_post_hoc_errors_are_below_the_papers_with_a_prior_by_validation(
    structure: str,
):
    words = f"post hoc, {structure}, prior by validation images, trained better"
    of_networks, of_mean = verdicts_of(words)
    for verdict in (of_networks, of_mean):
        assert len(verdict.ours) == 3
        assert max(verdict.ours) < verdict.claim.target


def test_deviations_tell_outliers_as_in_the_paper():
    for score, number in (("output", 0.91), ("latent", 0.96)):
        (verdict,) = verdicts_of(f"online: AUROC of {score} deviation")
        assert verdict.claim.target == number
        assert verdict.ours and all(ours >= number for ours in verdict.ours)


def test_long_online_training_tells_outliers_as_in_the_paper():
    verdicts = verdicts_of("online, trained for longest: AUROC")
    assert [v.claim.target for v in verdicts] == [0.98, 0.98, 0.91, 0.96]
    for verdict in verdicts:
        assert verdict.ours and min(verdict.ours) >= verdict.claim.target


def test_a_statement_holds_does_not_or_was_not_run(tmp_path: Path, monkeypatch):
    script = page_script()
    monkeypatch.setattr(sys.modules["reproduction"], "RESULTS", tmp_path)
    (said,) = (s for s in script.STATEMENTS if "1 to 15 labels" in s.words)

    def verdict(**accuracies: float) -> bool | None:
        rows = [
            {"task": "classes", "per_class": n, "model": model, "accuracy": value,
             "epochs": 1}
            for n in (1, 15)
            for model, value in accuracies.items()
        ]  # fmt: skip
        (tmp_path / "few_labels.json").write_text(json.dumps({"rows": rows}))
        return said.verdict()[0]

    assert said.verdict()[0] is None and verdict() is None
    rivals = dict.fromkeys(sys.modules["published_statements"].OTHERS, 0.5)
    assert verdict(**rivals) is None and verdict(online=0.6, VAE=0.5) is None
    assert verdict(online=0.6, **rivals) is True
    assert verdict(online=0.6, **rivals | {"VAE": 0.7}) is False
    row = {"task": "classes", "per_class": 1, "epochs": 1}
    rows = [{**row, "model": model} for model in ("online", *rivals)]
    (tmp_path / "few_labels.json").write_text(json.dumps({"rows": rows}))
    with pytest.raises(KeyError):  # a field that is not there is a mistake
        said.verdict()


COMMANDS = [command for queue in paper_set.QUEUES for command in queue]


def test_the_set_has_every_experiment_of_the_page():
    names = {command.split(".py")[0] for command in COMMANDS}
    assert names == {experiment.name for experiment in page_script().EXPERIMENTS}


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_that_the_set_runs_is_missing(command: str, monkeypatch):
    script, *arguments = shlex.split(command)
    missing: list[bool] = []

    def compare(file: Path, planned: list[dict], measure: object) -> None:
        rows = resuming.rows_in(file)
        missing.extend(
            not any(key.items() <= row.items() for row in rows) for key in planned
        )
        raise SystemExit

    monkeypatch.setattr(resuming, "run_missing", compare)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    precision = torch.get_float32_matmul_precision()
    try:
        with pytest.raises(SystemExit):
            runpy.run_path(str(EXPERIMENTS / script), run_name="__main__")
    finally:
        torch.set_float32_matmul_precision(precision)
    assert missing and not any(missing)
