"""Random probes and the diagonal calibrated by them, against explicit Jacobians."""

from functools import partial

import pytest
import torch
from laplace import Laplace
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lae_backpack
import lae_backpack.curvature.registry as registry
from lae_backpack import CalibratedDiagLaplace, LaplaceAE, LossRule, register_rule
from lae_backpack.curvature.probe import Probe
from lae_backpack.curvature.quantities import Dense
from lae_backpack.curvature.registry import find_rule
from lae_backpack.curvature.step import param_curvature
from lae_backpack.curvature.sweep import Journey, sweep
from lae_backpack.posterior.calibrating import calibrated
from lae_backpack.posterior.online.settings import OnlineSettings
from tests import oracle
from tests.nets import NETS, Net, Residual
from tests.test_autoencoder import images
from tests.test_checkpoints import CutOff, Run, assert_identical, results

WHOLE = partial(param_curvature, per_sample=False)


def flat(by_name: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in by_name.values()])


def exact_sum(net: Net) -> tuple[nn.Module, nn.Module, Tensor, Tensor, Tensor]:
    model, loss, x, target = net.build()
    by_sample = oracle.exact_diag_ggn(model, loss, x, target)
    exact = torch.cat([
        by_sample[name].sum(0).flatten() for name, _ in model.named_parameters()
    ])
    return model, loss, x, target, exact


def assert_unbiased(runs: Tensor, exact: Tensor) -> None:
    """The mean over runs ``[R, P]`` is within its standard error of the truth."""
    error = runs.mean(0) - exact
    standard = runs.std(0) / len(runs) ** 0.5
    certain = standard <= 1e-12 * exact.abs().max()
    assert torch.allclose(error[certain], torch.zeros_like(error[certain]), atol=1e-9)
    scores = error[~certain] / standard[~certain]
    assert not len(scores) or scores.abs().max() < 4.5


@pytest.mark.parametrize("max_code", [0, 4])
@pytest.mark.parametrize("net", NETS, ids=str)
def test_probes_are_unbiased_for_every_entry(net, max_code):
    model, loss, x, target, exact = exact_sum(net)
    generator = torch.Generator().manual_seed(0)
    journey = Journey(Probe(20, generator, max_code), WHOLE)
    runs = [sweep(model, loss, x, target, [journey]).curvatures[0] for _ in range(100)]
    assert list(runs[0]) == [name for name, _ in model.named_parameters()]
    assert_unbiased(torch.stack([flat(run) for run in runs]), exact)


@pytest.mark.parametrize("kind", ["chain", "in place", "branches"])
def test_all_before_a_narrow_code_is_exact(kind):
    torch.manual_seed(0)
    tail = {
        "chain": [nn.Tanh(), nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 9)],
        "in place": [
            nn.ReLU(inplace=True),
            nn.Linear(3, 8),
            nn.Tanh(),
            nn.Linear(8, 9),
        ],
        "branches": [nn.Linear(3, 9), Residual(nn.Tanh(), nn.Linear(9, 9)), nn.Tanh()],
    }[kind]
    model = nn.Sequential(
        nn.Linear(9, 6), Residual(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3), *tail
    ).double()
    x, y = torch.randn(5, 9).double(), torch.randn(5, 9).double()
    exact = oracle.exact_diag_ggn(model, nn.MSELoss(), x, y)
    for max_code, is_exact in ((3, True), (2, False)):
        journey = Journey(Probe(1, max_code=max_code), WHOLE)
        found = sweep(model, nn.MSELoss(), x, y, [journey]).curvatures[0]
        for name in ("0.weight", "1.body.0.weight", "2.weight", "2.bias"):
            assert torch.allclose(found[name], exact[name].sum(0)) is is_exact


