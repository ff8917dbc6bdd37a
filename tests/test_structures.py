"""The new structures in laplace-torch: against its own, and for many outputs."""

import copy
from itertools import product

import pytest
import torch
from backpack import extend
from laplace import Laplace, marglik_training
from laplace.baselaplace import DiagLaplace, FullLaplace, KronLaplace
from laplace.curvature import AsdlGGN, BackPackGGN
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import ApproxDiagLaplace, MixedDiagLaplace, diag_ggn


def regression_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)
    )


def classification_net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))


def image_net(flat: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, padding=1)]
    return nn.Sequential(*layers, *([nn.Flatten()] if flat else []))


def loader(x: Tensor, y: Tensor) -> DataLoader:
    return DataLoader(TensorDataset(x, y), batch_size=4)


REGRESSION = (
    torch.randn(10, 3, dtype=torch.float64),
    torch.randn(10, 2, dtype=torch.float64),
)
CLASSES = torch.randn(10, 3, dtype=torch.float64), torch.arange(10) % 4
IMAGES = (
    torch.randn(6, 1, 5, 4, dtype=torch.float64),
    torch.randn(6, 2, 5, 4, dtype=torch.float64),
)

CASES = [
    (regression_net, "regression", REGRESSION),
    (classification_net, "classification", CLASSES),
]


@pytest.mark.filterwarnings("ignore:By default `link_approx` is `probit`")
@pytest.mark.parametrize("net, likelihood, data", CASES)
def test_mixed_without_limit_equals_diag_laplace(net, likelihood, data):
    theirs = Laplace(net(), likelihood, "all", "diag", backend=BackPackGGN)
    settings = {"max_dense_dim": None}
    ours = Laplace(net(), likelihood, "all", "mixed_diag", backend_kwargs=settings)
    assert isinstance(ours, MixedDiagLaplace)
    for la in (theirs, ours):
        la.fit(loader(*data))
        la.prior_precision = 2.0
    torch.testing.assert_close(ours.H, theirs.H)
    torch.testing.assert_close(
        ours.log_marginal_likelihood(), theirs.log_marginal_likelihood()
    )
    draws = [la.sample(5, torch.Generator().manual_seed(0)) for la in (theirs, ours)]
    torch.testing.assert_close(*draws)
    value = draws[0][0]
    torch.testing.assert_close(ours.square_norm(value), theirs.square_norm(value))
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    theirs.optimize_prior_precision(n_steps=5)
    ours.optimize_prior_precision(n_steps=5)
    torch.testing.assert_close(ours.prior_precision, theirs.prior_precision)


@pytest.mark.parametrize("net, likelihood, data", CASES)
def test_approx_equals_the_engines_sum(net, likelihood, data):
    la = Laplace(net(), likelihood, "all", "approx_diag")
    assert isinstance(la, ApproxDiagLaplace)
    la.fit(loader(*data))
    losses = {
        "regression": nn.MSELoss(reduction="sum"),
        "classification": nn.CrossEntropyLoss(reduction="sum"),
    }
    found = diag_ggn(la.model, losses[likelihood], *data)
    factor = 0.5 if likelihood == "regression" else 1.0
    torch.testing.assert_close(
        la.H, factor * torch.cat([v.flatten() for v in found.values()])
    )
    la.fit(loader(*data), override=False)
    torch.testing.assert_close(
        la.H, 2 * factor * torch.cat([v.flatten() for v in found.values()])
    )
    assert la.n_data == 20


@pytest.mark.parametrize("structure", ["approx_diag", "mixed_diag"])
def test_images_equal_the_same_model_with_a_flatten(structure: str):
    image = Laplace(image_net(), "regression", "all", structure, sigma_noise=0.3)
    flat = Laplace(
        image_net(flat=True), "regression", "all", structure, sigma_noise=0.3
    )
    x, y = IMAGES
    image.fit(loader(x, y))
    flat.fit(loader(x, y.flatten(1)))
    assert image.n_outputs == flat.n_outputs == 40
    torch.testing.assert_close(image.H, flat.H)
    torch.testing.assert_close(image.log_likelihood, flat.log_likelihood)
    evidence = [la.log_marginal_likelihood() for la in (image, flat)]
    torch.testing.assert_close(*evidence)
    for la in (image, flat):
        la.optimize_prior_precision(n_steps=3)
    torch.testing.assert_close(image.prior_precision, flat.prior_precision)
    for pred_type in ("nn", "glm"):
        moments = [
            la(
                x,
                pred_type=pred_type,
                n_samples=7,
                generator=torch.Generator().manual_seed(0),
            )
            for la in (image, flat)
        ]
        assert moments[0][0].shape == moments[0][1].shape == y.shape
        torch.testing.assert_close(moments[0][0].flatten(1), moments[1][0])


