"""One full block per layer: against explicit Jacobians and laplace-torch's ``full``."""

import copy
from itertools import product

import pytest
import torch
from laplace import Laplace, marglik_training
from laplace.baselaplace import DiagLaplace, FullLaplace, KronLaplace
from laplace.curvature import AsdlGGN, BackPackGGN
from measuring import peak_memory
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import BlockDiagLaplace, MixedDiagLaplace, UnsupportedModelError
from lae_backpack.curvature.rules import param_block
from lae_backpack.posterior import memory
from lae_backpack.posterior.blocks import BlockDiag
from lae_backpack.posterior.layers import layers_of
from tests.nets import NETS

NAMED = {net.id: net for net in NETS}


def loader(x: Tensor, y: Tensor, batch_size: int = 4) -> DataLoader:
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


def mlp(*sizes: int) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for n_in, n_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(n_in, n_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def image_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, padding=1)
    )


def data(likelihood: str, n_in: int, n_out: int, n: int = 10) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    x = torch.randn(n, n_in)
    return x, torch.randn(n, n_out) if likelihood == "regression" else (
        torch.arange(n) % n_out
    )


IMAGES = torch.linspace(-1, 1, 6 * 20, dtype=torch.float64).reshape(6, 1, 5, 4)
TARGETS = torch.linspace(0, 1, 6 * 40, dtype=torch.float64).sin().reshape(6, 2, 5, 4)


def fitted(net: nn.Module, likelihood: str, x: Tensor, y: Tensor, **settings):
    la = Laplace(net, likelihood, "all", "block_diag", **settings)
    la.fit(loader(x, y))
    assert isinstance(la, BlockDiagLaplace)
    return la


# The oracle: the whole net's Jacobian, and nothing of ours --------------------------


def whole_ggn(model: nn.Module, loss: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """``sum_n J_n^T (d^2 loss / d out^2) J_n`` of all trainable parameters."""
    params = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

    def forward(sample: Tensor, *values: Tensor) -> Tensor:
        return functional_call(model, dict(zip(params, values, strict=True)), (sample,))

    total = torch.zeros(())
    with torch.no_grad():
        out = model(x)
    n, f = len(out), out[0].numel()
    seed = hessian(lambda o: loss(o, y), out).reshape(n, f, n, f)
    for i, sample in enumerate(x.split(1)):
        parts = jacobian(lambda *v, s=sample: forward(s, *v), tuple(params.values()))
        jac = torch.cat([p.reshape(f, -1) for p in parts], 1)
        total = total + jac.T @ seed[i, :, i, :] @ jac
    return total


def owners(model: nn.Module) -> Tensor:
    """For each trainable number the module that owns it, as a number."""
    found = []
    for name, param in model.named_parameters():
        if param.requires_grad:
            found += [name.rpartition(".")[0]] * param.numel()
    numbers = {owner: i for i, owner in enumerate(dict.fromkeys(found))}
    return torch.tensor([numbers[owner] for owner in found])


def blocks_of(matrix: Tensor, model: nn.Module) -> Tensor:
    owner = owners(model)
    return matrix * (owner[:, None] == owner)


LOSSES = {
    "regression": nn.MSELoss(reduction="sum"),
    "classification": nn.CrossEntropyLoss(reduction="sum"),
}


@pytest.mark.parametrize(
    "name, likelihood",
    [
        ("conv-autoencoder-nearest", "regression"),
        ("mlp-autoencoder", "regression"),
        ("residual-convs", "regression"),
        ("residual-exact-in-backpack", "regression"),
        ("norms", "regression"),
        ("tokens", "regression"),
        ("super-resolution", "regression"),
        ("transposed-convs", "regression"),
        ("conv-classifier", "classification"),
        ("mlp-classifier", "classification"),
        ("segmentation", "classification"),
    ],
)
def test_blocks_equal_explicit_jacobians(name: str, likelihood: str):
    model, _, x, y = NAMED[name].build()
    la = fitted(model, likelihood, x, y)
    factor = 0.5 if likelihood == "regression" else 1.0
    expected = blocks_of(factor * whole_ggn(model, LOSSES[likelihood], x, y), model)
    torch.testing.assert_close(la.H.to_matrix(), expected, rtol=1e-9, atol=1e-9)
    assert len(la.H.blocks) == owners(model).max() + 1
    diagonal = Laplace(
        model, likelihood, "all", "mixed_diag", backend_kwargs={"max_dense_dim": None}
    )
    diagonal.fit(loader(x, y))
    assert isinstance(diagonal, MixedDiagLaplace)
    torch.testing.assert_close(la.H.diag(), diagonal.H, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["residual-convs", "conv-classifier"])
def test_small_pieces_give_the_same_blocks(name: str, monkeypatch):
    model, _, x, y = NAMED[name].build()
    likelihood = "classification" if "classifier" in name else "regression"
    whole = fitted(model, likelihood, x, y).H.to_matrix()
    for chunk in (1, 200):
        monkeypatch.setattr(param_block, "CHUNK", chunk)
        pieces = fitted(model, likelihood, x, y).H.to_matrix()
        torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-12)


