"""Metrics against explicit Jacobians, and ways around holes in the data."""

import functools
import importlib.util
import math
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.func import functional_call

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.downstream import geometry
from lae_backpack.downstream.geometry import LatentManifold
from lae_backpack.downstream.paths import way_by_neighbours
from lae_backpack.downstream.support import Support
from lae_backpack.posterior import chunks
from tests.fakes import fitted, seeded

stochman = pytest.importorskip("stochman")


def decoders(la: LaplaceAE, n_samples: int) -> list:
    """The networks that a manifold with the same generator has."""
    found = []
    for weights in la.sampler().draws(n_samples, seeded()):
        own = {
            name.removeprefix("decoder."): weight.clone()
            for name, weight in weights.items()
            if name.startswith("decoder.")
        }

        def decode(z: Tensor, own=own) -> Tensor:
            image = functional_call(la.model.decoder, own, (z,)).flatten(1)
            return image.sigmoid() if la.bernoulli else image

        found.append(decode)
    return found


@pytest.mark.parametrize("likelihood", ["regression", "bernoulli"])
def test_expected_metric_of_explicit_jacobians(likelihood: str):
    la, _ = fitted(likelihood)
    points = torch.randn(4, 2)
    found = [
        torch.stack([jacobian(decode, z[None])[0, :, 0] for z in points])
        for decode in decoders(la, 6)
    ]
    each = torch.stack(found)  # [S, N, D, K]
    expected = (each.mT @ each).mean(0)
    manifold = LatentManifold(la, 6, generator=seeded())
    torch.testing.assert_close(manifold.metric(points), expected)
    torch.testing.assert_close(manifold.metric(points[0]), expected[:1])
    mean = each.mean(0)
    of_mean = mean.mT @ mean
    assert (expected - of_mean).abs().max() > 1e-3
    for weight in (0.0, 10.0):
        manifold = LatentManifold(la, 6, None, weight, generator=seeded())
        true = of_mean + weight * (expected - of_mean)
        torch.testing.assert_close(manifold.metric(points), true)


def test_energy_and_length_by_the_decoders_own_steps():
    la, _ = fitted()
    curves = torch.randn(3, 5, 2)
    images = torch.stack([
        decode(curves.flatten(0, 1)).view(3, 5, -1) for decode in decoders(la, 4)
    ])
    squares = images.diff(dim=2).square().sum(-1).mean(0)  # [B, T - 1]
    manifold = LatentManifold(la, 4, generator=seeded())
    torch.testing.assert_close(manifold.curve_length(curves), squares.sqrt().sum(1))
    energy = 4 * squares.sum(1)
    torch.testing.assert_close(manifold.curve_energy(curves), energy.sum())
    torch.testing.assert_close(manifold.curve_energy(curves, None), energy)
    one = manifold.curve_length(curves[0])
    torch.testing.assert_close(one, squares[:1].sqrt().sum(1))
    assert curves.shape == (3, 5, 2)  # stochman's own would have changed it


@pytest.mark.parametrize("weight", [1.0, 5.0])
@pytest.mark.parametrize("with_codes", [False, True])
def test_the_length_is_the_integral_of_the_metric(weight: float, with_codes: bool):
    la, x = fitted()
    codes = la.model.encoder(x).detach() if with_codes else None
    manifold = LatentManifold(la, 5, codes, weight, generator=seeded())
    times = torch.linspace(0, 1, 2001)
    curve = torch.stack((times, (3 * times).sin()), 1)
    steps, middle = curve.diff(dim=0), (curve[1:] + curve[:-1]) / 2
    speed = manifold.inner(middle, steps, steps).sqrt()  # stochman's, by our metric
    torch.testing.assert_close(
        manifold.curve_length(curve)[0], speed.sum(), rtol=1e-5, atol=0
    )


def test_the_metric_has_gradients():
    la, x = fitted()
    manifold = LatentManifold(la, 3, la.model.encoder(x), generator=seeded())
    points = torch.randn(2, 2, requires_grad=True)
    assert torch.autograd.gradcheck(manifold.metric, (points,))


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch):
    la, _ = fitted()
    manifold = LatentManifold(la, 5, generator=seeded())
    points = torch.randn(7, 2)
    lines = torch.randn(7, 3, 2)
    metric, length = manifold.metric(points), manifold.curve_length(lines)
    monkeypatch.setattr(chunks, "AUTOMATIC_BYTES", 8 * 5 * 12 * 6)
    torch.testing.assert_close(manifold.metric(points), metric)
    torch.testing.assert_close(manifold.curve_length(lines), length)


