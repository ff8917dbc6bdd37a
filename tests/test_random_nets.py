"""Nets drawn at random against the oracle."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lae_backpack import DiagGGNMixed, diag_ggn
from tests import oracle
from tests.test_extensions import assert_equal, results, run, summed

ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.GELU, nn.Softplus, nn.ELU, nn.Sigmoid, nn.Mish]


@st.composite
def conv_layers(draw, channels: int, size: int) -> tuple[list[nn.Module], int, int]:
    """One operation on square images; returns new channel count and size, too."""
    options = ["conv", "norm", "activation"]
    options += ["transposed", "upsample"] if size <= 4 else []
    options += ["max", "avg", "pad"] if 2 <= size <= 5 else []
    kind = draw(st.sampled_from(options))
    if kind == "conv":
        kernel = draw(st.integers(1, min(3, size)))
        stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, kernel - 1))
        mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
        groups = draw(st.sampled_from([g for g in (1, 2) if channels % g == 0]))
        out = groups * draw(st.integers(1, 2))
        layer = nn.Conv2d(
            channels, out, kernel, stride, padding, groups=groups, padding_mode=mode
        )
        return [layer], out, (size + 2 * padding - kernel) // stride + 1
    if kind == "transposed":
        kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        extra = draw(st.integers(0, stride - 1))
        out = draw(st.integers(1, 2))
        layer = nn.ConvTranspose2d(channels, out, kernel, stride, output_padding=extra)
        return [layer], out, (size - 1) * stride + kernel + extra
    if kind == "upsample":
        mode = draw(st.sampled_from(["nearest", "bilinear", "bicubic"]))
        return [nn.Upsample(size=size + 1, mode=mode)], channels, size + 1
    if kind in ("max", "avg"):
        pool = nn.MaxPool2d if kind == "max" else nn.AvgPool2d
        ceil = draw(st.booleans())
        new = -(-size // 2) if ceil else size // 2
        return [pool(2, ceil_mode=ceil)], channels, new
    if kind == "pad":
        return [nn.ReplicationPad2d(1)], channels, size + 2
    if kind == "norm":
        norm = draw(st.sampled_from(["group", "layer", "batch"]))
        layer = {
            "group": lambda: nn.GroupNorm(1, channels),
            "layer": lambda: nn.LayerNorm([channels, size, size]),
            "batch": lambda: nn.BatchNorm2d(channels),
        }[norm]()
        return [layer], channels, size
    return [draw(st.sampled_from(ACTIVATIONS))()], channels, size


@st.composite
def nets(draw) -> nn.Sequential:
    channels, size = 2, 4
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 5))):
        new, channels, size = draw(conv_layers(channels, size))
        layers += new
    if draw(st.booleans()):
        hidden = draw(st.integers(1, 4))
        layers += [nn.Flatten(), nn.Linear(channels * size**2, hidden), nn.Tanh()]
        layers += [nn.Linear(hidden, 3)]
    return nn.Sequential(*layers).eval()


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(net=nets(), limit=st.sampled_from([0, 4, 12, None]), seed=st.integers(0, 99))
def test_random_nets_equal_the_oracle(net: nn.Sequential, limit: int | None, seed: int):
    torch.manual_seed(seed)
    net = net.double()
    for param in net.parameters():
        nn.init.normal_(param, std=0.7)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    target = torch.randn_like(net(x)).detach()
    loss = nn.MSELoss(reduction="sum")
    true = summed(oracle.diag_ggn(net, loss, x, target, limit))
    if not true:
        return  # nothing to fit in this one
    assert_equal(diag_ggn(net, loss, x, target, max_dense_dim=limit), true)
    run(net, loss, x, target, DiagGGNMixed(limit))
    assert_equal(results(net, "diag_ggn_mixed"), true)
