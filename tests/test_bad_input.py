"""Bad input: an error that says what to do, and nothing has changed."""

import copy
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from laplace import Laplace
from laplace.baselaplace import BaseLaplace
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    TensorDataset,
)

from lae_backpack import AutoEncoder, LaplaceAE, OnlineSettings
from tests.test_autoencoder import images, model
from tests.test_structures import REGRESSION, regression_net

STRUCTURES = ["approx_diag", "mixed_diag"]
NAN, INFINITY = float("nan"), float("inf")


class Untouched:
    """Fails if a model or its posterior has changed in the meantime."""

    def __init__(self, la: BaseLaplace) -> None:
        self.la, self.before = la, self._state(la)

    def _state(self, la: BaseLaplace) -> dict[str, object]:
        modules = list(la.model.modules())
        return {
            "posterior": copy.deepcopy(la.state_dict()),
            "weights": copy.deepcopy(la.model.state_dict()),
            "modes": [m.training for m in modules],
            "hooks": [len(m._forward_hooks) + len(m._backward_hooks) for m in modules],
        }

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        after = self._state(self.la)
        for name, value in self.before.items():
            torch.testing.assert_close(
                _comparable(after[name]), _comparable(value), rtol=0, atol=0, msg=name
            )


def _comparable(value: object) -> object:
    if isinstance(value, dict):
        return {k: _comparable(v) for k, v in value.items() if not isinstance(v, str)}
    return value


def fitted() -> LaplaceAE:
    la = LaplaceAE(model().train(), hessian_structure="mixed_diag")
    la.fit(images().split(4))
    return la


def loader(x: Tensor) -> DataLoader:
    return DataLoader(TensorDataset(x), 4)


PREDICTIVES: dict[str, Callable[[LaplaceAE, Tensor], object]] = {
    "la": lambda la, x: la(x),
    "linearised": lambda la, x: la(x, pred_type="glm"),
    "latent": lambda la, x: la.latent(x),
    "samples": lambda la, x: la.samples(x, 2),
    "latent_samples": lambda la, x: la.latent_samples(x, 2),
}
FITS: dict[str, Callable[[LaplaceAE, Tensor], object]] = {
    "fit": lambda la, x: la.fit(loader(x)),
    "fit_online": lambda la, x: la.fit_online(loader(x), 1, progress_bar=False),
}

WRONG = {
    "another size": (
        images()[..., :2],
        ValueError,
        r"not take x of shape \((4|10), 1, 4, 2\): .*Give images of the size",
    ),
    "too few dimensions": (
        images()[:, 0, 0, 0],
        ValueError,
        r"shape \((4|10),\), \[N, ...\] with N of at least 1 .* x\[None\]",
    ),
    "no channel": (
        images()[:, 0],
        ValueError,
        r"x of shape \((4|10), 4, 3\) has shape \((4|10), 1, 4, 3\); they must be",
    ),
    "floats of another kind": (
        images().float(),
        TypeError,
        r"has dtype torch.float32, the model torch.float64. .* x.to\(torch.float64\)",
    ),
    "bytes": (
        (255 * images()).to(torch.uint8),
        TypeError,
        "has dtype torch.uint8, the model torch.float64",
    ),
    "NaN": (images() * NAN, ValueError, "not finite.*torch.nan_to_num"),
    "infinity": (images() + INFINITY, ValueError, "not finite.*torch.nan_to_num"),
}


@pytest.mark.parametrize("call", PREDICTIVES | FITS)
@pytest.mark.parametrize("wrong", WRONG)
def test_images_that_the_autoencoder_cannot_take(wrong: str, call: str):
    la = fitted()
    x, error, words = WRONG[wrong]
    with Untouched(la), pytest.raises(error, match=words):
        (PREDICTIVES | FITS)[call](la, x)


@pytest.mark.parametrize("call", PREDICTIVES)
def test_no_image_and_a_single_one(call: str):
    la = fitted()
    with Untouched(la), pytest.raises(ValueError, match=r"shape \(0, 1, 4, 3\)"):
        PREDICTIVES[call](la, images()[:0])
    with Untouched(la), pytest.raises(ValueError, match=r"shape \(1, 4, 3\)"):
        PREDICTIVES[call](la, images()[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_convolution_takes_no_single_image_for_a_batch(channels: int):
    """torch's convolutions take images without a batch dimension."""
    parts = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)]
    la = LaplaceAE(AutoEncoder(*parts))
    x = torch.rand(5, channels, 6, 6)
    la.fit([x])
    assert la(torch.rand(2, channels, 9, 7))[0].shape == (2, channels, 9, 7)
    for call in (la, la.latent, lambda image: la.fit([image])):
        with Untouched(la), pytest.raises(ValueError, match="with a batch dimension"):
            call(x[0])


