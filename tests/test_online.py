"""Monte-Carlo EM on small autoencoders."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from lae_backpack import AutoEncoder, LaplaceAE, diag_ggn
from lae_backpack.posterior.online.noisy_copy import SHIFTS, NoisyCopy
from lae_backpack.posterior.online.settings import History, OnlineSettings
from tests.test_autoencoder import images, model, seeded


def loader(n: int = 12, batch: int = 4) -> DataLoader:
    return DataLoader(TensorDataset(images(n)), batch)


def fit(la: LaplaceAE, n_epochs: int, **settings: object) -> History:
    chosen = OnlineSettings(**settings)
    return la.fit_online(
        loader(), n_epochs, settings=chosen, generator=seeded(), progress_bar=False
    )


def weights_of(la: LaplaceAE) -> Tensor:
    return parameters_to_vector(la.params).detach().clone()


def first_noise(like: Tensor) -> Tensor:
    """The noise of a run's first network, as NoisyCopy says it is made."""
    seed = int(torch.randint(2**31, (), generator=seeded()))
    return torch.empty_like(like).normal_(generator=torch.Generator().manual_seed(seed))


class Watched(Dataset):
    """Calls a function whenever the loader asks for a sample."""

    def __init__(self, x: Tensor, look):
        self.x, self.look = x, look

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        self.look(index)
        return self.x[index]


# The precision ------------------------------------------------------------------------


def updated(precision: Tensor, batch: Tensor, settings: OnlineSettings) -> Tensor:
    return settings.decay * precision + settings.gain * batch


def test_updates_are_what_they_say():
    precision, batch = torch.rand(5), torch.rand(5)
    found = updated(precision, batch, OnlineSettings("additive", alpha=0.2))
    torch.testing.assert_close(found, 0.8 * precision + batch)
    found = updated(precision, batch, OnlineSettings("ema", alpha=0.2))
    torch.testing.assert_close(found, 0.8 * precision + 0.2 * batch)


@pytest.mark.parametrize("update", ["additive", "ema"])
def test_every_step_updates_the_precision_so(update):
    la = LaplaceAE(model())
    settings = OnlineSettings(update, alpha=0.2, warmup_steps=9)
    still, mean = torch.optim.SGD(la.params, lr=0.0), weights_of(la)
    la.fit_online(loader(), 1, settings=settings, optimizer=still, progress_bar=False)
    precision = torch.zeros_like(mean)
    for (x,) in loader():
        share = 4 / 12
        precision = updated(precision, curvature_at(mean, x, 128) / share, settings)
    torch.testing.assert_close(la.H, precision)


def test_data_are_counted_however_batches_are_made():
    """Images and not batches, or the precision is too low by the size of a batch."""
    data = TensorDataset(images(12))
    order = SequentialSampler(data)
    some = SubsetRandomSampler(range(8))
    ways = {
        "batch size": (DataLoader(data, 4), 12),
        "sampler of batches": (
            DataLoader(data, sampler=BatchSampler(order, 4, False), batch_size=None),
            12,
        ),
        "batch sampler": (
            DataLoader(data, batch_sampler=BatchSampler(order, 4, False)),
            12,
        ),
        "of a part": (DataLoader(data, batch_sampler=BatchSampler(some, 4, False)), 8),
        "part": (DataLoader(data, 4, sampler=some), 8),
    }
    precisions = {}
    for name, (batches, count) in ways.items():
        la = LaplaceAE(model())
        la.fit_online(batches, 1, generator=seeded(), progress_bar=False)
        assert la.n_data == count, name
        precisions[name] = la.H
    for name in ("sampler of batches", "batch sampler"):
        torch.testing.assert_close(precisions[name], precisions["batch size"])


@pytest.mark.parametrize("refresh_every", [1, 4])
def test_additive_settles_at_one_over_alpha_and_ema_at_one(refresh_every):
    batch = torch.rand(5)
    for update, level in (("additive", 10.0), ("ema", 1.0)):
        settings = OnlineSettings(update, alpha=0.1, refresh_every=refresh_every)
        precision = torch.zeros(5)
        for _ in range(300):
            precision = updated(precision, batch, settings)
        torch.testing.assert_close(precision, level * batch)


