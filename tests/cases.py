"""What is tested: layers with their settings, losses, and whole nets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from backpack.custom_module.pad import Pad
from backpack.custom_module.permute import Permute
from backpack.custom_module.scale_module import ScaleModule
from backpack.custom_module.slicing import Slicing
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A module to be built, and the shape of its input."""

    id: str
    module: Callable[[], nn.Module]
    x_shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True)
class LossCase:
    """A loss to be built, the shape of the model's output, and a target for it."""

    id: str
    loss: Callable[[], nn.Module]
    x_shape: tuple[int, ...]
    target: Callable[[Tensor], Tensor]

    def __str__(self) -> str:
        return self.id


def _layer(
    kind: Callable[..., nn.Module],
    x_shape: tuple[int, ...],
    *args: object,
    **settings: object,
) -> Case:
    words = [str(a) for a in args] + [f"{k}={v}" for k, v in settings.items()]
    name = f"{kind.__name__}({', '.join(words)})-{'x'.join(map(str, x_shape))}"
    return Case(name, lambda: kind(*args, **settings), x_shape)


SPATIAL = {1: (7,), 2: (5, 6), 3: (3, 4, 3)}


def _sized(kind: str, dim: int) -> type[nn.Module]:
    return getattr(nn, f"{kind}{dim}d")


def _convolutions() -> list[Case]:
    cases = []
    for dim, size in SPATIAL.items():
        conv, transposed = _sized("Conv", dim), _sized("ConvTranspose", dim)
        x = (3, 4, *size)
        cases += [
            _layer(conv, x, 4, 3, 3),
            _layer(conv, x, 4, 2, 2, stride=2, padding=1, bias=False),
            _layer(conv, x, 4, 6, 3, padding="same", groups=2),
            _layer(conv, x, 4, 2, 2, padding="same"),
            _layer(conv, x, 4, 2, 2, padding="valid", dilation=2),
            _layer(conv, x, 4, 2, 1, padding=2),
            _layer(conv, x, 4, 4, 2, stride=3, groups=4, padding=1),
            _layer(transposed, x, 4, 3, 3),
            _layer(transposed, x, 4, 3, 2, stride=2, padding=1, bias=False),
            _layer(
                transposed,
                (2, 4, *(2,) * dim),
                4,
                2,
                3,
                stride=2,
                output_padding=1,
                groups=2,
            ),
            _layer(transposed, x, 4, 2, 2, dilation=2, output_padding=1),
        ]
        for mode in ("reflect", "replicate", "circular"):
            cases.append(_layer(conv, x, 4, 2, 3, padding=1, padding_mode=mode))
            cases.append(
                _layer(conv, x, 4, 2, 2, stride=2, padding=1, padding_mode=mode)
            )
    return cases


def _pools() -> list[Case]:
    cases = []
    for dim, size in SPATIAL.items():
        x = (2, 3, *size)
        avg, most = _sized("AvgPool", dim), _sized("MaxPool", dim)
        cases += [
            _layer(most, x, 2),
            _layer(most, x, 3, stride=2, padding=1, ceil_mode=True),
            _layer(most, x, 2, stride=1, dilation=2),
            _layer(avg, x, 2),
            _layer(avg, x, 3, stride=1, padding=1),
            _layer(avg, x, 3, stride=2, padding=1, count_include_pad=False),
            _layer(avg, x, 2, stride=2, padding=1, ceil_mode=True),
            _layer(_sized("AdaptiveAvgPool", dim), x, 2),
            _layer(_sized("AdaptiveAvgPool", dim), x, 3),
            _layer(_sized("AdaptiveMaxPool", dim), x, 2),
        ]
        if dim > 1:
            cases.append(_layer(avg, x, 2, divisor_override=3))
            cases.append(
                _layer(_sized("AdaptiveAvgPool", dim), x, (None,) + (2,) * (dim - 1))
            )
    return cases


def _pads() -> list[Case]:
    cases = []
    for dim, size in SPATIAL.items():
        x, amounts = (2, 2, *size), (1, 2) * dim
        for kind in ("ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"):
            cases.append(_layer(_sized(kind, dim), x, amounts))
        cases.append(_layer(_sized("ConstantPad", dim), x, amounts, 1.5))
    return cases