def test_layers_of_one_number_do_not_mix():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 3), nn.PReLU(), nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 1)
    )
    x, y = data("regression", 2, 1)
    la = fitted(model, "regression", x, y)
    expected = blocks_of(0.5 * whole_ggn(model, LOSSES["regression"], x, y), model)
    torch.testing.assert_close(la.H.to_matrix(), expected, rtol=1e-9, atol=1e-9)


# laplace-torch's own full matrix, on one layer ---------------------------------------


@pytest.mark.filterwarnings("ignore:By default `link_approx` is `probit`")
@pytest.mark.parametrize("likelihood", ["regression", "classification"])
@pytest.mark.parametrize("backend", [None, BackPackGGN])
def test_one_layer_equals_full(likelihood: str, backend):
    x, y = data(likelihood, 4, 3)
    noise = {"sigma_noise": 0.4} if likelihood == "regression" else {}
    settings = {"prior_precision": 2.0, "temperature": 0.7, **noise}
    ours = Laplace(mlp(4, 3), likelihood, "all", "block_diag", **settings)
    theirs = Laplace(mlp(4, 3), likelihood, "all", "full", backend=backend, **settings)
    for override in (True, False):
        for la in (ours, theirs):
            la.fit(loader(x, y), override=override)
        torch.testing.assert_close(ours.H.to_matrix(), theirs.H)
    assert ours.n_data == theirs.n_data == 20
    _assert_same_gaussian(ours, theirs, x)
    for la in (ours, theirs):
        la.prior_precision = torch.linspace(0.5, 2, 15)
    _assert_same_gaussian(ours, theirs, x)
    for la in (ours, theirs):
        la.optimize_prior_precision(n_steps=5, prior_structure="layerwise")
    torch.testing.assert_close(ours.prior_precision, theirs.prior_precision)
    _assert_same_gaussian(ours, theirs, x)


def _assert_same_gaussian(ours, theirs, x: Tensor):
    close = torch.testing.assert_close
    close(ours.posterior_precision.to_matrix(), theirs.posterior_precision)
    close(ours.posterior_covariance.to_matrix(), theirs.posterior_covariance)
    close(ours.log_marginal_likelihood(), theirs.log_marginal_likelihood())
    draws = [la.sample(5, torch.Generator().manual_seed(0)) for la in (ours, theirs)]
    close(*draws)
    close(ours.log_prob(draws[0][0]), theirs.log_prob(draws[0][0]))
    close(ours.square_norm(draws[0][0]), theirs.square_norm(draws[0][0]))
    jacobians, _ = ours.backend.jacobians(x)
    for name in ("functional_variance", "functional_covariance"):
        close(getattr(ours, name)(jacobians), getattr(theirs, name)(jacobians))
    for found, expected in zip(ours(x), theirs(x), strict=True):
        close(found, expected)
    if ours.likelihood == "regression":
        for found, expected in zip(
            ours(x, joint=True), theirs(x, joint=True), strict=True
        ):
            close(found, expected)