def test_a_code_before_classes_never_builds_their_matrix(monkeypatch):
    model = nn.Sequential(
        nn.Linear(6, 2), nn.Linear(2, 12), nn.Unflatten(1, (3, 2, 2))
    ).double()
    x, y = torch.randn(4, 6).double(), torch.randint(0, 3, (4, 2, 2))
    rule = type(find_rule(nn.CrossEntropyLoss()))
    monkeypatch.setattr(rule, "seed_dense", None)
    found = sweep(model, nn.CrossEntropyLoss(), x, y, [Journey(Probe(), WHOLE)])
    assert len(found.curvatures[0]) == 4


def test_a_loss_of_ones_own_that_is_not_diagonal_is_not_taken_for_one(monkeypatch):
    class SquaredSum(nn.Module):
        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return (x - target).sum(1).square().sum()

    class SquaredSumRule(LossRule):
        def seed_diag(self, module, x, target):
            return torch.full_like(x[:1], 2.0)

        def seed_dense(self, module, x, target):
            matrix = torch.full((1, x.shape[1], x.shape[1]), 2.0, dtype=x.dtype)
            return Dense.from_matrix(matrix, x)

    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    register_rule(SquaredSum)(SquaredSumRule)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(5, 3).double(), torch.randn(5, 3).double()
    exact = oracle.exact_diag_ggn(model, SquaredSum(), x, y)
    journey = Journey(Probe(), WHOLE)
    found = sweep(model, SquaredSum(), x, y, [journey]).curvatures[0]
    for name, value in found.items():
        assert torch.allclose(value, exact[name].sum(0))