def test_linearised_variance_converges_to_the_exact_one():
    la = Laplace(image_net(), "regression", "all", "approx_diag")
    flat = Laplace(image_net(flat=True), "regression", "all", "approx_diag")
    x, y = IMAGES
    la.fit(loader(x, y))
    flat.fit(loader(x, y.flatten(1)))
    exact = flat(x)[1].diagonal(dim1=1, dim2=2)
    found = la(x, n_samples=4000, generator=torch.Generator().manual_seed(0))[1]
    torch.testing.assert_close(found.flatten(1), exact, rtol=0.15, atol=0)
    error = (found.flatten(1) / exact).log().mean().abs()
    assert error < 0.01


def test_sampled_moments_stream():
    la = Laplace(image_net(), "regression", "all", "approx_diag")
    la.fit(loader(*IMAGES))
    x = IMAGES[0]
    seeded = [torch.Generator().manual_seed(4) for _ in range(3)]
    mean, variance = la(x, pred_type="nn", n_samples=9, generator=seeded[0])
    samples = la.predictive_samples(x, "nn", n_samples=9, generator=seeded[1])
    torch.testing.assert_close(mean, samples.mean(0))
    torch.testing.assert_close(variance, samples.var(0))
    again, _ = la(x, pred_type="nn", n_samples=9, generator=seeded[2])
    assert torch.equal(mean, again)


def test_segmentation_predicts_probabilities():
    x, labels = IMAGES[0], torch.arange(6 * 20).reshape(6, 5, 4) % 2
    la = Laplace(image_net(), "classification", "all", "mixed_diag")
    la.fit(loader(x, labels))
    for settings in ({"pred_type": "nn"}, {}, {"link_approx": "mc"}):
        found = la(x, n_samples=5, **settings)
        assert found.shape == (6, 2, 5, 4)
        torch.testing.assert_close(found.sum(1), torch.ones(6, 5, 4))
    with pytest.raises(ValueError, match="link_approx must be one of"):
        la(x, link_approx="bridge")


def test_frozen_parameters_are_left_out():
    model = image_net()
    model[0].requires_grad_(False)
    la = Laplace(model, "regression", "all", "approx_diag")
    la.fit(loader(*IMAGES))
    whole = Laplace(image_net(), "regression", "all", "approx_diag")
    whole.fit(loader(*IMAGES))
    torch.testing.assert_close(la.H, whole.H[-len(la.H) :])
    assert la(IMAGES[0], pred_type="nn", n_samples=3)[0].shape == IMAGES[1].shape


def test_what_was_there_before_our_import_is_as_it_was():
    for structure, kind in (
        ("diag", DiagLaplace),
        ("full", FullLaplace),
        ("kron", KronLaplace),
    ):
        la = Laplace(regression_net(), "regression", "all", structure)
        assert type(la) is kind


def test_two_objects_do_not_disturb_each_other():
    ours = Laplace(regression_net(), "regression", "all", "approx_diag")
    ours.fit(loader(*REGRESSION))
    before = ours.H.clone()
    theirs = Laplace(regression_net(), "regression", "all", "diag", backend=BackPackGGN)
    theirs.fit(loader(*REGRESSION))
    theirs(REGRESSION[0])
    ours.fit(loader(*REGRESSION))
    assert torch.equal(ours.H, before)


def test_fit_gives_the_mode_back_and_an_extended_model_works():
    model = extend(regression_net().train())
    model[1].eval()
    la = Laplace(model, "regression", "all", "mixed_diag")
    la.fit(loader(*REGRESSION))
    assert model.training and not model[1].training
    mean, variance = la(REGRESSION[0])
    assert mean.shape == (10, 2) and variance.shape == (10, 2, 2)