# A net of several layers -----------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["regression", "classification"])
@pytest.mark.parametrize("prior", ["scalar", "layerwise", "diag"])
def test_evidence_and_predictive_are_the_explicit_ones(likelihood: str, prior: str):
    model = mlp(3, 4, 3)
    x, y = data(likelihood, 3, 3)
    noise = {"sigma_noise": 0.5} if likelihood == "regression" else {}
    la = fitted(model, likelihood, x, y, **noise)
    numbers = sum(p.numel() for p in model.parameters())
    value, each = {
        "scalar": (torch.tensor(1.7), torch.full((numbers,), 1.7)),
        "layerwise": (
            torch.linspace(1, 2, 4),
            torch.cat([
                torch.full((p.numel(),), v)
                for p, v in zip(
                    model.parameters(), torch.linspace(1, 2, 4), strict=True
                )
            ]),
        ),
        "diag": (torch.linspace(1, 3, numbers), torch.linspace(1, 3, numbers)),
    }[prior]
    la.prior_precision = value
    scale = 0.5 / 0.5**2 if likelihood == "regression" else 1.0
    curvature = blocks_of(whole_ggn(model, LOSSES[likelihood], x, y), model)
    precision = scale * curvature + each.diag()
    mean = nn.utils.parameters_to_vector(model.parameters()).detach()
    with torch.no_grad():
        output = model(x)
    if likelihood == "regression":
        density = torch.distributions.Normal(output, 0.5).log_prob(y).sum()
    else:
        density = -LOSSES[likelihood](output, y)
    evidence = density - 0.5 * (
        torch.linalg.slogdet(precision)[1] - each.log().sum() + mean @ (each * mean)
    )
    torch.testing.assert_close(la.log_marginal_likelihood(), evidence)
    gaussian = torch.distributions.MultivariateNormal(mean, precision_matrix=precision)
    point = mean + torch.linspace(-1, 1, numbers)
    torch.testing.assert_close(la.log_prob(point), gaussian.log_prob(point))
    jacobians, _ = la.backend.jacobians(x)
    variance = jacobians @ precision.inverse() @ jacobians.mT
    torch.testing.assert_close(la.functional_variance(jacobians), variance)
    flat = jacobians.flatten(0, 1)
    torch.testing.assert_close(
        la.functional_covariance(jacobians), flat @ precision.inverse() @ flat.T
    )


def test_evidence_has_the_right_gradients():
    model = mlp(3, 4, 2)
    la = fitted(model, "regression", *data("regression", 3, 2))
    dense = blocks_of(la.H.to_matrix(), model)
    numbers = len(dense)
    prior = torch.linspace(0.5, 2, numbers).requires_grad_()
    sigma = torch.tensor(0.6, requires_grad=True)
    la.prior_precision, la.sigma_noise = prior, sigma
    found = torch.autograd.grad(la.log_det_posterior_precision, (prior, sigma))
    expected = torch.autograd.grad(
        torch.logdet(dense / sigma**2 + prior.diag()), (prior, sigma)
    )
    for pair in zip(found, expected, strict=True):
        torch.testing.assert_close(*pair)


def test_samples_have_the_blocks_covariance():
    model = mlp(2, 3, 2)
    la = fitted(model, "regression", *data("regression", 2, 2))
    covariance = la.posterior_precision.to_matrix().inverse()
    torch.testing.assert_close(la.posterior_covariance.to_matrix(), covariance)
    generator = torch.Generator().manual_seed(0)
    draws = la.sample(40_000, generator)
    one_by_one = torch.stack([
        torch.cat([w.flatten() for w in weights.values()])
        for weights in la.sampler().draws(10_000, generator)
    ])
    deviations = covariance.diagonal().sqrt()
    unit = deviations[:, None] * deviations
    for found, tolerance in ((draws, 0.03), (one_by_one, 0.06)):
        error = (found.T.cov() - covariance) / unit
        assert error.abs().max() < tolerance
        assert ((found.mean(0) - la.mean) / deviations).abs().max() < tolerance
    # Far from what independent weights would have.
    assert (covariance - covariance.diagonal().diag()).div(unit).abs().max() > 0.2