def test_a_look_every_so_often_stands_for_the_steps_between():
    batch, once = torch.rand(5), torch.rand(5)
    often = once
    for _ in range(4):
        often = updated(often, batch, OnlineSettings(alpha=0.3))
    settings = OnlineSettings(alpha=0.3, refresh_every=4)
    torch.testing.assert_close(updated(once, batch, settings), often)
    no_forgetting = OnlineSettings(alpha=0.0, refresh_every=4)
    torch.testing.assert_close(updated(once, batch, no_forgetting), once + 4 * batch)


def curvature_at(weights: Tensor, x: Tensor, limit: int = 0) -> Tensor:
    twin = model()
    torch.nn.utils.vector_to_parameters(weights, twin.parameters())
    loss = nn.MSELoss(reduction="sum")
    found = diag_ggn(twin, loss, x, x, max_dense_dim=limit)
    return 0.5 * torch.cat([value.flatten() for value in found.values()])


@pytest.mark.parametrize("place", ["mean", "sample"])
def test_the_curvature_is_that_of_the_mean_or_of_the_sample(place):
    la = LaplaceAE(model(), hessian_structure="approx_diag")
    la.H = torch.full_like(la.H, 50.0)
    still = torch.optim.SGD(la.params, lr=0.0)
    settings = OnlineSettings("ema", alpha=1.0, curvature_at=place)
    x, mean = images(4), weights_of(la)
    data = DataLoader(TensorDataset(x), 4)
    la.fit_online(
        data, 1, settings=settings, optimizer=still, generator=seeded(),
        progress_bar=False,
    )  # fmt: skip
    noise = first_noise(mean) / 51.0**0.5 if place == "sample" else 0.0
    torch.testing.assert_close(la.H, curvature_at(mean + noise, x))


def test_several_networks_are_averaged():
    la = LaplaceAE(model(), hessian_structure="approx_diag")
    la.H = torch.full_like(la.H, 50.0)
    x, mean = images(4), weights_of(la)
    data = DataLoader(TensorDataset(x), 4)
    settings = OnlineSettings("ema", alpha=1.0, n_samples=2)
    step = torch.optim.SGD(la.params, lr=1.0)
    history = la.fit_online(
        data, 1, settings=settings, optimizer=step, generator=seeded(),
        progress_bar=False,
    )  # fmt: skip
    noise = first_noise(mean) / 51.0**0.5
    pair = [mean + noise, mean - noise]  # antithetic
    torch.testing.assert_close(la.H, sum(curvature_at(w, x) for w in pair) / 2)
    losses, gradients = zip(*(loss_and_gradient(w, x) for w in pair), strict=True)
    torch.testing.assert_close(mean - weights_of(la), sum(gradients) / 2)
    assert history.losses == pytest.approx([sum(losses) / 2])


# The mean -----------------------------------------------------------------------------


def loss_and_gradient(weights: Tensor, x: Tensor) -> tuple[float, Tensor]:
    twin = model()
    torch.nn.utils.vector_to_parameters(weights, twin.parameters())
    loss = nn.MSELoss(reduction="sum")(twin(x), x) / len(x)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in twin.parameters()])


@pytest.mark.parametrize("refresh_every", [1, 2])
def test_the_gradient_is_taken_at_the_sampled_weights(refresh_every):
    la = LaplaceAE(model())
    la.H = torch.full_like(la.H, 50.0)
    x, mean = images(4), weights_of(la)
    step = torch.optim.SGD(la.params, lr=1.0)
    data = DataLoader(TensorDataset(x), 4)
    settings = OnlineSettings(refresh_every=refresh_every)
    la.fit_online(
        data, 1, settings=settings, optimizer=step, generator=seeded(),
        progress_bar=False,
    )  # fmt: skip
    sampled = mean + first_noise(mean) / (50.0 + 1.0) ** 0.5
    torch.testing.assert_close(mean - weights_of(la), loss_and_gradient(sampled, x)[1])


