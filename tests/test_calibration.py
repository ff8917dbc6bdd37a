"""Calibration by hand, against torchmetrics, and of known Gaussians."""

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from lae_backpack.downstream.calibration import (
    calibration_errors,
    coverage,
    variance_against_error,
)


def test_by_hand():
    # Two bins: confidences .4 and .3 are below a half, .9, .8 and .6 are not.
    confidence = torch.tensor([0.4, 0.3, 0.9, 0.8, 0.6])
    others = ((1 - confidence) / 3)[:, None].expand(-1, 3)
    probabilities = torch.cat((confidence[:, None], others), 1)
    labels = torch.tensor([0, 1, 0, 0, 3])
    found = calibration_errors(probabilities, labels, n_bins=2)
    low, high = abs(1 / 2 - 0.35), abs(2 / 3 - 2.3 / 3)
    assert found.ece == pytest.approx(0.4 * low + 0.6 * high)
    assert found.mce == pytest.approx(max(low, high))
    assert found.rmsce == pytest.approx(math.sqrt(0.4 * low**2 + 0.6 * high**2))


@pytest.mark.parametrize("n_bins", [1, 15])
def test_against_torchmetrics(n_bins: int):
    probabilities = (2 * torch.randn(200, 5)).softmax(1)
    labels = torch.randint(5, (200,))
    found = calibration_errors(probabilities, labels, n_bins)
    for value, norm in ((found.ece, "l1"), (found.mce, "max"), (found.rmsce, "l2")):
        true = multiclass_calibration_error(probabilities, labels, 5, n_bins, norm)
        assert value == pytest.approx(float(true), abs=1e-6)


def test_certain_and_right_has_no_error():
    found = calibration_errors(torch.eye(3), torch.arange(3))
    assert (found.ece, found.mce, found.rmsce) == (0, 0, 0)
    found = calibration_errors(torch.eye(3), torch.tensor([1, 2, 0]))
    assert (found.ece, found.mce, found.rmsce) == (1, 1, 1)


def test_calibrated_classifier():
    probabilities = torch.randn(50_000, 3).softmax(1)
    labels = torch.multinomial(probabilities, 1)[:, 0]
    assert calibration_errors(probabilities, labels).ece < 0.02


def test_variance_bins_by_hand():
    variance = torch.tensor([[5.0, 1.0, 3.0], [2.0, 4.0, 6.0], [7.0, 8.0, 9.0]])
    found = variance_against_error(variance, 10 * variance, n_bins=2)
    assert found.variance.tolist() == [3.0, 7.5]
    assert found.error.tolist() == [30.0, 75.0]
    assert found.count.tolist() == [5, 4]


def test_calibrated_variances_equal_errors():
    variance = torch.rand(100_000) + 0.1
    error = variance * torch.randn(100_000).square()
    found = variance_against_error(variance, error)
    torch.testing.assert_close(found.variance, found.error, rtol=0.06, atol=0)
    assert found.count.eq(10_000).all()


def test_coverage_of_known_gaussians():
    mean, variance = torch.randn(400, 100), torch.rand(400, 100) + 0.1
    x = mean + variance.sqrt() * torch.randn(400, 100)
    levels = [0.5, 0.8, 0.95]
    found = coverage(mean, variance, x, levels)
    torch.testing.assert_close(found, torch.tensor(levels), rtol=0, atol=0.01)
    # At half the deviation the 95% interval is the 67.3% one: 2 Phi(.98) - 1.
    narrow = coverage(mean, variance / 4, x, torch.tensor([0.95]))
    assert float(narrow) == pytest.approx(0.673, abs=0.01)


def test_coverage_of_a_few_pixels():
    mean, x = torch.zeros(4), torch.tensor([0.0, 0.6, 0.7, 3.0])
    # The 50% interval ends at .6745.
    assert coverage(mean, torch.ones(4), x, [0.5, 0.99]).tolist() == [0.5, 0.75]
    assert coverage(mean, torch.zeros(4), x, [0.5]).tolist() == [0.25]


def test_bad_input():
    half = torch.full((2, 2), 0.5)
    labels = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="softmax"):
        calibration_errors(torch.randn(2, 2), labels)
    with pytest.raises(ValueError, match=r"probabilities must be \[N, C\]"):
        calibration_errors(half[0], labels)
    with pytest.raises(ValueError, match=r"probabilities must be \[N, C\]"):
        calibration_errors(half[:0], labels[:0])
    with pytest.raises(ValueError, match=r"labels must be \[2\] integers"):
        calibration_errors(half, labels.double())
    with pytest.raises(ValueError, match="labels must be from 0 to 1, got 0 to 5"):
        calibration_errors(half, torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="n_bins must be at least 1"):
        calibration_errors(half, labels, 0)
    with pytest.raises(ValueError, match="must have one shape"):
        variance_against_error(half, half[0])
    with pytest.raises(ValueError, match="n_bins must be at most 4"):
        variance_against_error(half, half)
    with pytest.raises(ValueError, match="variance must be numbers of at least 0"):
        variance_against_error(-half, half, 1)
    with pytest.raises(ValueError, match="must have one shape"):
        coverage(half, half, half[0], [0.5])
    for levels in ([], [1.0], [95.0]):
        with pytest.raises(ValueError, match="levels must be"):
            coverage(half, half, half, levels)