def test_predictives_of_images_converge_to_the_exact_variance():
    model = image_net()
    la = fitted(model, "regression", IMAGES, TARGETS, sigma_noise=0.3)
    assert la.n_outputs == model.output_size == 40
    params = {n: p.detach() for n, p in model.named_parameters()}
    parts = torch.func.jacrev(lambda w: functional_call(model, w, (IMAGES,)))(params)
    jac = torch.cat([j.flatten(4).flatten(0, 3) for j in parts.values()], 1)
    covariance = la.posterior_precision.to_matrix().inverse()
    exact = (jac @ covariance * jac).sum(1).view_as(TARGETS)
    generator = torch.Generator().manual_seed(0)
    mean, variance = la(IMAGES, n_samples=1500, generator=generator)
    torch.testing.assert_close(mean, model(IMAGES).detach())
    assert (variance / exact).log().mean().abs() < 0.03
    torch.testing.assert_close(variance, exact, rtol=0.25, atol=0)
    again = [torch.Generator().manual_seed(1) for _ in range(2)]
    mean, variance = la(IMAGES, pred_type="nn", n_samples=9, generator=again[0])
    draws = la.predictive_samples(IMAGES, "nn", 9, generator=again[1])
    torch.testing.assert_close(mean, draws.mean(0))
    torch.testing.assert_close(variance, draws.var(0))
    assert la.functional_samples(IMAGES, n_samples=3).shape == (3, *TARGETS.shape)


def test_classifiers_predict_probabilities():
    x, y = data("classification", 3, 4)
    la = fitted(mlp(3, 5, 4), "classification", x, y)
    for settings in ({}, {"pred_type": "nn"}, {"link_approx": "mc"}):
        found = la(x, n_samples=5, **settings)
        torch.testing.assert_close(found.sum(1), torch.ones(10))
    assert la.predictive_samples(x, n_samples=3).shape == (3, 10, 4)


@pytest.mark.parametrize("structure", ["scalar", "layerwise", "diag"])
def test_marglik_climbs(structure: str):
    la = fitted(mlp(3, 4, 2), "regression", *data("regression", 3, 2))
    before = la.log_marginal_likelihood()
    la.optimize_prior_precision(n_steps=20, prior_structure=structure)
    assert la.log_marginal_likelihood() > before + 0.1
    assert not la.prior_precision.requires_grad


def test_gridsearch_chooses_the_best_density():
    x, _ = data("regression", 3, 2, n=40)
    torch.manual_seed(0)
    y = x[:, :2] + 0.1 * torch.randn(40, 2)
    model = mlp(3, 6, 2)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    la = fitted(model, "regression", x, y, sigma_noise=0.1)
    la.optimize_prior_precision(
        method="gridsearch", val_loader=loader(x, y), grid_size=5
    )
    chosen = la.prior_precision.item()

    def density(precision: float) -> float:
        la.prior_precision = precision
        mean, cov = la(x)
        variance = cov.diagonal(dim1=1, dim2=2) + 0.1**2
        return torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).sum()

    assert chosen == pytest.approx(max(torch.logspace(-4, 4, 5).tolist(), key=density))


def test_marglik_training_works():
    x, y = data("regression", 3, 2)
    la, _, margliks, _ = marglik_training(
        mlp(3, 4, 2),
        loader(x, y),
        "regression",
        "block_diag",
        backend=None,
        n_epochs=3,
    )
    assert isinstance(la, BlockDiagLaplace)
    assert len(margliks) > 0