def test_a_failed_fit_changes_nothing():
    la = Laplace(image_net(), "regression", "all", "approx_diag")
    la.fit(loader(*IMAGES))
    before = copy.deepcopy(la.state_dict())
    x, y = IMAGES
    good, bad = (x, y), (x, y[:, :1])

    class Batches(list):
        dataset = x

    for wrong, override in product(([bad], [good, bad]), (True, False)):
        with pytest.raises(NotImplementedError, match="differ in shape"):
            la.fit(Batches(wrong), override=override)
        for name, value in la.state_dict().items():
            same = torch.equal if isinstance(value, Tensor) else lambda a, b: a == b
            assert same(value, before[name]), name


def test_state_dict_goes_round(tmp_path):
    la = Laplace(image_net(), "regression", "all", "mixed_diag")
    la.fit(loader(*IMAGES))
    torch.save(la.state_dict(), tmp_path / "la.pt")
    other = Laplace(image_net(), "regression", "all", "mixed_diag")
    other.load_state_dict(torch.load(tmp_path / "la.pt", weights_only=True))
    seeds = [torch.Generator().manual_seed(0) for _ in range(2)]
    draws = [m.sample(2, g) for m, g in zip((la, other), seeds, strict=True)]
    assert torch.equal(*draws)


def test_gridsearch_scores_the_density():
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = x[:, :2] + 0.1 * torch.randn(40, 2)
    model = regression_net()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    la = Laplace(model, "regression", "all", "approx_diag", sigma_noise=0.1)
    la.fit(loader(x, y))
    settings = {"method": "gridsearch", "val_loader": loader(x, y), "grid_size": 5}
    la.optimize_prior_precision(**settings)
    chosen = la.prior_precision.item()

    def density(precision: float) -> float:
        la.prior_precision = precision
        mean, cov = la(x)
        variance = cov.diagonal(dim1=1, dim2=2) + 0.1**2
        normal = torch.distributions.Normal(mean, variance.sqrt())
        return normal.log_prob(y).sum().item()

    grid = torch.logspace(-4, 4, 5).tolist()
    best = max(grid, key=density)
    assert chosen == pytest.approx(best)
    assert chosen != pytest.approx(grid[0])  # where a flat score would stop


def test_marglik_training_works():
    la, _, margliks, _ = marglik_training(
        regression_net(),
        loader(*REGRESSION),
        "regression",
        "approx_diag",
        backend=None,
        n_epochs=3,
    )
    assert isinstance(la, ApproxDiagLaplace)
    assert len(margliks) > 0


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="backend=AsdlGGN.*Pass backend=None"):
        Laplace(regression_net(), "regression", "all", "approx_diag", backend=AsdlGGN)
    with pytest.raises(ValueError, match="Pass subset_of_weights='all'"):
        Laplace(regression_net(), "regression", hessian_structure="approx_diag")
    with pytest.raises(ValueError, match="'mixed_diag' is for all weights"):
        Laplace(regression_net(), "regression", hessian_structure="mixed_diag")
    with pytest.raises(
        ValueError, match=r"backend_kwargs \['max_dense_dim'\], allowed"
    ):
        settings = {"max_dense_dim": 3}
        Laplace(
            regression_net(),
            "regression",
            "all",
            "approx_diag",
            backend_kwargs=settings,
        )
    la = Laplace(image_net(), "regression", "all", "approx_diag")
    la.fit(loader(*IMAGES))
    with pytest.raises(ValueError, match="joint=True needs a covariance"):
        la(IMAGES[0], joint=True)
    with pytest.raises(ValueError, match="pred_type must be one of"):
        la(IMAGES[0], pred_type="gp")
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        la(IMAGES[0], n_samples=0)


def test_networks_are_those_of_one_draw_after_the_other():
    x, y = torch.randn(8, 4), torch.randn(8, 3)
    la = Laplace(nn.Linear(4, 3), "regression", "all", "approx_diag")
    la.fit(DataLoader(TensorDataset(x, y), 4))
    generator = torch.Generator().manual_seed(2)
    for weights in la.sampler().draws(5, torch.Generator().manual_seed(2)):
        noise = torch.empty(15).normal_(generator=generator)
        found = torch.cat([weights["weight"].flatten(), weights["bias"]])
        torch.testing.assert_close(found, la.mean + la.posterior_scale * noise)
