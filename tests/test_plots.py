"""Figures show the data they are given."""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm
from sklearn.metrics import roc_auc_score, roc_curve

from lae_backpack.downstream import plots
from lae_backpack.downstream.imputation import Imputation


@pytest.fixture
def ax():
    figure, axes = plt.subplots(layout="constrained")
    yield axes
    figure.canvas.draw()  # what cannot be drawn fails here
    plt.close(figure)


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


# latent map


def test_latent_map_shows_each_class_where_it_is(ax):
    codes = torch.randn(30, 2)
    labels = torch.arange(30) % 3
    uncertainty = torch.logspace(-1, 1, 20).reshape(4, 5)
    drawn = plots.latent_map(codes, labels, uncertainty, (-3, 3, -2, 2), ax=ax)
    assert drawn is ax
    assert [c.get_label() for c in ax.collections] == ["0", "1", "2"]
    for label, marks in enumerate(ax.collections):
        np.testing.assert_allclose(marks.get_offsets(), codes[labels == label])
    (image,) = ax.images
    np.testing.assert_allclose(image.get_array(), uncertainty)
    # Five points from -3 to 3 are 1.5 apart, four from -2 to 2 are 4 / 3.
    edges = [-3.75, 3.75, -2 - 2 / 3, 2 + 2 / 3]
    assert image.get_extent() == pytest.approx(edges) and image.origin == "lower"
    assert isinstance(image.norm, LogNorm)
    assert ax.get_xlim() == (-3, 3) and ax.get_ylim() == (-2, 2)
    assert image.colorbar.ax.get_ylabel() == "standard deviation"


@pytest.mark.parametrize("log", [None, True, False])
def test_latent_map_of_a_narrow_range_is_linear(ax, log):
    plots.latent_map(
        torch.randn(3, 2), uncertainty=torch.rand(4, 5) + 1, log=log, ax=ax
    )
    assert isinstance(ax.images[0].norm, LogNorm) == (log is True)


def test_latent_map_of_codes_alone(ax):
    plots.latent_map(torch.randn(7, 2, requires_grad=True), ax=ax)
    assert len(ax.collections[0].get_offsets()) == 7 and not ax.images
    assert "code" in ax.get_xlabel() and "code" in ax.get_ylabel()
    with pytest.raises(ValueError, match="must be \\[N, 2\\], got \\[7, 3\\]"):
        plots.latent_map(torch.randn(7, 3), ax=ax)


# pictures


@pytest.mark.parametrize("shape", [(1, 4, 6), (4, 6), (16,), (3, 4, 6)])
def test_reconstructions_are_in_three_rows(ax, shape):
    x, mean = torch.rand(5, *shape), torch.rand(5, *shape)
    deviation = torch.rand(5, *shape)
    assert plots.reconstructions(x, mean, deviation, ax=ax) is ax
    assert len(ax.images) == 15
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["image", "mean", "standard\ndeviation"]
    # By columns: image, mean, deviation, from above.
    tops = [image.get_extent()[3] for image in ax.images[:3]]
    assert tops == sorted(tops) and tops[0] < tops[1] < tops[2]
    pixels = np.asarray(ax.images[4].get_array())  # the mean of the second
    expected = mean[1].movedim(0, -1) if shape[0] == 3 else mean[1]
    np.testing.assert_allclose(pixels.ravel(), expected.flatten())
    spread = deviation.mean(1) if shape[0] == 3 else deviation
    third = np.asarray(ax.images[5].get_array())
    np.testing.assert_allclose(third.ravel(), spread[1].flatten(), rtol=1e-6)
    assert ax.images[5].get_clim()[1] == pytest.approx(spread.max().item())
    if shape[0] != 3:
        assert ax.images[3].get_clim() == (0, 1)


def test_what_is_no_image_is_refused(ax):
    for shape in ((2, 15), (2, 2, 4, 4), (2, 1, 1, 4, 4)):
        x = torch.rand(shape)
        with pytest.raises(ValueError, match="must be images of shape"):
            plots.reconstructions(x, x, x, ax=ax)


