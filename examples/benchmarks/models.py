"""The nets that benchmarks measure."""

from __future__ import annotations

from backpack.custom_module.branching import Parallel
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


def mnist_autoencoder(n_pixels: int = 784, width: int = 512) -> AutoEncoder:
    """The paper's linear autoencoder for 28x28 images, 1,068,306 parameters.

    Args:
        n_pixels: Pixels of an image.
        width: Of its first layer; the second one has half of it.

    Returns:
        The net, for flat images.
    """
    encoder = nn.Sequential(
        nn.Linear(n_pixels, width),
        nn.Tanh(),
        nn.Linear(width, width // 2),
        nn.Tanh(),
        nn.Linear(width // 2, 2),
    )
    decoder = nn.Sequential(
        nn.Linear(2, width // 2),
        nn.Tanh(),
        nn.Linear(width // 2, width),
        nn.Tanh(),
        nn.Linear(width, n_pixels),
    )
    return AutoEncoder(encoder, decoder)


def small_conv_autoencoder() -> AutoEncoder:
    """The paper's convolutional autoencoder for MNIST, 7,406 parameters.

    Returns:
        The net.
    """

    def conv(n_in: int, n_out: int) -> nn.Conv2d:
        return nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)

    encoder = nn.Sequential(
        conv(1, 8),
        nn.MaxPool2d(2),
        nn.Tanh(),
        conv(8, 12),
        nn.MaxPool2d(2),
        nn.Tanh(),
        conv(12, 12),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(588, 2),
    )
    decoder = nn.Sequential(
        nn.Linear(2, 588),
        nn.Unflatten(1, (12, 7, 7)),
        nn.Tanh(),
        conv(12, 12),
        nn.Upsample(scale_factor=2),
        nn.Tanh(),
        conv(12, 8),
        nn.Upsample(scale_factor=2),
        nn.Tanh(),
        conv(8, 1),
    )
    return AutoEncoder(encoder, decoder)


def wide_code_autoencoder(code: int = 32) -> AutoEncoder:
    """An autoencoder whose code is too wide to be treated exactly.

    Args:
        code: Numbers of the code.

    Returns:
        The net, for flat images of 28x28 pixels.
    """
    encoder = nn.Sequential(nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, code))
    decoder = nn.Sequential(nn.Linear(code, 256), nn.Tanh(), nn.Linear(256, 784))
    return AutoEncoder(encoder, decoder)


def residual_autoencoder(channels: int = 8) -> AutoEncoder:
    """A convolutional autoencoder for 28x28 images with two skips on either side.

    Args:
        channels: The width of its convolutions.

    Returns:
        The net; branches are BackPACK's ``Parallel``, so that BackPACK knows them too.
    """

    def block() -> Parallel:
        return Parallel(
            nn.Identity(),
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1),
                nn.Tanh(),
                nn.Conv2d(channels, channels, 3, padding=1),
            ),
        )

    encoder = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Tanh(),
        block(),
        nn.MaxPool2d(2),
        block(),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(channels * 49, 2),
    )
    decoder = nn.Sequential(
        nn.Linear(2, channels * 49),
        nn.Unflatten(1, (channels, 7, 7)),
        nn.Tanh(),
        block(),
        nn.Upsample(scale_factor=2),
        block(),
        nn.Tanh(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(channels, 1, 3, padding=1),
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
