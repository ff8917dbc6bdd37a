"""The experiments' ways to train do what they say."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import trained_models
from baselines import BASELINES
from comparing import fashion_autoencoder
from muon import MuonAndAdam
from recipes import RECIPES, NoisyInput, linear
from swapped import quickened
from torch import nn
from trained_models import NETS, ONLINE, Setting, Zoo

from lae_backpack import LaplaceAE, OnlineSettings, diag_ggn
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


def moved_by(optimizer: torch.optim.Optimizer, matrices: list, gradients: list):
    before = [matrix.detach().clone() for matrix in matrices]
    for matrix, gradient in zip(matrices, gradients, strict=True):
        matrix.grad = gradient.clone()
    optimizer.step()
    return [(m - b).detach() for m, b in zip(matrices, before, strict=True)]


def _tanh_of_images(net: nn.Module) -> int:
    """Count what hyperbolic tangents of images work on."""
    seen = []
    hooks = [
        module.register_forward_hook(lambda *args: seen.append(args[2]))
        for module in net.modules()
        if isinstance(module, nn.Tanh)
    ]
    net(torch.rand(1, 1, 28, 28, dtype=torch.float64))
    for hook in hooks:
        hook.remove()
    return sum(out.numel() for out in seen if out.dim() == 4)


def test_swapped_layers_compute_the_same():
    usual, quick = (fashion_autoencoder(16).double() for _ in range(2))
    quick.load_state_dict(usual.state_dict())
    quick = quickened(quick)
    x = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    nets = usual, quick
    losses = [(net(x) - x).square().sum() for net in nets]
    torch.autograd.backward(losses)
    torch.testing.assert_close(*losses)
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    for limit in (0, 128):
        found = [diag_ggn(net, nn.MSELoss(), x, x, max_dense_dim=limit) for net in nets]
        for one, other in zip(*(each.values() for each in found), strict=True):
            torch.testing.assert_close(one, other)
    assert _tanh_of_images(usual) == 4 * _tanh_of_images(quick)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Tanh MaxPool2d", "MaxPool2d Tanh"),
        ("Upsample Tanh MaxPool2d", "Tanh Upsample MaxPool2d"),
        ("Tanh Tanh MaxPool2d", "MaxPool2d Tanh Tanh"),
        ("Tanh Dropout MaxPool2d", "Tanh Dropout MaxPool2d"),
        ("Smooth Tanh", "Smooth Tanh"),
    ],
)
def test_only_what_commutes_is_swapped(before: str, after: str):
    layers = {
        "Tanh": nn.Tanh,
        "MaxPool2d": lambda: nn.MaxPool2d(2),
        "Dropout": nn.Dropout,
        "Upsample": lambda: nn.Upsample(scale_factor=2),
        "Smooth": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    }
    made = nn.Sequential(*(layers[name]() for name in before.split())).eval()
    x, model = torch.rand(1, 1, 4, 4), nn.Module()
    model.chain = made
    quick = quickened(model).chain
    torch.testing.assert_close(quick(x), made(x))
    kinds = [type(layer).__name__ for layer in quick]
    assert kinds == after.replace("Smooth", "Upsample").split()


def test_dropout_stays_where_it_is():
    convolutional = replace(MUON, net="conv/16")
    x = torch.rand(2, 1, 28, 28)
    usual = BASELINES["MC dropout"](convolutional.untrained)
    quick = trained_models._untrained("MC dropout", convolutional.untrained)
    quick.net.load_state_dict(
        dict(zip(quick.net.state_dict(), usual.net.state_dict().values(), strict=True))
    )
    drawn = [
        model.samples(x, 2, generator=torch.Generator().manual_seed(0))
        for model in (usual.eval(), quick.eval())
    ]
    torch.testing.assert_close(*drawn)


def test_members_of_an_ensemble_are_plain_autoencoders_of_their_own(tmp_path: Path):
    zoo = Zoo(tmp_path)
    ensemble = zoo.model("ensemble", MUON)
    assert not ensemble.training and len(ensemble.members) == ensemble.n_networks
    for seed, member in enumerate(ensemble.members):
        alone = zoo.model("autoencoder", replace(MUON, seed=seed)).net
        for one, other in zip(member.parameters(), alone.parameters(), strict=True):
            assert torch.equal(one, other)
    another = zoo.model("ensemble", replace(MUON, seed=1))
    members = [*ensemble.members, *another.members]
    sums = {next(member.parameters()).sum().item() for member in members}
    assert len(sums) == len(members)


def test_a_run_goes_on_from_the_optimizers_state():
    torch.manual_seed(0)
    start = [torch.randn(6, 8), torch.randn(8)]
    steps = [[torch.randn_like(param) for param in start] for _ in range(3)]

    def made() -> tuple[list[nn.Parameter], MuonAndAdam]:
        params = [nn.Parameter(value.clone()) for value in start]
        return params, MuonAndAdam(params, 0.1)

    params, optimizer = made()
    for gradients in steps[:2]:
        moved_by(optimizer, params, gradients)
    others, resumed = made()
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for group in resumed.param_groups:
        group["lr"] /= 2  # is heard by the parts
    for group in optimizer.param_groups:
        group["lr"] /= 2
    for one, other in zip(
        moved_by(optimizer, params, steps[2]),
        moved_by(resumed, others, steps[2]),
        strict=True,
    ):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


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