def test_temperature_and_noise_are_never_stale():
    la = fitted(mlp(3, 4, 2), "regression", *data("regression", 3, 2))
    for change in (
        {"temperature": 0.1},
        {"sigma_noise": 3.0},
        {"prior_precision": 9.0},
    ):
        la.sample(1)
        for name, value in change.items():
            setattr(la, name, value)
        scale = la.posterior_scale.to_matrix()
        torch.testing.assert_close(
            scale @ scale.T, la.posterior_precision.to_matrix().inverse()
        )
    la.fit(loader(*data("regression", 3, 2)), override=False)
    scale = la.posterior_scale.to_matrix()
    torch.testing.assert_close(
        scale @ scale.T, la.posterior_precision.to_matrix().inverse()
    )


def test_before_a_fit_there_is_the_prior():
    la = Laplace(mlp(2, 3), "regression", "all", "block_diag", prior_precision=4.0)
    assert la.H.nbytes == 8
    torch.testing.assert_close(la.posterior_precision.to_matrix(), 4.0 * torch.eye(9))
    torch.testing.assert_close(la.log_det_ratio, torch.tensor(0.0))


@pytest.mark.parametrize("frozen", ["0", "0.bias", "2", "2.weight"])
def test_frozen_parameters_are_left_out(frozen: str):
    model = mlp(3, 4, 2)
    for name, param in model.named_parameters():
        param.requires_grad_(not name.startswith(frozen))
    x, y = data("regression", 3, 2)
    la = fitted(model, "regression", x, y)
    expected = blocks_of(0.5 * whole_ggn(model, LOSSES["regression"], x, y), model)
    torch.testing.assert_close(la.H.to_matrix(), expected)
    assert la(x)[1].shape == (10, 2, 2)
    assert la(x, pred_type="nn", n_samples=3)[0].shape == (10, 2)


def test_idle_layers_have_no_curvature():
    model = mlp(3, 4, 2)
    model.add_module("head", nn.Identity())
    model.head.idle = nn.Linear(2, 1)
    x, y = data("regression", 3, 2)
    la = fitted(model, "regression", x, y)
    assert la.H.sizes == [16, 10, 3]
    assert not la.H.blocks[2].any() and la.H.blocks[1].any()


def test_a_parameter_of_two_layers_is_refused():
    model = mlp(3, 3, 3)
    idle = nn.Linear(3, 3)
    idle.weight = model[2].weight
    model = nn.ModuleDict({"idle": idle, "net": model})
    model.forward = model["net"].forward
    x, y = data("regression", 3, 3)
    la = Laplace(model, "regression", "all", "block_diag")
    with pytest.raises(UnsupportedModelError, match="shares a trainable parameter"):
        la.fit(loader(x, y))


def test_state_dict_goes_round(tmp_path):
    x, y = data("regression", 3, 2)
    la = fitted(mlp(3, 4, 2), "regression", x, y, sigma_noise=0.5)
    torch.save(la.state_dict(), tmp_path / "la.pt")
    other = Laplace(mlp(3, 4, 2), "regression", "all", "block_diag")
    state = torch.load(tmp_path / "la.pt", weights_only=True)
    other.load_state_dict(state)
    draws = [m.sample(2, torch.Generator().manual_seed(0)) for m in (la, other)]
    assert torch.equal(*draws)
    assert torch.equal(la.log_marginal_likelihood(), other.log_marginal_likelihood())
    other.fit(loader(x, y), override=False)
    torch.testing.assert_close(other.H.diag(), 2 * la.H.diag())
    narrow = Laplace(mlp(3, 2, 2, 3, 2), "regression", "all", "block_diag")
    with pytest.raises(ValueError, match=r"blocks of sizes \[16, 10\]"):
        narrow.load_state_dict(state)