def trained_autoencoder() -> tuple[nn.Sequential, Tensor]:
    """A net whose approximate diagonal is wrong by factors, and its data."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 2), nn.Linear(2, 36), nn.Tanh(), nn.Unflatten(1, (4, 3, 3)),
        nn.Upsample(scale_factor=2), nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(),
        nn.Conv2d(4, 1, 3, padding=1),
    ).double()  # fmt: skip
    places = torch.randint(0, 4, (512, 2))
    data = torch.zeros(512, 1, 6, 6, dtype=torch.float64)
    for image, (i, j) in zip(data, places.tolist(), strict=True):
        image[0, i : i + 3, j : j + 3] = 1
    data += 0.1 * torch.rand_like(data)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for i in range(300):
        x = data[(64 * i) % 512 :][:64]
        optimizer.zero_grad()
        (net(x) - x).square().sum(1).mean().backward()
        optimizer.step()
    return net, data


TRAINED = trained_autoencoder()
SUM = nn.MSELoss(reduction="sum")


def exact_of(x: Tensor) -> Tensor:
    net, _ = TRAINED
    by_sample = oracle.exact_diag_ggn(net, SUM, x, x)
    return 0.5 * flat({name: value.sum(0) for name, value in by_sample.items()})


def fitted(x: Tensor, structure: str, batch_size: int = 64, **kwargs: object) -> Tensor:
    net, _ = TRAINED
    backend_kwargs = {"backend_kwargs": kwargs} if kwargs else {}
    la = Laplace(net, "regression", "all", structure, **backend_kwargs)
    la.fit(DataLoader(TensorDataset(x, x), batch_size))
    return la.H


def layer_sums(diagonal: Tensor) -> Tensor:
    sizes = [p.numel() for p in TRAINED[0].parameters()]
    return torch.stack([part.sum() for part in diagonal.split(sizes)])


def median_error(found: Tensor, exact: Tensor) -> float:
    return (found / exact).log().abs().median().item()


def test_the_sum_over_each_tensor_is_unbiased():
    x = TRAINED[1][:16]
    exact = exact_of(x)
    torch.manual_seed(0)
    shrunk = {"shrink": True}
    runs = [layer_sums(fitted(x, "calibrated_diag", 16, **shrunk)) for _ in range(200)]
    assert_unbiased(torch.stack(runs), layer_sums(exact))
    off = layer_sums(fitted(x, "approx_diag")) / layer_sums(exact)
    assert off.min() < 0.6 or off.max() > 1.6  # what is mended is broken


def test_without_shrinking_every_entry_is_unbiased():
    x = TRAINED[1][:16]
    torch.manual_seed(0)
    runs = [fitted(x, "calibrated_diag", 16, shrink=False) for _ in range(200)]
    assert_unbiased(torch.stack(runs), exact_of(x))


def test_it_beats_the_approximation_on_a_batch():
    x = TRAINED[1][:64]
    exact = exact_of(x)
    torch.manual_seed(1)
    seen = {
        name: sum(
            median_error(fitted(x, structure, **kwargs), exact) for _ in range(20)
        ) / 20
        for name, structure, kwargs in (
            ("approx", "approx_diag", {}),
            ("probes", "calibrated_diag", {}),
            ("shrunk", "calibrated_diag", {"shrink": True}),
        )
    }  # fmt: skip
    assert max(seen["probes"], seen["shrunk"]) < seen["approx"] / 3


def test_a_whole_data_set_is_right_within_a_tenth():
    _, x = TRAINED
    exact = sum(map(exact_of, x.split(64)))
    assert median_error(fitted(x, "approx_diag"), exact) > 0.2
    for seed in range(5):
        torch.manual_seed(seed)
        for kwargs in ({}, {"shrink": True}):
            found = fitted(x, "calibrated_diag", **kwargs)
            assert median_error(found, exact) <= 0.1
            assert (layer_sums(found) / layer_sums(exact) - 1).abs().max() <= 0.1


def test_sums_of_looks():
    """By hand: rows that agree in both halves are believed, others are not."""
    shape = torch.ones(2, 2, 3)
    agreed = torch.tensor([[2.0] * 3, [4.0] * 3]).expand(2, 2, 3)
    looks = torch.cat([shape, agreed]).flatten(1)
    found = calibrated(looks, [torch.Size([2, 3])]).view(2, 3)
    assert torch.allclose(found, 2 * agreed[0])
    noise = torch.stack([agreed[0], agreed[0].flip(0)])
    looks = torch.cat([shape, noise]).flatten(1)
    found = calibrated(looks, [torch.Size([2, 3])])
    assert torch.allclose(found, torch.full((6,), 6.0))
    nothing = calibrated(torch.zeros(4, 6), [torch.Size([2, 3])])
    assert torch.equal(nothing, torch.zeros(6))


@pytest.mark.parametrize("kwargs", [None, {"shrink": True}])
def test_it_is_a_structure_of_laplace_torch(kwargs):
    net, data = TRAINED
    settings = {"backend_kwargs": kwargs}
    la = Laplace(net, "regression", "all", "calibrated_diag", **settings)
    assert type(la) is CalibratedDiagLaplace is lae_backpack.CalibratedDiagLaplace
    loader = DataLoader(TensorDataset(data[:64], data[:64]), 16)
    torch.manual_seed(0)
    la.fit(loader)
    looks = la.looks.clone()
    la.fit(loader, override=False)
    assert la.n_data == 128 and (la.looks >= looks).all()
    assert torch.allclose(la.H, la.backend.estimate(la.looks))
    la.optimize_prior_precision(method="marglik")
    mean, variance = la(data[:2], n_samples=5)
    assert mean.shape == variance.shape == data[:2].shape
    assert torch.isfinite(la.log_marginal_likelihood())
    state = la.state_dict()
    other = Laplace(net, "regression", "all", "calibrated_diag", **settings)
    other.load_state_dict(state)
    assert torch.equal(other.H, la.H) and torch.equal(other.looks, la.looks)
    other.fit(loader, override=False)  # goes on from where that stood
    assert other.n_data == 192 and (other.looks >= la.looks).all()


@pytest.mark.parametrize("kwargs", [None, {"shrink": True}])
def test_seeds_repeat_it_and_a_failed_fit_changes_nothing(kwargs):
    net, data = TRAINED
    settings = {"backend_kwargs": kwargs}
    la = Laplace(net, "regression", "all", "calibrated_diag", **settings)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        la.fit(DataLoader(TensorDataset(data[:32], data[:32]), 16))
        found.append(la.H.clone())
    assert torch.equal(*found)
    looks = la.looks.clone()
    bad = data[:32].clone()
    bad[-1] = torch.nan
    for override in (True, False):
        with pytest.raises(ValueError, match="not finite"):
            la.fit(DataLoader(TensorDataset(bad, bad), 16), override=override)
        assert torch.equal(la.H, found[0]) and torch.equal(la.looks, looks)
        assert la.n_data == 32


def test_single_images_and_classifiers():
    net, data = TRAINED
    shrunk = {"backend_kwargs": {"shrink": True}}
    la = Laplace(net, "regression", "all", "calibrated_diag", **shrunk)
    la.fit(DataLoader(TensorDataset(data[:64], data[:64]), 1))
    exact = exact_of(data[:64])
    assert median_error(la.H, exact) < 0.5
    assert (la.looks.flatten(1).sum(1) > 0).all()  # both halves get their share
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    labelled = TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,)))
    classifier = Laplace(model, "classification", "all", "calibrated_diag")
    classifier.fit(DataLoader(labelled, 8))
    assert classifier(torch.randn(5, 4)).shape == (5, 3)


@pytest.mark.parametrize("shrink", [True, False])
def test_autoencoders_fit_and_train_online_with_it(shrink):
    net, data = TRAINED
    kwargs = {"shrink": shrink}
    model = lae_backpack.AutoEncoder(net[:5], net[5:])
    la = LaplaceAE(model, hessian_structure="calibrated_diag", backend_kwargs=kwargs)
    batches = list(data.split(64))
    torch.manual_seed(0)
    la.fit(batches)
    torch.manual_seed(0)
    looks = sum(la.backend.look(x, x)[1] for x in batches)
    assert torch.allclose(la.H, la.backend.estimate(looks))
    mean = [p.clone() for p in model.parameters()]
    la.fit_online(
        DataLoader(data[:128], 32), 3, progress_bar=False, lr=1e-12,
        settings=OnlineSettings("ema", alpha=0.2, refresh_every=2),
    )  # fmt: skip
    assert la.H.shape == mean[0].new_empty(la.n_params).shape
    assert torch.allclose(la.H, la.backend.estimate(la.looks))
    initial = OnlineSettings(alpha=0.0, curvature_factor=0.0, initial_precision=7.0)
    la.fit_online(DataLoader(data[:32], 32), 1, settings=initial, progress_bar=False)
    assert torch.allclose(la.H, torch.full_like(la.H, 7.0))


def test_a_resumed_run_is_bit_identical(tmp_path):
    def run_with_probes(path):
        run = Run(path)
        run.la = LaplaceAE(
            run.la.model, sigma_noise="learned", hessian_structure="calibrated_diag",
            backend_kwargs={"shrink": True},
        )  # fmt: skip
        return run

    torch.manual_seed(0)
    whole = run_with_probes(None)
    true = results(whole, whole.fit())
    torch.manual_seed(0)
    first = run_with_probes(tmp_path / "run.pt")
    first.left = 33
    with pytest.raises(CutOff):
        first.fit(checkpoint_every=1)
    torch.manual_seed(1234)
    second = run_with_probes(tmp_path / "run.pt")
    assert_identical(results(second, second.fit(checkpoint_every=1, resume=True)), true)
    assert torch.equal(second.la.looks, whole.la.looks)


@pytest.mark.parametrize(
    ("structure", "kwargs", "message"),
    [
        ("calibrated_diag", {"n_probes": -1}, "n_probes must be at least"),
        ("calibrated_diag", {"probes": 1}, "allowed: "),
        ("mixed_diag", {"n_probes": 1}, "belong to 'calibrated_diag'"),
    ],
)
def test_bad_settings(structure, kwargs, message):
    model = lae_backpack.AutoEncoder(nn.Linear(4, 2), nn.Linear(2, 4))
    with pytest.raises(ValueError, match=message):
        LaplaceAE(model, hessian_structure=structure, backend_kwargs=kwargs).fit([
            images(2).flatten(1)[:, :4]
        ])
