"""4. Your own layer in ten lines
==============================

A network with a layer of your own stops with an error that names the layer. One short
class mends it, and ``check_rule`` proves the class right.
"""

# %%
# A layer without a rule
# ----------------------
# ``Rotate`` turns the two channels of each pixel by an angle that is learned.

from typing import Any

import torch
from torch import Tensor, nn

from lae_backpack import DiagRule, UnsupportedLayerError, diag_ggn, register_rule
from lae_backpack.testing import check_rule


class Rotate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.Parameter(torch.tensor([0.3]))

    def forward(self, x: Tensor) -> Tensor:  # [N, 2, H, W] -> [N, 2, H, W]
        return turned(x, self.angle)


def turned(x: Tensor, angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    first, second = x[:, :1], x[:, 1:]
    return torch.cat((cos * first - sin * second, sin * first + cos * second), dim=1)


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 2, 3, padding=1), Rotate(), nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1)
)
x = torch.rand(4, 1, 8, 8)
try:
    diag_ggn(model, nn.MSELoss(), x, x)
except UnsupportedLayerError as error:
    message = str(error)
    print(message[:30], "...", message[-90:])

# %%
# Ten lines
# ---------
# ``diag`` is the diagonal of the curvature at the layer's output. Write two sums over
# outputs, with *squared* derivatives:
#
# - ``input_diag``: the sum of ``(dy/dx)**2 * diag``, shaped like the input;
# - a method with the name of each parameter: the sum of ``(dy/dw)**2 * diag``, also
#   over the batch, shaped like the parameter.


@register_rule(Rotate)
class RotateRule(DiagRule):
    params = ("angle",)

    def input_diag(self, module: Any, x: Tensor, diag: Tensor) -> Tensor:
        # Each output has two inputs, with the factors cos and sin.
        cos, sin = module.angle.cos(), module.angle.sin()
        return cos**2 * diag + sin**2 * diag.flip(1)

    def angle(self, module: Any, x: Tensor, diag: Tensor) -> Tensor:
        # The derivative of turning is turning by 90 degrees more.
        return (turned(x, module.angle + torch.pi / 2) ** 2 * diag).sum().reshape(1)


# %%
# Proof
# -----
# ``check_rule`` builds explicit Jacobians in float64 and compares: the diagonal, the
# dense step of the mixed diagonal (which is inherited), summed and for each sample.

check_rule(Rotate(), torch.randn(3, 2, 4, 4))

# %%
# A wrong rule is found. Here the squares are forgotten:


class Forgetful(RotateRule):
    def input_diag(self, module: Any, x: Tensor, diag: Tensor) -> Tensor:
        return module.angle.cos() * diag + module.angle.sin() * diag.flip(1)


register_rule(Rotate, overwrite=True)(Forgetful)
try:
    check_rule(Rotate(), torch.randn(3, 2, 4, 4))
    found = False
except AssertionError as error:
    found = True
    print(error)
register_rule(Rotate, overwrite=True)(RotateRule)

# %%
# Activations need no class
# -------------------------
# ``ElementwiseRule`` asks autograd for the derivative.

from lae_backpack import ElementwiseRule


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


register_rule(Sine)(ElementwiseRule)
check_rule(Sine(), torch.randn(3, 5))

# %%
# Both layers now work everywhere: in ``DiagGGNApprox`` and ``DiagGGNMixed``, in
# ``Laplace(...)`` and in ``LaplaceAE``. With no limit the mixed diagonal is exact, for
# your layer too:

model = nn.Sequential(
    nn.Conv2d(1, 2, 3, padding=1), Rotate(), Sine(), nn.Conv2d(2, 1, 3, padding=1)
).double()
x = x.double()
exact = diag_ggn(model, nn.MSELoss(reduction="sum"), x, x, max_dense_dim=None)
jacobian = torch.func.jacrev(
    lambda angle: torch.func.functional_call(model, {"1.angle": angle}, (x,))
)(model.get_parameter("1.angle").detach())
by_hand = 2 * jacobian.square().sum()  # the Hessian of a squared error is 2
print(f"the angle's curvature: {exact['1.angle'].item():.4f}, by hand {by_hand:.4f}")

assert "Rotate" in message
assert found
torch.testing.assert_close(exact["1.angle"].sum(), by_hand)
