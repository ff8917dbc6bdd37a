"""Variational Laplace against enumeration, torch's own divergence and closed forms."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack.variational import VariationalLaplace
from lae_backpack.variational.objective import fisher_penalty, hessian_penalty


def net(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Softplus(), nn.Linear(4, outputs))


class Scale(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def spread(vl: VariationalLaplace) -> None:
    """Give the variances values of their own."""
    with torch.no_grad():
        for log_sigma in vl.log_sigmas:
            log_sigma += 0.5 * torch.randn_like(log_sigma)


def sigmas(vl: VariationalLaplace) -> Tensor:
    return torch.cat([s.detach().exp().flatten() for s in vl.log_sigmas])


def flat(tensors) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def fisher_by_enumeration(model: nn.Module, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Every label of every sample, with its probability."""
    total = torch.zeros(sum(p.numel() for p in w.values()))
    for row in x:

        def log_probs(w: dict[str, Tensor], row: Tensor = row) -> Tensor:
            return functional_call(model, w, (row[None],))[0].log_softmax(0)

        probabilities = log_probs(w).exp()
        for label in range(len(probabilities)):
            g = flat(grad(lambda w, c=label: log_probs(w)[c])(w).values())
            total = total + probabilities[label] * g.square()
    return total


def test_expected_penalty_is_half_the_weighted_fisher():
    x = torch.randn(3, 2)
    vl = VariationalLaplace(net(), prior_scale=0.7)
    spread(vl)
    output = vl.model(x)
    log_probs = output.log_softmax(1)
    expected = torch.zeros(())
    for labels in product(range(3), repeat=3):  # all that could be drawn
        drawn = torch.tensor(labels)
        chance = log_probs[torch.arange(3), drawn].sum().exp()
        believed = vl.likelihood.log_prob(output, drawn)
        expected = expected + chance * fisher_penalty(
            believed, 3, vl.means, list(vl.log_sigmas)
        )
    fisher = fisher_by_enumeration(vl.model, weights(vl.model), x)
    torch.testing.assert_close(3 * expected, 0.5 * (sigmas(vl) ** 2 @ fisher))


def test_labels_are_drawn_from_the_model_not_from_the_data():
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
    model = nn.Sequential(*net(), Scale(8.0))  # sure of labels that are not the data's
    vl = VariationalLaplace(model, prior_scale=2.0)
    generator = torch.Generator().manual_seed(0)
    penalties = [vl.terms(x, y, 4, generator).penalty.detach() for _ in range(1000)]
    fisher = fisher_by_enumeration(vl.model, weights(vl.model), x)
    expected = 0.5 * (sigmas(vl) ** 2 @ fisher) / 4
    error = torch.stack(penalties).std() / math.sqrt(1000)
    assert abs(torch.stack(penalties).mean() - expected) < 4 * error
    assert error < 0.1 * expected
    empirical = fisher_penalty(
        vl.likelihood.log_prob(vl.model(x), y), 4, vl.means, list(vl.log_sigmas)
    )
    assert abs(empirical - expected) > 10 * error


@pytest.mark.parametrize("n_some", [1, 3])
def test_part_of_a_batch_gives_the_same_penalty_on_average(n_some: int):
    x, y = torch.randn(6, 2), torch.zeros(6).long()
    vl = VariationalLaplace(net(), prior_scale=2.0, penalty_samples=n_some)
    generator = torch.Generator().manual_seed(1)
    penalties = torch.stack([
        vl.terms(x, y, 6, generator).penalty.detach() for _ in range(1000)
    ])
    expected = 0.5 * (
        sigmas(vl) ** 2 @ fisher_by_enumeration(vl.model, weights(vl.model), x)
    )
    assert abs(penalties.mean() - expected / 6) < 4 * penalties.std() / math.sqrt(1000)


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm1d(3), nn.Dropout])
def test_the_penalty_sees_the_pass_of_the_likelihood(make: Callable[[], nn.Module]):
    passes: list[Tensor] = []
    layer = make()
    layer.register_forward_hook(lambda m, args, out: passes.append(out))
    model = nn.Sequential(nn.Linear(2, 3), layer, nn.Tanh(), nn.Linear(3, 2))
    vl = VariationalLaplace(model, penalty_samples=2)
    vl.loss(torch.randn(6, 2), torch.zeros(6).long(), 6).backward()
    assert len(passes) == 1
    vl.eval().loss(torch.randn(6, 2), torch.zeros(6).long(), 6).backward()
    assert [len(seen) for seen in passes] == [6, 6, 2]