def test_a_noisy_copy_mirrors_every_other_draw_and_shares_what_is_not_drawn():
    net = AutoEncoder(
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 2)),
        nn.Sequential(nn.Linear(2, 12), nn.Unflatten(1, (1, 4, 3))),
    ).eval()
    net.encoder[1].weight.requires_grad_(False)
    la = LaplaceAE(net)
    la.H = torch.rand_like(la.H)
    copy = NoisyCopy(la, seed=7, antithetic=True)
    copy.follow_precision()
    draws, mean = [], weights_of(la)
    for number in (0, 1, 2, 1, 2 * SHIFTS):
        copy.draw(number)
        drawn = parameters_to_vector(copy.params).detach().clone() - mean
        draws.append(drawn / la.posterior_scale)
    torch.testing.assert_close(draws[0], -draws[1])
    torch.testing.assert_close(draws[1], draws[3])
    # The same numbers for other weights, and then new ones.
    torch.testing.assert_close(draws[0].sort()[0], draws[2].sort()[0])
    assert not torch.isclose(draws[0], draws[2]).any()
    assert not torch.isclose(draws[0].sort()[0], draws[4].sort()[0]).any()
    assert torch.equal(weights_of(la), mean)
    assert copy.model.encoder[1].running_mean is net.encoder[1].running_mean
    assert copy.model.encoder[1].weight is net.encoder[1].weight
    copy.be_mean()
    assert torch.equal(parameters_to_vector(copy.params), mean)

    fresh = NoisyCopy(la, seed=7, antithetic=False)
    fresh.follow_precision()
    many = []
    for number in range(4000):
        fresh.draw(number)
        many.append(parameters_to_vector(fresh.params).detach() - mean)
    found = torch.stack(many).var(0)
    torch.testing.assert_close(found, la.posterior_variance, rtol=0.15, atol=0)


def test_the_mean_is_in_the_model_whenever_the_user_looks():
    seen = []
    la = LaplaceAE(model())
    data = Watched(images(12), lambda _: seen.append(weights_of(la)))
    still = torch.optim.SGD(la.params, lr=0.0)
    before = weights_of(la)
    la.fit_online(DataLoader(data, 4), 2, optimizer=still, progress_bar=False)
    assert len(seen) == 24
    assert all(torch.equal(weights, before) for weights in seen)


def test_training_learns():
    la = LaplaceAE(model())
    seen = []

    def look(la: LaplaceAE, history: History) -> None:
        seen.append(la.H)

    settings = OnlineSettings(alpha=0.05)
    x = images(12)
    before = (la.model(x) - x).square().sum().item()
    history = la.fit_online(
        loader(), 60, settings=settings, lr=3e-2, progress_bar=False, callbacks=[look],
        generator=seeded(),
    )  # fmt: skip
    assert history.epochs == 60 and len(history.losses) == 180
    assert (la.model(x) - x).square().sum().item() < 0.5 * before
    assert torch.equal(weights_of(la), la.mean)
    assert len({h.data_ptr() for h in seen}) == 60  # what users hold stays as it was
    assert (la.n_data, la.n_outputs) == (12, 12)
    mean, variance = la(images(), n_samples=10, generator=seeded())
    assert mean.shape == variance.shape == images().shape
    assert (variance > 0).all()


@pytest.mark.parametrize("likelihood", ["regression", "bernoulli"])
@pytest.mark.parametrize("structure", ["approx_diag", "mixed_diag"])
def test_all_kinds_train_and_can_be_asked(likelihood, structure):
    la = LaplaceAE(model(), likelihood, hessian_structure=structure)
    history = la.fit_online(loader(), 20, lr=1e-2, progress_bar=False)
    assert history.losses[-1] < history.losses[0]
    assert (la(images())[1] > 0).all() and torch.isfinite(la.log_marginal_likelihood())


