"""Jacobians pushed layer by layer, and their products, against autograd."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacrev

from lae_backpack.latent.gram import DiagonalGram, SharedGram
from lae_backpack.latent.pushing import push_units


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def shared(columns: Tensor, root: Tensor) -> Tensor:
    return SharedGram.apply(columns, root @ root.T)[0]


def test_gradients_and_their_gradients_by_finite_differences():
    for check in (gradcheck, gradgradcheck):
        assert check(shared, (leaf(3, 2, 5), leaf(5, 5)))
        assert check(DiagonalGram.apply, (leaf(3, 2, 5), leaf(3, 5), leaf(3, 5)))


def test_products():
    columns, curvature, slope = torch.randn(3, 2, 5), torch.rand(3, 5), leaf(3, 5)
    pixels, pulled = DiagonalGram.apply(columns, curvature, slope)
    expected = columns @ torch.diag_embed(curvature) @ columns.mT
    torch.testing.assert_close(pixels, expected)
    torch.testing.assert_close(pulled, torch.einsum("nkd,nd->nk", columns, slope))


def listened() -> nn.Module:
    layer = nn.Linear(4, 6)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), layer)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


NETS = {
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