def test_regression_penalty_is_the_gauss_newton_matrix():
    x, y = torch.randn(5, 2), torch.randn(5, 3)
    vl = VariationalLaplace(net(), "regression", prior_scale=1.0, sigma_noise=0.5)
    spread(vl)
    jacobians = torch.func.jacrev(lambda w: functional_call(vl.model, w, (x,)))(
        weights(vl.model)
    )
    squares = flat(j.square().sum((0, 1)) for j in jacobians.values()) / 0.25
    expected = 0.5 * (sigmas(vl) ** 2 @ squares) / 5
    generator = torch.Generator().manual_seed(0)
    penalties = torch.stack([
        vl.terms(x, y, 5, generator).penalty.detach() for _ in range(1000)
    ])
    assert abs(penalties.mean() - expected) < 4 * penalties.std() / math.sqrt(1000)


def test_weights_with_gaps_between_them_train_as_others_do():
    found = []
    data = DataLoader(TensorDataset(torch.randn(8, 3), torch.randn(8, 4)), 4)
    wide = torch.randn(4, 6)
    for weight in (wide[:, ::2].clone(), wide.clone()[:, ::2]):
        model = nn.Linear(3, 4, bias=False)
        model.weight = nn.Parameter(weight)
        vl = VariationalLaplace(model, "regression")
        vl.fit(data, 3, 0.1, generator=torch.Generator().manual_seed(0))
        found.append(model.weight.detach().clone())
    torch.testing.assert_close(*found)


def test_as_many_scales_as_weights():
    model = nn.Linear(2, 1)
    vl = VariationalLaplace(model, "regression")
    model.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="equally many, got 1 of them, 2 and 2"):
        vl.kl()


def test_divergence_is_torchs():
    vl = VariationalLaplace(net())
    spread(vl)
    assert len({float(scale) for scale in vl.prior_scales}) > 1
    q = [Normal(m, s.exp()) for m, s in zip(vl.means, vl.log_sigmas, strict=True)]
    priors = [Normal(torch.zeros(()), scale) for scale in vl.prior_scales]
    expected = flat(map(kl_divergence, q, priors)).sum()
    torch.testing.assert_close(vl.kl(), expected)
    weights = [*vl.means, *vl.log_sigmas]
    ours, theirs = (
        torch.autograd.grad(value, weights, create_graph=True)
        for value in (vl.kl(), expected)
    )
    torch.testing.assert_close(ours, theirs)
    twice = [
        torch.autograd.grad(flat(of).square().sum(), weights) for of in (ours, theirs)
    ]
    torch.testing.assert_close(*twice)
    expected = expected.detach()
    terms = vl.terms(torch.randn(4, 2), torch.zeros(4).long(), n_data=100)
    torch.testing.assert_close(terms.kl, expected / 100)
    torch.testing.assert_close(
        terms.bound, terms.log_likelihood - terms.penalty - terms.kl
    )


@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_gradient_is_that_of_the_objective(likelihood: str, curvature: str):
    x = torch.randn(4, 2)
    y = torch.tensor([0, 1, 2, 1]) if likelihood == "classification" else x @ x.T[:, :3]
    vl = VariationalLaplace(net(), likelihood, 0.7, beta=0.3, curvature=curvature)
    spread(vl)
    generator = torch.Generator()
    if likelihood == "regression":  # the drawn noise, not the drawn target, is kept
        drawn = y + 1
        vl.likelihood.sample = lambda output, generator: drawn

    def value() -> Tensor:
        return vl.loss(x, y, 20, generator.manual_seed(3))

    value().backward()
    for parameter in vl.parameters():
        index = int(parameter.grad.abs().argmax())
        entries, found = parameter.data.view(-1), float(parameter.grad.view(-1)[index])
        around = []
        for step in (1e-5, -2e-5):
            entries[index] += step
            around.append(float(value().detach()))
        entries[index] += 1e-5
        difference = (around[0] - around[1]) / 2e-5
        assert difference == pytest.approx(found, rel=1e-5, abs=1e-8)


