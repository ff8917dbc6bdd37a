"""The baselines that VLAE is compared with, its experiments and its tutorial."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from latent_baselines import VAE, HouseholderVAE, SemiAmortisedVAE
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.func import functional_call

from tests.test_latent import mlp

EXAMPLES = Path(__file__).parents[1] / "examples"


def parts() -> tuple[nn.Sequential, nn.Sequential, Tensor]:
    torch.manual_seed(1)
    return mlp(nn.ReLU, 6, 5, 6), mlp(nn.ReLU, 3, 5, 6), torch.rand(4, 6)


def test_householder_flow_is_a_rotated_gaussian():
    encoder, decoder, x = parts()
    model = HouseholderVAE(encoder, decoder, n_flows=3)
    mean, log_variance = encoder(x).chunk(2, dim=1)
    hidden, rotation = encoder[:-1](x), torch.eye(3)
    for flow in model.flows:
        hidden = flow(hidden)
        outer = hidden[:, :, None] * hidden[:, None]
        squares = hidden.square().sum(1)[:, None, None]
        rotation = (torch.eye(3) - 2 * outer / squares) @ rotation
    expected = rotation @ torch.diag_embed(log_variance.exp()) @ rotation.mT
    q = model.posterior(x)
    torch.testing.assert_close(q.mean, (rotation @ mean[:, :, None])[:, :, 0])
    torch.testing.assert_close(q.covariance_matrix, expected)
    assert (q.scale_tril.diagonal(dim1=1, dim2=2) > 0).all()


def test_semi_amortised_steps_go_up():
    encoder, decoder, x = parts()
    bounds = {}
    for n_steps in (0, 30):
        model = SemiAmortisedVAE(encoder, decoder, sigma=0.3, n_steps=n_steps)
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        bounds[n_steps] = model.elbo(x, 2000, generator)
    assert (bounds[30] > bounds[0] + 0.5).all()


class Bound(nn.Module):
    """The ELBO as a forward pass, always with the same noise."""

    def __init__(self, model: SemiAmortisedVAE):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return self.model.elbo(x)


def test_semi_amortised_gradients_by_finite_differences():
    encoder, decoder, x = parts()
    model = SemiAmortisedVAE(encoder, decoder, sigma=0.5, n_steps=2)
    name = "model.encoder.0.weight"

    def elbo(value: Tensor) -> Tensor:
        return functional_call(Bound(model), {name: value}, (x,))

    weight = encoder[0].weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(elbo, weight)


def test_semi_amortised_paths_need_no_gradients():
    encoder, decoder, x = parts()
    model = SemiAmortisedVAE(encoder, decoder, n_steps=3)
    torch.manual_seed(0)
    with_graph = model.path(x)
    torch.manual_seed(0)
    with torch.no_grad():
        without = model.path(x)
    assert len(with_graph) == len(without) == 4
    torch.testing.assert_close(with_graph[-1], without[-1])
    assert with_graph[-1].requires_grad and not without[-1].requires_grad


@pytest.mark.parametrize("model", [VAE, HouseholderVAE])
def test_importance_sampling_finds_the_likelihood(model: type[VAE]):
    encoder, _, x = parts()
    decoder = nn.Linear(3, 6)
    weight = decoder.weight.detach()
    covariance = weight @ weight.T + 0.8**2 * torch.eye(6)
    exact = MultivariateNormal(decoder.bias.detach(), covariance).log_prob(x)
    found = model(encoder, decoder, sigma=0.8).log_likelihood(x, 4000)
    torch.testing.assert_close(found, exact, rtol=0, atol=0.1)


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., str]:
    """Runs a script in this process, which has imported the slow parts already."""

    def run_script(script: str, *args: str) -> str:
        torch.set_default_dtype(torch.float32)
        monkeypatch.setattr(sys, "argv", [script, *args])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return run_script


def test_the_experiment_runs_and_resumes(run, tmp_path: Path):
    command = ("experiments/vlae.py", "--smoke", "--out", str(tmp_path))
    run(*command, "--datasets", "mnist", "binary")
    rows = json.loads((tmp_path / "vlae.json").read_text())["rows"]
    assert len(rows) == 8
    assert all(len(row["validation_elbo_by_epoch"]) == 3 for row in rows)
    assert [r["lowering_guarded"] for r in rows if r["model"] == "vlae"] == [0, 0]
    assert (tmp_path / "vlae.png").stat().st_size > 10_000
    assert run(*command, "--datasets", "mnist", "binary") == ""


def test_gradients_clipped_to_nothing_teach_nothing(run, tmp_path: Path):
    command = ("experiments/vlae.py", "--smoke", "--out", str(tmp_path))
    command += ("--datasets", "binary", "--models", "vae")
    spreads = {}
    for name, clip in (("vlae", ()), ("clipped_vlae", ("--clip", "1e-12"))):
        run(*command, *clip)
        (row,) = json.loads((tmp_path / f"{name}.json").read_text())["rows"]
        curve = row["validation_elbo_by_epoch"]
        spreads[row.get("clip")] = max(curve) - min(curve)
    assert spreads[1e-12] < 0.01 < 1 < spreads[None]


def test_the_figures_are_drawn(run, tmp_path: Path):
    run("experiments/vlae_figures.py", "--smoke", "--out", str(tmp_path))
    for name in ("paths_vlae.png", "covariances_vlae.png"):
        assert (tmp_path / name).stat().st_size > 10_000
    found = json.loads((tmp_path / "figures_vlae.json").read_text())["mean_correlation"]
    assert found["vae"] == found["savae"] == 0 < min(found["hf"], found["vlae"])


def test_the_cost_is_measured(run, tmp_path: Path):
    printed = run("experiments/vlae_cost.py", "--smoke", "--out", str(tmp_path))
    rows = json.loads((tmp_path / "vlae_cost.json").read_text())["rows"]
    assert len(rows) == 2 == len(printed.strip().splitlines())


def test_the_tutorial_proves_itself(run):
    assert "bound with the full covariance" in run("tutorials/07_latent_codes.py")