def _upsamples() -> list[Case]:
    cases = []
    for dim, size in SPATIAL.items():
        x = (2, 3, *size)
        linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[dim]
        bigger = tuple(2 * n + 1 for n in size)
        cases += [
            _layer(nn.Upsample, x, scale_factor=2),
            _layer(nn.Upsample, x, size=bigger, mode="nearest-exact"),
            _layer(nn.Upsample, x, scale_factor=2, mode=linear),
            _layer(nn.Upsample, x, size=bigger, mode=linear, align_corners=True),
            _layer(nn.Upsample, x, scale_factor=1.7, mode=linear),
            _layer(nn.Upsample, x, scale_factor=0.6, mode=linear),
            _layer(
                nn.Upsample,
                x,
                scale_factor=1.7,
                mode=linear,
                recompute_scale_factor=True,
            ),
        ]
    x = (2, 3, 5, 6)
    return cases + [
        _layer(nn.Upsample, x, scale_factor=(2.0, 3.0), mode="bilinear"),
        _layer(nn.Upsample, x, scale_factor=2, mode="bicubic"),
        _layer(nn.Upsample, x, size=(9, 7), mode="bicubic", align_corners=True),
        _layer(nn.Upsample, (2, 3, 1, 2), scale_factor=2, mode="bicubic"),
        _layer(nn.UpsamplingNearest2d, x, scale_factor=2),
        _layer(nn.UpsamplingBilinear2d, x, scale_factor=2),
    ]


def _norms() -> list[Case]:
    cases = [
        _layer(nn.LayerNorm, (3, 6), 6),
        _layer(nn.LayerNorm, (3, 4, 6), 6, bias=False),
        _layer(nn.LayerNorm, (3, 4, 6), (4, 6)),
        _layer(nn.LayerNorm, (3, 4, 6), 6, elementwise_affine=False),
        _layer(nn.RMSNorm, (3, 6), 6),
        _layer(nn.RMSNorm, (3, 4, 6), (4, 6), eps=0.1),
        _layer(nn.RMSNorm, (3, 4, 6), 6, elementwise_affine=False),
        _layer(nn.GroupNorm, (3, 6), 2, 6),
        _layer(nn.GroupNorm, (3, 6, 4), 3, 6, affine=False),
        _layer(nn.GroupNorm, (3, 4, 3, 5), 2, 4, eps=0.1),
    ]
    for dim, size in SPATIAL.items():
        x = (3, 4, *size)
        batch, instance = _sized("BatchNorm", dim), _sized("InstanceNorm", dim)
        cases += [
            _evaluated(batch, x, 4),
            _evaluated(batch, x, 4, affine=False),
            _layer(instance, x, 4),
            _layer(instance, x, 4, affine=True),
            _evaluated(instance, x, 4, affine=True, track_running_stats=True),
            _layer(instance, x, 4, affine=True, track_running_stats=True),
        ]
    return cases + [_evaluated(nn.BatchNorm1d, (3, 4), 4)]


def _evaluated(
    kind: type[nn.Module], x_shape: tuple[int, ...], *args: object, **settings: object
) -> Case:
    """A layer in eval mode that has seen some data."""

    def build() -> nn.Module:
        layer = kind(*args, **settings)
        layer(torch.randn(8, *x_shape[1:]) * 2 + 1)
        return layer.eval()

    return Case(_layer(kind, x_shape, *args, **settings).id + "-eval", build, x_shape)


ACTIVATIONS = [
    _layer(nn.CELU, (3, 7), 1.5),
    _layer(nn.ELU, (3, 7), 1.5),
    _layer(nn.GELU, (3, 7)),
    _layer(nn.GELU, (3, 7), approximate="tanh"),
    _layer(nn.Hardshrink, (3, 7)),
    _layer(nn.Hardsigmoid, (3, 7)),
    _layer(nn.Hardswish, (3, 7)),
    _layer(nn.Hardtanh, (3, 7), -0.5, 0.7),
    _layer(nn.LeakyReLU, (3, 7), 0.2),
    _layer(nn.LogSigmoid, (3, 7)),
    _layer(nn.Mish, (3, 7)),
    _layer(nn.PReLU, (3, 7)),
    _layer(nn.PReLU, (3, 4, 5, 2), 4),
    _layer(nn.PReLU, (3, 4), 4),
    _layer(nn.ReLU, (3, 2, 7)),
    _layer(nn.ReLU6, (3, 7)),
    _layer(nn.SELU, (3, 7)),
    _layer(nn.SiLU, (3, 7)),
    _layer(nn.Sigmoid, (3, 7)),
    _layer(nn.Softplus, (3, 7), 2.0, 1.0),
    _layer(nn.Softshrink, (3, 7)),
    _layer(nn.Softsign, (3, 7)),
    _layer(nn.Tanh, (3, 7)),
    _layer(nn.Tanhshrink, (3, 7)),
    _layer(nn.Threshold, (3, 7), 0.1, 2.0),
    _layer(ScaleModule, (3, 7), 0.3),
    *(
        Case(f"{kind.__name__}-eval", lambda kind=kind: kind(0.4).eval(), shape)
        for kind, shape in (
            (nn.Dropout, (3, 7)),
            (nn.Dropout1d, (3, 2, 4)),
            (nn.Dropout2d, (3, 2, 4, 3)),
            (nn.Dropout3d, (3, 2, 2, 3, 2)),
        )
    ),
]