def test_an_interruption_leaves_the_mean_of_the_steps_done():
    la, other = LaplaceAE(model()), LaplaceAE(model())
    arguments = {
        "settings": OnlineSettings(warmup_steps=0),
        "lr_decay": "constant",
        "progress_bar": False,
    }

    def interrupt(index: int) -> None:
        if index == 9:  # in the middle of the third batch
            raise KeyboardInterrupt

    data = DataLoader(Watched(images(12), interrupt), 4)
    with pytest.raises(KeyboardInterrupt):
        la.fit_online(data, 5, generator=seeded(), **arguments)
    two_steps = DataLoader(TensorDataset(images(12)[:8]), 4, sampler=Sampler())
    other.fit_online(two_steps, 1, generator=seeded(), **arguments)
    assert torch.equal(la.H, other.H)
    assert torch.equal(weights_of(la), weights_of(other))
    assert torch.equal(la.mean, weights_of(la))
    assert la(images())[1].min() > 0


class Sampler(torch.utils.data.Sampler):
    """Eight samples that say they are twelve."""

    def __iter__(self):
        return iter(range(8))

    def __len__(self) -> int:
        return 12


def test_warm_up_is_plain_training():
    online, plain = model(), model()
    la = LaplaceAE(online)
    settings = OnlineSettings(warmup_steps=100)
    la.fit_online(
        loader(), 2, settings=settings, lr_decay="constant", progress_bar=False
    )
    optimizer = torch.optim.Adam(plain.parameters(), 1e-3)
    for _ in range(2):
        for (x,) in loader():
            optimizer.zero_grad()
            (nn.MSELoss(reduction="sum")(plain(x), x) / len(x)).backward()
            optimizer.step()
    for a, b in zip(online.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_by_default_a_tenth_of_the_run_warms_up():
    settings = OnlineSettings(alpha=0.01)
    assert settings.warmup_steps_of(200) == 20
    assert settings.warmup_steps_of(10**6) == 100
    assert OnlineSettings(alpha=0.0).warmup_steps_of(200) == 20
    assert OnlineSettings(warmup_steps=7).warmup_steps_of(200) == 7

    la = LaplaceAE(model())
    before = weights_of(la)
    still = torch.optim.SGD(la.params, lr=0.0)
    history = la.fit_online(loader(), 10, optimizer=still, progress_bar=False)
    at_mean = [loss_and_gradient(before, x)[0] for (x,) in loader()]
    assert history.losses[:3] == pytest.approx(at_mean)  # of thirty
    assert history.losses[3:6] != pytest.approx(at_mean)


def test_published_settings_start_high_and_halve_the_curvature():
    precisions = []
    for settings in (
        OnlineSettings.published(12),
        OnlineSettings(antithetic=False, initial_precision=12.0),
    ):
        la = LaplaceAE(model())
        la.fit_online(
            loader(12, 12), 1, settings=settings, generator=seeded(), progress_bar=False
        )
        precisions.append(la.H - 12 * 0.999)
    torch.testing.assert_close(precisions[0], precisions[1] / 2)


# Learning rates, validation, noise ----------------------------------------------------


def test_the_learning_rate_falls_along_a_cosine():
    la, rates = LaplaceAE(model()), []

    def look(la: LaplaceAE, history: History) -> None:
        rates.append((la.params[0] - seen[-1]).abs().max().item())
        seen.append(la.params[0].detach().clone())

    seen = [la.params[0].detach().clone()]
    la.fit_online(loader(), 40, progress_bar=False, callbacks=[look])
    assert rates[-1] < 0.05 * rates[0]  # Adam moves by about the rate


def test_schedulers_step_when_they_are_told_to():
    for moment, steps in (("epoch", 2), ("batch", 6)):
        la = LaplaceAE(model())
        optimizer = torch.optim.SGD(la.params, lr=1.0e-3)
        la.fit_online(
            loader(), 2, optimizer=optimizer, scheduler=StepLR(optimizer, 1, gamma=0.5),
            scheduler_steps=moment, progress_bar=False,
        )  # fmt: skip
        assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.5**steps)


def test_a_plateau_scheduler_gets_what_it_watches():
    la = LaplaceAE(model())
    optimizer = torch.optim.SGD(la.params, lr=0.0)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    history = la.fit_online(
        loader(), 3, optimizer=optimizer, scheduler=scheduler, progress_bar=False,
        validation_loader=loader(),
    )  # fmt: skip
    assert scheduler.best == min(history.validation)


