"""What surrounds the numbers: dtypes, layouts, frozen parts, and passes that fail."""

import copy

import pytest
import torch
import torch.nn.functional as F
from backpack import backpack, extend
from backpack.custom_module.branching import SumModule
from backpack.extensions import DiagGGNExact
from torch import Tensor, nn

from lae_backpack import (
    DiagGGNApprox,
    DiagGGNMixed,
    UnsupportedLayerError,
    UnsupportedModelError,
    diag_ggn,
)
from tests.nets import NETS, Net, conv_autoencoder
from tests.test_extensions import assert_equal, results, run

AUTOENCODER = next(n for n in NETS if n.id == "conv-autoencoder-nearest")
CLASSIFIER = next(n for n in NETS if n.id == "conv-classifier")


def alone(model: nn.Module, x: Tensor, **settings: object) -> dict[str, Tensor]:
    with torch.no_grad():
        target = torch.zeros_like(model(x))
    return diag_ggn(model, nn.MSELoss(reduction="sum"), x, target, **settings)


def hooked(model: nn.Module, x: Tensor, *extensions: object) -> dict[str, Tensor]:
    extensions = extensions or (DiagGGNApprox(),)
    with torch.no_grad():
        target = torch.zeros_like(model(x))
    run(model, nn.MSELoss(reduction="sum"), x, target, *extensions)
    return {
        name: getattr(p, extensions[0].savefield)
        for name, p in model.named_parameters()
        if hasattr(p, extensions[0].savefield)
    }


BOTH = pytest.mark.parametrize("compute", [alone, hooked])


def assert_untouched(model: nn.Module) -> None:
    for param in model.parameters():
        assert not hasattr(param, "diag_ggn_approx")
        assert param.grad is None


# Numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("net", NETS, ids=str)
@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-3), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("limit", [0, 8])
def test_low_precision_agrees(net: Net, dtype: torch.dtype, rtol: float, limit: int):
    model, loss, x, target = net.build()
    true = diag_ggn(model, loss, x, target, max_dense_dim=limit)
    model, x = model.to(dtype), x.to(dtype)
    target = target.to(dtype) if target.is_floating_point() else target
    found = diag_ggn(model, loss, x, target, max_dense_dim=limit)
    for name, value in found.items():
        assert value.dtype == dtype
        assert (
            torch.dist(value.double(), true[name]) <= rtol * true[name].norm() + 1e-12
        )


@BOTH
def test_memory_layout_does_not_matter(compute):
    model, _, x, _ = AUTOENCODER.build()
    true = compute(copy.deepcopy(model), x)
    strided = torch.stack([x, x], dim=-1)[..., 0]
    assert not strided.is_contiguous()
    assert_equal(compute(copy.deepcopy(model), strided), true)
    channels_last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    assert_equal(compute(channels_last, x), true)


@pytest.mark.parametrize("limit", [0, 8, None])
@pytest.mark.parametrize("net", [n for n in NETS if "super" not in n.id], ids=str)
def test_nothing_is_made_on_another_device(net: Net, limit: int | None):
    # Without a GPU here: tensors on "meta" do not mix with others either. (Padding by
    # reflection asks where pixels coincide, which "meta" cannot tell.)
    model, loss, x, target = net.build()
    found = diag_ggn(
        model.to("meta"), loss, x.to("meta"), target.to("meta"), max_dense_dim=limit
    )
    for name, param in model.named_parameters():
        assert found[name].device.type == "meta"
        assert found[name].shape == param.shape


@BOTH
def test_batch_of_one(compute):
    model, _, x, _ = AUTOENCODER.build()
    singles = [compute(copy.deepcopy(model), one) for one in x.split(1)]
    total = {name: sum(s[name] for s in singles) for name in singles[0]}
    assert_equal(compute(model, x), total)


