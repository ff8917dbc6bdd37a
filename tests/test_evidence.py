"""Evidence against laplace-torch's own, and against closed forms of linear models."""

import copy
from collections.abc import Callable

import pytest
import torch
from laplace import Laplace
from laplace.baselaplace import DiagLaplace, LowRankLaplace, ParametricLaplace
from laplace.curvature import BackPackGGN, CurvlinopsGGN
from laplace.utils import LargestVarianceDiagLaplaceSubnetMask
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.posterior.evidence import (
    effective_parameters,
    largest_variances,
    linear_optimum,
    marginal_variances,
    maximise_evidence,
    maximise_linear_evidence,
    normalised_groups,
    subnetwork_laplace,
)

STRUCTURES = ["diag", "kron", "full", "block_diag"]
STRUCTURES += ["approx_diag", "mixed_diag", "calibrated_diag"]


def data(likelihood: str, n: int = 40) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(n, 3)
    y = torch.stack((x[:, 0].sin() + x[:, 1] * x[:, 2], x.sum(1).cos()), 1)
    if likelihood == "regression":
        return x, y + 0.1 * torch.randn_like(y)
    return x, (y[:, 0] > 0).long() + (y[:, 1] > 0.5).long()


def loader(*tensors: Tensor, batch_size: int = 16) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=True)


def net(likelihood: str, steps: int = 100) -> nn.Sequential:
    torch.manual_seed(0)
    outputs = 2 if likelihood == "regression" else 3
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs))
    x, y = data(likelihood)
    loss = F.mse_loss if likelihood == "regression" else F.cross_entropy
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


def fitted(structure: str, likelihood: str, **kwargs) -> ParametricLaplace:
    backend = {"backend": BackPackGGN} if structure in ("diag", "full") else {}
    la = Laplace(net(likelihood), likelihood, "all", structure, **backend, **kwargs)
    torch.manual_seed(2)  # calibrated_diag is random, and there are two of a kind
    la.fit(loader(*data(likelihood)))
    return la