def test_variances_end_where_the_closed_form_says():
    # A linear model: Fisher and Hessian are those of every weight.
    torch.manual_seed(0)
    model, beta, s = nn.Linear(2, 1, bias=False), 0.5, 0.8
    x = 0.3 * torch.randn(30, 2)
    y = x @ torch.tensor([[1.0], [-1.0]])
    vl = VariationalLaplace(model, "regression", s, beta, sigma_noise=2.0)
    vl.fit(DataLoader(TensorDataset(x, y), batch_size=30), 1500, lr=3e-3)
    fisher, prior = x.square().sum(0) / 4, beta / s**2
    assert (fisher / prior).log().abs().max() < 1  # both count
    expected = beta / (fisher + prior)
    found = sigmas(vl) ** 2
    torch.testing.assert_close(found, expected, rtol=0.15, atol=0)
    precision = vl.to_laplace().posterior_precision
    torch.testing.assert_close(precision, 1 / found)


def test_hessian_variant_diverges_where_the_paper_says():
    # One weight through sin: the data's log-likelihood is convex there, H > 1 / s^2.
    class Sine(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([[1.4]]))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.w).sin()

    x, y = torch.ones(20, 1), torch.full((20, 1), 3.0)
    log_sigmas = {}
    for sign in (1, -1):
        for curvature in ("fisher", "hessian"):
            vl = VariationalLaplace(Sine(), "regression", 1.0, curvature=curvature)
            hessian = torch.autograd.functional.hessian(
                lambda w, y=sign * y: -0.5 * ((x * w).sin() - y).square().sum(),
                torch.tensor(1.4),
            )
            assert (hessian > 1) == (sign == -1)  # 1 / s^2 is 1
            optimizer = torch.optim.SGD(vl.log_sigmas, lr=0.5)
            path = []
            for _ in range(400):
                optimizer.zero_grad()
                vl.loss(x, sign * y, 20).backward()
                optimizer.step()
                path.append(vl.log_sigmas[0].item())
                if path[-1] > 3:
                    break
            log_sigmas[sign, curvature] = path
    assert log_sigmas[-1, "hessian"][-1] > 3  # twenty times the prior, and growing
    assert log_sigmas[-1, "fisher"][-1] < 0
    closed = -0.5 * math.log(
        1 + 20 * (3 - math.sin(1.4)) * math.sin(1.4) + 20 * math.cos(1.4) ** 2
    )  # noqa: E501
    assert log_sigmas[1, "hessian"][-1] == pytest.approx(closed, abs=1e-3)  # eq. 23


def test_hessian_penalty_is_the_diagonal_on_average():
    x, y = torch.randn(3, 2), torch.tensor([0, 1, 2])
    vl = VariationalLaplace(net(), prior_scale=0.7, curvature="hessian")
    spread(vl)
    shapes = {n: p.shape for n, p in vl.model.named_parameters()}

    def log_likelihood(vector: Tensor) -> Tensor:
        pieces = vector.split([shape.numel() for shape in shapes.values()])
        parts = zip(shapes.items(), pieces, strict=True)
        cut = {name: piece.view(shape) for (name, shape), piece in parts}
        return -F.cross_entropy(
            functional_call(vl.model, cut, (x,)), y, reduction="sum"
        )

    hessian = torch.func.hessian(log_likelihood)(flat(vl.means).detach())
    expected = -0.5 * (sigmas(vl) ** 2 @ hessian.diagonal()) / 3
    generator = torch.Generator().manual_seed(0)
    found = torch.stack([
        hessian_penalty(
            vl.likelihood.log_prob(vl.model(x), y),
            3,
            vl.means,
            list(vl.log_sigmas),
            generator,
        ).detach()
        for _ in range(1000)
    ])
    assert abs(found.mean() - expected) < 4 * found.std() / math.sqrt(1000)


