"""LaplaceAE with Hugging Face Accelerate, on one process or on several.

python examples/ecosystem/accelerate_online.py
torchrun --nproc_per_node 2 examples/ecosystem/accelerate_online.py    # CPUs
accelerate launch examples/ecosystem/accelerate_online.py    # GPUs, as configured
python examples/ecosystem/accelerate_online.py --smoke    # seconds, for tests
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator  # pyright: ignore[reportMissingImports]  dev extra
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE, OnlineSettings


def autoencoder() -> AutoEncoder:
    """A small autoencoder, the same on every process.

    Returns:
        The model.
    """
    torch.manual_seed(0)
    return AutoEncoder(
        nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)),
        nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64)),
    )


def train(
    accelerator: Accelerator, model: nn.Module, loader: DataLoader, n_epochs: int
) -> None:
    """Plain training, as Accelerate's users write it.

    Args:
        accelerator: The accelerator.
        model: A prepared model.
        loader: A prepared loader.
        n_epochs: How many epochs.
    """
    optimizer = accelerator.prepare(torch.optim.Adam(model.parameters(), 5e-3))
    for _ in range(n_epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(x), x))
            optimizer.step()


def post_hoc(accelerator: Accelerator, data: TensorDataset, n_epochs: int) -> LaplaceAE:
    """Train first, then look at the curvature.

    Args:
        accelerator: The accelerator.
        data: The images.
        n_epochs: How many epochs.

    Returns:
        The posterior, the same on every process.
    """
    loader: Any = DataLoader(data, batch_size=64, shuffle=True)
    model, loader = accelerator.prepare(autoencoder(), loader)
    train(accelerator, model, loader, n_epochs)
    la = LaplaceAE(accelerator.unwrap_model(model))
    la.fit(loader)  # adds up all processes' parts
    return la


def online(accelerator: Accelerator, data: TensorDataset, n_epochs: int) -> LaplaceAE:
    """Train mean and precision together.

    Gradients are averaged over processes by ``fit_online`` itself, so the model need
    not be wrapped; ``prepare`` takes it to its device.

    Args:
        accelerator: The accelerator.
        data: The images.
        n_epochs: How many epochs.

    Returns:
        The posterior, the same on every process.
    """
    loader: Any = DataLoader(data, batch_size=64, shuffle=True)
    model, loader = accelerator.prepare(autoencoder(), loader)
    la = LaplaceAE(accelerator.unwrap_model(model))
    la.fit_online(
        loader,
        n_epochs,
        lr=5e-3,
        settings=OnlineSettings(alpha=1e-2),
        generator=torch.Generator().manual_seed(0),
        progress_bar=False,
    )
    return la


def spread(la: LaplaceAE, x: Tensor) -> float:
    """How much drawn networks disagree about images.

    Args:
        la: The posterior.
        x: The images.  # [N, 64]

    Returns:
        The mean variance of their pixels.
    """
    x = x.to(next(la.model.parameters()).device)
    return la(x, n_samples=100)[1].mean().item()


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Fit both ways.

    Args:
        arguments: Of the command line.

    Returns:
        By way: the count of data, the precision, and spreads on digits and on noise.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few epochs")
    n_epochs = 4 if parser.parse_args(arguments).smoke else 30
    # Without being told, it starts processes on CPUs and then takes no notice of them.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    pixels = torch.tensor(load_digits(return_X_y=True)[0], dtype=torch.float32) / 16
    digits, noise = pixels[1500:], torch.rand(297, 64)
    data = TensorDataset(pixels[:1500])
    found: dict[str, dict[str, Any]] = {}
    for name, fit in (("post hoc", post_hoc), ("online", online)):
        la = fit(accelerator, data, n_epochs)
        assert la.n_data == len(data), "every image counts once, whoever has it"
        precisions: Any = accelerator.gather(la.H[None])
        assert (precisions == precisions[0]).all(), "all processes have the same"
        spreads = spread(la, digits), spread(la, noise)
        assert spreads[0] < spreads[1], "networks disagree about noise"
        found[name] = {"n_data": la.n_data, "H": la.H.cpu(), "spreads": spreads}
        accelerator.print(
            f"{name}, {accelerator.num_processes} processes: variance of digits "
            f"{spreads[0]:.2e}, of noise {spreads[1]:.2e}"
        )
    accelerator.end_training()
    return found


if __name__ == "__main__":
    main()
