"""What error, cost, pareto and answers measure with, and that they run."""

import json
import math
import runpy
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from backpack.custom_module.branching import Parallel
from cost import refusal
from deviations import deviation
from diagonals import STRUCTURES, exact
from error import CHEAP
from pareto import MEASURES
from peers import PEERS, Size
from scores import calibration
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from trained import NETS, SMOKE, Zoo

from lae_backpack import AutoEncoder

BENCHMARKS = Path(__file__).parents[1] / "examples/benchmarks"


def tiny() -> tuple[AutoEncoder, Tensor]:
    """All kinds of layers of the benchmarks' nets, on 4x4 images."""
    block = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh())
    encoder = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.MaxPool2d(2),
        Parallel(nn.Identity(), block),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    decoder = nn.Sequential(
        nn.Linear(2, 8),
        nn.Tanh(),
        nn.Unflatten(1, (2, 2, 2)),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(2, 1, 3, padding=1, bias=False),
    )
    return AutoEncoder(encoder, decoder), torch.rand(5, 1, 4, 4)


def by_jacobian(model: AutoEncoder, x: Tensor) -> Tensor:
    weights = {name: p.detach() for name, p in model.named_parameters()}
    jacobian = jacrev(lambda w: functional_call(model, w, (x,)).flatten())(weights)
    columns = [jacobian[name].flatten(1) for name in weights]
    return torch.cat(columns, dim=1).square().sum(0)


def test_the_exact_diagonal_is_exact():
    model, x = tiny()
    torch.testing.assert_close(exact(model)(x, 2), by_jacobian(model, x))


@pytest.mark.parametrize("name", [n for n in STRUCTURES if n.startswith("mixed 512")])
def test_structures_follow_laplace_conventions(name: str):
    model, x = tiny()  # no layer has more features than the limit
    found = STRUCTURES[name](model)(x, 2)
    torch.testing.assert_close(found, by_jacobian(model, x))


@pytest.mark.parametrize("name", ["BackPACK MC 1", "BackPACK MC 10", "probe"])
def test_random_structures_are_right_on_average(name: str):
    model, x = tiny()
    diagonal, expected = STRUCTURES[name](model), by_jacobian(model, x)
    found = torch.stack([diagonal(x, 3) for _ in range(300)])
    standard_error = found.std(0) / len(found) ** 0.5
    z = (found.mean(0) - expected) / standard_error
    # Entries share their few random numbers, so all may be off together, but not far.
    assert z.abs().max() < 5
    assert (standard_error < 0.25 * expected).all()  # a factor would be noticed


def test_deviations_are_what_they_say():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    true = torch.tensor([1.0, 1.0, 0.0, 2.0, 3.0, 4.0, 5.0, 7.0])
    found = true.clone()
    found[2] = 9.0  # a dead pixel's
    found[6:] *= math.exp(-2)
    result = deviation(found, true, model)
    assert (result.zeros, result.entries) == (1, 8)
    assert result.median_log == 0
    assert result.high_log == pytest.approx(2)
    assert result.layers == pytest.approx({"0": 20 / 11, "1": math.exp(-2)})
    assert result.layer_medians == pytest.approx({"0": 0, "1": 2})
    assert result.worst_median == pytest.approx(2)
    assert result.worst_layer == "1"
    assert result.worst_ratio == pytest.approx(math.exp(-2))
    assert result.relative == pytest.approx((found - true).norm() / true.norm())
    same = deviation(true, true, model)
    assert same.spearman == pytest.approx(1) and result.spearman < 1


def test_what_is_calibrated_scores_so():
    variance = torch.rand(200, 100)
    error = (variance + 0.5).sqrt() * torch.randn(200, 100)
    scores = calibration(error, variance, 0.5)
    assert scores["z_squared"] == pytest.approx(1, abs=0.05)
    assert scores["coverage"] == pytest.approx(0.95, abs=0.01)
    assert scores["correlation_pixels"] > 0.1
    for factor in (0.5, 2.0):
        other = calibration(error, factor * (variance + 0.5) - 0.5, 0.5)
        assert other["nll"] > scores["nll"]


def test_stages_are_trained_once_and_kept(tmp_path: Path):
    zoo = Zoo(**{**vars(SMOKE), "folder": tmp_path})
    before, after = (zoo.model("small conv", epoch) for epoch in (0, 1))
    assert not torch.equal(before.encoder[0].weight, after.encoder[0].weight)
    written = {f: f.stat().st_mtime_ns for f in tmp_path.iterdir()}
    zoo.model("small conv", 1)
    assert written == {f: f.stat().st_mtime_ns for f in tmp_path.iterdir()}


def test_nets_have_the_papers_sizes():
    sizes = {n: sum(p.numel() for p in net().parameters()) for n, net in NETS.items()}
    assert sizes["linear"] == 1_068_306
    assert sizes["small conv"] == 7_406


