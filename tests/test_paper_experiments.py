"""The paper's experiments run and are resumed; their models and scores are right."""

import json
import math
import runpy
import sys
from pathlib import Path

import paper_set
import pytest
import torch
from baselines import BASELINES, DropoutAutoEncoder, Ensemble
from experiment_images import Part
from few_labels import labelled_rows
from learned_variances import VAE, LearnedVariance
from measuring import environment
from ood_figures import TITLES, TRUE_RATES, draw_curves, to_draw
from ood_scores import freeze_dead_pixels
from resuming import ABOUT
from table2 import PRIORS, Reconstruction, prior_by_validation
from torch.distributions import Normal, kl_divergence
from trained_models import Zoo, small_autoencoder

from lae_backpack import LaplaceAE
from lae_backpack.downstream.models import Encodes, KnowsDensity, Reconstructs
from lae_backpack.downstream.ood import detection

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    "table2": ({"way", "structure", "error_of_networks", "log_density_unit_noise"}, 19),
    "longer_training": ({"model", "train", "validation", "test"}, 4),
    "ood_scores": ({"model", "score", "auroc", "auprc", "fpr80"}, 90),
    "imputing": ({"model", "accuracy", "ece"}, 9),
    "few_labels": ({"model", "task", "accuracy"}, 6 * (3 + 5)),
    "latent_maps": ({"model", "correlation_with_distance"}, 3),
    "ablations": ({"choice", "way", "error_of_networks", "auroc_output"}, 15),
}


