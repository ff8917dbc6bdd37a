"""The experiments' ways to train do what they say."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from comparing import fashion_autoencoder
from recipes import MUON_LR, RECIPES, BlockMuon, MuonAndAdam, NoisyInput, linear
from swapped import quick_autoencoder
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


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (8, 8)])
@pytest.mark.parametrize("side", [None, 4, 3])
def test_a_block_moves_as_a_matrix_of_its_own(shape: tuple[int, int], side: int | None):
    torch.manual_seed(0)
    gradient = torch.randn(shape)
    whole = nn.Parameter(torch.randn(shape))
    (moved,) = moved_by(BlockMuon([whole], 0.1, side), [whole], [gradient])
    across = int(shape[0] > shape[1])
    pieces = gradient.split(side or shape[across], across)
    params = [nn.Parameter(torch.zeros_like(piece)) for piece in pieces]

    def growth(rows: int, columns: int) -> float:
        return max(1, rows / columns) ** 0.5

    alone = torch.optim.Muon(
        [
            {"params": [param], "lr": 0.1 * growth(*shape) / growth(*param.shape)}
            for param in params
        ],
        weight_decay=0.0,
    )
    expected = torch.cat(moved_by(alone, params, list(pieces)), across)
    torch.testing.assert_close(moved, expected, rtol=1e-2, atol=1e-3)


def test_rates_of_blocks_follow_the_schedule():
    torch.manual_seed(0)
    matrix, gradient = nn.Parameter(torch.zeros(8, 20)), torch.randn(8, 20)
    optimizer = BlockMuon([matrix], MUON_LR, 4)
    (first,) = moved_by(optimizer, [matrix], [gradient])
    optimizer.param_groups[0]["lr"] = MUON_LR / 2
    (second,) = moved_by(optimizer, [matrix], [gradient])
    assert second.norm() / first.norm() == pytest.approx(0.5, rel=0.01)


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
    nets, losses, curvatures = [], [], []
    for make in (fashion_autoencoder, quick_autoencoder):
        torch.manual_seed(0)
        nets.append(make(16).double())
    x = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    for net in nets:
        losses.append((net(x) - x).square().sum())
        losses[-1].backward()
        curvatures += [
            diag_ggn(net, nn.MSELoss(), x, x, max_dense_dim=limit) for limit in (0, 128)
        ]
    torch.testing.assert_close(*losses)
    pairs = zip(*(net.parameters() for net in nets), strict=True)
    for usual, quick in pairs:
        torch.testing.assert_close(usual.grad, quick.grad)
    for usual, quick in zip(curvatures[:2], curvatures[2:], strict=True):
        for one, other in zip(usual.values(), quick.values(), strict=True):
            torch.testing.assert_close(one, other)
    large, small = map(_tanh_of_images, nets)
    assert 4 * small == large


def test_members_of_an_ensemble_are_plain_autoencoders_of_their_own(tmp_path: Path):
    zoo = Zoo(tmp_path)
    ensemble = zoo.model("ensemble", MUON)
    assert not ensemble.training and len(ensemble.members) == ensemble.n_networks
    for seed, member in enumerate(ensemble.members, start=MUON.seed):
        alone = zoo.model("autoencoder", replace(MUON, seed=seed)).net
        for one, other in zip(member.parameters(), alone.parameters(), strict=True):
            assert torch.equal(one, other)
    weights = [next(member.parameters()) for member in ensemble.members]
    assert not torch.equal(weights[0], weights[1])


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
    late = RECIPES["whole Muon-late"].settings(usual, 101)
    assert (late.warmup_steps, late.refresh_every) == (50, 4)
    assert late.alpha == usual.alpha
    assert (
        RECIPES["whole Muon-late"].settings(rare, 101).refresh_every
        == rare.refresh_every
    )
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
