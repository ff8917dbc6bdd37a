"""Whole nets, small enough for explicit Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from backpack.custom_module.branching import Parallel, SumModule
from backpack.custom_module.permute import Permute
from backpack.custom_module.scale_module import ScaleModule
from torch import Tensor, nn


@dataclass(frozen=True)
class Net:
    """A model with its loss and data; ``in_backpack`` if BackPACK has its layers."""

    id: str
    model: Callable[[], nn.Module]
    x_shape: tuple[int, ...]
    loss: Callable[[], nn.Module] = lambda: nn.MSELoss(reduction="sum")
    target: Callable[[Tensor], Tensor] = torch.rand_like
    in_backpack: bool = False

    def __str__(self) -> str:
        return self.id

    def build(self) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
        """A model, its loss, a batch and a target."""
        torch.manual_seed(0)
        model = self.model()
        for module in model.modules():  # running statistics that are not 0 and 1
            if isinstance(getattr(module, "running_var", None), Tensor):
                nn.init.uniform_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
        model = model.double().eval()
        x = torch.randn(self.x_shape, dtype=torch.float64)
        with torch.no_grad():
            target = self.target(model(x))
        return model, self.loss(), x, target


class AutoEncoder(nn.Module):
    """A container whose forward only calls modules."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class Residual(nn.Module):
    """``x + f(x)`` with BackPACK's SumModule, called from a plain container."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.body, self.sum = nn.Sequential(*layers), SumModule()

    def forward(self, x: Tensor) -> Tensor:
        return self.sum(x, self.body(x))


def _labels(x: Tensor) -> Tensor:
    return (
        torch.arange(x.numel() // x.shape[1]).reshape(len(x), *x.shape[2:]) % x.shape[1]
    )


def conv_autoencoder(upsample: Callable[[], nn.Module]) -> nn.Module:
    """Shaped like the papers' convolutional autoencoders, a few pixels wide."""
    return AutoEncoder(
        nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 5),
            nn.Tanh(),
            nn.Linear(5, 2),
        ),
        nn.Sequential(
            nn.Linear(2, 5),
            nn.Tanh(),
            nn.Linear(5, 8),
            nn.Tanh(),
            nn.Unflatten(1, (2, 2, 2)),
            nn.Conv2d(2, 3, 3, padding=1),
            upsample(),
            nn.Tanh(),
            nn.Conv2d(3, 1, 3, padding=1, bias=False),
        ),
    )


def _mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(n_in, n_out), activation()]
    return nn.Sequential(*layers[:-1])


NETS = [
    Net("mlp-autoencoder", lambda: _mlp(6, 5, 2, 5, 6), (3, 6), in_backpack=True),
    Net(
        "mlp-classifier",
        lambda: _mlp(4, 6, 3, activation=nn.ReLU),
        (4, 4),
        nn.CrossEntropyLoss,
        _labels,
        in_backpack=True,
    ),
    Net(
        "conv-classifier",
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1),
            nn.BatchNorm2d(3),
            nn.LeakyReLU(),
            nn.AvgPool2d(2),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(3, 4),
        ),
        (3, 2, 4, 5),
        nn.CrossEntropyLoss,
        _labels,
        in_backpack=True,
    ),
    Net(
        "conv-autoencoder-nearest",
        lambda: conv_autoencoder(lambda: nn.Upsample(scale_factor=2)),
        (2, 1, 4, 4),
    ),
    Net(
        "conv-autoencoder-bilinear-bce",
        lambda: conv_autoencoder(lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
        (2, 1, 4, 4),
        nn.BCEWithLogitsLoss,
    ),
    Net(
        "transposed-convs",
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(8, 3),
            nn.Linear(3, 8),
            nn.Unflatten(1, (2, 2, 2)),
            nn.SiLU(),
            nn.ConvTranspose2d(2, 1, 3, stride=2),
            nn.Sigmoid(),
        ),
        (2, 1, 5, 5),
    ),
    Net(
        "residual-exact-in-backpack",
        lambda: nn.Sequential(
            nn.Linear(4, 3),
            Parallel(
                nn.Identity(),
                nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)),
            ),
            nn.Sigmoid(),
            Parallel(nn.Linear(3, 2), nn.Linear(3, 2)),
        ),
        (3, 4),
        in_backpack=True,
    ),
    Net(
        "residual-convs",
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1),
            Residual(nn.GELU(), nn.Conv2d(2, 2, 3, padding=1), ScaleModule(0.5)),
            Residual(nn.Tanh(), Residual(nn.Conv2d(2, 2, 1), nn.Softplus())),
        ),
        (2, 1, 3, 3),
    ),
    Net(
        "norms",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.SiLU(),
            nn.Conv2d(4, 4, 1),
            nn.InstanceNorm2d(4, affine=True),
            nn.Mish(),
            nn.Conv2d(4, 1, 3, padding=1),
        ),
        (2, 2, 3, 4),
    ),
    Net(
        "tokens",
        lambda: nn.Sequential(
            nn.Linear(3, 4),
            nn.LayerNorm(4),
            nn.GELU(),
            Permute(0, 2, 1),
            nn.Linear(5, 2),
            nn.RMSNorm(2, eps=1e-5),
            nn.Linear(2, 3),
        ),
        (2, 5, 3),
    ),
    Net(
        "super-resolution",
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"),
            nn.PReLU(4),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
            nn.PixelShuffle(2),
        ),
        (2, 1, 3, 3),
    ),
    Net(
        "segmentation",
        lambda: nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(1, 2, 3),
            nn.Hardswish(),
            nn.AdaptiveAvgPool2d(2),
            nn.Upsample(size=(3, 3), mode="bicubic"),
            nn.Conv2d(2, 3, 1),
        ),
        (2, 1, 3, 3),
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
        _labels,
    ),
    Net(
        "signals",
        lambda: nn.Sequential(
            nn.Conv1d(1, 2, 3, dilation=2),
            nn.CELU(),
            nn.AvgPool1d(3, stride=1, padding=1),
            nn.ConvTranspose1d(2, 1, 3, dilation=2),
        ),
        (3, 1, 8),
        in_backpack=False,
    ),
    Net(
        "video",
        lambda: nn.Sequential(
            nn.Conv3d(1, 2, 2, stride=2),
            nn.Tanh(),
            nn.ConvTranspose3d(2, 1, 2, stride=2),
        ),
        (2, 1, 2, 4, 4),
    ),
]
