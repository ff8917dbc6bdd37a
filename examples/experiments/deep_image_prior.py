"""A deep image prior: a network fitted to one measured image, and how sure it is."""

from __future__ import annotations

import torch
from radon import SmallUNet, total_variation
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.func import functional_call, jacrev
from tqdm import tqdm

Gaussian = tuple[Tensor, Tensor]  # mean and variance of every pixel


def reconstruct(
    net: SmallUNet, start: Tensor, measured: Tensor, matrix: Tensor, n_steps: int
) -> None:
    """Fit a network to projections of one image.

    Args:
        net: The network.
        start: What goes in.  # [1, 1, H, W]
        measured: The projections.  # [M]
        matrix: What projects.  # [M, H * W]
        n_steps: Of Adam.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in tqdm(range(n_steps), "reconstruction", leave=False, disable=None):
        optimizer.zero_grad()
        image = net(start)
        error = (matrix @ image.flatten() - measured).square().sum()
        (error + 1e-2 * total_variation(image)).backward()
        optimizer.step()


def linearised(
    net: SmallUNet, start: Tensor, measured: Tensor, matrix: Tensor, n_steps: int
) -> Gaussian:
    """The linearised network's posterior over the image, solved over measurements.

    Args:
        net: The fitted network.
        start: What goes in.  # [1, 1, H, W]
        measured: The projections.  # [M]
        matrix: What projects.  # [M, H * W]
        n_steps: Of Adam on the evidence.

    Returns:
        Mean (the network's image) and variance.  # [H * W] each
    """
    own = {name: p.detach() for name, p in net.named_parameters()}
    parts = jacrev(lambda w: functional_call(net, w, (start,)).flatten())(own)
    image = net(start).detach().flatten()
    shift = torch.zeros_like(image)
    kernels: dict[str, Tensor] = {}
    for name, part in parts.items():
        rows = part.flatten(1)  # [H * W, P of the tensor]
        layer = name.rsplit(".", 1)[0]
        kernels[layer] = kernels.get(layer, torch.zeros(())) + rows @ rows.T
        shift += rows @ own[name].flatten()
    images = torch.stack(list(kernels.values()))  # [layers, H * W, H * W]
    measures = matrix @ images @ matrix.T
    target = measured - matrix @ (image - shift)
    logs = torch.zeros(len(images) + 1, requires_grad=True)
    logs.data[-1] = (matrix @ image - measured).square().mean().log()  # the noise
    optimizer, eye = torch.optim.Adam([logs], lr=0.1), torch.eye(len(measured))

    def covariances(of: Tensor) -> Tensor:
        return torch.einsum("l,lij->ij", (-logs[:-1]).exp(), of)

    for _ in tqdm(range(n_steps), "evidence", leave=False, disable=None):
        optimizer.zero_grad()
        scale = torch.linalg.cholesky(covariances(measures) + logs[-1].exp() * eye)
        explained = MultivariateNormal(torch.zeros_like(target), scale_tril=scale)
        (-explained.log_prob(target)).backward()
        optimizer.step()
    with torch.no_grad():
        prior = covariances(images)
        seen = matrix @ prior
        total = covariances(measures) + logs[-1].exp() * eye
        explained = (seen * torch.linalg.solve(total, seen)).sum(0)
        return image, (prior.diagonal() - explained).clamp_min(0)


@torch.no_grad()
def by_dropout(net: SmallUNet, start: Tensor, n_samples: int) -> Gaussian:
    """Mean and variance over networks with parts left out.

    Args:
        net: The network, with dropout.
        start: What goes in.  # [1, 1, H, W]
        n_samples: How many.

    Returns:
        The moments.  # [H * W] each
    """
    images = torch.stack([net.train()(start).flatten() for _ in range(n_samples)])
    return images.mean(0), images.var(0)
