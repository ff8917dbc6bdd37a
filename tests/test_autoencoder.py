"""LaplaceAE fitted post hoc."""

import pytest
import torch
from laplace import Laplace
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lae_backpack import AutoEncoder, LaplaceAE, diag_ggn
from lae_backpack.posterior.sampling import evaluating


def model() -> AutoEncoder:
    torch.manual_seed(5)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2))
    decoder = nn.Sequential(
        nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 12), nn.Unflatten(1, (1, 4, 3))
    )
    return AutoEncoder(encoder, decoder)


def images(n: int = 10) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(n, 1, 4, 3, generator=generator, dtype=torch.float64)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


LOADERS = {
    "x": lambda x: list(x.split(4)),
    "(x,)": lambda x: DataLoader(TensorDataset(x), 4),
    "(x, label)": lambda x: DataLoader(TensorDataset(x, torch.zeros(len(x))), 4),
    "without length": lambda x: iter(x.split(4)),
}


@pytest.mark.parametrize("form", LOADERS)
def test_every_form_of_batch_gives_the_same_fit(form: str):
    x, net = images(), model()
    la = LaplaceAE(net, hessian_structure="approx_diag")
    la.fit(LOADERS[form](x))
    found = diag_ggn(net, nn.MSELoss(reduction="sum"), x, x)
    true = 0.5 * torch.cat([v.flatten() for v in found.values()])
    torch.testing.assert_close(la.H, true)
    assert (la.n_data, la.n_outputs) == (10, 12)
    rmse = (net(x) - x).square().mean().sqrt()
    torch.testing.assert_close(la.sigma_noise, rmse.detach())


def test_it_is_the_structure_it_says_with_targets_equal_to_inputs():
    x = images()
    ours = LaplaceAE(model(), hessian_structure="mixed_diag", sigma_noise=0.5)
    ours.fit(x.split(4))
    theirs = Laplace(model(), "regression", "all", "mixed_diag", sigma_noise=0.5)
    theirs.fit(DataLoader(TensorDataset(x, x), 4))
    torch.testing.assert_close(ours.H, theirs.H)
    evidence = [la.log_marginal_likelihood() for la in (ours, theirs)]
    torch.testing.assert_close(*evidence)
    ours.fit(x.split(4), override=False)
    torch.testing.assert_close(ours.H, 2 * theirs.H)


def test_predictions_have_the_shapes_of_inputs_and_codes():
    x = images()
    la = LaplaceAE(model())
    la.fit(x.split(4))
    mean, variance = la(x, n_samples=8, generator=seeded())
    samples = la.samples(x, 8, seeded())
    assert mean.shape == variance.shape == x.shape
    torch.testing.assert_close(mean, samples.mean(0))
    torch.testing.assert_close(variance, samples.var(0))
    codes = la.latent_samples(x, 8, seeded())
    code, spread = la.latent(x, 8, seeded())
    assert codes.shape == (8, 10, 2)
    torch.testing.assert_close(code, codes.mean(0))
    torch.testing.assert_close(spread, codes.var(0))
    linear_mean, linear_variance = la(x, pred_type="glm", n_samples=8)
    torch.testing.assert_close(linear_mean, la.model(x).detach())
    assert linear_variance.shape == x.shape


def test_a_sampled_encoder_belongs_to_its_decoder():
    x = images()
    la = LaplaceAE(model())
    la.fit(x.split(4))
    codes, outputs = la.latent_samples(x, 3, seeded()), la.samples(x, 3, seeded())
    networks = la.sampler().draws(3, seeded())
    for code, output, weights in zip(codes, outputs, networks, strict=True):
        decoder = {
            n.removeprefix("decoder."): w for n, w in weights.items() if "decoder" in n
        }
        decoded = torch.func.functional_call(la.model.decoder, decoder, (code,))
        torch.testing.assert_close(decoded, output)


def test_sampled_weights_lie_as_the_models_own():
    """Convolutions whose channels lie last are faster, sampled ones too."""
    x = torch.rand(4, 2, 8, 8)
    encoder = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 2)
    )
    decoder = nn.Sequential(
        nn.Linear(2, 48), nn.Unflatten(1, (3, 4, 4)), nn.ConvTranspose2d(3, 2, 2, 2)
    )
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model = AutoEncoder(encoder, decoder).to(memory_format=memory_format)
        la = LaplaceAE(model, hessian_structure="mixed_diag")
        la.fit(DataLoader(TensorDataset(x), 2))
        own = dict(model.named_parameters())
        rows = memory_format == torch.contiguous_format
        assert all(p.is_contiguous() for p in own.values()) is rows
        for weights in la.sampler().draws(2, seeded()):
            assert {n: w.stride() for n, w in weights.items()} == {
                n: p.stride() for n, p in own.items()
            }
        found.append(la.samples(x, 3, generator=seeded()))
    torch.testing.assert_close(*found)


def test_bernoulli_pixels():
    x, net = images(), model()
    la = LaplaceAE(net, "bernoulli", hessian_structure="mixed_diag")
    la.fit(x.split(4))
    loss = nn.BCEWithLogitsLoss(reduction="sum")
    found = diag_ggn(net, loss, x, x, max_dense_dim=128)
    torch.testing.assert_close(la.H, torch.cat([v.flatten() for v in found.values()]))
    torch.testing.assert_close(la.log_likelihood, -loss(net(x), x).detach())
    mean, variance = la(x, n_samples=20)
    assert (mean > 0).all() and (mean < 1).all() and (variance <= 0.25).all()
    with pytest.raises(ValueError, match="Use pred_type='nn'"):
        la(x, pred_type="glm")