@BOTH
@pytest.mark.parametrize(
    "frozen", ["encoder.0", "encoder", "decoder", "decoder.5.weight"]
)
def test_frozen_parameters_get_nothing_and_change_nothing(compute, frozen: str):
    model, _, x, _ = AUTOENCODER.build()
    true = compute(copy.deepcopy(model), x)
    for name, param in model.named_parameters():
        param.requires_grad_(not name.startswith(frozen))
    kept = {name: v for name, v in true.items() if not name.startswith(frozen)}
    assert_equal(compute(model, x), kept)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_dropout_in_train_mode_uses_the_mask_of_that_pass(kind):
    dropout = kind(0.5)
    model = nn.Sequential(
        nn.Linear(3, 8), nn.Unflatten(1, (2, 2, 2)), dropout, nn.Flatten()
    )
    x = torch.randn(4, 3)
    x[0] = 0  # and no bias: a mask cannot be told from such outputs
    model[0].bias.data.zero_()
    loss, target = nn.MSELoss(reduction="sum"), torch.zeros(4, 8)
    torch.manual_seed(3)
    mask = dropout(torch.ones(4, 2, 2, 2)).flatten(1)
    true = (2 * mask**2).sum(0)
    torch.manual_seed(3)
    found = diag_ggn(model, loss, x, target)
    torch.testing.assert_close(found["0.bias"], true)
    torch.manual_seed(3)
    run(model, loss, x, target, DiagGGNApprox())
    torch.testing.assert_close(model[0].bias.diag_ggn_approx, true)
    assert 0 < (mask == 0).sum() < mask.numel()


# Wiring -------------------------------------------------------------------------------


class Reuses(nn.Module):
    """Calls one activation twice, as much code does."""

    def __init__(self, activation: nn.Module):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.second(self.activation(self.first(x))))


def test_reused_activation_works_alone():
    model, x = Reuses(nn.Tanh()), torch.randn(5, 3)
    separate = nn.Sequential(model.first, nn.Tanh(), model.second, nn.Tanh())
    found = alone(model, x)
    true = alone(separate, x)
    assert_equal(
        found,
        {
            k.replace("0.", "first.").replace("2.", "second."): v
            for k, v in true.items()
        },
    )


def test_reused_activation_raises_under_hooks_before_anything_is_computed():
    model, x = Reuses(nn.Tanh()), torch.randn(5, 3)
    with pytest.raises(UnsupportedModelError, match="called more than once"):
        hooked(model, x)
    assert_untouched(model)


@BOTH
def test_shared_parameter_raises_before_anything_is_computed(compute):
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    with pytest.raises(
        UnsupportedModelError, match="parameter '0.(weight|bias)' is used"
    ):
        compute(model, torch.randn(2, 3))
    assert_untouched(model)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(UnsupportedModelError, match="give each use a parameter"):
        compute(tied, torch.randn(2, 3))
    assert_untouched(tied)


def test_frozen_shared_parameter_works():
    layer = nn.Linear(3, 3).requires_grad_(False)
    model = nn.Sequential(nn.Linear(3, 3), layer, nn.Tanh(), layer)
    twin = nn.Sequential(
        model[0], copy.deepcopy(layer), nn.Tanh(), copy.deepcopy(layer)
    )
    x = torch.randn(2, 3)
    assert_equal(alone(model, x), alone(twin, x))


@pytest.mark.parametrize(
    "activation", [nn.ReLU, nn.ELU, nn.SiLU, nn.Hardtanh, nn.LeakyReLU, nn.Mish]
)
def test_inplace_activations_work_alone_and_raise_under_hooks(activation):
    x = torch.randn(4, 3)
    model = nn.Sequential(nn.Linear(3, 4), activation(inplace=True), nn.Linear(4, 2))
    twin = nn.Sequential(model[0], activation(), model[2])
    assert_equal(alone(model, x), alone(twin, x))
    with pytest.raises(RuntimeError, match="inplace"):
        hooked_forward_with_grad(model, x)
    assert_untouched(model)


def hooked_forward_with_grad(model: nn.Module, x: Tensor) -> None:
    extend(model)
    with backpack(DiagGGNApprox()):
        extend(nn.MSELoss())(model(x), torch.zeros(4, 2)).backward()


class Functional(nn.Module):
    """Computes something between its modules."""

    def __init__(self, how):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.sum, self.how = SumModule(), how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


@BOTH
@pytest.mark.parametrize(
    "how",
    [
        lambda m, x: m.b(m.a(x) * 2),
        lambda m, x: m.b(F.relu(m.a(x))),
        lambda m, x: m.b(m.a(x)) + x,
        lambda m, x: m.b(m.a(x).view(-1, 3)),
        # only one of two ways from a to the loss is visible
        lambda m, x: (lambda h: m.sum(m.b(h), m.c(h * 1.0)))(m.a(x)),
        lambda m, x: (lambda h: m.c(h) * m.b(h))(m.a(x)),
    ],
)
def test_what_is_computed_outside_modules_raises(compute, how):
    model = Functional(how)
    with pytest.raises(
        UnsupportedModelError, match="outside a module|no extended module made"
    ):
        compute(model, torch.randn(2, 3))
    assert_untouched(model)


