"""The experiments on Variational Laplace and the evidence run."""

import inspect
import json
import math
import runpy
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from evidence_autoencoder import WAYS as AUTOENCODER_WAYS
from radon import radon_matrix
from variational_baselines import WAYS, PointEstimate, SampledWeights, softplus_cnn
from variational_fashion import Plan, planned

from lae_backpack.variational import VariationalLaplace

EXPERIMENTS = Path(__file__).parents[1] / "examples" / "experiments"
SCRIPTS = {
    "variational_fashion": {"way", "beta", "multiplier", "nll", "accuracy", "ece"},
    "evidence_normalised": {"seed", "evidence", "prior", "inside", "gap"},
    "evidence_autoencoder": {"way", "log_density", "coverage_of_90", "auroc"},
    "tomography": {"image", "way", "log_density", "coverage_of_90", "rmse"},
}


@pytest.mark.filterwarnings("ignore:Matplotlib")
@pytest.mark.parametrize("script", SCRIPTS)
def test_experiment_runs(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(sys, "argv", [script, "--smoke", "--out", str(tmp_path)])
    runpy.run_path(str(EXPERIMENTS / f"{script}.py"), run_name="__main__")
    rows = json.loads((tmp_path / f"{script}.json").read_text())["rows"]
    assert rows
    for row in rows:
        assert SCRIPTS[script] <= row.keys()
        numbers = [v for v in row.values() if isinstance(v, float)]
        assert numbers and all(map(math.isfinite, numbers))


def test_steps_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.set_default_dtype(torch.float32)
    script = EXPERIMENTS / "variational_fashion.py"
    options = ["--smoke", "--cost", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [script.name, *options])
    runpy.run_path(str(script), run_name="__main__")
    content = json.loads((tmp_path / "variational_cost.json").read_text())
    assert content["cost_over_map"].keys() == {"CNN", "PreactResNet-18"}
    assert all(r.keys() == WAYS.keys() for r in content["cost_over_map"].values())


def test_projections_keep_the_mass_and_are_turned_sums():
    matrix, image = radon_matrix(28, 4), torch.rand(28, 28)
    projections = (matrix @ image.flatten()).reshape(4, -1)
    torch.testing.assert_close(projections.sum(1), image.sum().expand(4))
    # Even sizes: columns fall halfway between detectors, or exactly on one.
    columns = projections[0]
    torch.testing.assert_close(columns[columns > 1e-9].sum(), image.sum())
    turned = (matrix @ image.rot90().flatten()).reshape(4, -1)
    assert min(
        float((turned[2] - other).abs().max())
        for other in (projections[0], projections[0].flip(0))
    ) < 1e-9  # fmt: skip


def test_baselines_have_the_objectives_they_are_named_for():
    x, y = torch.rand(3, 1, 28, 28), torch.tensor([0, 1, 2])
    vl, vi, point = (
        way(softplus_cnn(2), beta=0.5)
        for way in (VariationalLaplace, SampledWeights, PointEstimate)
    )
    for model in (vi, point):
        model.load_state_dict(vl.state_dict())
    with torch.no_grad():
        for log_sigma in vi.log_sigmas:
            log_sigma.fill_(-30.0)  # sampled weights are the mean
    terms = {"vl": vl.terms(x, y, 10), "vi": vi.terms(x, y, 10)}
    torch.testing.assert_close(terms["vi"].log_likelihood, terms["vl"].log_likelihood)
    torch.testing.assert_close(terms["vi"].kl, 0.5 * vi.kl() / 10)
    prior = torch.distributions.Normal
    logs = sum(
        (prior(0.0, s).log_prob(m) - prior(0.0, s).log_prob(torch.zeros(()))).sum()
        for m, s in zip(point.means, point.prior_scales, strict=True)
    )
    torch.testing.assert_close(point.terms(x, y, 10).kl, -0.5 * logs / 10)


# What was measured ------------------------------------------------------------------


def rows_of(name: str) -> list[dict]:
    return json.loads((EXPERIMENTS / "results" / f"{name}.json").read_text())["rows"]


def test_both_recommendations_beat_the_plain_evidence_on_every_net():
    rows = rows_of("evidence_normalised")
    seeds = {row["seed"] for row in rows}
    assert len(seeds) == 5
    found = {(row["seed"], row["evidence"], row["prior"]): row for row in rows}
    for seed in seeds:
        plain = found[seed, "network", "one"]
        both = found[seed, "linear optimum", "groups"]
        for place in ("inside", "gap"):
            assert both[place] > plain[place]


def test_the_evidence_makes_autoencoders_too_sure():
    """What docs/gotchas.md says, on every net that was trained."""
    rows = rows_of("evidence_autoencoder")
    seeds = {row["seed"] for row in rows}
    assert len(seeds) == 3
    found = {(row["seed"], row["way"]): row for row in rows}
    assert found.keys() == set(product(seeds, AUTOENCODER_WAYS))
    for seed in seeds:
        default = found[seed, "residual noise, prior 1"]
        best = found[seed, "gridsearch"]
        assert best["prior_precision"] < 0.1
        assert best["log_density"] > default["log_density"]
        for way in set(AUTOENCODER_WAYS) - {default["way"], best["way"]}:
            row = found[seed, way]
            assert row["prior_precision"] > 100
            assert row["log_density"] < default["log_density"] - 10
            assert row["auroc"] < default["auroc"] - 0.1


def test_reconstructions_were_judged_on_strokes_too():
    rows = rows_of("tomography")
    assert {row["way"] for row in rows} == {"linearised", "MC dropout"}
    assert len({row["image"] for row in rows}) == 10
    assert all(0 <= row["coverage_of_strokes"] <= 1 for row in rows)


def test_epochs_cost_what_the_docs_say():
    content = json.loads(
        (EXPERIMENTS / "results" / "variational_cost.json").read_text()
    )
    assert content["batch_size"] == 128
    default = inspect.signature(VariationalLaplace).parameters["penalty_samples"]
    for found in content["cost_over_map"].values():
        assert found[f"VL, {default.default} of a batch"] < 2
        assert 2.8 < found["VL"] < 3.6
        assert 1.05 < found["VI"] < 1.25
    ratios = content["cost_over_map"]["CNN"]
    assert round(5 * ratios["VL, 16 of a batch"] / ratios["VL"]) == 3  # fifths


def test_the_studies_over_beta_and_multiplier_are_complete():
    file = EXPERIMENTS / "results" / "variational_fashion.json"
    content = json.loads(file.read_text())
    assert (content["epochs"], content["batch_size"]) == (10, 128)
    rows = content["rows"]
    done = {(row["trained"], row["beta"], row["multiplier"]) for row in rows}
    assert done == set(planned(Plan()))
    betas, uncertain = (0.01, 0.1, 1.0), WAYS.keys() - {"MAP"}
    assert done >= set(product(WAYS, betas, [10.0]))
    assert done >= set(product(uncertain, [0.1], (1.0, 3.0, 10.0, 30.0)))
    predicted = {row["way"] for row in rows}
    assert {"VL (mean)", "VI (mean)", "VI (10 samples)", "MAP"} <= predicted


def test_all_ways_learn_as_well_as_the_docs_say():
    found = {(row["way"], row["beta"], row["multiplier"]): row["nll"]
             for row in rows_of("variational_fashion")}  # fmt: skip
    for (way, beta, multiplier), nll in found.items():
        behind = nll - found["MAP", beta, 10]
        if multiplier == 10 and way != "MAP":
            assert abs(behind) < 0.005 if beta < 1 else 0.03 < behind < 0.08
        if way == "VL (mean)":  # its penalty from some samples learns as well
            some = found["VL, 16 of a batch (mean)", beta, multiplier]
            assert abs(nll - some) < (0.007 if beta < 1 else 0.015)