def test_the_model_is_as_it_was():
    net = model().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    la = LaplaceAE(net)
    la.fit(images().split(4))
    la(images(), n_samples=2)
    la.latent(images(), n_samples=2)
    assert all(m.training for m in net.modules())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_prior_can_be_tuned_and_state_goes_round():
    la = LaplaceAE(model())
    la.fit(images().split(4))
    la.optimize_prior_precision(n_steps=5)
    assert la.prior_precision.item() != 1.0
    other = LaplaceAE(model())
    other.load_state_dict(la.state_dict())
    pair = [m(images(), n_samples=3, generator=seeded())[1] for m in (la, other)]
    torch.testing.assert_close(*pair)


class Stateful:
    """Remembers what a failed call must not change."""

    def __init__(self, la: LaplaceAE):
        self.la, self.H, self.n_data = la, la.H.clone(), la.n_data

    def is_unchanged(self) -> bool:
        return torch.equal(self.la.H, self.H) and self.la.n_data == self.n_data


@pytest.mark.parametrize(
    "batches, error, words",
    [
        ([], ValueError, "yields no batch"),
        ([images().float()], TypeError, "has dtype torch.float32"),
        ([images(), images() * float("nan")], ValueError, "Batch 2 .* not finite"),
        ([{"image": images()}], TypeError, r"x, \(x,\) or \(x, label\)"),
        ([images()[:, :, :3]], ValueError, r"not take x of shape \(10, 1, 3, 3\)"),
    ],
)
def test_bad_batches_are_refused_and_change_nothing(batches, error, words):
    la = LaplaceAE(model())
    la.fit(images().split(4))
    before = Stateful(la)
    with pytest.raises(error, match=words):
        la.fit(batches)
    assert before.is_unchanged()


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="Sequential has no 'encoder'"):
        LaplaceAE(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="likelihood must be one of .* got 'poisson'"):
        LaplaceAE(model(), "poisson")
    with pytest.raises(ValueError, match="hessian_structure must be one of"):
        LaplaceAE(model(), hessian_structure="kron")
    la = LaplaceAE(model())
    for call in (la, la.latent, la.samples, la.latent_samples):
        with pytest.raises(RuntimeError, match="not fitted"):
            call(images())
    la.fit(images().split(4))
    with pytest.raises(ValueError, match="pred_type must be one of"):
        la(images(), pred_type="gp")
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        la(images(), n_samples=0)


@pytest.mark.parametrize("likelihood", ["regression", "bernoulli"])
@pytest.mark.parametrize("form", ["x", "(x,)", "(x, label)"])
def test_gridsearch_takes_the_same_loaders_and_scores_the_density(likelihood, form):
    sure = model()
    with torch.no_grad():  # of what it has not learned, so that doubt pays off
        for param in sure.parameters():
            param.mul_(4)
    la = LaplaceAE(sure, likelihood)
    la.fit(images().split(4))
    x = images(6)
    la.optimize_prior_precision(
        method="gridsearch", val_loader=LOADERS[form](x), grid_size=3, n_samples=400
    )
    chosen = la.prior_precision.item()

    def density(precision: float) -> float:
        la.prior_precision = precision
        if likelihood == "bernoulli":
            mean, _ = la(x, n_samples=400)
            loss = torch.nn.functional.binary_cross_entropy(mean, x, reduction="sum")
            return -loss.item()
        mean, variance = la(x, "glm", n_samples=400)
        spread = (variance + la.sigma_noise**2).sqrt()
        return torch.distributions.Normal(mean, spread).log_prob(x).sum().item()

    scores = {precision: density(precision) for precision in (1e-4, 1.0, 1e4)}
    assert chosen == pytest.approx(max(scores, key=scores.__getitem__), rel=1e-3)


def test_bernoulli_evidence_can_be_maximised():
    la = LaplaceAE(model(), "bernoulli")
    la.fit(images().split(4))
    before = la.log_marginal_likelihood().item()
    la.optimize_prior_precision(n_steps=20, prior_structure="scalar")
    assert la.log_marginal_likelihood().item() > before


def test_bernoulli_pixels_must_be_probabilities():
    la = LaplaceAE(model(), "bernoulli")
    for wrong in (images() * 255, images() - 0.5):
        with pytest.raises(ValueError, match=r"needs \[0, 1\]. Scale the images"):
            la.fit([wrong])
        data = DataLoader(TensorDataset(wrong), 4)
        with pytest.raises(ValueError, match="Batch 1 has pixels from"):
            la.fit_online(data, 1, progress_bar=False)
    assert not la.H.any() and not la.n_data


def test_unless_asked_it_takes_probes_post_hoc_and_mixed_curvature_online():
    x, net = images(), model()
    la = LaplaceAE(net)
    torch.manual_seed(0)
    la.fit([x])
    probes = LaplaceAE(net, hessian_structure="calibrated_diag")
    torch.manual_seed(0)
    probes.fit([x])
    assert torch.equal(la.H, probes.H)
    found = []
    for structure in (None, "mixed_diag"):
        torch.manual_seed(0)
        online = LaplaceAE(model(), hessian_structure=structure)
        data = DataLoader(TensorDataset(x), 4)
        online.fit_online(data, 2, progress_bar=False)
        found.append(online.H)
    assert torch.equal(*found)
    with pytest.raises(ValueError, match="hessian_structure must be one of"):
        LaplaceAE(net, hessian_structure="diag")


def test_scripted_modules_are_put_into_eval_mode_too():
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Dropout(0.5)))
    x = torch.ones(2, 3)
    with evaluating(model):
        assert torch.equal(model(x), model[0](x))
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in model.eval().modules())
