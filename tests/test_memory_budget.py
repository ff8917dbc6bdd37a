"""Curvature within a budget, in half precision, and with activation checkpointing."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from laplace import Laplace
from measuring import peak_memory
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE
from lae_backpack.curvature.footprint import footprint
from lae_backpack.curvature.policy import DensePolicy
from lae_backpack.curvature.probe import Probe
from lae_backpack.curvature.step import param_curvature
from lae_backpack.curvature.sweep import Journey, sweep
from lae_backpack.posterior.budget import bytes_of
from lae_backpack.posterior.memory import in_words
from lae_backpack.posterior.online.settings import OnlineSettings


def autoencoder() -> AutoEncoder:
    torch.manual_seed(5)
    encoder = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(256, 5), nn.Dropout(0.3), nn.Linear(5, 2),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Linear(2, 64), nn.GELU(), nn.Unflatten(1, (1, 8, 8)),
        nn.ConvTranspose2d(1, 3, 3, padding=1), nn.GroupNorm(3, 3),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(3, 1, 2, stride=2),
    )  # fmt: skip
    return AutoEncoder(encoder, decoder)


def images(n: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(n, 1, 8, 8, generator=generator)


def smallest(la: Any, x: Tensor, limit: int | None, n_probes: int = 0) -> int:
    """The bytes that one sample takes, as the budget counts them."""
    looks = 4 * la.n_params * 8
    return looks + footprint(la.model.eval(), x).bytes_per_sample(limit, n_probes)


# Budgets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2e9), ("1.5 GiB", 1.5 * 2**30), ("512mib", 2**29), (1000, 1000.0)],
)
def test_sizes_are_read(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "2 parsecs", 0, -5, True, None, []])
def test_other_things_are_no_sizes(text):
    with pytest.raises(ValueError, match="memory_budget must be a positive size"):
        bytes_of(text)


@pytest.mark.parametrize("structure", ["approx_diag", "mixed_diag"])
@pytest.mark.parametrize("n_at_once", [1, 5])
def test_micro_batches_give_the_same(structure, n_at_once, monkeypatch):
    la = LaplaceAE(autoencoder(), hessian_structure=structure)
    la.fit([images()])
    limit = la.backend.policy.max_dense_dim
    each = footprint(la.model, images()).bytes_per_sample(limit)
    budget = smallest(la, images(), limit) + (n_at_once - 1) * each
    seen: list[int] = []
    cut = LaplaceAE(
        autoencoder(),
        hessian_structure=structure,
        backend_kwargs={"memory_budget": budget},
    )
    run = cut.backend._swept

    def watch(model: nn.Module, x: Tensor, *args: Any) -> Any:
        seen.append(len(x))
        return run(model, x, *args)

    monkeypatch.setattr(cut.backend, "_swept", watch)
    cut.fit([images()])
    assert seen == ([1] * 12 if n_at_once == 1 else [5, 5, 2])
    torch.testing.assert_close(cut.H, la.H)
    torch.testing.assert_close(cut.loss, la.loss)


def test_other_structures_and_online_training_take_a_budget():
    x = images()
    data = DataLoader(TensorDataset(x.flatten(1), x.flatten(1)[:, :3]), 12)
    model = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))
    found = []
    for budget in (None, 150_000):
        given = {} if budget is None else {"memory_budget": budget}
        for structure in ("approx_diag", "calibrated_diag"):
            la = Laplace(
                copy.deepcopy(model), "regression", "all",
                hessian_structure=structure, backend_kwargs=given,
            )  # fmt: skip
            la.fit(data)
            assert la.H.min() >= 0 and la.H.sum() > 0
            found.append(la.H)
        settings = OnlineSettings(warmup_steps=100)
        la = LaplaceAE(
            autoencoder(), hessian_structure="approx_diag", backend_kwargs=given
        )
        la.model.eval()
        la.fit_online(DataLoader(x, 6), 2, settings=settings, progress_bar=False)
        found.append(torch.cat([p.detach().reshape(-1) for p in la.params]))
    torch.testing.assert_close(found[0], found[3])
    torch.testing.assert_close(found[2], found[5])  # gradients add up, too


def test_mixed_lowers_its_limit_and_says_so():
    given = {"max_dense_dim": 256}
    whole = LaplaceAE(autoencoder(), backend_kwargs=given)
    budget = smallest(whole, images(), 64)
    assert budget < smallest(whole, images(), 256)
    la = LaplaceAE(autoencoder(), backend_kwargs=given | {"memory_budget": budget})
    with pytest.warns(UserWarning, match="lowers max_dense_dim from 256 to 64"):
        la.fit([images()])
    true = LaplaceAE(autoencoder(), backend_kwargs={"max_dense_dim": 64})
    true.fit([images()])
    torch.testing.assert_close(la.H, true.H)


def test_what_cannot_fit_says_how_much_it_needs():
    needed = smallest(
        LaplaceAE(autoencoder(), hessian_structure="mixed_diag"), images(), 0
    )
    la = LaplaceAE(
        autoencoder(),
        hessian_structure="mixed_diag",
        backend_kwargs={"memory_budget": needed - 1},
    )
    with pytest.raises(MemoryError, match=f"needs {in_words(needed)} for a single"):
        la.fit([images()])
    assert la.n_data == 0 and not la.H.any()
    la = LaplaceAE(
        autoencoder(),
        hessian_structure="mixed_diag",
        backend_kwargs={"memory_budget": needed},
    )
    with pytest.warns(UserWarning, match="lowers max_dense_dim from 128"):
        la.fit([images()])


NETS = {
    "linear": (
        lambda: nn.Sequential(
            nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 2), nn.Linear(2, 128),
            nn.Tanh(), nn.Linear(128, 784),
        ),
        (784,),
    ),
    "convolutional": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
            nn.LayerNorm([8, 32, 32]), nn.Conv2d(8, 3, 3, padding=1),
        ),
        (3, 32, 32),
    ),
    "bottleneck": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GELU(), nn.Flatten(),
            nn.Linear(16 * 49, 64), nn.Tanh(), nn.Linear(64, 10), nn.Linear(10, 392),
            nn.Unflatten(1, (8, 7, 7)), nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.ConvTranspose2d(8, 1, 3, padding=1), nn.GroupNorm(1, 1),
        ),
        (1, 14, 14),
    ),
    "narrow convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 4, stride=4),
            nn.Tanh(), nn.Conv2d(8, 2, 1), nn.Upsample(scale_factor=4),
            nn.Conv2d(2, 1, 3, padding=1),
        ),
        (1, 16, 16),
    ),
}  # fmt: skip


def bytes_per_sample(model: nn.Module, x: Tensor, policy: DensePolicy) -> float:
    """By how much the peak grows with each sample."""
    loss = nn.MSELoss(reduction="sum")
    journey = Journey(policy, partial(param_curvature, per_sample=False))

    def peak(x: Tensor) -> int:
        y = model(x).detach()
        return peak_memory(lambda: sweep(model, loss, x, y, [journey]))

    return (peak(x) - peak(x[:4])) / (len(x) - 4)


@pytest.mark.parametrize("limit", [0, 128])
@pytest.mark.parametrize("name", NETS)
def test_the_estimate_is_above_the_truth_and_not_far(name, limit):
    make, shape = NETS[name]
    model, x = make().float().eval(), torch.rand(12, *shape, dtype=torch.float32)
    true = bytes_per_sample(model, x, DensePolicy(limit))
    assert true <= footprint(model, x).bytes_per_sample(limit) < 20 * true


def narrow_code(n_features: int) -> nn.Sequential:
    steps = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()) for _ in range(8)]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(256, n_features), nn.Linear(n_features, 256),
        nn.Unflatten(1, (1, 16, 16)), nn.Conv2d(1, 4, 3, padding=1), *steps,
        nn.Conv2d(4, 1, 3, padding=1),
    )  # fmt: skip


@pytest.mark.parametrize("name", [*NETS, "deep decoder"])
def test_the_estimate_is_above_the_truth_for_probes(name):
    make, shape = {**NETS, "deep decoder": (lambda: narrow_code(4), (1, 16, 16))}[name]
    model, x = make().float().eval(), torch.rand(12, *shape, dtype=torch.float32)
    true = bytes_per_sample(model, x, Probe())
    assert true <= footprint(model, x).bytes_per_sample(0, n_probes=1) < 20 * true


@pytest.mark.parametrize(("n_features", "n_columns"), [(3, 3), (4, 4), (5, 1)])
def test_columns_of_a_narrow_code_are_counted(n_features, n_columns):
    seen = footprint(narrow_code(n_features), torch.rand(1, 1, 16, 16))
    without = replace(seen, code=0)
    assert seen.bytes_per_sample(0, 1) == without.bytes_per_sample(0, n_columns)
    assert seen.bytes_per_sample(0, 6) == without.bytes_per_sample(0, 6)
    assert seen.bytes_per_sample(0) == without.bytes_per_sample(0)


# Half precision -----------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["approx_diag", "mixed_diag", "calibrated_diag"])
def test_autocast_is_close_and_stays_float32(structure):
    x = images(64).float()
    found = []
    for enabled in (False, True):
        la = LaplaceAE(autoencoder().float(), hessian_structure=structure)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            la.fit(x.split(16))
        assert la.H.dtype == torch.float32 and la.loss.dtype == torch.float32
        found.append(la.H)
    if structure != "calibrated_diag":  # its probes are random
        assert (found[1] / found[0]).log().abs().median() < 0.05
    assert abs(found[1].sum() / found[0].sum() - 1) < 0.5


def test_online_under_autocast():
    la = LaplaceAE(autoencoder().float(), hessian_structure="mixed_diag")
    data = DataLoader(images(32).float(), 8)
    with torch.autocast("cpu", torch.bfloat16):
        history = la.fit_online(data, 5, lr=1e-2, progress_bar=False)
    assert history.losses[-1] < history.losses[0]
    assert la.H.dtype == torch.float32 and la.H.isfinite().all()


def test_autocast_keeps_no_weights_of_earlier_steps():
    runs = []
    for cache_enabled in (False, True):
        la = LaplaceAE(autoencoder().float(), hessian_structure="mixed_diag")
        data, seed = DataLoader(images(32).float(), 8), torch.Generator().manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache_enabled):
            history = la.fit_online(data, 2, generator=seed, progress_bar=False)
        runs.append((history, la.H))
    assert runs[0][0] == runs[1][0] and torch.equal(runs[0][1], runs[1][1])


@pytest.mark.parametrize("way", ["autoencoder", "structure"])
def test_bfloat16_sums_do_not_stop_growing(way):
    """Sums of 600 equal numbers in bfloat16 stop at 256 of them."""
    x = images(1).bfloat16().expand(600, -1, -1, -1)
    if way == "autoencoder":
        la: Any = LaplaceAE(autoencoder().bfloat16(), hessian_structure="approx_diag")
        la.fit(x[:1].split(1))
        one = la.H.clone(), la.loss
        la.fit(x.split(1))
    else:
        data = TensorDataset(x, x)
        la = Laplace(
            autoencoder().bfloat16(), "regression", "all",
            hessian_structure="approx_diag",
        )  # fmt: skip
        la.fit(DataLoader(TensorDataset(x[:1], x[:1]), 1))
        one = la.H.clone(), la.loss
        la.fit(DataLoader(data, 1))
    assert la.H.dtype == torch.bfloat16
    torch.testing.assert_close(la.H, 600 * one[0], rtol=0.02, atol=1e-6)
    torch.testing.assert_close(la.loss, 600 * one[1], rtol=0.02, atol=0)


def test_the_precision_decays_in_bfloat16():
    la = LaplaceAE(autoencoder().bfloat16(), hessian_structure="approx_diag")
    settings = OnlineSettings(
        initial_precision=1e6, curvature_factor=0.0, alpha=1e-3, warmup_steps=0
    )
    data = DataLoader(images(100).bfloat16(), 1)
    la.fit_online(data, 1, settings=settings, lr=1e-6, progress_bar=False)
    expected = torch.full_like(la.H, 1e6 * 0.999**100)
    torch.testing.assert_close(la.H, expected, rtol=0.01, atol=0)


# Activation checkpointing -------------------------------------------------------------


class Checkpointed(nn.Module):
    """Recomputes its activations in the backward pass."""

    def __init__(self, body: nn.Module, reentrant: bool):
        super().__init__()
        self.body, self.reentrant = body, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_activation_checkpointing_changes_nothing(reentrant):
    la, model = LaplaceAE(autoencoder(), hessian_structure="mixed_diag"), autoencoder()
    model.encoder = Checkpointed(model.encoder, reentrant)
    model.decoder = Checkpointed(model.decoder, reentrant)
    other = LaplaceAE(model, hessian_structure="mixed_diag")
    for one in (la, other):
        one.fit(images().split(4))
    torch.testing.assert_close(other.H, la.H)
    if reentrant:
        return  # such models cannot be trained: torch wants inputs with gradients
    for one in (la, other):
        torch.manual_seed(1)
        one.fit_online(DataLoader(images(), 4), 2, progress_bar=False)
    torch.testing.assert_close(other.H, la.H)
    for pred_type in ("nn", "glm", "propagated"):
        found, true = (
            one(images(2), pred_type, generator=torch.Generator().manual_seed(0))
            for one in (other, la)
        )
        torch.testing.assert_close(found, true)


def test_probes_carry_no_matrices_and_lower_nothing():
    """Unless asked, post-hoc curvature is the probes', whatever the mixed limit is."""
    tight = {"memory_budget": smallest(LaplaceAE(autoencoder()), images(), 0, 1)}
    mixed = LaplaceAE(
        autoencoder(), hessian_structure="mixed_diag", backend_kwargs=tight
    )
    with pytest.warns(UserWarning, match="lowers max_dense_dim"):
        mixed.fit([images()])
    la = LaplaceAE(autoencoder(), backend_kwargs=tight)
    la.fit([images()])  # a warning would be an error
    assert la.backend.policy == LaplaceAE(autoencoder()).backend.policy
    assert la.n_data == len(images()) and la.H.all()
