"""Every way to the GGN's diagonal that is compared, behind one signature.

All are at unit noise, laplace-torch's convention: ``sum_n diag(J_n^T J_n)``.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from backpack import backpack, extend
from backpack.extensions import DiagGGNExact, DiagGGNMC
from backpack.extensions.backprop_extension import BackpropExtension
from backpack.extensions.module_extension import ModuleExtension
from backpack.extensions.secondorder.diag_ggn.flatten import DiagGGNFlatten
from laplace import Laplace
from torch import Tensor, nn

import lae_backpack  # noqa: F401  its structures
from lae_backpack import AutoEncoder
from lae_backpack.curvature.allocator import keep_freed_memory
from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM

# BackPACK's hooks on the first layer, whose input needs no gradient
warnings.filterwarnings("ignore", "Full backward hook is firing")

# From images and how many make a batch to the diagonal of all parameters.
Diagonal = Callable[[Tensor, int], Tensor]
# Made once for each model, so that only the pass itself is timed.
Structure = Callable[[AutoEncoder], Diagonal]
Extension = Callable[[], BackpropExtension]


class UpsamplePull(ModuleExtension):
    """Takes BackPACK's columns through ``nn.Upsample`` of images, mode "nearest"."""

    def backpropagate(
        self,
        extension: BackpropExtension,
        module: Any,
        grad_inp: tuple[Tensor, ...],
        grad_out: tuple[Tensor, ...],
        bpQuantities: Tensor,
    ) -> Tensor:
        """Multiply with the transposed Jacobian.

        Args:
            extension: The extension.
            module: The layer.
            grad_inp: Not needed.
            grad_out: Not needed.
            bpQuantities: The columns at the output.  # [V, N, *out]

        Returns:
            The columns at the input.  # [V, N, *in]
        """
        flat = bpQuantities.flatten(0, 1)
        small = [len(flat), *module.input0.shape[1:]]
        pull = torch.ops.aten.upsample_nearest2d_backward
        pulled = pull(flat, list(flat.shape[2:]), small)
        return pulled.unflatten(0, bpQuantities.shape[:2])


def for_autoencoders(extension: BackpropExtension) -> BackpropExtension:
    """Give one of BackPACK's diagonals the two rules it lacks for our nets.

    Args:
        extension: The extension.

    Returns:
        The same.
    """
    extension.set_module_extension(nn.Unflatten, DiagGGNFlatten())  # a reshape, too
    extension.set_module_extension(nn.Upsample, UpsamplePull())
    return extension


def summed(
    net: nn.Module, loss: nn.Module, x: Tensor, target: Tensor, extension: Extension
) -> Tensor:
    """Run one of BackPACK's diagonals.

    Args:
        net: An extended net with flat outputs.
        loss: The extended loss.
        x: A batch.  # [N, *in]
        target: Its target.  # [N, outputs]
        extension: Makes the extension.

    Returns:
        The diagonal, by half: the loss is twice the negative log-likelihood.
    """
    made = for_autoencoders(extension())
    net.zero_grad()
    with backpack(made):
        loss(net(x), target).backward()
    trained = [p for p in net.parameters() if p.requires_grad]
    return torch.cat([getattr(p, made.savefield).flatten() for p in trained]) / 2


def by_backpack(model: AutoEncoder, extension: Extension) -> Diagonal:
    """A diagonal of BackPACK's own.

    Args:
        model: The model.
        extension: Makes the extension.

    Returns:
        The diagonal.
    """
    own = copy.deepcopy(model)  # hooks stay on what BackPACK has extended
    # BackPACK knows no containers of other people, and losses of vectors only.
    net = extend(nn.Sequential(own.encoder, own.decoder, nn.Flatten()))
    loss = extend(nn.MSELoss(reduction="sum"))

    def measure(x: Tensor, batch: int) -> Tensor:
        pieces = (summed(net, loss, b, b.flatten(1), extension) for b in x.split(batch))
        return sum(pieces, torch.zeros(()))

    return measure


