"""Copies, files and wrappers of posteriors: other packages' ways with them."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import LaplaceAE
from lae_backpack.posterior.online.settings import OnlineSettings
from lae_backpack.posterior.states import checked_state
from tests.test_autoencoder import images
from tests.test_checkpoints import noisy_model

STORED = Path(__file__).parent / "stored"
STRUCTURES = ["approx_diag", "mixed_diag", "calibrated_diag", "block_diag"]


def unfitted(structure: str) -> Any:
    if structure == "block_diag":
        return Laplace(noisy_model(), "regression", "all", hessian_structure=structure)
    kwargs = {"shrink": True} if structure == "calibrated_diag" else None
    return LaplaceAE(noisy_model(), hessian_structure=structure, backend_kwargs=kwargs)


def fit(la: Any) -> Any:
    x = images(14)
    pairs = isinstance(la, LaplaceAE)
    la.fit(x.split(4) if pairs else DataLoader(TensorDataset(x, x), 4))
    return la


def predicted(la: Any) -> tuple:
    generator = torch.Generator().manual_seed(0)
    return la(images(2), pred_type="nn", generator=generator, n_samples=5)


def matrix(la: Any) -> torch.Tensor:
    return la.H if isinstance(la.H, torch.Tensor) else la.H.to_matrix()


def saved_and_loaded(value: Any, weights_only: bool = False) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda la: pickle.loads(pickle.dumps(la)), saved_and_loaded],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_copies_are_equal_and_independent(structure: str, copied: Callable):
    la = fit(unfitted(structure))
    predicted(la)  # what is kept for later is copied, too
    other = copied(la)
    torch.testing.assert_close(predicted(other), predicted(la), rtol=0, atol=0)
    before = matrix(la).clone()
    with torch.no_grad():
        for param in other.model.parameters():
            param.mul_(2)
    fit(other)
    assert torch.equal(matrix(la), before) and not torch.equal(matrix(other), before)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_state_dicts_are_plain_and_numbered(structure):
    la, other = fit(unfitted(structure)), unfitted(structure)
    state = saved_and_loaded(la.state_dict(), weights_only=True)
    assert state["format"] == 1
    other.load_state_dict(state)
    torch.testing.assert_close(predicted(other), predicted(la), rtol=0, atol=0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_states_of_older_packages_load(structure):
    """Files that the package wrote before it had a format number."""
    path = STORED / "laplace_states_without_format.pt"
    state = torch.load(path, weights_only=True)[structure]
    la, other = fit(unfitted(structure)), unfitted(structure)
    other.load_state_dict(state)
    assert other.n_data == 14 and other.n_outputs == 12
    if structure != "calibrated_diag":  # its probes are random
        torch.testing.assert_close(matrix(other), matrix(la))
    assert (predicted(other)[1] > 0).all()


def test_states_of_other_devices_load():
    la = fit(unfitted("calibrated_diag"))
    la.model.to("meta")  # a device that every machine has
    found = checked_state(la, la.state_dict())
    for name in ("mean", "H", "looks", "sigma_noise"):
        assert found[name].device.type == "meta"


def without(name: str) -> Callable[[dict], Any]:
    return lambda state: {k: v for k, v in state.items() if k != name}


BAD = {
    "no dict": (lambda _: [1], "must be a dict"),
    "from the future": (lambda s: s | {"format": 99}, "has format 99"),
    "a strange format": (lambda s: s | {"format": "x"}, "has format 'x'"),
    "without H": (without("H"), r"lacks \['H'\]"),
    "a short H": (lambda s: s | {"H": s["H"][:5]}, "H of shape"),
    "a text as H": (lambda s: s | {"H": "x"}, "H of shape"),
    "a short mean": (lambda s: s | {"mean": s["mean"][:5]}, "mean of shape"),
    "looks of another kind": (lambda s: s | {"looks": s["H"]}, "looks of shape"),
    "another structure": (lambda s: s | {"cls_name": "KronLaplace"}, "wrong Laplace"),
    "a negative prior": (
        lambda s: s | {"prior_precision": torch.tensor([-1.0])}, "prior_precision must",
    ),
    "NaN as noise": (lambda s: s | {"sigma_noise": torch.tensor(torch.nan)}, "sigma"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_states_change_nothing(kind):
    spoil, words = BAD[kind]
    la = fit(unfitted("mixed_diag"))
    before, prediction = copy.deepcopy(la.state_dict()), predicted(la)
    with pytest.raises(ValueError, match=words):
        la.load_state_dict(spoil(la.state_dict()))
    for name, value in la.state_dict().items():
        is_tensor = isinstance(value, torch.Tensor)
        true = before[name]
        assert torch.equal(value, true) if is_tensor else value == true
    torch.testing.assert_close(predicted(la), prediction, rtol=0, atol=0)


def test_an_online_run_of_the_first_format_resumes(tmp_path):
    path = tmp_path / "run.pt"
    path.write_bytes((STORED / "online_run_version_1.pt").read_bytes())
    saved = torch.load(path, weights_only=True)
    assert saved["version"] == 1
    la = LaplaceAE(noisy_model(), sigma_noise="learned")
    history = la.fit_online(
        DataLoader(images(14), 4), 4, checkpoint=path, resume=True,
        settings=OnlineSettings(alpha=0.1), lr_decay="constant", progress_bar=False,
    )  # fmt: skip
    assert history.epochs == 4 and len(history.losses) == 16
    assert history.losses[:8] == saved["history"]["losses"]
    assert torch.load(path, weights_only=True)["version"] == 2


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_models_do_no_harm(in_place):
    model, plain = noisy_model().eval(), noisy_model().eval()
    compiled: Any = model
    if in_place:
        model.compile(backend="eager")
    else:
        compiled = torch.compile(model, backend="eager")
    compiled(images(2))
    la, true = LaplaceAE(compiled), LaplaceAE(plain)
    for one in (la, true):
        torch.manual_seed(3)
        one.fit(images(14).split(7))
        one.fit_online(DataLoader(images(14), 7), 1, progress_bar=False)
    torch.testing.assert_close(la.H, true.H)
    torch.testing.assert_close(predicted(la), predicted(true))
    # The compiled model has the trained weights.
    torch.testing.assert_close(compiled(images(3)), plain(images(3)))


def test_copies_of_extended_models():
    """BackPACK hangs hooks on modules, which a copy may keep but must not mix up."""
    from backpack import extend

    la = LaplaceAE(extend(noisy_model()))
    fit(la)
    other = copy.deepcopy(la)
    torch.testing.assert_close(predicted(other), predicted(la))
    assert isinstance(other.model, nn.Module) and other.model is not la.model
