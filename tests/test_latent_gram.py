"""Jacobians pushed layer by layer, and their products, against autograd."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacfwd, jacrev

from lae_backpack.latent import LatentLaplace
from lae_backpack.latent.gram import DiagonalGram, SharedGram
from lae_backpack.latent.pushing import push_units


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def shared(columns: Tensor, root: Tensor) -> Tensor:
    return SharedGram.apply(columns, root @ root.T)[0]


def test_gradients_and_their_gradients_by_finite_differences():
    both = {"check_forward_ad": True, "check_batched_grad": True}
    for check, how in ((gradcheck, both), (gradgradcheck, {})):
        assert check(shared, (leaf(3, 2, 5), leaf(5, 5)), **how)
        inputs = leaf(3, 2, 5), leaf(3, 5), leaf(3, 5)
        assert check(DiagonalGram.apply, inputs, **how)


def test_products():
    columns, curvature, slope = torch.randn(3, 2, 5), torch.rand(3, 5), leaf(3, 5)
    pixels, pulled = DiagonalGram.apply(columns, curvature, slope)
    expected = columns @ torch.diag_embed(curvature) @ columns.mT
    torch.testing.assert_close(pixels, expected)
    torch.testing.assert_close(pulled, torch.einsum("nkd,nd->nk", columns, slope))
    root = torch.randn(5, 5)
    expected = columns @ (root @ root.T) @ columns.mT
    torch.testing.assert_close(shared(columns, root), expected)


def test_gradients_of_what_autocast_has_computed():
    decoder = nn.Sequential(nn.Linear(2, 6), nn.LayerNorm(6), nn.Linear(6, 9)).float()
    x, z = torch.rand(4, 9).float(), torch.randn(4, 2).float().requires_grad_()
    for likelihood in ("gaussian", "bernoulli"):
        with torch.autocast("cpu", torch.bfloat16):
            q = LatentLaplace(decoder, likelihood).posterior(x, z)
        q.mean.float().sum().backward()
        assert z.grad is not None and z.grad.isfinite().all()


def test_forward_mode_goes_through_posteriors():
    decoder, x = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 9)), leaf(4, 9)
    for likelihood in ("gaussian", "bernoulli"):
        la = LatentLaplace(decoder, likelihood, guarded=False)
        z = torch.randn(4, 2)

        def mean(z, la=la):
            return la.posterior(x.detach().sigmoid(), z).mean

        torch.testing.assert_close(jacfwd(mean)(z), jacrev(mean)(z))


def listened() -> nn.Module:
    layer = nn.Linear(4, 6)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), layer)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Centred(nn.Tanh):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(1, keepdim=True))


class SquaredReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square()


class InstanceNormed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        how = torch.tensor([2.0, 3.0]), torch.ones(2), None, None, True, 0.1, 1e-5
        normed = torch.instance_norm(x.unflatten(1, (2, 4)), *how, False)
        return torch.layer_norm(normed, (4,), cudnn_enable=False).flatten(1)


def overridden() -> nn.Module:
    layer = nn.Linear(3, 6)
    layer.forward = lambda x: x.sin() @ layer.weight.T
    return nn.Sequential(layer, nn.Tanh())


def repeated() -> nn.Module:
    activation, layer = nn.Tanh(), nn.Linear(3, 3)
    return nn.Sequential(layer, activation, layer, activation, nn.Linear(3, 6))


NETS = {
    "repeated": repeated,
    "centred": lambda: nn.Sequential(nn.Linear(3, 6), Centred()),
    "squared": lambda: nn.Sequential(nn.Linear(3, 6), SquaredReLU()),
    "overridden": overridden,
    "functional norms": lambda: nn.Sequential(
        nn.Linear(3, 8), InstanceNormed(), nn.Tanh()
    ),
    "steps": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.LeakyReLU(), nn.Hardtanh(), nn.ReLU6()
    ),
    "linear": lambda: nn.Linear(3, 6),
    "nested": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.Sequential(nn.GELU(), nn.Linear(4, 6)), nn.Softplus()
    ),
    "normalised": lambda: nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Tanh()),
    "normalised by instance": lambda: nn.Sequential(
        nn.Linear(3, 8),
        nn.Unflatten(1, (2, 4)),
        nn.InstanceNorm1d(2, affine=True),
        nn.Tanh(),
    ),
    "softmax first": lambda: nn.Sequential(nn.Softmax(1), nn.Linear(3, 6)),
    "subclass": lambda: nn.Sequential(Doubled(3, 4), nn.LeakyReLU(), Doubled(4, 6)),
    "listened": listened,
    "convolution": lambda: nn.Sequential(
        nn.Linear(3, 8), nn.Unflatten(1, (2, 4)), nn.ReLU(), nn.Conv1d(2, 3, 3)
    ),
}


def jacobian_of(net: nn.Module, z: Tensor) -> Tensor:
    # Sample by sample: torch's vmap fails behind a LayerNorm.
    one = jacrev(lambda code: net(code[None])[0].flatten())
    return torch.stack([one(code) for code in z])


@pytest.mark.parametrize("name", NETS)
def test_pushed_units_are_the_jacobian(name: str):
    net, z = NETS[name](), leaf(5, 3)
    output, transposed = push_units(net, z)
    torch.testing.assert_close(output, net(z))
    torch.testing.assert_close(transposed, jacobian_of(net, z).mT)


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_pushed_units_are_the_jacobians(name: str):
    net, z = NETS[name](), leaf(5, 3)
    transposed, expected = push_units(net, z)[1], jacobian_of(net, z).mT
    weights = torch.randn_like(expected)
    inputs = (z, *net.parameters())
    found, known = (
        torch.autograd.grad((weights * j).sum(), inputs, allow_unused=True)
        for j in (transposed, expected)
    )
    for ours, theirs, given in zip(found, known, inputs, strict=True):
        zero = torch.zeros_like(given)
        torch.testing.assert_close(
            zero if ours is None else ours, zero if theirs is None else theirs
        )