def test_a_failed_fit_changes_nothing():
    la = fitted(image_net(), "regression", IMAGES, TARGETS)
    before = copy.deepcopy(la.state_dict())
    scale = la.posterior_scale.to_matrix()
    good, bad = (IMAGES, TARGETS), (IMAGES, TARGETS[:, :1])

    class Batches(list):
        dataset = IMAGES

    for wrong, override in product(([bad], [good, bad]), (True, False)):
        with pytest.raises(NotImplementedError, match="differ in shape"):
            la.fit(Batches(wrong), override=override)
        for name, value in la.state_dict().items():
            if name == "H":
                pairs_of_blocks = zip(value, before["H"], strict=True)
                assert all(torch.equal(*pair) for pair in pairs_of_blocks)
            else:
                same = torch.equal if isinstance(value, Tensor) else lambda a, b: a == b
                assert same(value, before[name]), name
        assert torch.equal(la.posterior_scale.to_matrix(), scale)


def test_the_model_is_as_it_was():
    model = mlp(3, 4, 2).train()
    before = copy.deepcopy(model.state_dict())
    la = fitted(model, "regression", *data("regression", 3, 2))
    la(torch.randn(2, 3), pred_type="nn", n_samples=2)
    la(torch.randn(2, 3), n_samples=2)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


# Memory ----------------------------------------------------------------------------


def test_too_large_blocks_are_refused_before_any_pass():
    model = mlp(30, 20, 2)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    state = dict(model.__dict__)
    needed = memory.bytes_needed(layers_of(model), 8)
    assert needed > 8 * 620**2
    settings = {"backend_kwargs": {"max_memory": needed - 1}}
    with pytest.raises(MemoryError) as error:
        Laplace(model, "regression", "all", "block_diag", **settings)
    for words in (f"{needed} bytes", "layer '0' has 620", "17.", "mixed_diag"):
        assert words in str(error.value)
    assert not calls and model.__dict__ == state
    settings = {"backend_kwargs": {"max_memory": needed}}
    Laplace(model, "regression", "all", "block_diag", **settings)


def test_a_fit_looks_at_the_memory_that_is_left(monkeypatch):
    x, y = data("regression", 3, 2)
    la = fitted(mlp(3, 4, 2), "regression", x, y)
    before = la.H.to_matrix()
    calls = []
    la.model.register_forward_hook(lambda *_: calls.append(1))
    monkeypatch.setattr(memory, "_available_to_all", lambda: 10.0)
    for override in (True, False):
        with pytest.raises(MemoryError, match="largest layer '0' has 16"):
            la.fit(loader(x, y), override=override)
    assert not calls and torch.equal(la.H.to_matrix(), before)
    monkeypatch.undo()
    assert memory.available_bytes(torch.device("cpu")) > 2**20


