"""Rules for layers of one's own, and that every registered layer is tested."""

import pytest
import torch
from torch import Tensor, nn

import lae_backpack.curvature.registry as registry
from lae_backpack import (
    DiagRule,
    ElementwiseRule,
    LossRule,
    diag_ggn,
    register_rule,
    supported_layers,
)
from lae_backpack.testing import check_rule
from tests import oracle
from tests.cases import LAYERS, LOSSES
from tests.nets import NETS
from tests.test_extensions import assert_equal, summed


@pytest.fixture(autouse=True)
def registry_as_it_was():
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


class ScaleRule(DiagRule):
    params = ("weight",)

    def input_diag(self, module, x, diag):
        return module.weight**2 * diag

    def weight(self, module, x, diag):
        return (x**2 * diag).sum().reshape(1)


def test_every_registered_layer_has_a_case():
    tested = {type(case.module()) for case in LAYERS}
    tested |= {type(case.loss()) for case in LOSSES}
    in_nets = {type(m) for net in NETS for m in net.model().modules()}
    only_in_nets = {"SumModule"}  # two inputs: there is no net of this layer alone
    hosts = ("torch.", "backpack.", "lae_backpack.")  # examples test their own
    found = [x for x in supported_layers() if x.__module__.startswith(hosts)]
    assert len(found) > 80
    for layer in found:
        assert layer in tested or (
            layer.__name__ in only_in_nets and layer in in_nets
        ), f"no case for {layer.__name__}"


def test_own_activation_in_one_line():
    register_rule(Sine)(ElementwiseRule)
    check_rule(Sine(), torch.randn(3, 4))
    net = nn.Sequential(nn.Linear(3, 4), Sine(), nn.Linear(4, 2))
    x, target, loss = torch.randn(5, 3), torch.randn(5, 2), nn.MSELoss()
    for limit in (0, 4, None):
        true = summed(oracle.diag_ggn(net, loss, x, target, limit))
        assert_equal(diag_ggn(net, loss, x, target, max_dense_dim=limit), true)


def test_own_layer_and_its_dense_steps():
    register_rule(Scale)(ScaleRule)
    assert Scale in supported_layers()
    check_rule(Scale(), torch.randn(4, 3))
    net = nn.Sequential(nn.Linear(3, 4), Scale(), nn.Linear(4, 2))
    x, target, loss = torch.randn(5, 3), torch.randn(5, 2), nn.MSELoss()
    for limit in (0, None):
        true = summed(oracle.diag_ggn(net, loss, x, target, limit))
        assert_equal(diag_ggn(net, loss, x, target, max_dense_dim=limit), true)


def test_own_loss():
    class Quartic(nn.Module):
        def forward(self, out: Tensor, target: Tensor) -> Tensor:
            return ((out - target) ** 4).sum()

    @register_rule(Quartic)
    class QuarticRule(LossRule):
        def seed_diag(self, module, x, target):
            return 12 * (x - target) ** 2

    check_rule(Quartic(), torch.randn(3, 2), torch.randn(3, 2))


class WrongInput(ScaleRule):
    def input_diag(self, module, x, diag):
        return module.weight * diag


class WrongWeight(ScaleRule):
    def weight(self, module, x, diag):
        return (x * diag).sum().reshape(1)


@pytest.mark.parametrize(
    "rule, where", [(WrongInput, "Diag -> Diag at the input"), (WrongWeight, "weight")]
)
def test_check_rule_finds_a_wrong_rule(rule: type[DiagRule], where: str):
    register_rule(Scale)(rule)
    with pytest.raises(AssertionError, match=f"{where}.*off by"):
        check_rule(Scale(), torch.randn(4, 3))


def test_second_registration_raises_unless_told_to_overwrite():
    register_rule(Scale)(ScaleRule)
    with pytest.raises(ValueError, match="Scale has the rule ScaleRule already"):
        register_rule(Scale)(WrongInput)
    register_rule(Scale, overwrite=True)(WrongInput)
    assert isinstance(registry.find_rule(Scale()), WrongInput)


def test_a_failed_registration_changes_nothing():
    with pytest.raises(ValueError, match="Linear has the rule LinearRule already"):
        register_rule(Scale, nn.Linear)(ScaleRule)
    assert registry.find_rule(Scale()) is None


def test_incomplete_rules_are_refused():
    class NoMethod(DiagRule):
        params = ("gain",)

    with pytest.raises(TypeError, match="no method 'gain'"):
        register_rule(Scale)(NoMethod)
    with pytest.raises(TypeError, match="A rule is a DiagRule or a LossRule"):
        register_rule(Scale)(object)
    with pytest.raises(TypeError, match="takes subclasses of torch.nn.Module"):
        register_rule(int)


def test_a_rule_without_input_diag_says_so():
    @register_rule(Sine)
    class NoInput(DiagRule):
        pass

    with pytest.raises(NotImplementedError, match="NoInput must write input_diag"):
        check_rule(Sine(), torch.randn(2, 2))
