"""The experiments' ways to train do what they say."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recipes import RECIPES, MuonAndAdam, NoisyInput, linear
from torch import nn
from trained_models import NETS, ONLINE, Setting, Zoo

from lae_backpack import LaplaceAE, OnlineSettings
from lae_backpack.testing import check_rule

MUON = Setting("digits", "small", epochs=1, recipe="Muon")


@pytest.fixture(autouse=True)
def single_precision():
    torch.set_default_dtype(torch.float32)


def test_each_parameter_is_moved_once_and_rates_fall_together():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 2)
    )
    params = list(net.parameters())
    optimizer = MuonAndAdam(params, 0.1)
    muon, adam = optimizer.param_groups
    assert [tuple(p.shape) for p in muon["params"]] == [(8, 144)]
    assert len(adam["params"]) == len(params) - 1
    rates = muon["lr"], adam["lr"]
    schedule = linear(optimizer, 4)
    net(torch.rand(2, 1, 8, 8)).square().sum().backward()
    before = [p.detach().clone() for p in params]
    optimizer.step()
    schedule.step()
    assert all(
        not torch.equal(old, new) for old, new in zip(before, params, strict=True)
    )
    assert (muon["lr"], adam["lr"]) == (0.75 * rates[0], 0.75 * rates[1])
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


def test_noise_is_there_in_training_only():
    x = torch.zeros(400, 50)
    layer = NoisyInput(0.2)
    assert layer(x).std().item() == pytest.approx(0.2, rel=0.05)
    assert torch.equal(layer.eval()(x), x)
    for module in (layer, NoisyInput(0.2).train()):
        check_rule(module, torch.randn(3, 4))


@pytest.mark.parametrize("name", ["autoencoder", "ensemble", "post hoc", "online"])
def test_trained_and_restored_models_have_no_noise_left(name: str, tmp_path: Path):
    zoo = Zoo(tmp_path)
    x = MUON.shaped(zoo.images("digits").test.x[:4])
    for _ in range(2):  # trained, then restored
        model = zoo.model(name, MUON)
        net = model.model if isinstance(model, LaplaceAE) else model
        assert any(isinstance(module, NoisyInput) for module in net.modules())
        assert not any(module.training for module in net.modules())
        first, again = (
            model.samples(x, 2, generator=torch.Generator().manual_seed(0))
            for _ in range(2)
        )
        assert torch.equal(first, again)


def test_the_usual_recipe_is_that_of_fit_online(tmp_path: Path):
    zoo, setting = Zoo(tmp_path), Setting("digits", "small", epochs=2)
    model = zoo.model("online", setting)
    torch.manual_seed(0)
    la = LaplaceAE(NETS["small"](), **ONLINE["online"][0])
    la.fit_online(zoo.loader(setting), 2, progress_bar=False)
    torch.testing.assert_close(la.mean, model.mean)
    torch.testing.assert_close(la.H, model.H)


def test_a_late_recipe_samples_later_and_looks_less_often():
    usual, rare = ONLINE["online"][1], ONLINE["online exact"][1]
    late = RECIPES["Muon-late"].settings(usual, 101)
    assert (late.warmup_steps, late.refresh_every) == (50, 4)
    assert late.alpha == usual.alpha
    assert RECIPES["Muon-late"].settings(rare, 101).refresh_every == rare.refresh_every
    assert RECIPES["Muon"].settings(rare, 101) == rare


def test_a_setting_says_how_often_to_look(tmp_path: Path, monkeypatch):
    zoo, seen = Zoo(tmp_path), []

    def fit_online(la: LaplaceAE, *args, settings: OnlineSettings, **kwargs) -> None:
        seen.append(settings.refresh_every)
        la.fit(zoo.loader(MUON))

    monkeypatch.setattr(LaplaceAE, "fit_online", fit_online)
    for every in (None, 3, 7):
        zoo.model("online exact", replace(MUON, look_every=every))
    assert seen == [ONLINE["online exact"][1].refresh_every, 3, 7]


def test_models_of_other_rates_and_recipes_are_kept_apart(tmp_path: Path):
    zoo = Zoo(tmp_path)
    usual = {recipe: Setting("digits", "small", 1, recipe=recipe) for recipe in RECIPES}
    for recipe, setting in usual.items():
        for lr in (None, RECIPES[recipe].lr, 0.5):
            named = Setting("digits", "small", 1, 0, lr, recipe)
            zoo.model("autoencoder", named)
        assert setting.how.lr == RECIPES[recipe].lr
    assert len(list(tmp_path.iterdir())) == 2 * len(RECIPES)