def test_memory_of_other_machines(monkeypatch, tmp_path):
    cpu = torch.device("cpu")
    meminfo, container = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    monkeypatch.setattr(memory, "CGROUP_LIMIT", container)
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:   7 kB\n")
    assert memory.available_bytes(cpu) == 7 * 1024
    for given, expected in (("max\n", 7 * 1024), ("5000\n", 5000)):
        container.write_text(given)
        assert memory.available_bytes(cpu) == expected
    container.unlink()
    meminfo.unlink()
    pages = {"SC_PHYS_PAGES": 3, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(memory.os, "sysconf", pages.__getitem__)
    assert memory.available_bytes(cpu) == 3 * 4096
    monkeypatch.delattr(memory.os, "sysconf")
    assert memory.available_bytes(cpu) == float("inf")
    for name, value in (
        ("mem_get_info", (50, 90)),
        ("memory_reserved", 30),
        ("memory_allocated", 10),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert memory.available_bytes(torch.device("cuda")) == 70


def test_too_wide_a_batch_is_refused_before_its_pass():
    x, y = torch.randn(8, 1, 5, 4), torch.randn(8, 2, 5, 4)
    needed = memory.bytes_needed(layers_of(image_net()), 8)
    each = memory.batch_bytes(1, 60, 8)  # 3 channels of 5 x 4
    settings = {"backend_kwargs": {"max_memory": needed + 3 * each}}
    la = Laplace(image_net(), "regression", "all", "block_diag", **settings)
    with pytest.raises(MemoryError, match="60 x 60 numbers.*batch size of at most 3"):
        la.fit(loader(x, y))
    assert not la.H.diag().any() and la.n_data == 0
    la.fit(loader(x, y, batch_size=3))
    assert la.n_data == 8


NET_OF = {
    "one layer": lambda: mlp(40, 10),
    "equal layers": lambda: mlp(*[16] * 7),
    "one large layer": lambda: mlp(20, 20, 8, 20),
}


def _everything(net, x: Tensor, y: Tensor, likelihood: str = "regression"):
    la = Laplace(net(), likelihood, "all", "block_diag")
    for override in (True, True, False):
        la.fit(loader(x, y), override=override)
    la.sample(2)
    la.optimize_prior_precision(n_steps=2)
    la(x[:1])
    la.log_marginal_likelihood()
    return la


@pytest.mark.parametrize("name", NET_OF)
def test_the_estimate_is_close_to_the_peak(name: str):
    torch.set_default_dtype(torch.float32)
    net = NET_OF[name]
    n_in, n_out = net()[0].in_features, net()[-1].out_features
    x, y = torch.randn(8, n_in), torch.randn(8, n_out)
    peak = peak_memory(lambda: _everything(net, x, y))
    blocks = memory.bytes_needed(layers_of(net()), 4)
    assert peak <= blocks <= 2 * peak


@pytest.mark.filterwarnings("ignore:By default `link_approx` is `probit`")
@pytest.mark.parametrize("likelihood", ["regression", "classification"])
def test_the_estimate_with_its_batch_is_close_to_the_peak(likelihood: str):
    torch.set_default_dtype(torch.float32)
    # As many as a processor's widest vector: kernels pad channels to that.
    channels = 16

    def net() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(channels, channels, 1),
            nn.Tanh(),
            nn.Conv2d(channels, channels, 1),
            nn.Tanh(),
            nn.Conv2d(channels, channels, 1),
        )

    x, y = torch.randn(2, 8, channels, 4, 4)
    if likelihood == "classification":
        y = torch.arange(8 * 16).view(8, 4, 4) % channels
    peak = peak_memory(lambda: _everything(net, x, y, likelihood))
    estimate = memory.bytes_needed(layers_of(net()), 4) + memory.batch_bytes(
        4, channels * 16, 4
    )
    assert peak <= estimate <= 2 * peak, (peak, estimate)


# Errors and neighbours -------------------------------------------------------------


def test_other_structures_are_as_they_were():
    for structure, kind in (
        ("diag", DiagLaplace),
        ("full", FullLaplace),
        ("kron", KronLaplace),
    ):
        assert type(Laplace(mlp(2, 3), "regression", "all", structure)) is kind


def test_errors_say_what_to_do():
    net = mlp(2, 3)
    with pytest.raises(ValueError, match="backend=AsdlGGN.*Pass backend=None"):
        Laplace(net, "regression", "all", "block_diag", backend=AsdlGGN)
    with pytest.raises(ValueError, match=r"\['max_dense_dim'\], allowed: \['max_mem"):
        settings = {"max_dense_dim": 3}
        Laplace(net, "regression", "all", "block_diag", backend_kwargs=settings)
    with pytest.raises(ValueError, match="max_memory must be a positive number"):
        settings = {"max_memory": -1}
        Laplace(net, "regression", "all", "block_diag", backend_kwargs=settings)
    with pytest.raises(ValueError, match="subset_of_weights='all', or .*'full'"):
        Laplace(net, "regression", hessian_structure="block_diag")
    la = fitted(net, "regression", *data("regression", 2, 3))
    la.H = BlockDiag([-5 * torch.eye(9)])
    with pytest.raises(torch.linalg.LinAlgError, match="layer '0', 9.*not positive"):
        la.sample(1)
    with pytest.raises(torch.linalg.LinAlgError, match="layer '0', 9.*not positive"):
        la.log_marginal_likelihood()