SHAPES = [
    _layer(nn.Identity, (3, 2, 4)),
    _layer(nn.Flatten, (3, 2, 4, 2)),
    _layer(nn.Flatten, (3, 2, 4, 2), 2, 3),
    _layer(nn.Flatten, (3, 5)),
    _layer(nn.Unflatten, (3, 12), 1, (3, 2, 2)),
    _layer(nn.Unflatten, (3, 2, 6), -1, (3, 2)),
    _layer(nn.PixelShuffle, (2, 8, 2, 3), 2),
    _layer(nn.PixelUnshuffle, (2, 2, 4, 6), 2),
    _layer(Permute, (3, 2, 4), 0, 2, 1),
    _layer(Permute, (3, 2, 4), 1, 2, init_transpose=True),
    _layer(Pad, (3, 2, 4), (1, 2, 0, 1)),
    _layer(Pad, (3, 2, 4), (1, 2), mode="reflect"),
    _layer(Slicing, (3, 4, 5), (slice(None), slice(1, 3), 2)),
]

LINEARS = [
    _layer(nn.Linear, (4, 5), 5, 3),
    _layer(nn.Linear, (1, 5), 5, 3, bias=False),
    _layer(nn.Linear, (4, 2, 5), 5, 3),
    _layer(nn.Linear, (3, 2, 2, 5), 5, 2),
]

LAYERS = [
    *LINEARS,
    *_convolutions(),
    *ACTIVATIONS,
    *SHAPES,
    *_pads(),
    *_pools(),
    *_upsamples(),
    *_norms(),
]


def _classes(count: int, *ignored: int) -> Callable[[Tensor], Tensor]:
    def target(x: Tensor) -> Tensor:
        labels = torch.arange(x.numel() // count) * 7 % count
        labels = labels.reshape(len(x), *x.shape[2:])
        for value in ignored:
            labels.view(-1)[1] = value
        return labels

    return target


def _probabilities(x: Tensor) -> Tensor:
    return torch.randn_like(x).softmax(1)


def _weights(n: int) -> Tensor:
    return torch.linspace(0.5, 2.0, n, dtype=torch.float64)


LOSSES = [
    case
    for reduction in ("sum", "mean")
    for case in (
        LossCase(
            f"MSE-{reduction}",
            lambda r=reduction: nn.MSELoss(reduction=r),
            (3, 4),
            torch.randn_like,
        ),
        LossCase(
            f"MSE-{reduction}-image",
            lambda r=reduction: nn.MSELoss(reduction=r),
            (3, 2, 3, 2),
            torch.randn_like,
        ),
        LossCase(
            f"BCE-{reduction}-image",
            lambda r=reduction: nn.BCEWithLogitsLoss(reduction=r),
            (3, 2, 3, 2),
            torch.rand_like,
        ),
        LossCase(
            f"BCE-{reduction}-weights",
            lambda r=reduction: nn.BCEWithLogitsLoss(
                weight=_weights(3), pos_weight=_weights(3), reduction=r
            ),
            (4, 3),
            torch.rand_like,
        ),
        LossCase(
            f"CE-{reduction}",
            lambda r=reduction: nn.CrossEntropyLoss(reduction=r),
            (4, 3),
            _classes(3),
        ),
        LossCase(
            f"CE-{reduction}-image",
            lambda r=reduction: nn.CrossEntropyLoss(reduction=r),
            (2, 3, 2, 2),
            _classes(3),
        ),
        LossCase(
            f"CE-{reduction}-all-settings",
            lambda r=reduction: nn.CrossEntropyLoss(
                weight=_weights(3), ignore_index=-7, label_smoothing=0.2, reduction=r
            ),
            (2, 3, 4),
            _classes(3, -7),
        ),
        LossCase(
            f"CE-{reduction}-ignore-without-weight",
            lambda r=reduction: nn.CrossEntropyLoss(ignore_index=1, reduction=r),
            (4, 3),
            _classes(3),
        ),
        LossCase(
            f"CE-{reduction}-probabilities",
            lambda r=reduction: nn.CrossEntropyLoss(
                weight=_weights(3), label_smoothing=0.1, reduction=r
            ),
            (3, 3, 2),
            _probabilities,
        ),
    )
]