def test_imputations_show_truth_seen_and_modes(ax):
    x = torch.rand(2, 1, 4, 4)
    observed = torch.zeros(4, 4, dtype=torch.bool)
    observed[:2] = True
    samples = torch.rand(3, 5, *x.shape)
    found = Imputation(samples[:, 0], samples, samples.mean(1), samples.var(1))
    assert plots.imputations(x, observed, found, ax=ax) is ax
    assert len(ax.images) == 2 * (3 + 3)
    first, seen, *modes, spread = [np.asarray(i.get_array()) for i in ax.images[6:]]
    np.testing.assert_allclose(first, x[1, 0])
    np.testing.assert_allclose(seen[:2], x[1, 0, :2])
    assert not np.isclose(seen[2:], x[1, 0, 2:]).any()
    for mode, mean in zip(modes, found.mean, strict=True):
        np.testing.assert_allclose(mode, mean[1, 0])
    np.testing.assert_allclose(spread, samples.flatten(0, 1).std(0)[1, 0], rtol=1e-5)
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names[:2] == ["image", "seen"] and len(names) == 6


# scores


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_histograms_hold_all_images(ax, scale):
    inside, outside = torch.rand(50) + 1, scale * (torch.rand(20) + 1)
    names = ("digits", "photos")
    plots.score_histograms(inside, outside, name="variance", names=names, ax=ax)
    assert ax.get_xscale() == ("log" if scale > 1 else "linear")
    assert texts(ax) == ["digits", "photos"]
    assert ax.get_xlabel() == "variance"
    for bars, scores in zip(ax.patches, (inside, outside), strict=True):
        corners = bars.get_xy()
        edges = np.unique(corners[:, 0])
        counts, _ = np.histogram(scores.double(), edges)
        assert counts.sum() == len(scores)
        assert corners[:, 1].max() == pytest.approx(counts.max() / len(scores))
    assert ax.patches[1].get_hatch() and not ax.patches[0].get_hatch()


def test_histograms_of_one_value(ax):
    plots.score_histograms(torch.ones(3), torch.ones(4), ax=ax)
    assert ax.patches[0].get_xy()[:, 1].max() == pytest.approx(1)


def test_roc_curves_are_those_of_scikit_learn(ax):
    inside = {"a": torch.randn(40), "b": torch.randint(0, 4, (40,)).float()}
    outside = {"a": torch.randn(30) + 1, "b": torch.randint(1, 5, (30,)).float()}
    plots.roc_curves(inside, outside, names={"b": "whole numbers"}, ax=ax)
    truth = np.repeat([0, 1], [40, 30])
    for line, name in zip(ax.lines, "ab", strict=False):
        both = torch.cat([inside[name], outside[name]]).numpy()
        false, true, _ = roc_curve(truth, both, drop_intermediate=False)
        np.testing.assert_allclose(line.get_xdata(), false, atol=1e-6)
        np.testing.assert_allclose(line.get_ydata(), true, atol=1e-6)
        assert f"{roc_auc_score(truth, both):.3f}" in line.get_label()
    assert texts(ax)[1].startswith("whole numbers: ")
    styles = [line.get_linestyle() for line in ax.lines[:2]]
    assert styles[0] != styles[1]  # tells them apart without colour


def test_variance_against_error_draws_bins_and_the_diagonal(ax):
    variance = torch.linspace(1, 2, 100)
    plots.variance_against_error(variance, 3 * variance, 5, label="weights", ax=ax)
    bins = [line for line in ax.lines if line.get_gid() == "bins"][0]
    means = variance.reshape(5, 20).mean(1)
    np.testing.assert_allclose(bins.get_xdata(), means)
    np.testing.assert_allclose(bins.get_ydata(), 3 * means)
    plots.variance_against_error(variance, 9 * variance, 5, label="more", ax=ax)
    assert [line.get_gid() for line in ax.lines].count("diagonal") == 1
    diagonal = [line for line in ax.lines if line.get_gid() == "diagonal"][0]
    np.testing.assert_allclose(diagonal.get_xdata(), diagonal.get_ydata())
    assert diagonal.get_xdata()[1] == pytest.approx(9 * means[-1].item())
    assert texts(ax) == ["weights", "more", "equal"]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert ax.lines[0].get_marker() != ax.lines[1].get_marker()


# use in notebooks, and without matplotlib


def test_without_ax_the_present_one_is_used():
    figure, axes = plt.subplots()
    assert plots.latent_map(torch.randn(7, 2)) is axes
    plt.close(figure)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="pip install lae-backpack\\[examples\\]"):
        plots.latent_map(torch.randn(3, 2))