def test_the_model_and_the_manifold_leave_each_other_alone():
    la, _ = fitted()
    la.model.train()
    manifold = LatentManifold(la, 3, generator=seeded())
    points = torch.randn(3, 2)
    before = manifold.metric(points)
    assert all(p.requires_grad for p in la.model.parameters())
    assert all(module.training for module in la.model.modules())
    with torch.no_grad():
        for parameter in la.model.parameters():
            parameter.mul_(2)
    la.mean = 2 * la.mean
    assert torch.equal(manifold.metric(points), before)


def test_a_frozen_decoder_has_the_metric_of_one_network():
    la, x = fitted()
    la.model.decoder.requires_grad_(False)
    la = LaplaceAE(la.model)
    la.fit(x.split(8))
    points = torch.randn(3, 2)
    each = torch.stack([
        jacobian(la.model.decoder, z[None]).view(12, 2) for z in points
    ])
    metric = LatentManifold(la, 3).metric(points)
    torch.testing.assert_close(metric, each.mT @ each)


@functools.cache
def ring(slope: float) -> tuple[LaplaceAE, Tensor, Tensor, Tensor]:
    """A LaplaceAE of a ring on a cone, its codes, and two of them on opposite sides."""
    generator = seeded(0)
    torch.manual_seed(0)
    angle = 2 * math.pi * torch.rand(300, generator=generator)
    radius = 0.8 + 0.4 * torch.rand(300, generator=generator)
    ring = radius * torch.stack((angle.cos(), angle.sin(), torch.full((300,), slope)))
    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]
    x = ring.T @ turn[:3] + 0.02 * torch.randn(300, 8, generator=generator)
    net = AutoEncoder(
        nn.Sequential(nn.Linear(8, 32), nn.Softplus(), nn.Linear(32, 2)),
        nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 8)),
    )
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(600):
        optimiser.zero_grad()
        (net(x) - x).square().sum(1).mean().backward()
        optimiser.step()
    la = LaplaceAE(net)
    la.fit(x.split(100))
    codes = net.encoder(x).detach()
    return la, codes, codes[angle.argmin()], codes[(angle - math.pi).abs().argmin()]


def farthest(way: Tensor, codes: Tensor) -> float:
    return float(torch.cdist(way, codes).min(1).values.max())


def straight(a: Tensor, b: Tensor, n_points: int = 30) -> Tensor:
    return torch.lerp(a, b, torch.linspace(0, 1, n_points)[:, None])


@pytest.mark.parametrize("with_codes", [False, True])
def test_on_a_steep_cone_the_shortest_way_goes_around(with_codes: bool):
    la, codes, a, b = ring(slope=3.0)
    given = codes[:150] if with_codes else None
    manifold = LatentManifold(la, 15, given, generator=seeded())
    way, line = manifold.shortest_path(a, b), straight(a, b)
    assert way.shape == (30, 2)
    torch.testing.assert_close(way[[0, -1]], torch.stack((a, b)))
    assert manifold.curve_length(way) < 0.9 * manifold.curve_length(line)
    assert farthest(way, codes) < 0.5 * farthest(line, codes)


def test_codes_of_data_keep_ways_out_of_a_flat_hole():
    la, codes, a, b = ring(slope=0.0)
    line = straight(a, b)
    without = LatentManifold(la, 15, generator=seeded())
    # The decoder is flat there and sure of it: nothing but data can say that it is not.
    assert without.curve_length(without.shortest_path(a, b)) > (
        0.98 * without.curve_length(line)
    )
    manifold = LatentManifold(la, 15, codes[:150], generator=seeded())
    way = manifold.shortest_path(a, b)
    assert manifold.curve_length(way) < 0.8 * manifold.curve_length(line)
    assert farthest(way, codes) < 0.6 * farthest(line, codes)


