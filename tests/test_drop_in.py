"""laplace-torch's documented examples, small, with only the structure replaced.

Its regression and its calibration example, call for call, on data made here. What runs
with "diag" must run unchanged, and give the same types and shapes, with ours.
"""

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from laplace import Laplace, marglik_training
from laplace.baselaplace import BaseLaplace
from laplace.curvature import BackPackGGN
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lae_backpack  # noqa: F401  the one line that a user adds

# laplace-torch's, about link_approx of later versions
pytestmark = pytest.mark.filterwarnings("ignore:By default `link_approx` is `probit`")

OURS = ["approx_diag", "mixed_diag"]
STRUCTURES = ["diag", *OURS]
LINKS = ["probit", "mc", "bridge", "bridge_norm"]

NOISE = 0.3


@dataclass
class Sinusoid:
    """Noisy samples of a sine on [0, 8], and a line that reaches beyond."""

    x: Tensor
    y: Tensor
    x_test: Tensor

    @property
    def loader(self) -> DataLoader:
        return DataLoader(TensorDataset(self.x, self.y), batch_size=len(self.x))


def sinusoid() -> Sinusoid:
    generator = torch.Generator().manual_seed(11)
    x = 8 * torch.rand(120, 1, generator=generator)
    y = x.sin() + NOISE * torch.randn(x.shape, generator=generator)
    return Sinusoid(x, y, torch.linspace(-5, 13, 90)[:, None])


def curve() -> nn.Sequential:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))


def trained(model: nn.Module, loader: DataLoader, loss: nn.Module, epochs: int):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return model


@cache
def trained_curve() -> nn.Module:
    return trained(curve(), sinusoid().loader, nn.MSELoss(), epochs=600)


@cache
def trained_classifier() -> nn.Module:
    return trained(classifier(), halves()[0], nn.CrossEntropyLoss(), epochs=60).eval()


def fitted_curve(structure: str, **kwargs: object) -> tuple[BaseLaplace, Sinusoid]:
    data = sinusoid()
    la = Laplace(
        copy.deepcopy(trained_curve()),
        "regression",
        subset_of_weights="all",
        hessian_structure=structure,
        **kwargs,
    )
    la.fit(data.loader)
    return la, data


def check_curve(la: BaseLaplace, data: Sinusoid) -> None:
    """Types and shapes of "diag", and uncertainty where there is no data."""
    mean, variance = la(data.x_test)
    assert mean.shape == (90, 1) and variance.shape == (90, 1, 1)
    assert not mean.requires_grad
    center = mean.squeeze().detach().cpu().numpy()
    spread = variance.squeeze().sqrt().detach().cpu().numpy()
    std = (spread**2 + la.sigma_noise.item() ** 2) ** 0.5
    assert center.shape == std.shape == (90,)
    assert torch.isfinite(mean).all() and (variance > 0).all()
    at = data.x_test.squeeze()
    inside = variance.squeeze()[(at > 1) & (at < 7)].mean()
    outside = variance.squeeze()[(at < -2) | (at > 10)].mean()
    assert outside > 1.1 * inside


@pytest.mark.parametrize("structure", STRUCTURES)
def test_regression_example(structure: str, tmp_path: Path):
    la, data = fitted_curve(structure)
    log_prior = torch.ones(1, requires_grad=True)
    log_sigma = torch.ones(1, requires_grad=True)
    hyper_optimizer = torch.optim.Adam([log_prior, log_sigma], lr=1e-1)
    evidence = []
    for _ in range(100):
        hyper_optimizer.zero_grad()
        negative = -la.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())
        negative.backward()
        hyper_optimizer.step()
        evidence.append(-negative.item())
    assert evidence[-1] > evidence[0]
    assert la.sigma_noise.item() == pytest.approx(NOISE, rel=0.4)
    check_curve(la, data)

    # Saved and loaded, as the example goes on.
    torch.save(la.state_dict(), tmp_path / "state.bin")
    again = Laplace(
        la.model, "regression", subset_of_weights="all", hessian_structure=structure
    )
    again.load_state_dict(torch.load(tmp_path / "state.bin"))
    assert again.sigma_noise == la.sigma_noise
    torch.testing.assert_close(again(data.x_test), la(data.x_test))


