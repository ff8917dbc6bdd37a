"""The nets that benchmarks measure."""

from __future__ import annotations

from torch import nn

from lae_backpack import AutoEncoder


def conv_stack(channels: int) -> nn.Sequential:
    """Five 3x3 convolutions with Tanh that keep channels and size (Fig. 7).

    Args:
        channels: The number of channels.

    Returns:
        The net.
    """
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers)


def mnist_autoencoder() -> AutoEncoder:
    """The paper's linear autoencoder for 28x28 images, 1,068,306 parameters.

    Returns:
        The net, for flat images.
    """
    encoder = nn.Sequential(
        nn.Linear(784, 512),
        nn.Tanh(),
        nn.Linear(512, 256),
        nn.Tanh(),
        nn.Linear(256, 2),
    )
    decoder = nn.Sequential(
        nn.Linear(2, 256),
        nn.Tanh(),
        nn.Linear(256, 512),
        nn.Tanh(),
        nn.Linear(512, 784),
    )
    return AutoEncoder(encoder, decoder)


def fashion_autoencoder(divisor: int = 4) -> AutoEncoder:
    """The paper's convolutional autoencoder for 28x28 images.

    Args:
        divisor: By what the paper's widths are divided.

    Returns:
        The net.
    """
    c, wide, narrow = 64 // divisor, 2048 // divisor, 1024 // divisor
    encoder = nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(c, c, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(c * 49, wide),
        nn.Tanh(),
        nn.Linear(wide, narrow),
        nn.Tanh(),
        nn.Linear(narrow, 2),
    )
    decoder = nn.Sequential(
        nn.Linear(2, narrow),
        nn.Tanh(),
        nn.Linear(narrow, wide),
        nn.Tanh(),
        nn.Linear(wide, c * 49),
        nn.Tanh(),
        nn.Unflatten(1, (c, 7, 7)),
        nn.Conv2d(c, c, 3, padding=1),
        nn.Upsample(scale_factor=2),
        nn.Tanh(),
        nn.Conv2d(c, c, 3, padding=1),
        nn.Upsample(scale_factor=2),
        nn.Tanh(),
        nn.Conv2d(c, 1, 3, padding=1),
    )
    return AutoEncoder(encoder, decoder)


def image_autoencoder(pixels: int, channels: int = 8) -> nn.Sequential:
    """A convolutional autoencoder for images of any size, with a small code.

    Args:
        pixels: The images' height and width.
        channels: The width of its convolutions.

    Returns:
        The net; its parameters do not depend on the size.
    """
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(channels * 16, 8),
        nn.Linear(8, channels * 16),
        nn.Tanh(),
        nn.Unflatten(1, (channels, 4, 4)),
        nn.Upsample(size=(pixels // 2, pixels // 2)),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.Tanh(),
        nn.Upsample(size=(pixels, pixels), mode="bilinear"),
        nn.Conv2d(channels, 3, 3, padding=1),
    )
