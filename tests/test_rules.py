"""Every registered layer against explicit Jacobians."""

import pytest
import torch

from lae_backpack.testing import check_rule
from tests.cases import LAYERS, LOSSES, Case, LossCase


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_layer_equals_explicit_jacobians(case: Case):
    module = case.module().double()
    for param in module.parameters():
        torch.nn.init.normal_(param)
    check_rule(module, torch.randn(case.x_shape))


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_loss_equals_explicit_hessian(case: LossCase):
    x = torch.randn(case.x_shape)
    check_rule(case.loss(), x, case.target(x))