@pytest.mark.parametrize("prior_structure", ["scalar", "layerwise", "diag"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_marginal_likelihood_training(structure: str, prior_structure: str):
    data, n_epochs = sinusoid(), 100
    la, model, margliks, losses = marglik_training(
        model=curve(),
        train_loader=data.loader,
        likelihood="regression",
        hessian_structure=structure,
        backend=None,
        n_epochs=n_epochs,
        optimizer_kwargs={"lr": 1e-2},
        prior_structure=prior_structure,
        marglik_frequency=10,
    )
    assert la.model is model and len(losses) == n_epochs
    assert margliks[-1] < margliks[0]
    count = {"scalar": 1, "layerwise": 4, "diag": la.n_params}[prior_structure]
    assert len(la.prior_precision) == count
    mean, variance = la(data.x_test)
    assert mean.shape == (90, 1) and variance.shape == (90, 1, 1)
    assert torch.isfinite(mean).all() and (variance > 0).all()


@pytest.mark.parametrize("structure", OURS)
def test_the_examples_backend_is_refused_with_the_remedy(structure: str):
    with pytest.raises(ValueError, match="got backend=BackPackGGN.*Pass backend=None"):
        marglik_training(
            model=curve(),
            train_loader=sinusoid().loader,
            likelihood="regression",
            hessian_structure=structure,
            backend=BackPackGGN,
            n_epochs=1,
        )


def blobs(n: int) -> tuple[Tensor, Tensor]:
    """Images with a bright corner, which is their class, in noise."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(4, (n,), generator=generator)
    x = 0.8 * torch.randn(n, 1, 6, 6, generator=generator)
    for image, label in zip(x, labels.tolist(), strict=True):
        row, column = 3 * (label // 2), 3 * (label % 2)
        image[0, row : row + 3, column : column + 3] += 0.7
    return x, labels


def classifier() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 4),
    )  # fmt: skip


def halves() -> tuple[DataLoader, DataLoader]:
    x, labels = blobs(240)
    parts = [(x[:120], labels[:120]), (x[120:], labels[120:])]
    train, test = (DataLoader(TensorDataset(*p), batch_size=40) for p in parts)
    return train, test


def fitted_classifier(structure: str) -> tuple[BaseLaplace, DataLoader]:
    train, test = halves()
    la = Laplace(
        copy.deepcopy(trained_classifier()),
        "classification",
        subset_of_weights="all",
        hessian_structure=structure,
    )
    la.fit(train)
    return la, test


@torch.no_grad()
def predict(loader: DataLoader, model: object, laplace: bool, **settings) -> Tensor:
    found = []
    for x, _ in loader:
        output = model(x, **settings)
        found.append(output if laplace else output.softmax(-1))
    return torch.cat(found).cpu()


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    categorical = torch.distributions.Categorical(probabilities)
    return -categorical.log_prob(labels).mean().item()


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    confidence, chosen = probabilities.max(-1)
    right = (chosen == labels).to(confidence)
    index = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins).index_add(0, index, confidence - right)
    return gaps.abs().sum().item() / len(labels)


SCORES = [negative_log_likelihood, calibration_error]


def calibrated(test: DataLoader) -> Tensor:
    """What the example gives with laplace-torch's own diagonal."""
    la, _ = fitted_classifier("diag")
    la.optimize_prior_precision(method="marglik")
    return predict(test, la, laplace=True)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_calibration_example(structure: str):
    la, test = fitted_classifier(structure)
    labels = torch.cat([y for _, y in test])
    plain = predict(test, la.model, laplace=False)
    la.optimize_prior_precision(method="marglik")
    found = predict(test, la, laplace=True, link_approx="probit")
    assert found.shape == plain.shape == (120, 4)
    torch.testing.assert_close(found.sum(-1), torch.ones(120))
    torch.testing.assert_close(predict(test, la, laplace=True), found)
    accuracy = [(p.argmax(-1) == labels).double().mean().item() for p in (plain, found)]
    assert accuracy[1] > 0.8 and abs(accuracy[1] - accuracy[0]) < 0.05
    assert (found.max(-1).values < plain.max(-1).values).all()
    scores = [score(p, labels) for score in SCORES for p in (found, calibrated(test))]
    assert scores[0] == pytest.approx(scores[1], abs=0.02)
    assert scores[2] == pytest.approx(scores[3], abs=0.02)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_link(structure: str, link: str):
    la, test = fitted_classifier(structure)
    x, _ = next(iter(test))
    found = la(x, pred_type="glm", link_approx=link)
    assert found.shape == (40, 4) and (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(40))
    sampled = la(x, pred_type="nn", link_approx="mc", n_samples=20)
    torch.testing.assert_close(sampled.sum(-1), torch.ones(40))
    diagonal = la(x, link_approx="mc", diagonal_output=True)
    torch.testing.assert_close(diagonal.sum(-1), torch.ones(40))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gridsearch(structure: str):
    chosen = []
    for name in ("diag", structure):
        la, test = fitted_classifier(name)
        la.optimize_prior_precision(method="gridsearch", val_loader=test, grid_size=5)
        chosen.append(la.prior_precision.item())
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("prior_structure", ["scalar", "layerwise", "diag"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_prior_structure(structure: str, prior_structure: str):
    la, test = fitted_classifier(structure)
    la.optimize_prior_precision(prior_structure=prior_structure, n_steps=5)
    count = {"scalar": 1, "layerwise": 4, "diag": la.n_params}[prior_structure]
    assert la.prior_precision.numel() == count
    assert la.prior_precision_diag.shape == (la.n_params,)
    assert torch.isfinite(la(next(iter(test))[0])).all()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_other_libraries_call(structure: str):
    la, data = fitted_curve(structure, sigma_noise=NOISE, prior_precision=0.5)
    x = data.x_test[:7]
    generator = torch.Generator()
    mean, variance = la(x, diagonal_output=True)
    assert mean.shape == variance.shape == (7, 1)
    mean, covariance = la(x, joint=True)
    assert mean.shape == (7,) and covariance.shape == (7, 7)
    torch.testing.assert_close(covariance.diagonal(), variance.flatten())
    assert la(x, pred_type="nn", link_approx="mc")[1].shape == (7, 1)
    for pred_type in ("glm", "nn"):
        for draw in (la.functional_samples, la.predictive_samples):
            found = draw(x, pred_type, n_samples=6, generator=generator.manual_seed(1))
            again = draw(x, pred_type, n_samples=6, generator=generator.manual_seed(1))
            assert found.shape == (6, 7, 1) and torch.equal(found, again)
    assert la.predictive_samples(x).shape == (100, 7, 1)
    assert la.functional_samples(x).shape == (100, 7, 1)
    weights = la.sample(3, generator=generator.manual_seed(1))
    assert weights.shape == (3, la.n_params)
    assert la.square_norm(weights[0]).shape == la.log_prob(weights[0]).shape == ()
    assert la.log_prob(la.mean) > la.log_prob(weights[0])
    assert la.log_prob(weights[0], normalized=False) == -la.square_norm(weights[0]) / 2
    assert la.predictive(x, "glm", "probit", 10)[0].shape == (7, 1)
    for value in (la.log_likelihood, la.scatter, la.log_det_ratio):
        assert value.shape == () and torch.isfinite(value)
    assert la.posterior_variance.shape == la.posterior_scale.shape == (la.n_params,)
    assert la.posterior_precision.shape == la.prior_precision_diag.shape


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_through_the_predictive(structure: str):
    la, data = fitted_curve(structure, enable_backprop=True)
    x = data.x_test[:5].clone().requires_grad_()
    mean, variance = la(x)
    (slope,) = torch.autograd.grad((mean + variance.flatten(1)).sum(), x)
    assert slope.shape == x.shape and (slope != 0).all()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_continual_fitting(structure: str):
    la, data = fitted_curve(structure)
    before = la.posterior_precision.clone()
    la.fit(data.loader, override=False)
    assert la.n_data == 240
    assert (la.posterior_precision >= before).all()


class Records(Dataset):
    """Dicts, as Hugging Face's data sets yield them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.linspace(-1, 1, 8)[index] * torch.tensor([1.0, 2.0, 0.5])
        return {"input_ids": x, "labels": x[:2].sin()}


class ReadsRecords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, record: dict[str, Tensor]) -> Tensor:
        return self.net(record["input_ids"])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_dicts_as_batches(structure: str):
    la = Laplace(ReadsRecords(), "regression", "all", structure)
    loader = DataLoader(Records(), 4)
    la.fit(loader)
    record = next(iter(loader))
    mean, covariance = la(record)
    assert mean.shape == (4, 2) and covariance.shape == (4, 2, 2)
    mean, variance = la(record, pred_type="nn", link_approx="mc")
    assert mean.shape == variance.shape == (4, 2)
    for pred_type in ("glm", "nn"):
        assert la.predictive_samples(record, pred_type, 5).shape == (5, 4, 2)
