"""Missing pixels, filled in by models that are known."""

import math

import pytest
import torch
from torch import Tensor

from lae_backpack.downstream.imputation import generate, impute
from tests.fakes import Constant, Shifts, fitted, seeded


def lower_half(x: Tensor) -> Tensor:
    observed = torch.zeros_like(x, dtype=torch.bool)
    observed[..., x.shape[-2] // 2 :, :] = True
    return observed


class Averages:
    """Network s paints the image in the mean shade of its input, plus s."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []

    def samples(self, x, n_samples, generator=None):
        self.inputs.append(x.clone())
        shade = x.flatten(1).mean(1).view(-1, *[1] * (x.dim() - 1))
        shifts = torch.arange(n_samples).to(x).view(-1, *[1] * x.dim())
        return (shade + shifts).expand(n_samples, *x.shape)


def test_two_stages_written_out():
    x = torch.rand(3, 1, 4, 2)
    observed = lower_half(x)
    la = Averages()
    found = impute(la, x, observed, n_modes=2, n_per_mode=3, generator=seeded())
    filled, modes = la.inputs
    torch.testing.assert_close(filled[observed], x[observed])
    assert filled.min() == 0 and filled.max() <= 1 and filled[~observed].std() > 0.1
    shade = filled.flatten(1).mean(1).view(3, 1, 1, 1).expand_as(x)
    for m in range(2):
        mode = torch.where(observed, x, shade + m)
        torch.testing.assert_close(found.modes[m], mode)
        torch.testing.assert_close(modes[3 * m : 3 * m + 3], mode)
        again = mode.flatten(1).mean(1).view(3, 1, 1, 1).expand_as(x)
        for s in range(3):
            sample = torch.where(observed, x, again + s)
            torch.testing.assert_close(found.samples[m, s], sample)
        torch.testing.assert_close(found.mean[m], torch.where(observed, x, again + 1))
        torch.testing.assert_close(found.variance[m], (~observed).double())


def test_every_mode_goes_on_by_itself():
    x = torch.rand(2, 1, 4, 2)
    la = Averages()
    impute(la, x, lower_half(x), n_modes=3, n_per_mode=1, n_steps=4)
    # All from the noise, then one call for each mode and step, then all together.
    assert [len(i) for i in la.inputs] == [2] + [2] * 3 * 3 + [6]
    means = [i.mean() for i in la.inputs[1:4]]
    assert means[0] < means[1] < means[2]


@pytest.mark.parametrize("likelihood", ["regression", "bernoulli"])
def test_observed_pixels_stay_with_any_mask(likelihood: str):
    la, x = fitted(likelihood)
    observed = torch.rand(x.shape, generator=seeded()) < 0.5
    gaps = x.masked_fill(~observed, math.nan)
    found = impute(la, gaps, observed, 4, 3, 2, seeded())
    assert found.modes.shape == found.mean.shape == found.variance.shape
    assert found.modes.shape == (4, *x.shape)
    assert found.samples.shape == (4, 3, *x.shape)
    for images in (*found.modes, *found.mean, *found.samples.flatten(0, 1)):
        torch.testing.assert_close(images[observed], x[observed])
        assert images.isfinite().all()
    assert found.variance[:, observed].eq(0).all()
    assert found.variance[:, ~observed].gt(0).all()
    torch.testing.assert_close(found.mean, found.samples.mean(1))
    torch.testing.assert_close(found.variance, found.samples.var(1))
    assert found.modes.var(0)[~observed].gt(0).all()
    again = impute(la, gaps, observed, 4, 3, 2, seeded())
    assert torch.equal(again.samples, found.samples)


def test_one_mask_for_all_and_masks_of_all_or_nothing():
    la, x = fitted()
    one = impute(la, x, lower_half(x)[0], generator=seeded())
    each = impute(la, x, lower_half(x), generator=seeded())
    assert torch.equal(one.mean, each.mean)
    all_known = impute(la, x, torch.tensor(True))
    assert torch.equal(all_known.mean, x.expand_as(all_known.mean))
    nothing = impute(la, x * math.nan, torch.tensor(False), generator=seeded())
    assert nothing.mean.isfinite().all()


def test_images_do_not_depend_on_their_neighbours_in_the_batch():
    class Halves:
        def samples(self, x, n_samples, generator=None):
            return (x / 2).expand(n_samples, *x.shape)

    x = torch.rand(2, 6)
    observed = torch.zeros(6, dtype=torch.bool)
    both = impute(Halves(), x, observed, 1, 1, generator=seeded()).mean
    one = impute(Halves(), x[:1], observed, 1, 1, generator=seeded()).mean
    torch.testing.assert_close(both[:, :1], one)


def test_one_sample_has_no_variance():
    x = torch.rand(2, 6)
    found = impute(Constant(), x, x > 0.5, n_per_mode=1)
    assert found.variance.eq(0).all()


def test_every_generated_image_has_networks_of_its_own():
    images = generate(Constant(), (1, 3, 3), 4, generator=seeded())
    assert images.shape == (4, 1, 3, 3)
    assert torch.equal(images, images[:, :, :1, :1].expand_as(images))
    assert len(images[:, 0, 0, 0].unique()) == 4
    # From noise in [0, 1] of its own, if networks do nothing.
    noise = generate(Shifts(torch.zeros(1)), (1, 3, 3), 4, generator=seeded())
    assert noise.flatten(1).min(1).values.eq(0).all()
    assert noise.flatten(1).max(1).values.eq(1).all()
    assert len(noise.mean((1, 2, 3)).unique()) == 4


def test_generating_takes_as_many_steps_as_it_says():
    start = generate(Shifts(torch.zeros(1)), (5,), 2, 1, seeded())
    images = generate(Shifts(torch.ones(1)), (5,), 2, 7, seeded())
    torch.testing.assert_close(images, start + 7)


def test_generated_images_have_the_dtype_of_the_model():
    la, _ = fitted()
    torch.set_default_dtype(torch.float32)
    assert generate(la, (1, 4, 3), 3, 2).dtype == torch.float64


def test_bad_input():
    la, x = fitted()
    observed = lower_half(x)
    with pytest.raises(TypeError, match="observed must be a bool tensor.*float64"):
        impute(la, x, observed.double())
    with pytest.raises(ValueError, match="does not broadcast"):
        impute(la, x, observed[:, :, :2])
    with pytest.raises(ValueError, match="observed pixels that are not finite"):
        impute(la, x * math.nan, observed)
    with pytest.raises(ValueError, match="x has shape"):
        impute(la, x[:0], observed[:0])
    for name in ("n_modes", "n_per_mode", "n_steps"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1"):
            impute(la, x, observed, **{name: 0})
    with pytest.raises(TypeError, match="has no samples"):
        impute(object(), x, observed)
    with pytest.raises(ValueError, match="n_images must be at least 1"):
        generate(la, (1, 4, 3), 0)
    with pytest.raises(ValueError, match="shape must be that of an image"):
        generate(la, (), 1)
    with pytest.raises(ValueError, match="does not take x"):
        generate(la, (7,), 1)