def test_inplace_addition_is_noticed_alone():
    def forward(m: Functional, x: Tensor) -> Tensor:
        h = m.a(x)
        h += x
        return m.b(h)

    with pytest.raises(UnsupportedModelError, match="outside a module"):
        alone(Functional(forward), torch.randn(2, 3))


@BOTH
def test_a_model_may_prepare_its_input_as_it_likes(compute):
    model = Functional(lambda m, x: m.b(m.a(x * 2)))
    x = torch.randn(2, 3)
    true = compute(nn.Sequential(copy.deepcopy(model.a), copy.deepcopy(model.b)), x * 2)
    found = compute(model, x)
    assert_equal(
        found, {k.replace("0", "a").replace("1", "b"): v for k, v in true.items()}
    )


@BOTH
def test_input_and_target_may_require_gradients(compute):
    model, _, x, _ = AUTOENCODER.build()
    true = compute(copy.deepcopy(model), x)
    x.requires_grad_()
    assert_equal(compute(copy.deepcopy(model), x), true)
    run(model, nn.MSELoss(reduction="sum"), x, x, DiagGGNApprox())
    assert_equal(results(model, "diag_ggn_approx"), true)


# Layers -------------------------------------------------------------------------------


class MyConv(nn.Conv2d):
    """A subclass that changes nothing."""