def run(script: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    torch.set_default_dtype(torch.float32)
    path = ROOT / "examples" / "experiments" / f"{script}.py"
    monkeypatch.setattr(sys, "argv", [path.name, "--smoke", "--out", str(out)])
    precision = torch.get_float32_matmul_precision()
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_float32_matmul_precision(precision)
    return json.loads((out / f"{script}.json").read_text())["rows"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("script", SCRIPTS)
def test_experiment_runs_and_resumes(script: str, out: Path, monkeypatch, capsys):
    rows = run(script, out, monkeypatch)
    names, count = SCRIPTS[script]
    assert len(rows) == count
    for row in rows:
        assert names | {"seed", "seconds", "epochs", *ABOUT} <= row.keys()
        numbers = [v for v in row.values() if isinstance(v, float)]
        assert all(map(math.isfinite, numbers))
    figure = out / f"{script}.png"
    assert figure.stat().st_size > 10_000
    assert capsys.readouterr().out
    assert run(script, out, monkeypatch) == rows
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_sample_as_downstream_wants(name: str):
    model = BASELINES[name](small_autoencoder)
    x = torch.rand(4, 784)

    def draw(seed: int, n_samples: int = 6) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.samples(x, n_samples, generator=generator)

    assert isinstance(model, Reconstructs)
    torch.testing.assert_close(draw(0), draw(0))
    varies = not torch.allclose(draw(0)[0], draw(0)[1])
    assert varies == (model.n_networks > 1)
    assert torch.allclose(draw(0), draw(1)) == (model.n_networks == 1)
    if isinstance(model, LearnedVariance):
        assert isinstance(model, KnowsDensity)
        own = model.latent_samples(x, 3, generator=torch.Generator().manual_seed(0))
        drawn = [model.pixels(codes) for codes in own]
        means = torch.stack([pixels.mean for pixels in drawn])
        learned = torch.stack([pixels.variance for pixels in drawn])
        whole = model.pixel_variance(x, 3, torch.Generator().manual_seed(0))
        torch.testing.assert_close(whole, means.var(0) + learned.mean(0))
    assert isinstance(model, Encodes) != isinstance(model, Ensemble)


def test_samples_and_codes_belong_together():
    model, x = VAE(small_autoencoder), torch.rand(4, 784)
    drawn = [
        ask(x, 3, generator=torch.Generator().manual_seed(1))
        for ask in (model.samples, model.latent_samples, model.log_densities)
    ]
    for image, code, log_density in zip(*drawn, strict=True):
        torch.testing.assert_close(model.net.decoder(code), image)
        expected = model.pixels(code).log_prob(x).sum(1)
        torch.testing.assert_close(log_density, expected)


def test_the_loss_of_a_vae_is_minus_the_bound():
    model, x = VAE(small_autoencoder), torch.rand(3, 784)
    torch.manual_seed(1)
    loss = model.loss(x)
    torch.manual_seed(1)
    q = Normal(model.net.encoder(x), (0.5 * model.spread.encoder(x)).exp())
    codes = q.mean + q.stddev * torch.randn_like(q.mean)
    kl = kl_divergence(q, Normal(0.0, 1.0)).sum()
    bound = model.pixels(codes).log_prob(x).sum() - kl
    torch.testing.assert_close(loss, -bound / 3)


def test_a_queue_ends_at_what_fails(tmp_path: Path, monkeypatch):
    (tmp_path / "good.py").write_text("import sys; print(sys.argv[1:])")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(paper_set, "HERE", tmp_path)
    log, good = tmp_path / "log", "good.py --only 'online exact'"
    assert paper_set.run((good, good), ["--smoke"], log) == 0
    assert paper_set.run((good, "bad.py", good), ["--smoke"], log) == 2
    assert log.read_text().splitlines() == 3 * ["['--only', 'online exact', '--smoke']"]


def test_commands_can_be_pasted_and_name_no_folder_of_this_machine(monkeypatch):
    given = ["--nets", "conv/4", "--only", "online exact", "--out", "/tmp/a"]
    monkeypatch.setattr(sys, "argv", ["here/table2.py", *given, "--cache=~/b", "../c"])
    words = "python table2.py --nets conv/4 --only 'online exact' --out ... ... ..."
    assert environment()["command"] == words


def test_an_ensemble_asks_each_member_once():
    model, x = Ensemble(small_autoencoder), torch.rand(2, 784)
    drawn = model.samples(x, 5)
    own = torch.stack([member(x) for member in model.members])
    distance = torch.cdist(drawn.flatten(1), own.flatten(1))
    assert sorted(distance.argmin(1).tolist()) == [0, 1, 2, 3, 4]


def test_dropout_keeps_the_mean():
    torch.manual_seed(0)
    model = DropoutAutoEncoder(small_autoencoder)
    kept = model.net.encoder[1](torch.ones(100, 100))
    assert kept.unique().tolist() == [0, 1.25]
    assert abs(kept.mean().item() - 1) < 0.02


def test_frozen_pixels_do_not_vary():
    x = torch.rand(20, 784)
    x[:, :10] = 0
    la = LaplaceAE(small_autoencoder())
    la.fit([x])
    assert freeze_dead_pixels(la, x) == 10
    scale = la.posterior_scale[: 32 * 784].view(32, 784)
    assert (scale[:, :10] < 1e-12).all() and (scale[:, 10:] > 1e-3).all()
    lit = torch.zeros(1, 784)
    lit[:, :10] = 1
    first = la.model.encoder[0]
    for weights in la.sampler().draws(3):
        drawn = weights["encoder.0.weight"] - first.weight
        assert (drawn @ lit[0]).abs().max() < 1e-12 < drawn.abs().max()


def test_log_density_is_that_of_the_mixture():
    torch.manual_seed(0)
    model, x = Ensemble(small_autoencoder), torch.rand(3, 784)
    found = Reconstruction(model, x, 5, seed=0).log_density(0.5)
    logs = [Normal(member(x), 0.5).log_prob(x).sum(1) for member in model.members]
    expected = (torch.stack(logs).logsumexp(0) - math.log(5)).mean().item()
    assert found == pytest.approx(expected)


def test_the_prior_by_validation_has_the_largest_density():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    la, x = LaplaceAE(small_autoencoder(), sigma_noise=0.5), torch.rand(8, 784)
    la.fit([x])

    def density(prior: float) -> float:
        la.prior_precision = prior
        return Reconstruction(la, x, 20, seed=0).log_density(0.5)

    found = prior_by_validation(la, x, seed=0)
    others = [density(prior) for prior in PRIORS]
    assert density(found) == max(others) > min(others)


def test_curves_and_spreads_are_those_of_the_scores():
    inside, outside = torch.rand(1000), torch.rand(1000) + 0.3
    row, found = to_draw(inside, outside), detection(inside, outside)
    by_rate = dict(zip(TRUE_RATES.tolist(), row["false_rates"], strict=True))
    for rate, false in ((0.8, found.fpr80), (0.95, found.fpr95)):
        (own,) = (f for r, f in by_rate.items() if abs(r - rate) < 1e-6)
        assert own == pytest.approx(false, abs=1e-5) and 0 < own < 1
    for part, scores in (("inside", inside), ("outside", outside)):
        low, _, middle, _, high = row[f"quantiles_{part}"]
        assert middle == pytest.approx(scores.median().item(), abs=0.01)
        assert low < scores.sort().values[60] and high > scores.sort().values[-60]


def test_curves_are_drawn_where_models_are_compared(tmp_path: Path):
    about = {"data": "mnist", "outliers": "fashion-mnist", "net": "linear", "seed": 0}
    scores = torch.rand(50) + 1, torch.rand(50) + 2
    rows = [
        {"model": model, "score": score, "recipe": recipe, **about, **to_draw(*scores)}
        for model, recipe in (("VAE", "Adam"), ("online", "Adam"), ("online", "Muon"))
        for score in TITLES
    ]
    elsewhere = [{**row, "data": "fashion-mnist"} for row in rows]
    del elsewhere[0]["false_rates"]  # one model's are not known
    draw_curves(rows + elsewhere, ("VAE", "online"), tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name == "ood_curves-mnist-linear-0.png"
    assert file.stat().st_size > 10_000


def test_images_by_lot_are_always_the_same_and_from_everywhere():
    whole = Part(torch.arange(100.0), torch.arange(100))
    some = whole.by_lot(10)
    assert torch.equal(some.x, whole.by_lot(10).x) and some.labels.max() > 10
    assert torch.equal(some.x, some.labels.float()) and len(some.x.unique()) == 10
    assert len(whole.by_lot(1000).x.unique()) == 100


def test_labels_are_of_every_class():
    labels = torch.arange(100) % 10
    rows = labelled_rows(labels, 3, torch.Generator().manual_seed(0))
    assert (labels[rows].bincount() == 3).all() and len(rows.unique()) == 30


def test_parts_of_images_do_not_overlap():
    torch.set_default_dtype(torch.float32)
    images = Zoo().images("digits")
    parts = [images.train.x, images.validation.x, images.test.x]
    assert [len(part) for part in parts] == [512, 256, 128]
    assert all(part.shape[1:] == (1, 28, 28) for part in parts)
    assert images.train.x.max() == 1 and images.train.x.min() == 0