def test_the_way_along_codes_is_a_start(monkeypatch: pytest.MonkeyPatch):
    # Nothing is minimised, so that what comes out is the better start.
    monkeypatch.setattr(geometry, "geodesic_minimizing_energy", lambda *_: True)
    angles = torch.arange(300) * math.pi / 150
    codes = torch.stack((angles.cos(), angles.sin()), 1)
    net = AutoEncoder(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    net.decoder.weight.copy_(torch.eye(2))
    la = LaplaceAE(net)
    la.fit([codes])
    manifold = LatentManifold(la, 2, codes, wall=10.0)
    way = manifold.shortest_path(codes[0], codes[150])
    assert farthest(way, codes) < 0.3  # the middle is 1 away


def test_it_is_a_manifold_of_stochman():
    la, codes, a, b = ring(slope=3.0)
    manifold = LatentManifold(la, 5, generator=seeded())
    assert isinstance(manifold, stochman.manifold.Manifold)
    curve, _ = manifold.connecting_geodesic(a, b)
    ends = curve(torch.tensor([0.0, 1.0])).detach()
    torch.testing.assert_close(ends, torch.stack((a, b)))
    volume = manifold.metric(codes[:3]).det().sqrt()
    torch.testing.assert_close(manifold.volume(codes[:3]), volume)


def test_close_ends_have_the_straight_way():
    la, codes, a, _ = ring(slope=3.0)
    manifold = LatentManifold(la, 5, generator=seeded())
    way = manifold.shortest_path(a, a + 1e-3, n_points=5)
    torch.testing.assert_close(way, straight(a, a + 1e-3, 5), rtol=0, atol=1e-4)


def test_float32():
    la, x = fitted()
    la = LaplaceAE(la.model.float())
    la.fit(x.float().split(8))
    codes = la.model.encoder(x.float()).detach()
    manifold = LatentManifold(la, 3, codes)
    assert manifold.metric(codes).dtype == torch.float32
    assert manifold.shortest_path(codes[0], codes[1]).dtype == torch.float32


def test_ways_by_neighbours_are_the_shortest():
    """On a square's border, with the inside forbidden."""
    side = torch.linspace(-1, 1, 11)
    edges = [torch.stack((side, torch.full((11,), end)), 1) for end in (-1.0, 1.0)]
    nodes = torch.cat([*edges, *(e.flip(1) for e in edges)]).unique(dim=0)

    def length(curves: Tensor) -> Tensor:
        inside = (curves.abs().amax(-1) < 0.95).any(1)
        return curves.diff(dim=1).norm(dim=-1).sum(1) + 100 * inside

    a, b = torch.tensor([-1.0, -0.5]), torch.tensor([1.0, -0.5])
    way = way_by_neighbours(a, b, nodes, length, n_neighbours=4)
    assert torch.equal(way[0], a) and torch.equal(way[-1], b)
    assert length(way[None]).item() < 3.01  # down, along and up; corners may be cut
    assert way[:, 1].max() < -0.4
    alone = way_by_neighbours(a, b, a[None] + 50, length)
    assert torch.equal(alone, torch.stack((a, b)))


def test_heights_by_hand():
    codes = torch.tensor([[0.0], [1.0], [2.0]])
    support = Support(codes, 2.0, n_neighbours=1)  # neighbours are 1 apart
    count = 1 + math.exp(-0.5) + math.exp(-2)
    true = torch.tensor([2 / math.sqrt(1 + count), 2.0])
    torch.testing.assert_close(support(torch.tensor([[0.0], [99.0]])), true)


def test_without_stochman_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "stochman"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stochman", None)
    assert geometry.__file__ is not None
    spec = importlib.util.spec_from_file_location("bare_geometry", geometry.__file__)
    assert spec is not None and spec.loader is not None
    bare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bare)
    la, _ = fitted()
    with pytest.raises(ImportError, match=r"pip install lae-backpack\[geometry\]"):
        bare.LatentManifold(la)


def test_bad_input():
    la, _ = fitted()
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        LatentManifold(la, 0)
    with pytest.raises(ValueError, match="variance_weight must be finite and at least"):
        LatentManifold(la, 2, variance_weight=-1.0)
    with pytest.raises(ValueError, match="wall must be finite"):
        LatentManifold(la, 2, wall=math.nan)
    for codes in (torch.zeros(3), torch.zeros(1, 2), torch.full((3, 2), math.nan)):
        with pytest.raises(ValueError, match=r"codes must be finite and \[C, K\]"):
            LatentManifold(la, 2, codes)
    manifold = LatentManifold(la, 2)
    for points in (torch.zeros(1, 2, 2), torch.zeros(0, 2)):
        with pytest.raises(ValueError, match=r"points must be \[N, K\] codes"):
            manifold.metric(points)
    with pytest.raises(ValueError, match="a and b must be vectors of one size"):
        manifold.shortest_path(torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="a and b must be vectors of one size"):
        manifold.shortest_path(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="n_points must be at least 2"):
        manifold.shortest_path(torch.zeros(2), torch.ones(2), n_points=1)