def test_early_stopping_goes_back_to_the_best_epoch():
    la, kept = LaplaceAE(model()), {}
    optimizer = torch.optim.SGD(la.params, lr=1e-3)

    def spoil(la: LaplaceAE, history: History) -> None:
        kept[history.epochs] = weights_of(la), la.H.clone()
        if history.epochs == 3:
            optimizer.param_groups[0]["lr"] = -1e-3  # uphill from here

    history = la.fit_online(
        loader(), 50, optimizer=optimizer, validation_loader=loader(), patience=2,
        callbacks=[spoil], generator=seeded(), progress_bar=False,
    )  # fmt: skip
    assert history.stopped_early and history.epochs < 50
    assert history.best_epoch == history.epochs - 2
    assert history.best_epoch == 1 + min(
        range(history.epochs), key=history.validation.__getitem__
    )
    mean, precision = kept[history.best_epoch]
    assert torch.equal(weights_of(la), mean) and torch.equal(la.mean, mean)
    assert torch.equal(la.H, precision)


def test_validation_disturbs_nothing():
    runs = []
    for validation in (None, DataLoader(TensorDataset(images(8)), 4, shuffle=True)):
        torch.manual_seed(0)
        la = LaplaceAE(model())
        data = DataLoader(TensorDataset(images(12)), 4, shuffle=True)
        la.fit_online(data, 3, validation_loader=validation, progress_bar=False)
        runs.append(weights_of(la))
    assert torch.equal(*runs)


def test_noise_is_learned_online():
    la = LaplaceAE(model(), sigma_noise="learned")
    history = la.fit_online(
        loader(), 40, settings=OnlineSettings(alpha=0.1), progress_bar=False
    )
    recent = sum(history.losses[-30:]) / 30 / 12
    assert la.sigma_noise.item() == pytest.approx(math.sqrt(recent), rel=0.1)


@pytest.mark.parametrize("n_data", [2, 40])  # fewer numbers than weights, or more
def test_noise_is_learned_post_hoc_at_the_maximum_of_the_evidence(n_data):
    la = LaplaceAE(model(), hessian_structure="approx_diag", sigma_noise="learned")
    la.fit(loader(n_data))
    best = la.sigma_noise.clone()
    evidence = {
        factor: la.log_marginal_likelihood(sigma_noise=best * factor).item()
        for factor in (0.99, 1.0, 1.01)
    }
    assert evidence[1.0] > max(evidence[0.99], evidence[1.01])


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_noise_is_learned_where_a_tempered_evidence_has_no_slope(temperature):
    la = LaplaceAE(
        model(),
        hessian_structure="approx_diag",
        sigma_noise="learned",
        temperature=temperature,
    )
    la.fit(loader(40))
    noise = la.sigma_noise.clone().requires_grad_()
    (slope,) = torch.autograd.grad(la.log_marginal_likelihood(sigma_noise=noise), noise)
    assert abs(slope * noise) < 1e-5 * la.n_data * la.n_outputs


def test_a_progress_bar_shows_the_numbers_one_watches(capsys):
    LaplaceAE(model()).fit_online(
        loader(80, 2), 2, validation_loader=loader(), progress_bar=True
    )
    shown = capsys.readouterr().err
    assert "epoch 2/2" in shown
    for name in ("loss=", "weight sd=", "lr=", "validation="):
        assert name in shown


def test_the_loss_is_that_of_the_last_epoch_or_of_the_best():
    for patience in (None, 2):
        la, seen = LaplaceAE(model()), {}

        def look(la: LaplaceAE, history: History, seen: dict = seen) -> None:
            seen[history.epochs] = float(la.loss), la.log_likelihood.item()

        optimizer = torch.optim.SGD(la.params, lr=1e-4, maximize=True)
        history = la.fit_online(
            loader(13), 8, optimizer=optimizer, callbacks=[look], progress_bar=False,
            validation_loader=loader(), patience=patience,
            settings=OnlineSettings(warmup_steps=99),
        )  # fmt: skip
        epoch = history.best_epoch if patience else 8
        assert (float(la.loss), la.log_likelihood.item()) == seen[epoch]
        *whole, single = history.losses[-4:]
        mean = (sum(whole) * 4 + single) / 13
        if not patience:
            assert float(la.loss) == pytest.approx(0.5 * 13 * mean)


