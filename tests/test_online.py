"""Monte-Carlo EM on small autoencoders."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import LaplaceAE, diag_ggn
from lae_backpack.posterior.online import History, OnlineSettings, updated_precision
from tests.test_autoencoder import images, model, seeded


def loader(n: int = 12, batch: int = 4) -> DataLoader:
    return DataLoader(TensorDataset(images(n)), batch)


def fit(la: LaplaceAE, n_epochs: int, **settings: object) -> History:
    chosen = OnlineSettings(**settings)
    return la.fit_online(
        loader(), n_epochs, settings=chosen, generator=seeded(), progress_bar=False
    )


def test_updates_are_what_they_say():
    precision, batch = torch.rand(5), torch.rand(5)
    additive = OnlineSettings("additive", alpha=0.2)
    ema = OnlineSettings("ema", alpha=0.2)
    found = updated_precision(precision, batch, 0.25, additive)
    torch.testing.assert_close(found, 0.8 * precision + 4 * batch)
    found = updated_precision(precision, batch, 0.25, ema)
    torch.testing.assert_close(found, 0.8 * precision + 0.2 * 4 * batch)


def test_additive_settles_at_one_over_alpha_and_ema_at_one():
    batch = torch.rand(5)
    for update, level in (("additive", 10.0), ("ema", 1.0)):
        settings, precision = OnlineSettings(update, alpha=0.1), torch.zeros(5)
        for _ in range(300):
            precision = updated_precision(precision, batch, 1.0, settings)
        torch.testing.assert_close(precision, level * batch)


def test_a_still_mean_tracks_the_curvature_of_the_data():
    la = LaplaceAE(model(), hessian_structure="approx_diag")
    still = torch.optim.SGD(la.params, lr=0.0)
    settings = OnlineSettings("ema", alpha=1.0)
    x = images(4)
    data = DataLoader(TensorDataset(x), 4)
    la.fit_online(data, 1, settings=settings, optimizer=still, progress_bar=False)
    found = diag_ggn(la.model, nn.MSELoss(reduction="sum"), x, x)
    true = 0.5 * torch.cat([value.flatten() for value in found.values()])
    torch.testing.assert_close(la.H, true)


def test_the_gradient_is_taken_at_the_sampled_weights():
    la = LaplaceAE(model())
    la.H = torch.full_like(la.H, 50.0)
    x = images(4)
    mean = torch.nn.utils.parameters_to_vector(la.params).detach().clone()
    step = torch.optim.SGD(la.params, lr=1.0)
    data = DataLoader(TensorDataset(x), 4)
    la.fit_online(data, 1, optimizer=step, generator=seeded(), progress_bar=False)
    moved = mean - torch.nn.utils.parameters_to_vector(la.params).detach()

    twin = model()
    noise = torch.empty_like(mean).normal_(generator=seeded())
    sampled = mean + noise / (50.0 + 1.0) ** 0.5
    torch.nn.utils.vector_to_parameters(sampled, twin.parameters())
    (nn.MSELoss(reduction="sum")(twin(x), x) / 4).backward()
    torch.testing.assert_close(
        moved, torch.cat([p.grad.flatten() for p in twin.parameters()])
    )


def test_training_learns_and_the_mean_is_always_in_the_model():
    la = LaplaceAE(model())
    seen = []

    def look(la: LaplaceAE, history: History) -> None:
        seen.append(torch.nn.utils.parameters_to_vector(la.params).detach().clone())

    settings = OnlineSettings(alpha=0.05)
    x = images(12)
    before = (la.model(x) - x).square().sum().item()
    history = la.fit_online(
        loader(), 60, settings=settings, lr=1e-2, progress_bar=False, callbacks=[look],
        generator=seeded(),
    )  # fmt: skip
    assert history.epochs == 60 and len(history.losses) == 180
    assert (la.model(x) - x).square().sum().item() < 0.5 * before
    torch.testing.assert_close(seen[-1], la.mean)
    mean, variance = la(images(), n_samples=10, generator=seeded())
    assert mean.shape == variance.shape == images().shape
    assert (variance > 0).all()


def test_an_interruption_leaves_mean_weights_and_precision():
    la = LaplaceAE(model())

    def interrupt(la: LaplaceAE, history: History) -> None:
        if history.epochs == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        la.fit_online(
            loader(), 5, progress_bar=False, callbacks=[interrupt], generator=seeded()
        )
    other = LaplaceAE(model())
    other.fit_online(loader(), 2, progress_bar=False, generator=seeded())
    torch.testing.assert_close(la.H, other.H)
    for a, b in zip(la.params, other.params, strict=True):
        assert torch.equal(a, b)


def test_warm_up_is_plain_training():
    online, plain = model(), model()
    la = LaplaceAE(online)
    fit(la, 2, warmup_steps=100)
    optimizer = torch.optim.Adam(plain.parameters(), 1e-3)
    for _ in range(2):
        for (x,) in loader():
            optimizer.zero_grad()
            (nn.MSELoss(reduction="sum")(plain(x), x) / len(x)).backward()
            optimizer.step()
    for a, b in zip(online.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_curvature_can_be_refreshed_less_often():
    la = LaplaceAE(model())
    calls = []
    diag = la.backend.diag
    la.backend.diag = lambda *args: calls.append(1) or diag(*args)
    fit(la, 2, refresh_every=4)
    assert len(calls) == 2  # of six steps


def test_a_loss_that_is_not_finite_stops_with_the_last_good_state():
    la = LaplaceAE(model())
    fit(la, 1)
    before = la.H.clone()
    with torch.no_grad():
        la.params[0][0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="loss is not finite at step 0"):
        fit(la, 1)
    assert torch.equal(la.H, before)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"update": "sum"}, "update must be"),
        ({"alpha": -0.1}, r"alpha must be within \[0, 1\], got -0.1"),
        ({"alpha": 1.5}, "alpha must be within"),
        ({"n_samples": 0}, "n_samples must be at least 1"),
        ({"refresh_every": 0}, "refresh_every must be at least 1"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        OnlineSettings(**settings)


def test_a_loader_without_a_dataset_is_refused():
    with pytest.raises(TypeError, match="Use a DataLoader"):
        LaplaceAE(model()).fit_online([images()], 1)