def exact(model: AutoEncoder) -> Diagonal:
    """The exact diagonal, by BackPACK alone.

    Its columns are as many as outputs, so images go one by one. Through the encoder go
    no more columns than the code has numbers: with ``J = QR`` the decoder's Jacobian
    there, the encoder's share is that of a net which ends with ``R``.

    Args:
        model: The model.

    Returns:
        The diagonal.
    """
    keep_freed_memory()  # a third of the time goes into fetching it again
    own, loss = copy.deepcopy(model), extend(nn.MSELoss(reduction="sum"))
    flat = nn.Sequential(model.decoder, nn.Flatten())  # torch.func wants no hooks
    decoder = extend(nn.Sequential(own.decoder, nn.Flatten()))
    by_code: dict[int, tuple[nn.Linear, nn.Module]] = {}

    def of_one(x: Tensor) -> Tensor:
        with torch.no_grad():
            code = model.encoder(x)
            size = code.shape[1]
            jacobian = torch.func.jacfwd(flat)(code).reshape(-1, size)
        if size not in by_code:
            last = nn.Linear(size, size, bias=False).requires_grad_(False).to(x)
            by_code[size] = last, extend(nn.Sequential(own.encoder, last))
        last, encoder = by_code[size]
        last.weight.copy_(torch.linalg.qr(jacobian).R)
        pieces = [
            summed(encoder, loss, x, torch.zeros_like(code), DiagGGNExact),
            summed(decoder, loss, code, x.flatten(1), DiagGGNExact),
        ]
        return torch.cat(pieces)

    return lambda x, batch: sum(map(of_one, x.split(1)), torch.zeros(()))


def by_laplace(
    model: nn.Module, structure: str, backend_kwargs: dict[str, Any] | None = None
) -> Diagonal:
    """A structure of ours: the sum over batches that a fit makes.

    Args:
        model: The model.
        structure: The ``hessian_structure``.
        backend_kwargs: Its settings.

    Returns:
        The diagonal.
    """
    la: Any = Laplace(
        model,
        "regression",
        subset_of_weights="all",
        hessian_structure=structure,
        backend_kwargs=backend_kwargs,
    )

    def measure(x: Tensor, batch: int) -> Tensor:
        _, looks = la.backend.look(x[:batch], x[:batch])
        for part in x[batch:].split(batch) if len(x) > batch else ():
            la.backend.add_look(part, part, looks)
        return la.backend.estimate(looks)

    return measure


def probe(model: AutoEncoder, n_probes: int = 1) -> Diagonal:
    """Squares of the gradient of ``<eps, f(x)>``: unbiased, one plain pass each.

    Args:
        model: The model.
        n_probes: How many are averaged for each batch.

    Returns:
        The diagonal.
    """
    parameters = list(model.parameters())

    def squares(batches: Iterable[Tensor]) -> Iterator[Tensor]:
        for x in batches:
            output = model(x)
            for i in range(n_probes):
                gradients = torch.autograd.grad(
                    output,
                    parameters,
                    torch.randn_like(output),
                    retain_graph=i + 1 < n_probes,
                )
                yield torch.cat([g.flatten() for g in gradients]).square()

    return lambda x, batch: sum(squares(x.split(batch)), torch.zeros(())) / n_probes


def mixed(limit: int) -> Structure:
    """The mixed diagonal.

    Args:
        limit: The largest number of features at which a matrix travels.

    Returns:
        The structure.
    """
    settings = {"max_dense_dim": limit}
    return lambda model: by_laplace(model, "mixed_diag", settings)


STRUCTURES: dict[str, Structure] = {
    "approx": partial(by_laplace, structure="approx_diag"),
    **{f"mixed {n}": mixed(n) for n in (2, DEFAULT_MAX_DENSE_DIM, 512)},
    "BackPACK MC 1": partial(by_backpack, extension=DiagGGNMC),
    "BackPACK MC 10": partial(by_backpack, extension=lambda: DiagGGNMC(10)),
    "probe": probe,
    "probe 10": partial(probe, n_probes=10),
    "calibrated": partial(by_laplace, structure="calibrated_diag"),
    "shrunk": partial(
        by_laplace, structure="calibrated_diag", backend_kwargs={"shrink": True}
    ),
}