def test_warm_up_and_sampled_epochs_are_not_compared():
    la = LaplaceAE(model())
    still = torch.optim.SGD(la.params, lr=0.0)
    history = la.fit_online(
        loader(), 20, optimizer=still, validation_loader=loader(), patience=3,
        settings=OnlineSettings(warmup_steps=6, alpha=0.5), progress_bar=False,
        generator=seeded(),
    )  # fmt: skip
    assert history.validation[2] > history.validation[1] == history.validation[0]
    assert history.best_epoch > 2  # sampled, though the warm-up's losses were lower


def test_frozen_parameters_with_old_gradients_stay_and_no_gradients_are_left():
    net = model()
    net(images()).sum().backward()
    net.encoder.requires_grad_(False)
    before = net.encoder[1].weight.clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    LaplaceAE(net).fit_online(loader(), 2, optimizer=optimizer, progress_bar=False)
    assert torch.equal(net.encoder[1].weight, before)
    assert all(p.grad is None for p in net.parameters())


def test_noise_is_one_online_also_after_a_fit():
    la = LaplaceAE(model())
    la.fit(loader())
    assert la.sigma_noise != 1
    la.fit_online(loader(), 1, progress_bar=False)
    assert la.sigma_noise == 1


def test_a_run_that_does_not_start_leaves_a_fit_alone():
    la = LaplaceAE(model())
    la.fit(loader())
    before = la.H.clone(), la.sigma_noise.clone()
    wrong = DataLoader(TensorDataset(images().float()), 4)
    settings = OnlineSettings(initial_precision=7.0)
    with pytest.raises(TypeError, match="dtype"):
        la.fit_online(wrong, 1, settings=settings, progress_bar=False)
    assert torch.equal(la.H, before[0]) and torch.equal(la.sigma_noise, before[1])


def test_a_run_that_does_not_start_leaves_calibrated_looks_alone():
    la = LaplaceAE(
        model(),
        hessian_structure="calibrated_diag",
        backend_kwargs={"shrink": True},
    )
    la.fit(loader())
    before = la.looks.clone()
    wrong = DataLoader(TensorDataset(images().float()), 4)
    settings = OnlineSettings(initial_precision=7.0)
    with pytest.raises(TypeError, match="dtype"):
        la.fit_online(wrong, 1, settings=settings, progress_bar=False)
    assert torch.equal(la.looks, before)
    torch.testing.assert_close(la.backend.estimate(la.looks), la.H)


def test_a_run_that_does_not_start_leaves_the_structure_alone():
    la = LaplaceAE(model())  # calibrated post hoc, mixed online
    la.fit(loader())
    assert la.backend.n_probes == 1
    wrong = DataLoader(TensorDataset(images().float()), 4)
    with pytest.raises(TypeError, match="dtype"):
        la.fit_online(wrong, 1, progress_bar=False)
    assert la.backend.n_probes == 1
    la.fit_online(loader(), 1, progress_bar=False)
    assert la.backend.n_probes == 0


def test_models_in_channels_last_train_alike():
    torch.manual_seed(0)
    net = AutoEncoder(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1))
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        la = LaplaceAE(copy.deepcopy(net).to(memory_format=memory_format))
        fit(la, 2, warmup_steps=1)
        found.append((la.H, la.mean, la(images(), generator=seeded())[1]))
    for ours, known in zip(*found, strict=True):
        torch.testing.assert_close(ours, known)


@pytest.mark.parametrize("pred_type", ["nn", "glm", "propagated"])
def test_predictives_in_inference_mode(pred_type):
    la = LaplaceAE(model())
    la.fit(loader())
    _, known = la(images(), pred_type, n_samples=4, generator=seeded())
    with torch.inference_mode():
        _, variance = la(images(), pred_type, n_samples=4, generator=seeded())
    torch.testing.assert_close(variance, known)


# What goes wrong ----------------------------------------------------------------------