def test_starts_three_below_the_priors_log_scale():
    vl = VariationalLaplace(net(), prior_scale=0.7)
    assert sigmas(vl).log().sub(math.log(0.7) - 3).abs().max() < 1e-12
    by_fan_in = VariationalLaplace(net())
    assert float(by_fan_in.prior_scales[0]) == pytest.approx(2**-0.5)
    assert float(by_fan_in.prior_scales[1]) == pytest.approx(2**-0.5)
    assert float(by_fan_in.prior_scales[2]) == pytest.approx(0.5)
    rates = [group["lr"] for group in vl.parameter_groups(0.1, multiplier=30)]
    assert rates == pytest.approx([0.1, 3.0])


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_laplace_torchs_object_has_the_same_gaussian(likelihood: str):
    x = torch.randn(20, 2)
    y = (x[:, 0] > 0).long() if likelihood == "classification" else x.prod(1)[:, None]
    sigma = 1.0 if likelihood == "classification" else 0.3
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    outputs = 2 if likelihood == "classification" else 1
    vl = VariationalLaplace(net(outputs), likelihood, sigma_noise=sigma)
    history = vl.fit(loader, 20, lr=0.02)
    assert history[-1] > history[0]
    la = vl.to_laplace(loader)
    torch.testing.assert_close(la.posterior_variance, sigmas(vl) ** 2)
    torch.testing.assert_close(la.mean, flat(vl.means).detach())
    drawn = la.sample(20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.std(0), sigmas(vl), rtol=0.03, atol=0)
    log_likelihood = vl.likelihood.log_prob(vl.model(x), y).detach()
    torch.testing.assert_close(la.log_likelihood, log_likelihood)
    jacobians = torch.func.jacrev(lambda w: functional_call(vl.model, w, (x,)))(
        weights(vl.model)
    )
    pieces = [j.reshape(20, outputs, -1) for j in jacobians.values()]
    expected = torch.cat(pieces, 2).square() @ sigmas(vl) ** 2  # of outputs
    output = vl.model(x).detach()
    if likelihood == "regression":
        mean, variance = la(x, pred_type="glm")
        torch.testing.assert_close(mean, output)
        torch.testing.assert_close(variance.flatten(), expected.flatten())
        return
    probit = (output / (1 + math.pi / 8 * expected).sqrt()).softmax(1)
    torch.testing.assert_close(la(x, link_approx="probit"), probit)
    assert (probit - output.softmax(1)).abs().max() > 0.01  # uncertainty counts
    draws = torch.Generator().manual_seed(0)
    found = la(x, "nn", "mc", n_samples=2000, generator=draws)
    networks = la.sample(2000, torch.Generator().manual_seed(1))
    shapes = [p.shape for p in vl.means]
    names = [name for name, _ in vl.model.named_parameters()]
    sampled = torch.zeros_like(output)
    for network in networks:
        cut = network.split([shape.numel() for shape in shapes])
        w = {n: c.view(s) for n, c, s in zip(names, cut, shapes, strict=True)}
        sampled += functional_call(vl.model, w, (x,)).softmax(1).detach() / 2000
    torch.testing.assert_close(found, sampled, rtol=0, atol=0.01)
    assert (sampled - output.softmax(1)).abs().max() > 0.02


def test_the_loss_is_taken_in_eval_mode():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    x, y = torch.randn(20, 2), torch.arange(20) % 3
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    vl = VariationalLaplace(model)
    vl.fit(loader, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    la = vl.to_laplace(loader)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    expected = F.cross_entropy(model.eval()(x), y, reduction="sum").detach()
    assert la.loss == pytest.approx(float(expected))


def test_autoencoders_and_images_of_classes():
    images = torch.rand(8, 1, 6, 6)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 1, 3, padding=1)
    )
    vl = VariationalLaplace(model, "regression", sigma_noise=0.2)
    vl.fit(DataLoader(TensorDataset(images), batch_size=4), 2)
    mean, variance = vl.to_laplace()(images, pred_type="nn", n_samples=5)
    assert mean.shape == variance.shape == images.shape
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1))
    segments = VariationalLaplace(model)
    labels = (images[:, 0] > 0.5).long()
    assert segments.loss(images, labels, 8).isfinite()


KINKED = [nn.ReLU(), nn.LeakyReLU(), nn.PReLU(), nn.Hardtanh(), nn.SELU(), nn.ELU(0.5)]


