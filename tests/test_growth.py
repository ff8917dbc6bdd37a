"""Time and memory grow linearly with pixels; error falls as the limit rises."""

import statistics

import pytest
import torch
from contenders import alone, hooked
from measuring import exponent, interleaved, peak_memory
from models import image_autoencoder
from sklearn.datasets import load_digits
from torch import Tensor, nn

from lae_backpack import DiagGGNApprox, DiagGGNMixed, diag_ggn
from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM, DensePolicy
from lae_backpack.curvature.quantities import Dense, Diag, features
from lae_backpack.curvature.rules.base import DiagRule

SIZES = [32, 64, 128, 256]


@pytest.mark.parametrize("limit", [0, DEFAULT_MAX_DENSE_DIM])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_memory_and_time_are_linear_in_pixels(limit: int, with_gradient: bool):
    torch.set_default_dtype(torch.float32)
    peaks, seconds = [], []
    for size in SIZES:
        model, x = image_autoencoder(size), torch.rand(2, 3, size, size)
        if with_gradient:
            run = hooked(model, x, x, lambda: DiagGGNMixed(limit))
        else:
            run = alone(model, x, x, limit)
        peaks.append(peak_memory(run))
        seconds.append(statistics.median(interleaved({"it": run}, 5)["it"]))
    pixels = [size**2 for size in SIZES]
    assert exponent(pixels, peaks) <= 1.1
    assert exponent(pixels, seconds) <= 1.1


def digit_autoencoder() -> nn.Sequential:
    """Decoder in, encoder out: features go down to 2 and up again."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.Tanh(),
        nn.Linear(16, 2),
        nn.Linear(2, 16),
        nn.Tanh(),
        nn.Linear(16, 64),
        nn.Tanh(),
        nn.Unflatten(1, (4, 4, 4)),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Upsample(scale_factor=2),
        nn.Tanh(),
        nn.Conv2d(4, 1, 3, padding=1),
    )


def digits() -> Tensor:
    return torch.tensor(load_digits().images / 16)[:, None]


def test_error_falls_as_the_limit_rises_on_a_trained_autoencoder():
    model, x = digit_autoencoder(), digits()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(400):
        batch = x[torch.randint(len(x), (64,))]
        optimiser.zero_grad()
        (model(batch) - batch).square().sum(dim=(1, 2, 3)).mean().backward()
        optimiser.step()

    def curvature(limit: int | None) -> Tensor:
        loss = nn.MSELoss(reduction="sum")
        found = diag_ggn(model, loss, x[:16], x[:16], max_dense_dim=limit)
        return torch.cat([value.flatten() for value in found.values()])

    exact = curvature(None)
    found = [curvature(limit) for limit in (0, 2, 16, 64, 256)]
    logs = [(f / exact).log().abs().mean().item() for f in found]
    norms = [((f - exact).norm() / exact.norm()).item() for f in found]
    for errors in (logs, norms):
        assert all(a >= b - 1e-12 for a, b in zip(errors, errors[1:], strict=False))
        assert errors[0] > errors[2] > errors[3] > errors[4]
        assert errors[-1] < 1e-9  # nothing in this net has more than 256 features
    assert logs[0] > 0.5  # trained nets are where the approximation hurts


@pytest.mark.parametrize("limit", [0, 2, 16, 64, None])
def test_dense_is_carried_where_features_are_within_the_limit(limit, monkeypatch):
    seen: list[tuple[int, Diag | Dense]] = []
    original = DiagRule.pull

    def spy(self, call, quantity, policy, inputs):
        pulled = original(self, call, quantity, policy, inputs)
        if inputs and not self.keeps_diagonal(call.module):
            seen.append((features(call.x), pulled[0]))
        return pulled

    monkeypatch.setattr(DiagRule, "pull", spy)
    model, x = digit_autoencoder(), digits()[:4]
    diag_ggn(model, nn.MSELoss(), x, x, max_dense_dim=limit)
    assert [size for size, _ in seen] == [256, 64, 16, 2, 16, 64]
    for size, quantity in seen:
        assert isinstance(quantity, Dense) == (limit is None or size <= limit)


def test_few_columns_are_carried_beyond_a_bottleneck(monkeypatch):
    columns: list[int] = []
    original = DiagRule.pull

    def spy(self, call, quantity, policy, inputs):
        pulled = original(self, call, quantity, policy, inputs)
        columns.extend(len(q.left) for q in pulled if isinstance(q, Dense))
        return pulled

    monkeypatch.setattr(DiagRule, "pull", spy)
    x = digits()[:4]
    diag_ggn(digit_autoencoder(), nn.MSELoss(), x, x, max_dense_dim=None)
    assert max(columns) == 256
    assert columns[-1] == 2


def test_approx_is_the_policy_without_dense():
    assert DiagGGNApprox().policy == DensePolicy(0)