class Logged(nn.Linear):
    """A subclass with a forward of its own that computes the same."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


class Doubled(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Gained(nn.Linear):
    """A subclass with a parameter the base does not have."""

    def __init__(self, *sizes: int):
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.ones(1))


@BOTH
def test_subclasses_are_found_if_they_compute_the_same(compute):
    torch.manual_seed(0)
    mine = nn.Sequential(MyConv(1, 2, 3), nn.Flatten(), Logged(8, 3))
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x = torch.randn(2, 1, 4, 4)
    assert_equal(compute(mine, x), compute(plain, x))


@BOTH
@pytest.mark.parametrize(
    "layer, words",
    [
        (lambda: Doubled(3, 3), "it is a Linear that computes something else"),
        (lambda: Gained(3, 3), "parameter 'gain' is not one of LinearRule's"),
        (
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
            "weights are parametrized|No rule for _WeightNorm",
        ),
        (lambda: nn.BatchNorm1d(3), "in train mode it mixes .* Call model.eval"),
        (
            lambda: nn.BatchNorm1d(3, track_running_stats=False).eval(),
            "track_running_stats=False",
        ),
        (lambda: nn.Unflatten(0, (2, 1)), "reshapes the batch dimension"),
        (lambda: nn.Softmax(1), "No rule for Softmax .'net.1'.*Supported: .*Tanh"),
    ],
)
def test_what_a_layer_cannot_do_is_said_with_its_place(compute, layer, words):
    inner = nn.Sequential(nn.Linear(3, 3), layer())
    model = nn.ModuleDict({"net": inner})
    model.forward = lambda x: model["net"](x)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedLayerError, match=words) as error:
        if compute is alone:
            target = torch.zeros(2, 3)
            diag_ggn(model, nn.MSELoss(), torch.randn(2, 3), target)
        else:
            hooked(model, torch.randn(2, 3))
    assert "'net.1" in str(error.value)
    assert_untouched(model)
    if compute is alone:
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key])


@pytest.mark.parametrize(
    "loss, out, target, words",
    [
        (nn.MSELoss(reduction="none"), (2, 3), (2, 3), "reduction='none'"),
        (nn.MSELoss(), (2, 3), (2, 1), "differ in shape"),
        (nn.L1Loss(), (2, 3), (2, 3), "No rule for L1Loss"),
    ],
)
def test_what_a_loss_cannot_do_is_said(loss, out, target, words):
    model = nn.Linear(4, out[1])
    with pytest.raises(UnsupportedLayerError, match=words):
        diag_ggn(model, loss, torch.randn(out[0], 4), torch.zeros(target))


def test_a_layer_is_not_a_loss():
    with pytest.raises(TypeError, match="loss must be a loss module, got Tanh"):
        diag_ggn(nn.Linear(2, 2), nn.Tanh(), torch.randn(1, 2), torch.zeros(1, 2))


# Passes that follow each other --------------------------------------------------------


def test_a_failed_pass_leaves_nothing_behind():
    good, _, x, target = AUTOENCODER.build()
    true = hooked(copy.deepcopy(good), x)
    broken = nn.Sequential(nn.Linear(3, 3), nn.Softmax(1), nn.Linear(3, 2))
    extension = DiagGGNApprox()
    with pytest.raises(UnsupportedLayerError):
        hooked(broken, torch.randn(2, 3), extension)
    assert_untouched(broken)
    assert_equal(hooked(good, x, extension), true)
    assert_equal(hooked(good, x * 1.0, extension), true)


def test_other_objects_in_between_do_not_disturb():
    from laplace import Laplace
    from laplace.curvature import BackPackGGN

    model, loss, x, target = CLASSIFIER.build()
    true = diag_ggn(model, loss, x, target)
    extend(model)
    other = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(6, 3), torch.randn(6, 2)), 3
    )
    la = Laplace(
        other, "regression", "all", "diag", backend=BackPackGGN, enable_backprop=False
    )
    la.fit(loader, progress_bar=False)
    run(copy.deepcopy(model), nn.CrossEntropyLoss(), x, target, DiagGGNExact())
    assert_equal(diag_ggn(model, loss, x, target), true)
    h_before = la.H.clone()
    la.fit(loader, progress_bar=False)
    torch.testing.assert_close(la.H, h_before)


def test_curvature_alone_leaves_the_model_as_it_was():
    model, loss, x, target = AUTOENCODER.build()
    model.train()
    extend(model)
    hooks = {n: len(m._forward_hooks) for n, m in model.named_modules()}
    before = copy.deepcopy(model.state_dict())
    diag_ggn(model, loss, x, target, max_dense_dim=None)
    assert {n: len(m._forward_hooks) for n, m in model.named_modules()} == hooks
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(hasattr(m, "output") for m in model.modules())
    assert_untouched(model)


def test_extension_hook_sees_results_and_retained_graphs_can_be_used_again():
    model, loss, x, target = AUTOENCODER.build()
    extend(model)
    extend(loss)
    seen = []

    def look(module: nn.Module) -> None:
        seen.extend(
            p for p in module.parameters(recurse=False) if hasattr(p, "diag_ggn_approx")
        )

    with backpack(DiagGGNApprox(), extension_hook=look, retain_graph=True):
        value = loss(model(x), target)
        value.backward(retain_graph=True)
        first = results(model, "diag_ggn_approx")
        value.backward()
    assert len(seen) == 2 * len(list(model.parameters()))
    assert_equal(results(model, "diag_ggn_approx"), first)


def test_two_losses_in_one_pass_add_up():
    trunk, heads = nn.Linear(3, 4), [nn.Linear(4, 2), nn.Linear(4, 1)]
    x, targets = torch.randn(5, 3), [torch.randn(5, 2), torch.randn(5, 1)]
    for module in (trunk, *heads):
        extend(module)
    losses = [extend(nn.MSELoss()), extend(nn.MSELoss(reduction="sum"))]
    for limit in (0, None):
        with backpack(DiagGGNMixed(limit)):
            h = trunk(x)
            parts = zip(losses, heads, targets, strict=True)
            sum(loss(head(h), t) for loss, head, t in parts).backward()
        true = sum(
            diag_ggn(nn.Sequential(trunk, head), loss, x, t, max_dense_dim=limit)[
                "0.weight"
            ]
            for loss, head, t in zip(losses, heads, targets, strict=True)
        )
        torch.testing.assert_close(trunk.weight.diag_ggn_mixed, true)


def test_module_extensions_are_refused_with_a_way_out():
    with pytest.raises(TypeError, match="register_rule"):
        DiagGGNApprox().set_module_extension(nn.Softmax, None)


@pytest.mark.parametrize(
    "limit, error", [(-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_limits_that_are_none(limit, error):
    with pytest.raises(error, match="max_dense_dim must be"):
        DiagGGNMixed(limit)


def test_nested_autoencoder_is_followed():
    assert len(alone(conv_autoencoder(nn.Identity), torch.randn(2, 1, 4, 4))) == 13