def by_gradient(la: ParametricLaplace, layerwise: bool) -> tuple[Tensor, Tensor]:
    """Maximise laplace-torch's evidence with a general optimiser."""
    logs = torch.zeros(la.n_layers if layerwise else 1, requires_grad=True)
    log_noise = torch.zeros(1, requires_grad=la.likelihood == "regression")
    leaves = [leaf for leaf in (logs, log_noise) if leaf.requires_grad]
    optimizer = torch.optim.LBFGS(
        leaves, max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        noise = log_noise.exp() if log_noise.requires_grad else None
        loss = -la.log_marginal_likelihood(logs.exp(), noise)
        loss.backward()
        return loss

    optimizer.step(closure)
    return logs.detach().exp(), log_noise.detach().exp()


def by_differences(la: ParametricLaplace) -> None:
    """No prior precision or noise would have to move by more than 1e-4."""
    prior, noise, h = la.prior_precision.clone(), la.sigma_noise.clone(), 1e-3
    for direction in torch.eye(len(prior) + 1):
        values = []
        for step in (-h, 0.0, h):
            moved = (step * direction).exp()
            moved_to = prior * moved[:-1], noise * moved[-1]
            values.append(float(la.log_marginal_likelihood(*moved_to)))
        slope = (values[2] - values[0]) / (2 * h)
        curvature = (values[2] + values[0] - 2 * values[1]) / h**2
        assert curvature < -1e-3
        assert abs(slope / curvature) < 1e-4


@pytest.mark.parametrize("groups", ["scalar", "layerwise"])
@pytest.mark.parametrize("likelihood", ["regression", "classification"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_fixed_point_is_the_maximum_of_laplace_torchs_evidence(
    structure: str, likelihood: str, groups: str
):
    la = fitted(structure, likelihood)
    found = maximise_evidence(la, groups, tolerance=1e-8)
    assert found.converged
    if (structure, likelihood) == ("kron", "regression"):
        by_differences(la)  # laplace-torch has no gradient of this noise
        return
    prior, noise = by_gradient(fitted(structure, likelihood), groups == "layerwise")
    assert (prior - 1).abs().max() > 0.02  # it was not there already
    torch.testing.assert_close(found.prior_precision, prior, rtol=1e-4, atol=0)
    torch.testing.assert_close(la.prior_precision, prior, rtol=1e-4, atol=0)
    if likelihood == "regression":
        torch.testing.assert_close(la.sigma_noise, noise[0], rtol=1e-4, atol=0)
    own = float(la.log_marginal_likelihood())
    assert found.log_evidence[-1] == pytest.approx(own, abs=1e-9)
    gamma = effective_parameters(la)
    torch.testing.assert_close(found.effective_parameters.sum(), gamma)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_more_effective_parameters_than_numbers(temperature: float):
    # Three samples, 38 weights: MacKay's own noise would be negative.
    la = Laplace(net("regression"), "regression", "all", "approx_diag")
    la.temperature = temperature
    x, y = data("regression")
    la.fit(loader(x[:3], y[:3]))
    la.prior_precision = 1e-3
    assert effective_parameters(la) > 6
    found = maximise_evidence(la, tolerance=1e-8, max_steps=5000)
    assert found.converged
    noise = la.sigma_noise.clone().requires_grad_()
    prior = la.prior_precision.clone().requires_grad_()
    slopes = torch.autograd.grad(
        la.log_marginal_likelihood(prior, noise), (prior, noise)
    )
    assert float(slopes[0] * prior.detach()) == pytest.approx(0, abs=1e-5)
    assert float(slopes[1] * noise.detach()) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_effective_parameters_by_explicit_matrices(structure: str):
    la = fitted(structure, "regression", sigma_noise=0.3, prior_precision=70.0)
    eye = torch.eye(la.n_params)
    if structure == "kron":
        precision = la.posterior_precision.bmm(eye, exponent=1)
    elif structure == "block_diag":
        precision = la.posterior_precision.to_matrix()
    else:
        precision = la.posterior_precision
        precision = precision if precision.dim() == 2 else precision.diag()
    covariance = precision.inverse()
    torch.testing.assert_close(marginal_variances(la), covariance.diag())
    expected = (covariance @ (precision - 70 * eye)).trace()
    torch.testing.assert_close(effective_parameters(la), expected)
    assert 1 < expected < la.n_params - 1


def test_float32_comes_to_an_end_too():
    torch.set_default_dtype(torch.float32)
    la = fitted("approx_diag", "regression")
    found = maximise_evidence(la, "layerwise", max_steps=60)
    assert found.converged
    assert la.prior_precision.dtype == found.weights.dtype == torch.float32


def test_more_data_determine_more_parameters():
    few, many = fitted("full", "regression"), fitted("full", "regression")
    x, y = data("regression", 400)
    few.fit(loader(x[:4], y[:4]))
    many.fit(loader(x, y))
    assert effective_parameters(few) < 4 * 2  # never more than there are numbers
    assert effective_parameters(many) > effective_parameters(few) + 5


# The linear model -------------------------------------------------------------------


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    outputs = model(x[:1]).shape[1]
    weights = model.state_dict()
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs))
    model.load_state_dict(weights)  # without BackPACK's hooks
    own = {name: p.detach() for name, p in model.named_parameters()}
    parts = jacrev(lambda w: functional_call(model, w, (x,)))(own)
    n = len(x) * model(x).shape[1]
    return torch.cat([part.reshape(n, -1) for part in parts.values()], 1)


def closed_form(la: ParametricLaplace, x: Tensor, y: Tensor) -> Tensor:
    j, theta = jacobian(la.model, x), la.mean
    target = (y - la.model(x)).detach().flatten() + j @ theta
    beta = 1 / la.sigma_noise**2 / la.temperature
    precision = beta * j.T @ j + la.prior_precision_diag.diag()
    right = beta * j.T @ target + la.prior_precision_diag * la.prior_mean
    return torch.linalg.solve(precision, right)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_optimum_of_the_linear_model_is_the_closed_form(structure: str):
    settings = {"sigma_noise": 0.2, "temperature": 1.5, "prior_mean": 0.1}
    la = fitted(structure, "regression", prior_precision=0.5, **settings)
    x, y = data("regression")
    expected = closed_form(la, x, y)
    assert (expected - la.mean).norm() > 0.5
    found = linear_optimum(la, loader(x, y), tolerance=1e-9)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_adam_gets_to_the_optimum_too():
    la = fitted("diag", "regression", prior_precision=3.0)
    x, y = data("regression")
    expected = closed_form(la, x, y)
    found = linear_optimum(
        la, loader(x, y, batch_size=40), method="adam", max_steps=300
    )
    before = (la.mean - expected).norm()
    assert (found - expected).norm() < 0.01 * before


def test_optimum_of_a_linear_classifier_has_no_gradient():
    la = fitted("kron", "classification", prior_precision=0.3)
    x, y = data("classification")
    found = linear_optimum(la, loader(x, y), tolerance=1e-8)
    j, start = jacobian(la.model, x), la.model(x).detach()

    def objective(theta: Tensor) -> Tensor:
        logits = start + (j @ (theta - la.mean)).view_as(start)
        penalty = 0.5 * (la.prior_precision_diag * theta.square()).sum()
        return F.cross_entropy(logits, y, reduction="sum") + penalty

    gradients = torch.func.grad(objective)
    assert gradients(la.mean).norm() > 1
    assert gradients(found).norm() < 1e-6


def linear_evidence(
    j: Tensor, target: Tensor, priors: Tensor, sigma: Tensor, members: Tensor
) -> Tensor:
    """Of a Bayesian linear model, as a Gaussian over its data."""
    kernel = (j / priors[members]) @ j.T + sigma**2 * torch.eye(len(j))
    zeros = torch.zeros_like(target)
    return torch.distributions.MultivariateNormal(zeros, kernel).log_prob(target)


def test_joint_stationary_point_maximises_the_linear_models_evidence():
    x, y = data("regression")
    la = fitted("full", "regression")
    groups = [["0.weight", "0.bias"]]
    found = maximise_linear_evidence(
        la, loader(x, y), groups, tolerance=1e-7, max_rounds=500
    )
    assert found.converged
    j = jacobian(la.model, x)
    target = (y - la.model(x)).detach().flatten() + j @ la.mean
    members = (torch.arange(la.n_params) >= 24).long()
    logs = torch.zeros(2, requires_grad=True)
    log_noise = torch.tensor(-1.0, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logs, log_noise], max_iter=500, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -linear_evidence(j, target, logs.exp(), log_noise.exp(), members)
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(
        found.prior_precision, logs.detach().exp(), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(
        la.sigma_noise, log_noise.detach().exp(), rtol=1e-4, atol=0
    )
    best = -float(closure().detach())
    assert found.log_evidence[-1] == pytest.approx(best, abs=1e-5)
    torch.testing.assert_close(
        found.weights, closed_form(la, x, y), rtol=1e-4, atol=1e-4
    )
    assert torch.equal(la.mean, torch.cat([p.flatten() for p in la.params]).detach())


def test_no_jacobian_for_many_outputs(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = AutoEncoder(
        nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Tanh()),
        nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 1, 3, padding=1)),
    )
    images = torch.rand(6, 1, 8, 8)
    la = LaplaceAE(model, hessian_structure="approx_diag")
    la.fit(loader(images))

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a Jacobian was built")

    monkeypatch.setattr(type(la.backend), "jacobians", refuse)
    monkeypatch.setattr(torch.func, "jacrev", refuse)
    encoder = [n for n, _ in model.named_parameters() if n.startswith("encoder")]
    found = maximise_linear_evidence(la, loader(images), [encoder], max_rounds=5)
    assert found.weights.isfinite().all()
    assert found.log_evidence[-1] > found.log_evidence[0]


