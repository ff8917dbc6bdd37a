"""Damaged files, strange data, other threads: clear errors, and nothing half done."""

import copy
import gzip
import os
import pickle
import re
import struct
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from backpack import disable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lae_backpack import LaplaceAE
from lae_backpack.curvature import recorder
from lae_backpack.curvature.suspended import without_storing
from lae_backpack.datasets import DataFileError, read_idx
from lae_backpack.downstream.imputation import impute
from lae_backpack.posterior.online import checkpoint
from lae_backpack.posterior.online.checkpoint import CheckpointError
from lae_backpack.posterior.online.settings import OnlineSettings
from tests.fakes import fitted, seeded
from tests.test_autoencoder import images
from tests.test_checkpoints import noisy_model

quick = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# idx files ----------------------------------------------------------------------------

PIXELS = b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 2) + bytes(range(12))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file with bytes changed, taken out, put in, or cut off."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        kind = draw(st.sampled_from(["change", "cut", "insert", "remove"]))
        if kind == "change" and content:
            content[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del content[at:]
        elif kind == "insert":
            content[at:at] = draw(st.binary(min_size=1, max_size=9))
        else:
            del content[at : at + draw(st.integers(1, 9))]
    return bytes(content)


@quick
@given(
    content=st.one_of(st.binary(max_size=40), damaged(PIXELS)),
    packed=st.booleans(),
    spoil=st.booleans(),
    data=st.data(),
)
def test_idx_files_are_read_or_refused(tmp_path, content, packed, spoil, data):
    path = tmp_path / ("images.gz" if packed else "images")
    if packed:
        content = gzip.compress(content)
        content = data.draw(damaged(content)) if spoil else content
    path.write_bytes(content)
    try:
        found = read_idx(path)
    except DataFileError as error:
        assert path.name in str(error)
    else:
        assert found.dtype == torch.uint8 and found.numel() > 0


@pytest.mark.parametrize("shape", [(60_000, 1000), (2**32 - 1,) * 3])
def test_gz_bombs_are_not_unpacked(tmp_path, shape):
    path = tmp_path / "bomb.gz"
    header = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(gzip.compress(header + bytes(60_000_000), 9))
    assert path.stat().st_size < 100_000
    with pytest.raises(DataFileError, match="holds at most"):
        read_idx(path)


# Checkpoints --------------------------------------------------------------------------


def run(path: Path, la: LaplaceAE, n_epochs: int = 2) -> Any:
    return la.fit_online(
        DataLoader(images(8), 4), n_epochs, checkpoint=path, resume=True,
        settings=OnlineSettings(alpha=0.1), progress_bar=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run.pt"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    run(path, LaplaceAE(noisy_model(), sigma_noise="learned"), 1)
    torch.set_default_dtype(before)
    return path


@quick
@given(data=st.data())
def test_damaged_checkpoints_are_read_or_refused(tmp_path, written, data):
    path = tmp_path / "run.pt"
    path.write_bytes(data.draw(damaged(written.read_bytes())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own about old formats
        try:
            checkpoint.load(path)
        except CheckpointError as error:
            assert "run.pt" in str(error)


class Evil:
    """Runs code when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


STRANGE = {
    "nothing": None,
    "a number": 3,
    "a text": "x",
    "a list": [],
    "a dict": {},
    "a tensor": torch.ones(3),
    "a list of lists": [[{}]],
}


@pytest.mark.parametrize("kind", STRANGE)
def test_strange_parts_of_a_checkpoint_change_nothing(tmp_path, written, kind):
    """Every part in turn is replaced: the run goes on, or is as it was."""
    saved, path = torch.load(written, weights_only=True), tmp_path / "run.pt"
    refused = 0
    for part in saved:
        torch.save(saved | {part: STRANGE[kind]}, path)
        content = path.read_bytes()
        la = LaplaceAE(noisy_model(), sigma_noise="learned")
        before = copy.deepcopy(la.model.state_dict()), la.H.clone(), la.sigma_noise
        try:
            run(path, la)
        except CheckpointError:
            refused += 1
            after = la.model.state_dict(), la.H, la.sigma_noise
            torch.testing.assert_close(after, before, rtol=0, atol=0)
            assert la.n_data == 0 and path.read_bytes() == content
    assert refused >= len(saved) - 6  # what may be nothing, or any number


def test_no_code_from_a_file(tmp_path, written, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.pt"
    saved = torch.load(written, weights_only=True)
    for content in (saved | {"best": Evil()}, [Evil()], Evil()):
        torch.save(content, path)
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
    assert not (tmp_path / "evil").exists()


# Data ---------------------------------------------------------------------------------

VALUES = [0.5, 0.0, -3.0, 1e30, 1e-30, float("nan"), float("inf")]
DTYPES = [torch.float64, torch.float32, torch.int64, torch.bool, torch.complex64]


@st.composite
def batches(draw: st.DrawFn) -> Any:
    shape = draw(
        st.one_of(
            st.just((2, 1, 4, 3)), st.lists(st.integers(0, 4), max_size=5).map(tuple)
        )
    )
    x = torch.full(shape, draw(st.sampled_from(VALUES)), dtype=torch.float64)
    x = x.to(draw(st.sampled_from(DTYPES)))
    forms = [x, (x,), [x, torch.zeros(len(x) if x.dim() else 1)], {"x": x}, "x", None]
    return draw(st.sampled_from([*forms[:3] * 2, *forms[3:], ()]))


@quick
@given(loader=st.lists(batches(), max_size=3), likelihood=st.sampled_from("rb"))
def test_any_loader_is_fitted_or_refused(loader, likelihood):
    name = {"r": "regression", "b": "bernoulli"}[likelihood]
    la = LaplaceAE(noisy_model(), name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex numbers lose a part
        try:
            la.fit(loader)
        except (ValueError, TypeError) as error:
            assert len(str(error)) > 20  # says something
            assert la.n_data == 0 and not la.H.any() and la.loss == 0
        else:
            assert la.n_data == sum(
                len(b[0] if isinstance(b, tuple | list) else b) for b in loader
            )
            assert la.H.isfinite().all() and (la.H >= 0).all()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in la.model.modules())
    assert la.model.training


# Masks --------------------------------------------------------------------------------

NO_MASK_DTYPES = [torch.uint8, torch.int64, torch.float64, torch.complex64]
BROADCASTING = [
    (), (1,), (3,), (4, 3), (1, 4, 3), (1, 1, 4, 3), (2, 1, 4, 3), (2, 1, 1, 1),
    (2, 1, 4, 1), (4, 1),
]  # fmt: skip
OTHER_SHAPES = [
    (3, 1, 4, 3), (2, 4, 3), (2,), (4,), (2, 1, 4, 2), (2, 1, 4, 3, 1), (1, 2, 1, 4, 3),
    (0,), (0, 1, 4, 3), (2, 0),
]  # fmt: skip


def rarely(draw: st.DrawFn) -> bool:
    return draw(st.integers(0, 5)) == 5


@st.composite
def masks(draw: st.DrawFn) -> Any:
    """All, nothing or something observed, as any kind of mask; or something else."""
    shape = draw(st.sampled_from(OTHER_SHAPES if rarely(draw) else BROADCASTING))
    share = draw(st.sampled_from([0.5, 0.0, 1.0]))
    mask = torch.rand(shape, generator=seeded(draw(st.integers(0, 99)))) < share
    if draw(st.booleans()):  # not contiguous
        mask = torch.stack([mask, ~mask], -1)[..., 0]
    if rarely(draw):
        mask = mask.to(draw(st.sampled_from(NO_MASK_DTYPES)))
        if mask.is_floating_point() and draw(st.booleans()):
            mask = mask.masked_fill(mask == 0, float("nan"))
    if rarely(draw):
        return draw(st.sampled_from([None, True, mask.tolist(), mask.numpy(), "x"]))
    return mask


@st.composite
def images_for(draw: st.DrawFn, observed: Any) -> Tensor:
    """Images, with bad pixels where they are missing or anywhere."""
    x = images(1 if rarely(draw) else 2)
    if rarely(draw):
        x = draw(st.sampled_from([x.float(), x[:, 0], x[:0], x[0], (9 * x).long()]))
    if not x.is_floating_point():
        return x
    bad = torch.rand(x.shape, generator=seeded(draw(st.integers(0, 99)))) < 0.3
    if not rarely(draw) and isinstance(observed, Tensor):
        try:
            bad &= ~observed.bool().expand_as(x)
        except RuntimeError:
            pass  # a mask of another shape
    return x.masked_fill(bad, draw(st.sampled_from([0.5, float("nan"), float("inf")])))


@quick
@given(observed=masks(), data=st.data(), n_per_mode=st.integers(1, 3))
def test_any_mask_is_taken_or_refused(mask_posterior, observed, data, n_per_mode):
    la, x = mask_posterior, data.draw(images_for(observed))
    before = copy.deepcopy(la.model.state_dict()), la.H.clone()
    given_x, given_mask = x.clone(), copy.deepcopy(observed)
    try:
        found = impute(la, x, observed, 2, n_per_mode, 2, seeded())
    except (ValueError, TypeError) as error:
        assert re.search(r"\b(observed|x)\b", str(error))
    else:
        known = observed.expand_as(x)
        assert found.modes.shape == found.mean.shape == (2, *x.shape)
        assert found.variance.shape == (2, *x.shape)
        assert found.samples.shape == (2, n_per_mode, *x.shape)
        for part in (found.modes, found.mean, found.samples):
            assert part.isfinite().all() and part.dtype == x.dtype
            kept = part[..., known]
            assert torch.equal(kept, x[known].expand_as(kept))
        assert found.variance.isfinite().all() and not found.variance[:, known].any()
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(x, given_x, **same)
    if isinstance(observed, Tensor):
        torch.testing.assert_close(observed, given_mask, **same)
    torch.testing.assert_close((la.model.state_dict(), la.H), before, **same)
    for layer in la.model.modules():
        assert layer.training
        assert not layer._forward_hooks and not layer._forward_pre_hooks


@pytest.fixture(scope="module")
def mask_posterior() -> LaplaceAE:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    la = fitted()[0]
    torch.set_default_dtype(before)
    return la


# Threads ------------------------------------------------------------------------------


def big_images(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(60, 1, 4, 3, generator=generator)


@pytest.mark.parametrize("shared", [False, True])
def test_fits_in_two_threads_do_not_mix(shared):
    models = [noisy_model() for _ in range(2)]
    if shared:
        models[1] = models[0]
    expected = []
    for i in range(2):
        la = LaplaceAE(copy.deepcopy(models[i]), hessian_structure="mixed_diag")
        la.fit(big_images(i).split(1))
        expected.append(la.H)
    found: dict[int, list[Tensor]] = {0: [], 1: []}
    errors: list[BaseException] = []
    start = threading.Barrier(2)

    def work(i: int) -> None:
        try:
            torch.manual_seed(0)
            la = LaplaceAE(models[i], hessian_structure="mixed_diag")
            start.wait()
            for _ in range(4):
                la.fit(big_images(i).split(1))
                found[i].append(la.H.clone())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    for i in range(2):
        assert len(found[i]) == 4
        for H in found[i]:
            torch.testing.assert_close(H, expected[i])
    for module in models[0].modules():
        assert module.training and not module._forward_hooks
    assert isinstance(models[0], nn.Module)


def test_overlapping_threads_leave_backpack_storing():
    first, second = without_storing(), without_storing()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not disable.store_io
    second.__exit__(None, None, None)
    assert disable.store_io
    with disable(), without_storing():
        pass
    assert disable.store_io


def test_a_recording_that_fails_at_once_lets_others_in(monkeypatch):
    model = noisy_model()

    def fail(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(recorder, "is_container", fail)
    with pytest.raises(KeyboardInterrupt), recorder.Recorder(model):
        pass
    entered = []
    lock = recorder.lock_of(model)
    thread = threading.Thread(target=lambda: entered.append(lock.acquire(timeout=1)))
    thread.start()
    thread.join()
    assert entered == [True]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
