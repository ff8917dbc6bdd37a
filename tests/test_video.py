"""A video-to-video net that laplace-torch's own diagonal cannot fit."""

import pytest
import torch
from laplace import Laplace
from measuring import peak_memory
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import ApproxDiagLaplace

CLIP = (3, 16, 64, 64)  # channels, frames, height, width
LIMIT = 2_000_000_000  # bytes beyond a training step


def video_net() -> nn.Sequential:
    """Few wide layers at low resolution hold the million parameters."""
    down = {"kernel_size": 3, "stride": 2, "padding": 1}
    up = {"kernel_size": 4, "stride": 2, "padding": 1}
    return nn.Sequential(
        nn.Conv3d(3, 8, **down),
        nn.Tanh(),
        nn.Conv3d(8, 48, **down),
        nn.Tanh(),
        nn.Conv3d(48, 128, **down),
        nn.Tanh(),
        nn.Conv3d(128, 128, 3, padding=1),
        nn.Tanh(),
        nn.ConvTranspose3d(128, 48, **up),
        nn.Tanh(),
        nn.ConvTranspose3d(48, 8, **up),
        nn.Tanh(),
        nn.ConvTranspose3d(8, 3, **up),
    )


@pytest.fixture
def clips() -> TensorDataset:
    torch.set_default_dtype(torch.float32)
    return TensorDataset(torch.rand(4, *CLIP), torch.rand(4, *CLIP))


def test_a_video_net_fits_in_little_more_than_a_training_step(clips: TensorDataset):
    model, loader = video_net(), DataLoader(clips, batch_size=2)
    x, y = next(iter(loader))
    n_params = len(parameters_to_vector(model.parameters()))
    n_outputs = y[0].numel()
    assert n_outputs > 100_000 and n_params > 1_000_000
    assert 4 * n_outputs * n_params > 1e11  # bytes of one sample's Jacobian

    def training_step() -> None:
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()

    la = Laplace(
        model, "regression", subset_of_weights="all", hessian_structure="approx_diag"
    )
    assert isinstance(la, ApproxDiagLaplace)
    step = peak_memory(training_step)
    fit = peak_memory(lambda: la.fit(loader))
    assert fit - step < LIMIT
    assert fit < 4 * step  # measured: 2.4, which is 19 MB more
    assert (la.n_data, la.n_outputs) == (4, n_outputs)
    assert torch.isfinite(la.H).all() and (la.H > 0).all()
    positions = 4 * n_outputs / 3  # where an output channel's bias acts
    torch.testing.assert_close(la.H[-3:], torch.full((3,), positions))

    predictions = [
        peak_memory(lambda t=t, n=n: la(x, pred_type=t, n_samples=n, chunk_size=1))
        for t in ("nn", "glm")
        for n in (2, 3)
    ]
    assert max(predictions) < LIMIT
    assert predictions[1] <= 1.05 * predictions[0]
    assert predictions[3] <= 1.05 * predictions[2]
    mean, variance = la(x, n_samples=3)  # bare, as other libraries call it
    assert mean.shape == variance.shape == y.shape
    assert (variance > 0).all()