@pytest.mark.parametrize("place", ["encoder.1", "decoder.2"])
def test_a_loss_that_is_not_finite_names_step_and_layer(place):
    la = LaplaceAE(model())
    fit(la, 1)
    before = la.H.clone()
    with torch.no_grad():
        la.model.get_submodule(place).weight[0, 0] = float("nan")
    weights = weights_of(la)
    words = f"loss is not finite at step 0, first in '{place}'"
    with pytest.raises(FloatingPointError, match=words):
        fit(la, 1)
    assert torch.equal(la.H, before)
    torch.testing.assert_close(weights_of(la), weights, equal_nan=True, rtol=0, atol=0)


def test_a_precision_that_is_not_finite_names_step_and_layer():
    la = LaplaceAE(model().float(), hessian_structure="approx_diag")
    x = images(12).float()
    with torch.no_grad():  # finite forwards, but its square is not
        la.model.decoder[2].weight[0, 0] = 1e30
        la.model.decoder[0].weight.zero_()
        la.model.decoder[0].bias.zero_()
    la.H = torch.full_like(la.H, 1e38)  # nothing to speak of is sampled
    before = la.H.clone(), weights_of(la)
    data = DataLoader(TensorDataset(x), 4)
    settings = OnlineSettings(warmup_steps=9)
    with pytest.raises(FloatingPointError, match="precision .* step 0, first in 'dec"):
        la.fit_online(data, 1, settings=settings, progress_bar=False)
    assert torch.equal(la.H, before[0]) and torch.equal(weights_of(la), before[1])


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"update": "sum"}, "update must be"),
        ({"alpha": -0.1}, r"alpha must be within \[0, 1\], got -0.1"),
        ({"alpha": 1.5}, "alpha must be within"),
        ({"alpha": float("nan")}, "alpha must be within"),
        ({"n_samples": 0}, "n_samples must be at least 1"),
        ({"refresh_every": 0}, "refresh_every must be at least 1"),
        ({"curvature_at": "mode"}, "curvature_at must be one of"),
        ({"initial_precision": -1.0}, "initial_precision must be at least 0"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        OnlineSettings(**settings)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"n_epochs": 0}, "n_epochs must be at least 1"),
        ({"checkpoint": "."}, "is a directory"),
        ({"patience": 2}, "patience needs a validation_loader"),
        ({"patience": 0, "validation_loader": []}, "patience must be at least 1"),
        ({"resume": True}, "need a checkpoint"),
        ({"checkpoint_every": 3}, "need a checkpoint"),
        ({"checkpoint": "nowhere/to/be/found.pt"}, "does not exist"),
        ({"lr_decay": "linear"}, "lr_decay must be one of"),
        ({"scheduler_steps": "minute"}, "scheduler_steps must be one of"),
    ],
)
def test_bad_arguments_change_nothing(arguments, words):
    la = LaplaceAE(model())
    before = weights_of(la)
    arguments = {"n_epochs": 1, "progress_bar": False} | arguments
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        la.fit_online(loader(), **arguments)
    assert torch.equal(weights_of(la), before) and not la.H.any() and not la.n_data


def test_an_optimiser_of_another_model_is_refused():
    la, other = LaplaceAE(model()), model()
    foreign = torch.optim.SGD(other.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="does not hold all trainable parameters"):
        la.fit_online(loader(), 1, optimizer=foreign, progress_bar=False)
    own = torch.optim.SGD(la.params, lr=1.0)
    with pytest.raises(ValueError, match="made for another optimizer"):
        la.fit_online(loader(), 1, optimizer=own, scheduler=StepLR(foreign, 1))
    with pytest.raises(ValueError, match="LBFGS"):
        la.fit_online(loader(), 1, optimizer=torch.optim.LBFGS(la.params))
    lonely = StepLR(foreign, 1)
    with pytest.raises(ValueError, match="scheduler belongs to an optimizer"):
        la.fit_online(loader(), 1, scheduler=lonely, progress_bar=False)


class Stream(IterableDataset):
    """Data without end, and without length."""

    def __iter__(self):
        return iter(images())


@pytest.mark.parametrize("data", [[images()], DataLoader(Stream(), 2)])
def test_a_loader_that_does_not_tell_its_size_is_refused(data):
    with pytest.raises(TypeError, match="Use a DataLoader over a dataset with __len__"):
        LaplaceAE(model()).fit_online(data, 1)