@pytest.fixture
def run(monkeypatch, capsys, tmp_path: Path) -> Callable[..., tuple[str, dict]]:
    """Runs a script in this process, which has imported the slow parts already."""

    def run_script(name: str, *args: str) -> tuple[str, dict]:
        torch.set_default_dtype(torch.float32)
        command = [name, "--smoke", "--out", str(tmp_path), *args]
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        content = json.loads((tmp_path / f"{name}.json").read_text())
        assert {"seed", "environment", "rows"} <= content.keys()
        return capsys.readouterr().out, content

    return run_script


def test_error_pareto_and_answers_run(run):
    printed, content = run("error")
    rows = content["rows"]
    expected = 4 * len(STRUCTURES) + len(CHEAP)
    assert len(rows) == expected == len(printed.strip().splitlines()) - 1
    assert all(math.isfinite(row["median_log"]) for row in rows)
    _, again = run("error", "--fresh", "probe")
    assert again["rows"] == rows  # the same seed, or kept
    _, content = run("pareto")
    assert len(content["rows"]) == len(STRUCTURES) + 1
    assert all(row["cost"] > 0 for row in content["rows"])
    _, content = run("answers")
    assert [r["structure"] for r in content["rows"]] == ["exact", *STRUCTURES]
    assert all(0 <= row["auroc_latent"] <= 1 for row in content["rows"])


def test_calibrated_is_nearer_than_monte_carlo_and_costs_no_more():
    """What docs/concepts.md says is what was measured."""
    content = json.loads((BENCHMARKS / "results" / "pareto.json").read_text())
    rows = {(row["net"], row["structure"]): row for row in content["rows"]}
    for net in NETS:
        ours, theirs = (rows[net, s] for s in ("calibrated", "BackPACK MC 1"))
        for measure in ("cost", *MEASURES):
            assert ours[measure] <= theirs[measure], (net, measure)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
def test_cost_runs(run):
    printed, content = run("cost")
    assert len(content["rows"]) == 4 * len(PEERS) == len(printed.strip().splitlines())
    assert all(row["seconds"] > 0 for row in content["rows"])


def test_what_does_not_fit_is_refused_with_the_reason():
    exact_peer, small = PEERS["BackPACK exact"], Size(8, 3, 16)
    assert refusal(exact_peer, small, None) == ""
    assert "GB for a column for every output" in refusal(
        exact_peer, Size(8, 3, 128), (small, 0.1)
    )
    larger = Size(8, 3, 32)  # sixteen times the work
    assert refusal(exact_peer, larger, (small, 0.5)) == ""
    assert (
        refusal(exact_peer, larger, (small, 2.0)) == "about 32 s a pass by its growth"
    )
    assert refusal(PEERS["plain"], Size(8, 3, 256), (small, 0.001)) == ""


def measured() -> list[dict]:
    file = Path(__file__).parents[1] / "examples/benchmarks/results/error.json"
    return json.loads(file.read_text())["rows"]


def test_calibrated_is_right_for_all_data_of_every_trained_net():
    rows = [
        row
        for row in measured()
        if row["structure"] == "calibrated" and row["images"] > 64 and row["epoch"]
    ]
    counts = Zoo.n_images, Zoo.n_train
    stages = set(product(NETS, (1, 5, 20), counts))
    assert {(row["net"], row["epoch"], row["images"]) for row in rows} == stages
    for row in rows:
        assert row["median_log"] <= 0.1
        assert abs(row["worst_ratio"] - 1) <= 0.1  # of all layers the one furthest off


def test_calibrated_beats_monte_carlo_on_every_batch_that_was_measured():
    least = min(row["images"] for row in measured())
    errors = {
        (row["net"], row["epoch"], row["structure"]): row["median_log"]
        for row in measured()
        if row["images"] == least
    }
    assert least == 64
    stages = {key[:2] for key in errors}
    assert stages == {(net, epoch) for net in NETS for epoch in Zoo.epochs}
    for stage in stages:
        assert errors[(*stage, "calibrated")] < errors[(*stage, "BackPACK MC 1")]


def test_default_structures_are_those_that_measured_better():
    results = BENCHMARKS.parent / "experiments" / "results"
    online, post_hoc = (
        {(row["data"], row["way"]): row for row in json.loads(file.read_text())["rows"]}
        for file in (results / "online.json", results / "post_hoc.json")
    )
    for data in ("mnist", "fashion-mnist"):
        default = post_hoc[data, "post hoc, default"]
        for other in ("post hoc, approx_diag", "post hoc, mixed_diag"):
            worse = post_hoc[data, other]["error_of_networks"]
            assert default["error_of_networks"] < worse - 1
    mixed, calibrated = (
        online["fashion-mnist", f"online, {way}"]
        for way in ("default", "calibrated every 10")
    )
    assert mixed["auroc_output"] > calibrated["auroc_output"] + 0.05
    assert mixed["auroc_latent"] > calibrated["auroc_latent"] + 0.05