@pytest.mark.parametrize("activation", KINKED, ids=lambda a: type(a).__name__)
def test_kinked_activations_are_refused_with_a_replacement(activation: nn.Module):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 4), activation, nn.Linear(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    model = Wrapped()
    with pytest.raises(ValueError, match="Layer 'body.1' is") as refused:
        VariationalLaplace(model)
    line = str(refused.value).split("Replace it: ")[1]
    exec(line, {"model": model, "torch": torch})
    assert isinstance(model.body[1], nn.Softplus)
    VariationalLaplace(model).loss(torch.randn(3, 2), torch.zeros(3).long(), 3)


@pytest.mark.parametrize("smooth", [nn.ELU(), nn.GELU(), nn.SiLU(), nn.Tanh()])
def test_smooth_activations_are_not(smooth: nn.Module):
    model = nn.Sequential(nn.Linear(2, 4), smooth, nn.Linear(4, 3))
    vl = VariationalLaplace(model)
    vl.loss(torch.randn(3, 2), torch.zeros(3).long(), 3).backward()
    assert all(p.grad.isfinite().all() for p in vl.parameters())


def test_functions_with_kinks_are_refused_too():
    class Hidden(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    vl = VariationalLaplace(Hidden(2, 3))
    with pytest.raises(ValueError, match="calls Relu as a function"):
        vl.loss(torch.randn(3, 2), torch.zeros(3).long(), 3)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"likelihood": "poisson"}, "likelihood must be one of"),
        ({"prior_scale": 0.0}, "prior_scale must be finite and above 0"),
        ({"beta": -1.0}, "beta must be finite and above 0"),
        ({"sigma_noise": 0.5}, "Classes have no noise"),
        ({"likelihood": "regression", "sigma_noise": 0.0}, "sigma_noise must be"),
        ({"curvature": "exact"}, "curvature must be one of"),
        ({"penalty_samples": 0}, "penalty_samples must be at least 1"),
    ],
)
def test_bad_settings_are_explained(settings: dict, message: str):
    with pytest.raises(ValueError, match=message):
        VariationalLaplace(net(), **settings)


def test_nothing_learned_is_no_posterior():
    with pytest.raises(RuntimeError, match="Nothing was learned yet"):
        VariationalLaplace(net()).to_laplace()


HIDDEN = {
    "selu": F.selu,
    "elu": lambda x: F.elu(x, alpha=0.5),
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp by a tensor": lambda x: x.clamp(torch.zeros(3)),
    "clamp_min": lambda x: x.clamp_min(0),
    "clamp_max": lambda x: x.clamp_max(0),
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "maximum": lambda x: torch.maximum(x, -x),
    "after a normalisation": lambda x: F.layer_norm(x, (3,)).clamp_min(0),
    "divided by a scalar": lambda x: torch.ops.aten.div.Scalar(x.abs(), 2.0),
    "divided": lambda x: (1 + x.abs()) / 2,
}


class Called(nn.Linear):
    """A layer whose forward calls a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__(2, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(super().forward(x))


@pytest.mark.parametrize("name", HIDDEN)
def test_all_functions_with_kinks_are_refused(name: str):
    vl = VariationalLaplace(Called(HIDDEN[name]))
    with pytest.raises(ValueError, match="as a function. Its second derivative"):
        vl.loss(torch.randn(3, 2), torch.zeros(3).long(), 3)


@pytest.mark.parametrize("function", [F.elu, F.celu, F.softsign, F.normalize, F.mish])
def test_smooth_functions_are_not_refused(function: Callable[[Tensor], Tensor]):
    vl = VariationalLaplace(Called(function))
    assert vl.loss(torch.randn(3, 2), torch.zeros(3).long(), 3).isfinite()


def softmax_by_hand(x: Tensor) -> Tensor:
    weights = (x - x.amax(1, keepdim=True)).exp()
    return weights / weights.sum(1, keepdim=True)


CHOICES = {
    "amax": softmax_by_hand,
    "max": lambda x: x - x.max(1, keepdim=True).values,
    "min": lambda x: x - x.min(),
    "max_pool": lambda x: F.max_pool1d(x, 2, stride=1, padding=1),
    "topk": lambda x: x.topk(3, dim=1).values,
    "sort": lambda x: x.sort(1).values,
}


@pytest.mark.parametrize("name", CHOICES)
def test_choosing_among_features_is_no_activation(name: str):
    vl = VariationalLaplace(Called(CHOICES[name]))
    vl.terms(torch.randn(3, 2), torch.zeros(3).long(), 3).penalty.backward()
    found = [s.grad for s in vl.log_sigmas]
    assert all(g is not None and g.isfinite().all() and g.any() for g in found)


def test_a_state_tells_how_many_data_and_outputs_there_were():
    x, y = torch.randn(6, 2), torch.arange(6) % 3
    vl = VariationalLaplace(net())
    vl.fit(DataLoader(TensorDataset(x, y), 3), 2)
    again = VariationalLaplace(net())
    again.load_state_dict(vl.state_dict())
    la, other = vl.to_laplace(), again.to_laplace()
    assert (other.n_data, other.n_outputs) == (la.n_data, la.n_outputs) == (6, 3)
    assert torch.equal(other.H, la.H) and torch.equal(other.mean, la.mean)
    assert torch.equal(other(x), la(x))
