"""The dense GGN of a model's input against explicit Jacobians."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

from lae_backpack import UnsupportedModelError
from lae_backpack.curvature.at_input import input_ggn
from tests.nets import NETS, Net


def explicit(model: nn.Module, loss: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        out = model(x)
    n, f, g = len(x), out[0].numel(), x[0].numel()
    whole = hessian(lambda o: loss(o, target), out).reshape(n, f, n, f)
    jac = jacobian(model, x).reshape(n, f, n, g)
    return torch.stack([
        jac[i, :, i].T @ whole[i, :, i] @ jac[i, :, i] for i in range(n)
    ])


@pytest.mark.parametrize("net", NETS, ids=str)
def test_equals_the_explicit_matrix(net: Net):
    model, loss, x, target = net.build()
    torch.testing.assert_close(
        input_ggn(model, loss, x, target), explicit(model, loss, x, target)
    )


def test_frozen_shared_and_in_place_layers():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(nn.ReLU(inplace=True), layer, nn.ReLU(inplace=True), layer)
    model.requires_grad_(False)
    x, loss = torch.randn(4, 3), nn.MSELoss(reduction="sum")
    before, target = x.clone(), torch.randn(4, 3)
    found = input_ggn(model, loss, x, target)
    assert torch.equal(x, before)
    outside = nn.Sequential(nn.ReLU(), layer, nn.ReLU(), layer)
    torch.testing.assert_close(found, explicit(outside, loss, x, target))


class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, 3) * 2)


def test_what_is_computed_outside_modules_is_refused():
    x = torch.randn(2, 3)
    with pytest.raises(UnsupportedModelError, match="what follows the input"):
        input_ggn(Viewed(), nn.MSELoss(), x, x)
    with pytest.raises(TypeError, match="loss must be a loss module, got ReLU"):
        input_ggn(nn.Linear(3, 3), nn.ReLU(), x, x)
