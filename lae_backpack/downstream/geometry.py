"""The geometry of codes: how far apart images are along the decoder's surface.

Networks drawn from the posterior are random surfaces. The expected metric has the mean
of their Jacobians and, where they disagree, the variance, which makes ways longer. A
decoder that saturates has short ways far from data all the same, and a posterior may be
sure between them: give the codes of data to avoid regions without any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from typing_extensions import override

from lae_backpack.downstream.paths import way_by_neighbours
from lae_backpack.downstream.support import Support
from lae_backpack.latent.elementary_norms import push_forward
from lae_backpack.posterior.autoencoder import LaplaceAE
from lae_backpack.posterior.choices import require_at_least, require_at_least_one
from lae_backpack.posterior.chunks import automatic_size
from lae_backpack.posterior.sampling import Weights, bare_copy, weights_of

try:
    from stochman.curves import CubicSpline
    from stochman.geodesic import geodesic_minimizing_energy
    from stochman.manifold import Manifold
    from stochman.utils import tensor_reduction
except ImportError as error:  # an extra; whoever wants a manifold is told
    MISSING: ImportError | None = error
    if not TYPE_CHECKING:
        Manifold = object
else:
    MISSING = None


class LatentManifold(Manifold):
    """The codes of a LaplaceAE as a stochman manifold.

    Its metric at a code is ``E[J]^T E[J] + variance_weight * Cov[J]``, with the
    decoder's Jacobian ``J`` and moments over sampled networks, drawn once. A weight of
    one gives the expected metric ``E[J^T J]``. With codes of data, images have one more
    number: a height that grows where no data are near, so that ways around are shorter.
    """

    def __init__(
        self,
        la: LaplaceAE,
        n_samples: int = 50,
        codes: Tensor | None = None,
        variance_weight: float = 1.0,
        wall: float = 3.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """Draw the networks; later changes of ``la`` do not matter.

        Args:
            la: Fitted, with vectors as codes.
            n_samples: How many networks.
            codes: Some hundred codes of data, to avoid regions without.  # [C, K]
            variance_weight: Raise it to keep further away from where they disagree.
            wall: The height without data, in units of how far decoded codes are from
                their mean.
            generator: Where randomness comes from.

        Raises:
            ImportError: If stochman is not installed.
            ValueError: If a weight is negative, or codes are not several vectors.
        """
        if MISSING is not None:
            raise ImportError(
                "LatentManifold needs stochman, which is not installed. Run: "
                "pip install lae-backpack[geometry]"
            ) from MISSING
        require_at_least_one("n_samples", n_samples)
        for name, value in (("variance_weight", variance_weight), ("wall", wall)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, got {value}.")
        self.variance_weight = variance_weight
        self.n_samples = n_samples
        self._bernoulli = la.bernoulli
        self._decoder = bare_copy(la.model).get_submodule("decoder").eval()
        self._decoder.requires_grad_(False)
        draws = la.sampler().draws(n_samples, generator)
        drawn = [
            {name: weight.clone() for name, weight in weights_of("decoder", w).items()}
            for w in draws
        ]
        self._weights = {  # [S, *param] each
            name: torch.stack([weights[name] for weights in drawn]) for name in drawn[0]
        }
        self._support: Support | None = None
        if codes is not None:
            _require_codes(codes)
            with torch.no_grad():
                images = self._decode({}, codes)
            self._support = Support(codes, wall * float(images.var(0).sum().sqrt()))

    def embed(self, points: Tensor) -> Tensor:
        """What each network makes of codes.

        Args:
            points: The codes.  # [N, K]

        Returns:
            Pixels, or their probabilities, and with codes of data the height.
            # [S, N, D] or [S, N, D + 1]
        """
        if self._weights:
            images = vmap(self._decode, (0, None))(self._weights, points)
        else:  # a frozen decoder
            images = self._decode({}, points).expand(self.n_samples, -1, -1)
        if self._support is None:
            return images
        heights = self._support(points).expand(len(images), -1)
        return torch.cat((images, heights[..., None]), -1)

    @override
    def metric(self, points: Tensor) -> Tensor:
        points = _checked_points(points)
        numbers = self.n_samples * self._n_outputs(points) * points.shape[1]
        size = automatic_size(points, numbers)
        return torch.cat([self._metric(chunk) for chunk in points.split(size)])

    @override
    def curve_energy(
        self, curve: Any, reduction: str | None = "sum", dt: float | None = None
    ) -> Tensor:
        steps = self._squared_steps(curve)  # [B, T - 1]
        energy = steps.sum(1) * (steps.shape[1] if dt is None else dt)
        return tensor_reduction(energy, reduction or "none")

    @override
    def curve_length(self, curve: Any, dt: float | None = None) -> Tensor:
        return self._squared_steps(curve).sqrt().sum(1) * (1.0 if dt is None else dt)

    def shortest_path(
        self,
        a: Tensor,
        b: Tensor,
        n_points: int = 30,
        n_nodes: int = 8,
        max_iter: int = 5,
    ) -> Tensor:
        """The shortest way that was found between two codes.

        The energy of a cubic spline is minimised, from the straight line and, with
        codes of data, also from the best way along them; the shorter one is taken.

        Args:
            a: Where it starts.  # [K]
            b: Where it ends.  # [K]
            n_points: How many points of the way are wanted, and measured.
            n_nodes: Nodes of the spline.
            max_iter: Rounds of 20 steps of L-BFGS, at most.

        Returns:
            The way, from ``a`` to ``b``.  # [n_points, K]

        Raises:
            ValueError: If codes are not vectors of one size.
        """
        require_at_least("n_points", n_points, 2)
        require_at_least("n_nodes", n_nodes, 3)
        require_at_least_one("max_iter", max_iter)
        if a.dim() != 1 or a.shape != b.shape:
            raise ValueError(
                f"a and b must be vectors of one size, got {tuple(a.shape)} and "
                f"{tuple(b.shape)}. Take single codes, without a batch dimension."
            )
        starts = [torch.stack((a, b))]  # [T, K] each
        if self._support is not None:
            codes = self._support.codes
            starts.append(way_by_neighbours(a, b, codes, self.curve_length))
        times = torch.linspace(0, 1, n_points, dtype=a.dtype, device=a.device)
        ways = [torch.lerp(a, b, times[:, None])]
        minimise: Any = geodesic_minimizing_energy  # takes any maker of optimisers
        for start in starts:
            curve = self._spline(start, n_nodes)
            minimise(curve, self, _lbfgs, max_iter, n_points)
            with torch.no_grad():
                ways.append(curve(times))
        lengths = self.curve_length(torch.stack(ways))
        return ways[int(lengths.argmin())]

    def _spline(self, start: Tensor, n_nodes: int) -> Any:
        curve = CubicSpline(start[0], start[-1], num_nodes=n_nodes).to(start.device)
        if len(start) > 2:
            steps = self._squared_steps(start)[0].detach().sqrt()
            times = steps.cumsum(0) / steps.sum()
            curve.fit(times[:-1], start[1:-1])
        return curve

    def _decode(self, weights: Weights, points: Tensor) -> Tensor:
        output = functional_call(self._decoder, weights, (points,)).flatten(1)
        return output.sigmoid() if self._bernoulli else output

    def _n_outputs(self, points: Tensor) -> int:
        return self._decode({}, points[:1].detach()).numel()

    def _metric(self, points: Tensor) -> Tensor:
        # One pass for each dimension of the code, with all points together.
        directions = torch.eye(
            points.shape[1], dtype=points.dtype, device=points.device
        )
        columns = [
            push_forward(self.embed, points, direction.expand_as(points))[1]
            for direction in directions
        ]
        jacobians = torch.stack(columns, -1)  # [S, N, D, K]
        mean = jacobians.mean(0)
        rest = jacobians - mean
        between = torch.einsum("sndk,sndl->nkl", rest, rest) / self.n_samples
        return mean.mT @ mean + self.variance_weight * between

    def _squared_steps(self, curve: Tensor) -> Tensor:
        """Squared lengths of curves' parts.  # [T, K] or [B, T, K] -> [B, T - 1]."""
        curves = curve[None] if curve.dim() == 2 else curve
        numbers = self.n_samples * self._n_outputs(curves[0]) * curves.shape[1]
        size = automatic_size(curves, numbers)
        return torch.cat([self._chunk_steps(chunk) for chunk in curves.split(size)])

    def _chunk_steps(self, curves: Tensor) -> Tensor:
        images = self.embed(curves.flatten(0, 1)).unflatten(1, curves.shape[:2])
        steps = images.diff(dim=2)  # [S, B, T - 1, D]
        mean = steps.mean(0)
        between = (steps - mean).square().sum(-1).mean(0)
        return mean.square().sum(-1) + self.variance_weight * between


def _lbfgs(parameters: Any, lr: float) -> Any:
    # stochman's rate is in units of codes, which may be of any size.
    del lr
    return torch.optim.LBFGS(parameters, line_search_fn="strong_wolfe")


def _checked_points(points: Tensor) -> Tensor:
    if points.dim() not in (1, 2) or points.numel() == 0:
        raise ValueError(
            f"points must be [N, K] codes, got shape {tuple(points.shape)}. Flatten "
            "codes that are images, for instance by nn.Unflatten in the decoder."
        )
    return points.reshape(-1, points.shape[-1])


def _require_codes(codes: Tensor) -> None:
    if codes.dim() != 2 or len(codes) < 2 or not codes.isfinite().all():
        raise ValueError(
            f"codes must be finite and [C, K] with C of at least 2, got shape "
            f"{tuple(codes.shape)}. Take some hundred, for instance "
            "la.latent(x[:300])[0]."
        )