def test_a_decoder_that_ends_in_another_shape():
    flat = AutoEncoder(model().encoder, model().decoder[:-1])
    la = LaplaceAE(flat)
    words = r"x of shape \(4, 1, 4, 3\) has shape \(4, 12\); they must be equal"
    for fit in FITS.values():
        with Untouched(la), pytest.raises(ValueError, match=words):
            fit(la, images())


@pytest.mark.parametrize("call", FITS)
def test_no_data(call: str):
    la = fitted()
    with Untouched(la), pytest.raises(ValueError, match="yields no batch. Give it"):
        FITS[call](la, images()[:0])


class Stream(IterableDataset):
    """Nobody knows how long it is."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return zip(*self.tensors, strict=True)


def test_a_stream_fits_post_hoc_and_online_training_explains():
    known, streamed = fitted(), LaplaceAE(model(), hessian_structure="mixed_diag")
    stream = DataLoader(Stream(images()), 4)
    streamed.fit(stream)
    torch.testing.assert_close(streamed.H, known.H)
    assert streamed.n_data == known.n_data
    words = (
        "must know how much data.*DataLoader has a dataset without a length.*__len__"
    )
    with Untouched(known), pytest.raises(TypeError, match=words):
        known.fit_online(stream, 1)
    batches = (x for x in images().split(4))
    with Untouched(known), pytest.raises(TypeError, match="generator has no dataset"):
        known.fit_online(batches, 1)
    assert len(list(batches)) == 3  # nothing was taken out of it


def test_items_that_are_batches_fit_post_hoc_and_online_training_explains():
    known, la = fitted(), LaplaceAE(model(), hessian_structure="mixed_diag")
    whole = DataLoader(list(images().split(4)), batch_size=None)
    la.fit(whole)
    torch.testing.assert_close(la.H, known.H)
    words = "batch_size=None: items of its dataset are whole batches.*BatchSampler"
    own = type("Own", (BatchSampler,), {})(range(10), 4, False)  # may do anything
    unknown = DataLoader(TensorDataset(images()), sampler=own, batch_size=None)
    for loader in (whole, unknown):
        with Untouched(known), pytest.raises(TypeError, match=words):
            known.fit_online(loader, 1)


def test_a_model_that_is_no_autoencoder():
    half = nn.Module()
    half.encoder = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"no 'decoder'.*AutoEncoder\(encoder"):
        LaplaceAE(half)
    half.decoder = lambda code: code
    with pytest.raises(ValueError, match="no 'decoder'"):
        LaplaceAE(half)


@pytest.mark.parametrize("call", PREDICTIVES)
def test_an_autoencoder_that_is_not_fitted(call: str):
    la = LaplaceAE(model().train())
    with Untouched(la), pytest.raises(RuntimeError, match=r"not fitted. Call la.fit"):
        PREDICTIVES[call](la, images())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_structure_that_is_not_fitted(structure: str):
    la = Laplace(regression_net(), "regression", "all", structure)
    x, _ = REGRESSION
    for call in (la, la.functional_samples, la.predictive_samples):
        for pred_type in ("glm", "nn"):
            with (
                Untouched(la),
                pytest.raises(RuntimeError, match="Laplace is not fitted. Call la.fit"),
            ):
                call(x, pred_type=pred_type)


def make(structure: str, **settings: object) -> BaseLaplace:
    if structure == "autoencoder":
        la: BaseLaplace = LaplaceAE(model(), **settings)
        la.fit(images().split(4))
        return la
    la = Laplace(regression_net(), "regression", "all", structure, **settings)
    la.fit(DataLoader(TensorDataset(*REGRESSION), 4))
    return la


BAD_VALUES = [
    ("prior_precision", -1.0, "finite and at least 0, got -1.0"),
    ("prior_precision", NAN, "finite and at least 0, got nan"),
    (
        "prior_precision",
        torch.tensor([1.0, 1.0, -2.0, 1.0]),
        "finite and at least 0, got -2.0",
    ),
    ("sigma_noise", 0, "finite and above 0, got 0"),
    ("sigma_noise", -0.5, "finite and above 0, got -0.5"),
    ("sigma_noise", numpy.float32(-2), "finite and above 0, got -2.0"),
    ("sigma_noise", torch.tensor(INFINITY), "finite and above 0, got inf"),
    ("temperature", 0.0, "finite and above 0, got 0.0"),
    ("temperature", -1, "finite and above 0, got -1"),
]


@pytest.mark.parametrize("structure", [*STRUCTURES, "autoencoder"])
@pytest.mark.parametrize("name, value, words", BAD_VALUES)
def test_values_that_make_no_gaussian(structure: str, name: str, value, words: str):
    with pytest.raises(ValueError, match=f"{name} must be {words}"):
        make(structure, **{name: value})
    la = make(structure)
    with Untouched(la), pytest.raises(ValueError, match=f"{name} must be {words}"):
        setattr(la, name, value)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_values_that_evidence_is_asked_for(structure: str):
    la = make(structure)
    with Untouched(la), pytest.raises(ValueError, match="prior_precision must be"):
        la.log_marginal_likelihood(torch.tensor(-1.0))
    with Untouched(la), pytest.raises(ValueError, match="sigma_noise must be"):
        la.log_marginal_likelihood(sigma_noise=torch.tensor(0.0))


@pytest.mark.parametrize("structure", [*STRUCTURES, "autoencoder"])
def test_values_that_make_one(structure: str):
    la = make(structure, prior_precision=0, sigma_noise=2, temperature=0.5)
    assert (la.prior_precision, la.temperature) == (0, 0.5)
    expected = la.H / la.sigma_noise**2 / 0.5
    torch.testing.assert_close(la.posterior_precision, expected)


def test_a_perfect_fit_is_no_error():
    identity = AutoEncoder(nn.Linear(3, 3), nn.Linear(3, 3))
    for part in identity.children():
        part.load_state_dict({"weight": torch.eye(3), "bias": torch.zeros(3)})
    la = LaplaceAE(identity)
    x = torch.rand(5, 3)
    la.fit([x])
    mean, variance = la(x, n_samples=5)
    torch.testing.assert_close(mean, x)
    assert la.sigma_noise > 0 and (variance < 1e-20).all()


@pytest.mark.parametrize("override", [True, False])
def test_weights_that_are_not_finite(override: bool):
    la = fitted()
    with torch.no_grad():
        la.model.decoder[2].bias[0] = NAN
    before = {name: copy.deepcopy(v) for name, v in la.state_dict().items()}
    with pytest.raises(ValueError, match="not finite.*or train anew"):
        la.fit(loader(images()), override=override)
    assert all(torch.equal(before[k], getattr(la, k)) for k in ("mean", "H", "loss"))
    assert la.sigma_noise == before["sigma_noise"]


def test_alpha_outside_its_range():
    for alpha in (-0.1, 1.1, NAN):
        with pytest.raises(ValueError, match=r"alpha must be within \[0, 1\], got"):
            OnlineSettings(alpha=alpha)
    assert [OnlineSettings(alpha=a).alpha for a in (0.0, 1.0)] == [0.0, 1.0]


def spoiled(value: float) -> tuple[Tensor, Tensor]:
    x, y = REGRESSION
    x = x.clone()
    x[-1, 0] = value
    return x, y


BAD_LOADERS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "list": (lambda: [REGRESSION], TypeError, "list has no dataset.*Use a DataLoader"),
    "generator": (lambda: iter([REGRESSION]), TypeError, "has no dataset"),
    "stream": (
        lambda: DataLoader(Stream(*REGRESSION), 4),
        TypeError,
        "a dataset without a length",
    ),
    "empty": (
        lambda: DataLoader(TensorDataset(*(t[:0] for t in REGRESSION)), 4),
        ValueError,
        "yields no batch",
    ),
    "NaN": (
        lambda: DataLoader(TensorDataset(*spoiled(NAN)), 4),
        ValueError,
        "curvature is not finite: .*torch.nan_to_num",
    ),
    "NaN targets": (
        lambda: DataLoader(TensorDataset(REGRESSION[0], REGRESSION[1] * NAN), 4),
        ValueError,
        "loss or its curvature is not finite",
    ),
    "infinity": (
        lambda: DataLoader(TensorDataset(*spoiled(INFINITY)), 4),
        ValueError,
        "curvature is not finite",
    ),
    "another dtype": (
        lambda: DataLoader(TensorDataset(*(t.float() for t in REGRESSION)), 4),
        RuntimeError,  # torch's own, as with "diag"
        "same dtype",
    ),
    "another width": (
        lambda: DataLoader(TensorDataset(REGRESSION[0][:, :2], REGRESSION[1]), 4),
        RuntimeError,
        "shapes cannot be multiplied",
    ),
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("override", [True, False])
@pytest.mark.parametrize("name", BAD_LOADERS)
def test_loaders_that_a_structure_cannot_take(name: str, structure: str, override):
    la = make(structure)
    data, error, words = BAD_LOADERS[name]
    with Untouched(la), pytest.raises(error, match=words):
        la.fit(data(), override=override)