# Normalised networks ----------------------------------------------------------------


NORMALISED = ("first", "third")


class Functional(nn.Module):
    """Normalises with functions, and has a way around its normalisation."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 8)
        self.third, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(self.first(x), (8,)).tanh()
        around = self.second(x)
        x = around + F.layer_norm(self.third(x).relu(), (8,))
        return self.last(x)


def batch_normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.GroupNorm(2, 6),
        nn.Flatten(),
        nn.Linear(54, 5),
        nn.Tanh(),
        nn.Linear(5, 2),
    )


@pytest.mark.parametrize(
    "build, shape, expected",
    [
        (Functional, (9, 3), [[f"{n}.weight", f"{n}.bias"] for n in NORMALISED]),
        (batch_normed, (9, 1, 7, 7), [["0.weight"], ["3.weight", "3.bias"]]),
        (lambda: net("regression", 0), (9, 3), []),
    ],
    ids=["functional", "modules", "none"],
)  # fmt: skip
def test_normalised_layers_are_found(
    build: Callable[[], nn.Module], shape: tuple[int, ...], expected: list[list[str]]
):
    torch.manual_seed(0)
    model = build().train()
    before = copy.deepcopy(model.state_dict())
    assert normalised_groups(model, torch.randn(shape)) == expected
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(m.training for m in model.modules())


def normed_net(kind: str, k: float = 1.0) -> nn.Sequential:
    torch.manual_seed(3)
    norm = nn.LayerNorm(6, 1e-30)
    if kind == "batch":
        norm = nn.BatchNorm1d(6, 1e-30, momentum=1.0)
    model = nn.Sequential(nn.Linear(3, 6), norm, nn.Tanh(), nn.Linear(6, 2))
    with torch.no_grad():
        model(data("regression")[0])  # statistics that belong to the weights
        model[0].weight *= k
        model[0].bias *= k
        if isinstance(norm, nn.BatchNorm1d):
            norm.running_mean *= k
            norm.running_var *= k**2
    return model.eval()


def named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def linear_targets(model: nn.Module, x: Tensor) -> Tensor:
    """What weights from the prior would make of the linearised network."""
    own = {name: p.detach() for name, p in model.named_parameters()}
    other = {name: torch.randn_like(p) - p for name, p in own.items()}
    output, pushed = torch.func.jvp(
        lambda w: functional_call(model, w, (x,)), (own,), (other,)
    )
    return (output + pushed + 0.1 * torch.randn_like(output)).detach()


@pytest.mark.parametrize("kind", ["layer", "batch"])
@pytest.mark.parametrize("structure", STRUCTURES[2:])
def test_scaled_weights_with_scaled_priors_are_the_same_model(
    kind: str, structure: str
):
    """Proposition 3: ``J diag(1 / prior) J^T`` has no scale of normalised weights."""
    x, y = data("regression")
    train, points = DataLoader(TensorDataset(x, y), len(x)), torch.randn(5, 3)
    settings = {"pred_type": "glm"}

    def explained(k: float) -> tuple[Tensor, Tensor]:
        model = normed_net(kind, k)
        own = {name for group in normalised_groups(model, x) for name in group}
        assert own == {"0.weight", "0.bias"}
        layerwise = [k**-2 if name in own else 1.0 for name, _ in named(model)]
        la = Laplace(model, "regression", "all", structure)
        torch.manual_seed(5)
        la.fit(train)
        la.prior_precision = 3 * torch.tensor(layerwise)
        variance = la(points, **settings)[1].diagonal(dim1=1, dim2=2)
        return variance, la.log_det_ratio

    for found, expected in zip(explained(8.0), explained(1.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", ["layer", "batch"])
@pytest.mark.parametrize("structure", ["full", "approx_diag"])
def test_variance_does_not_depend_on_the_scale_of_normalised_weights(
    kind: str, structure: str
):
    x, _ = data("regression")
    y, points = linear_targets(normed_net(kind), x), torch.randn(5, 3)
    train = loader(x, y, batch_size=len(x))

    def variances(k: float, grouped: bool) -> Tensor:
        model = normed_net(kind, k)
        groups = normalised_groups(model, x) if grouped else "scalar"
        assert groups in ([["0.weight", "0.bias"]], "scalar")
        la = Laplace(model, "regression", "all", structure, sigma_noise=0.1)
        la.fit(train)
        if structure == "full":
            settings = {"tolerance": 1e-9, "max_rounds": 200}
            found = maximise_linear_evidence(la, train, groups, **settings)
            assert found.effective_parameters.min() > 2  # all groups are of use
        else:  # groups of their own do it at the network's weights, too
            found = maximise_evidence(la, groups, tolerance=1e-9)
        assert found.converged
        return la(points, pred_type="glm")[1].diagonal(dim1=1, dim2=2)

    expected, scaled = (variances(k, grouped=True) for k in (1.0, 8.0))
    torch.testing.assert_close(scaled, expected, rtol=1e-5, atol=0)
    shared = [variances(k, grouped=False) for k in (1.0, 8.0)]
    assert (shared[1] / shared[0]).log().abs().max() > 0.05  # so groups are needed


# Subnetworks ------------------------------------------------------------------------


def test_subnetwork_is_the_one_laplace_torch_would_choose():
    cheap = fitted("mixed_diag", "regression", backend_kwargs={"max_dense_dim": None})
    train = loader(*data("regression"))
    mask = LargestVarianceDiagLaplaceSubnetMask(
        cheap.model, 9, DiagLaplace(cheap.model, "regression", backend=BackPackGGN)
    )
    theirs = mask.select(train)
    assert torch.equal(largest_variances(cheap, 9), theirs)
    la = subnetwork_laplace(cheap, train, 9, backend=BackPackGGN)
    assert la.H.shape == (9, 9)
    mean, variance = la(torch.randn(4, 3))
    assert mean.shape == (4, 2)
    assert (variance.diagonal(dim1=1, dim2=2) > 0).all()
    before = float(la.log_marginal_likelihood())
    found = maximise_evidence(la)
    assert found.converged
    assert found.log_evidence[-1] > before


def test_subnetwork_keeps_the_priors_of_its_weights():
    cheap = fitted("approx_diag", "regression")
    maximise_evidence(cheap, "layerwise")
    la = subnetwork_laplace(cheap, loader(*data("regression")), 5)
    chosen = cheap.prior_precision_diag[largest_variances(cheap, 5)]
    torch.testing.assert_close(la.prior_precision, chosen)


@pytest.mark.parametrize("label", [True, False])
def test_subnetwork_of_an_autoencoder(label: bool):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(9, 4), nn.Dropout(), nn.Tanh(), nn.Linear(4, 2))
    model = AutoEncoder(encoder, nn.Linear(2, 9)).train()
    x = torch.rand(12, 9)
    images = loader(x, torch.zeros(12)) if label else DataLoader(x, 5)
    la = LaplaceAE(model, sigma_noise=0.2, prior_mean=0.05)
    la.fit(images)
    found = subnetwork_laplace(la, images, 6, backend=CurvlinopsGGN)
    assert found.n_data == 12 and found.n_outputs == 9
    model.eval()
    own = {name: p.detach() for name, p in model.named_parameters()}
    bare = copy.deepcopy(model)
    parts = jacrev(lambda w: functional_call(bare, w, (x,)))(own)
    j = torch.cat([part.reshape(12 * 9, -1) for part in parts.values()], 1)
    chosen = j[:, largest_variances(la, 6)]
    torch.testing.assert_close(found.H, chosen.T @ chosen)
    torch.testing.assert_close(float(found.loss), float(la.loss))
    assert float(found.prior_mean) == 0.05


def test_subnetwork_keeps_the_prior_means_of_its_weights():
    means = torch.linspace(-1, 1, 38)
    cheap = fitted("approx_diag", "regression", prior_mean=means)
    la = subnetwork_laplace(cheap, loader(*data("regression")), 5)
    chosen = largest_variances(cheap, 5)
    expected = (cheap.mean - means)[chosen].square().sum()
    torch.testing.assert_close(la.scatter, expected)


def test_subnetwork_of_a_model_that_takes_mappings():
    class TakesMappings(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net("regression")

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.net(batch["input_ids"])

    x, y = data("regression")
    pairs = zip(x, y, strict=True)
    mappings = DataLoader([{"input_ids": a, "labels": b} for a, b in pairs], 16)
    la = Laplace(TakesMappings(), "regression", "all", "diag", backend=CurvlinopsGGN)
    la.fit(mappings)
    found = subnetwork_laplace(la, mappings, 5, backend=CurvlinopsGGN)
    chosen = jacobian(la.model.net, x)[:, largest_variances(la, 5)]
    torch.testing.assert_close(found.H, chosen.T @ chosen)


def test_subnetworks_that_laplace_torch_has_not_are_refused():
    images = torch.rand(6, 1, 4, 4)
    model = AutoEncoder(
        nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1)
    ).train()
    for likelihood, error, message in (
        ("bernoulli", TypeError, "likelihood='bernoulli'"),
        ("regression", ValueError, r"outputs of shape \(1, 4, 4\)"),
    ):
        la = LaplaceAE(model, likelihood)
        la.fit(loader(images))
        with pytest.raises(error, match=message):
            subnetwork_laplace(la, loader(images), 3)
    cheap = fitted("approx_diag", "regression")
    with pytest.raises(ValueError, match="yields no batch"):
        subnetwork_laplace(cheap, [], 3)


# What is refused --------------------------------------------------------------------


def test_bad_input_is_explained_and_changes_nothing():
    la = fitted("approx_diag", "classification")
    before = la.prior_precision.clone()
    with pytest.raises(ValueError, match="needs likelihood='regression'"):
        maximise_evidence(la, learn_noise=True)
    with pytest.raises(ValueError, match="groups must be one of"):
        maximise_evidence(la, "everything")
    with pytest.raises(ValueError, match="'9.weight', which is no trainable"):
        maximise_evidence(la, [["9.weight"]])
    with pytest.raises(ValueError, match="'0.bias' twice"):
        maximise_evidence(la, [["0.bias"], ["0.bias"]])
    with pytest.raises(ValueError, match="n_weights must be from 1"):
        largest_variances(la, 1000)
    with pytest.raises(ValueError, match="method must be one of"):
        linear_optimum(la, loader(*data("classification")), method="sgd")
    with pytest.raises(ValueError, match="at least 2 samples"):
        normalised_groups(la.model, torch.randn(1, 3))
    assert torch.equal(la.prior_precision, before)
    with pytest.raises(RuntimeError, match="not fitted"):
        maximise_evidence(Laplace(la.model, "regression", "all", "kron"))
    lowrank = object.__new__(LowRankLaplace)  # its backend is not installed
    lowrank.n_data, lowrank.H = 1, None
    with pytest.raises(TypeError, match="has no diagonal"):
        marginal_variances(lowrank)


def test_a_layer_without_weights_or_curvature_stops_at_the_limits():
    model = net("regression")
    with torch.no_grad():
        model[2].bias.zero_()
    la = Laplace(model, "regression", "all", "approx_diag")
    la.fit(loader(*data("regression")))
    la.H[:18] = 0
    found = maximise_evidence(la, "layerwise")
    assert found.prior_precision.isfinite().all()
    assert float(found.prior_precision[0]) == pytest.approx(1e-10, rel=1e-3)
    assert float(found.prior_precision[3]) == pytest.approx(1e10, rel=1e-3)
