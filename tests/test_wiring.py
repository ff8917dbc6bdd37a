"""Unusual models: followed exactly, or refused before anything is computed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from backpack import backpack, extend
from backpack.custom_module.branching import SumModule
from backpack.custom_module.slicing import Slicing
from backpack.extensions import DiagGGNExact
from torch import Tensor, nn
from torch.nn import Linear

import lae_backpack.curvature.registry as registry
import lae_backpack.curvature.rules.by_autograd as by_autograd
from lae_backpack import (
    DiagGGNApprox,
    DiagGGNMixed,
    DiagRule,
    ElementwiseRule,
    UnsupportedLayerError,
    UnsupportedModelError,
    diag_ggn,
    register_rule,
)
from lae_backpack.testing import check_rule
from tests import oracle
from tests.nets import NETS
from tests.test_behaviour import BOTH, alone, assert_untouched, hooked
from tests.test_extensions import assert_equal, results, run, summed

LOSS = nn.MSELoss(reduction="sum")


class Net(nn.Module):
    """A module with the given parts and forward."""

    def __init__(self, how, **parts):
        super().__init__()
        self.how = how
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


@pytest.fixture
def registry_as_it_was():
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


def exact(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model = copy.deepcopy(model)
    return summed(oracle.exact_diag_ggn(model, LOSS, x, torch.zeros_like(model(x))))


# Parameters ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "model",
    [
        lambda: Net(
            lambda s, x: s.a(x + s.pos),
            a=Linear(3, 3),
            pos=nn.Parameter(torch.zeros(3)),
        ),
        lambda: Net(
            lambda s, x: s.a(F.linear(x, s.b.weight)), a=Linear(3, 3), b=Linear(3, 3)
        ),
        lambda: Net(
            lambda s, x: s.a(s.attend(x, x, x)[0]),
            attend=nn.MultiheadAttention(3, 1),
            a=Linear(3, 3),
        ),
    ],
)
def test_a_parameter_without_a_rule_is_not_passed_over(compute, model):
    model = model()
    with pytest.raises(UnsupportedModelError, match="outside a module|more than once"):
        compute(model, torch.randn(4, 3))
    assert_untouched(model)


@BOTH
def test_an_idle_parameter_does_not_matter(compute):
    idle = nn.Parameter(torch.zeros(()))
    model = Net(lambda s, x: s.a(x), a=Linear(3, 2), log_sigma=idle)
    assert compute(model, torch.randn(4, 3)).keys() == {"a.weight", "a.bias"}


@BOTH
def test_what_comes_before_trainable_parts_may_be_anything(compute):
    front = [nn.Softmax(1), Linear(3, 3).requires_grad_(False), nn.Sequential()]
    model = nn.Sequential(*front, Linear(3, 2))
    x = torch.randn(4, 3)
    with torch.no_grad():
        prepared = nn.Sequential(*front)(x)
    true = compute(nn.Sequential(copy.deepcopy(model[3])), prepared)
    found = compute(model, x)
    assert_equal(found, {k.replace("0.", "3."): v for k, v in true.items()})


@pytest.mark.parametrize("limit", [0, None])
def test_a_parameter_of_two_heads_with_two_losses_raises(limit):
    trunk, one, two = Linear(3, 3), Linear(3, 2), Linear(3, 2)
    two.weight = one.weight
    losses = [extend(nn.MSELoss()), extend(nn.MSELoss())]
    for part in (trunk, one, two):
        extend(part)
    h = trunk(torch.randn(4, 3))
    total = losses[0](one(h), torch.zeros(4, 2)) + losses[1](two(h), torch.zeros(4, 2))
    with pytest.raises(UnsupportedModelError, match="used more than once"):
        with backpack(DiagGGNMixed(limit)):
            total.backward()


# Branches -----------------------------------------------------------------------------


@BOTH
def test_the_same_tensor_added_to_itself_is_doubled(compute):
    model = Net(
        lambda s, x: (lambda h: s.sum(h, h))(s.a(x)), a=Linear(3, 2), sum=SumModule()
    )
    x = torch.randn(4, 3)
    assert_equal(compute(copy.deepcopy(model), x), exact(model, x))


@pytest.mark.parametrize("width", [1, 2, 8])
def test_exact_keeps_cross_terms_through_a_bottleneck_in_a_branch(width: int):
    body = nn.Sequential(Linear(4, width), nn.Tanh(), Linear(width, 4))
    model = Net(
        lambda s, x: (lambda h: s.out(s.sum(h, s.body(h))))(s.a(x)),
        a=Linear(3, 4),
        body=body,
        sum=SumModule(),
        out=Linear(4, 9),
    )
    x = torch.randn(4, 3)
    assert_equal(alone(model, x, max_dense_dim=None), exact(model, x))
    assert_equal(hooked(copy.deepcopy(model), x, DiagGGNMixed(None)), exact(model, x))


def test_two_losses_in_one_residual_branch_raise_when_dense():
    a, b, c, add = Linear(3, 3), Linear(3, 3), Linear(3, 3), SumModule()
    losses = [extend(nn.MSELoss()), extend(nn.MSELoss())]
    for part in (a, b, c, add):
        extend(part)
    h = a(torch.randn(4, 3))
    u = b(h)
    target = torch.zeros(4, 3)
    total = losses[0](add(c(u), h), target) + losses[1](u, target)
    with pytest.raises(UnsupportedModelError, match="one pass for each loss"):
        with backpack(DiagGGNMixed(None)):
            total.backward()


# In place -----------------------------------------------------------------------------


def after_and_beside(s: Net, x: Tensor) -> Tensor:
    h = s.a(x)
    return s.sum(s.b(s.act(h)), h)


def return_ignored(s: Net, x: Tensor) -> Tensor:
    h = s.a(x)
    s.act(h)
    return s.b(h)


def read_before_and_after(s: Net, x: Tensor) -> Tensor:
    h = s.a(x)
    before = s.b(h)
    return s.sum(before, s.act(h))


@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU])
@pytest.mark.parametrize(
    "how", [after_and_beside, return_ignored, read_before_and_after]
)
@pytest.mark.parametrize("limit", [None, 0])
def test_values_changed_in_place_are_followed(act, how, limit):
    model = Net(
        how, a=Linear(3, 3), b=Linear(3, 3), act=act(inplace=True), sum=SumModule()
    )
    x = torch.randn(4, 3)
    found = alone(model, x, max_dense_dim=limit)
    if how is read_before_and_after:  # autograd cannot; the same without in place
        model.act = act()
    true = exact(model, x)
    if limit is None:
        assert_equal(found, true)
    else:  # the last layer sees the loss itself
        torch.testing.assert_close(found["b.weight"], true["b.weight"])


# Layers -------------------------------------------------------------------------------


class Tripled(nn.MSELoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return 3 * super().forward(input, target)


def test_a_subclassed_loss_is_compared():
    model, x, target = nn.Sequential(Linear(3, 2)), torch.randn(4, 3), torch.zeros(4, 2)
    with pytest.raises(UnsupportedLayerError, match="MSELoss that computes something"):
        diag_ggn(model, Tripled(), x, target)
    with pytest.raises(UnsupportedLayerError, match="MSELoss that computes something"):
        run(model, Tripled(), x, target, DiagGGNApprox())
    assert_untouched(model)


class Squashed(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight.tanh(), bias)


@BOTH
def test_changed_layers_are_noticed_wherever_they_change(compute):
    x = torch.randn(2, 1, 4, 4)
    patched, hook = nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3)
    patched.forward = lambda x: 2 * nn.Conv2d.forward(patched, x)
    hook.register_forward_hook(lambda m, i, o: 2 * o)
    for layer in (Squashed(1, 1, 3), patched, hook):
        with pytest.raises(
            UnsupportedLayerError, match="Conv2d that computes something"
        ):
            compute(nn.Sequential(layer), x)


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.AvgPool2d(2), (3, 4, 6)),
        (nn.AdaptiveAvgPool1d(2), (3, 6)),
        (nn.InstanceNorm1d(3), (3, 6)),
        (nn.Conv2d(3, 2, 3), (3, 4, 4)),
        (nn.MaxPool1d(2, return_indices=True), (3, 2, 6)),
        (Slicing((Ellipsis, slice(0, 2), slice(None))), (3, 6)),
        (Slicing((0,)), (3, 6)),
        (nn.LayerNorm((3, 6)), (3, 6)),
        (nn.Flatten(0), (3, 6)),
    ],
)
def test_layers_that_touch_the_batch_or_miss_channels_are_refused(layer, shape):
    with pytest.raises(UnsupportedLayerError):
        check_rule(layer, torch.randn(shape))


def test_running_statistics_do_not_move():
    norm = nn.InstanceNorm2d(2, affine=True, track_running_stats=True)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Conv2d(2, 1, 1)).train()
    twin = copy.deepcopy(model)
    x, target = torch.randn(3, 1, 5, 5), torch.zeros(3, 1, 3, 3)
    twin(x)
    run(model, nn.MSELoss(), x, target, DiagGGNMixed(None))
    torch.testing.assert_close(norm.running_mean, twin[1].running_mean)


def test_a_layer_with_children_works_alone(registry_as_it_was):
    class Swish(nn.Module):
        def __init__(self):
            super().__init__()
            self.sigmoid = nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.sigmoid(2 * x)

    register_rule(Swish)(ElementwiseRule)
    check_rule(Swish(), torch.randn(3, 4))
    model = nn.Sequential(Linear(3, 4), Swish(), Linear(4, 2))
    x = torch.randn(4, 3)
    assert_equal(alone(model, x, max_dense_dim=None), exact(model, x))
    with pytest.raises(UnsupportedModelError):
        hooked(model, x)
    assert_untouched(model)


@BOTH
def test_a_layer_may_read_its_weight_twice(compute, registry_as_it_was):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight / self.weight.norm()

    @register_rule(Normed)
    class NormedRule(DiagRule):
        params = ("weight",)

        def input_diag(self, module, x, diag):
            return diag * (module.weight / module.weight.norm()) ** 2

        def weight(self, module, x, diag):
            w = module.weight.detach()
            norm = w.norm()
            unit = w / norm
            jac = (torch.eye(3) - unit[:, None] * unit) / norm  # [out, w]
            return torch.einsum("no,ow->w", diag * x**2, jac**2)

    check_rule(Normed(), torch.randn(4, 3))
    model = nn.Sequential(Linear(3, 3), Normed())
    x = torch.randn(4, 3)
    assert_equal(compute(copy.deepcopy(model), x), exact(model, x))


@BOTH
def test_a_reused_identity_is_harmless(compute):
    same = nn.Identity()
    model = nn.Sequential(same, Linear(3, 3), same, nn.Tanh(), same, Linear(3, 2), same)
    plain = nn.Sequential(model[1], nn.Tanh(), model[5])
    x = torch.randn(4, 3)
    true = compute(copy.deepcopy(plain), x)
    found = compute(copy.deepcopy(model), x)
    torch.testing.assert_close(list(found.values()), list(true.values()))


@BOTH
def test_a_module_reused_on_an_input_that_requires_a_gradient(compute):
    tanh = nn.Tanh()
    model = nn.Sequential(tanh, Linear(3, 3), tanh, Linear(3, 2))
    plain = nn.Sequential(nn.Tanh(), model[1], nn.Tanh(), model[3])
    x = torch.randn(4, 3).requires_grad_()
    true = compute(copy.deepcopy(plain), x.detach())
    assert_equal(compute(copy.deepcopy(model), x), true)


# Losses -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("limit", [0, None])
@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss, nn.CrossEntropyLoss])
def test_sure_outputs_keep_their_curvature(loss, limit, dtype):
    model = nn.Sequential(Linear(2, 3)).to(dtype)
    nn.init.zeros_(model[0].weight)
    model[0].bias.data = torch.tensor([20.0, 0.0, 0.0], dtype=dtype)
    x = torch.ones(1, 2, dtype=dtype)
    target = torch.tensor([[1.0, 0.0, 0.0]], dtype=dtype)
    found = diag_ggn(model, loss(), x, target, max_dense_dim=limit)["0.bias"]
    true = summed(
        oracle.exact_diag_ggn(model.double(), loss(), x.double(), target.double())
    )["0.bias"]
    torch.testing.assert_close(found.double(), true, rtol=0.03, atol=0)


@pytest.mark.parametrize(
    "loss, target",
    [
        (nn.BCEWithLogitsLoss(), torch.rand(4)),
        (nn.BCEWithLogitsLoss(), torch.rand(7, 5)),
        (nn.CrossEntropyLoss(), torch.zeros(1, dtype=torch.long)),
    ],
)
def test_targets_that_the_loss_refuses_are_refused(loss, target):
    with pytest.raises((ValueError, RuntimeError)):
        diag_ggn(nn.Sequential(Linear(3, 1)), loss, torch.randn(4, 3), target)


def test_byte_labels_are_labels():
    model, x = nn.Sequential(Linear(3, 2)), torch.randn(4, 3)
    labels = torch.tensor([0, 1, 1, 0])
    true = diag_ggn(model, nn.CrossEntropyLoss(), x, labels)
    assert_equal(
        diag_ggn(model, nn.CrossEntropyLoss(), x, labels.to(torch.uint8)), true
    )


# Passes -------------------------------------------------------------------------------


def test_a_model_that_is_not_extended_is_noticed():
    model, x, target = nn.Sequential(Linear(3, 2)), torch.randn(4, 3), torch.zeros(4, 2)
    loss = extend(nn.MSELoss())
    with pytest.raises(UnsupportedModelError, match="no extended module made"):
        with backpack(DiagGGNApprox()):
            loss(model(x), target).backward()


def test_hooks_removed_by_laplace_torch_are_noticed():
    from laplace import Laplace
    from laplace.curvature import BackPackGGN

    model, x, target = nn.Sequential(Linear(3, 2)), torch.randn(4, 3), torch.zeros(4, 2)
    run(model, nn.MSELoss(), x, target, DiagGGNApprox())
    data = torch.utils.data.TensorDataset(x, target)
    la = Laplace(
        nn.Sequential(Linear(3, 2)), "regression", "all", "diag", backend=BackPackGGN
    )
    la.fit(torch.utils.data.DataLoader(data, 2))
    la(x)
    loss = extend(nn.MSELoss())
    with pytest.raises(UnsupportedModelError, match="has removed all hooks"):
        with backpack(DiagGGNApprox()):
            loss(extend(model)(x), target).backward()


def test_old_results_do_not_survive_a_refused_pass():
    model = nn.Sequential(Linear(3, 4), nn.BatchNorm1d(4).eval(), Linear(4, 2))
    x = torch.randn(4, 3)
    hooked(model, x)
    model.zero_grad(set_to_none=True)
    model[1].train()
    with pytest.raises(UnsupportedLayerError, match="train mode"):
        hooked(model, x)
    assert_untouched(model)
    assert not any("output" in vars(m) for m in model.modules())


def test_after_somebody_elses_failure_the_next_pass_is_right():
    model = nn.Sequential(Linear(3, 4), nn.GELU(), Linear(4, 2))
    x, target = torch.randn(4, 3), torch.zeros(4, 2)
    extension = DiagGGNApprox()
    with pytest.raises(NotImplementedError, match="diag_ggn_exact"):
        run(model, nn.MSELoss(), x, target, extension, DiagGGNExact())
    run(model, nn.MSELoss(), x, target, extension)
    assert_equal(
        results(model, "diag_ggn_approx"), diag_ggn(model, nn.MSELoss(), x, target)
    )


@pytest.mark.parametrize("net", NETS[:6], ids=str)
def test_columns_in_small_pieces_give_the_same(net, monkeypatch):
    model, loss, x, target = net.build()
    true = diag_ggn(model, loss, x, target, max_dense_dim=None)
    monkeypatch.setattr(by_autograd, "CHUNK", 1)
    assert_equal(diag_ggn(model, loss, x, target, max_dense_dim=None), true)


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-3), (torch.bfloat16, 0.2)])
def test_low_precision_agrees_under_hooks(dtype, rtol):
    model, _, x, _ = NETS[3].build()
    true = hooked(copy.deepcopy(model), x)
    for name, value in hooked(model.to(dtype), x.to(dtype)).items():
        assert value.dtype == dtype
        assert torch.dist(value.double(), true[name]) <= rtol * true[name].norm()


def test_converted_models_work():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.act = Linear(3, 3), Linear(3, 3), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            h = self.act(self.a(x))
            return h + self.act(self.b(h))

    model, x = Functional(), torch.randn(4, 3)
    true = exact(model, x)
    converted = extend(copy.deepcopy(model), use_converter=True)
    loss = extend(nn.MSELoss(reduction="sum"))
    with backpack(DiagGGNMixed(None)):
        loss(converted(x), torch.zeros(4, 3)).backward()
    found = results(converted, "diag_ggn_mixed")
    assert_equal(dict(sorted(found.items())), dict(sorted(true.items())))


def test_parametrized_weights_are_named_as_such():
    layer = nn.utils.parametrizations.weight_norm(Linear(3, 2))
    with pytest.raises(UnsupportedLayerError, match="weights are parametrized"):
        alone(nn.Sequential(layer), torch.randn(4, 3))


def test_a_parameter_shared_with_an_idle_module_goes_by_its_first_name():
    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle, self.used = nn.Linear(3, 2), nn.Linear(3, 2)
            self.used.weight = self.idle.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model, x = Shares(), torch.rand(4, 3)
    found = diag_ggn(model, nn.MSELoss(reduction="sum"), x, torch.rand(4, 2))
    assert set(found) == {"idle.weight", "used.bias"}
    torch.testing.assert_close(found["idle.weight"], 2 * x.square().sum(0).expand(2, 3))
