"""Which weights share a prior precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from laplace.baselaplace import ParametricLaplace
from laplace.subnetlaplace import SubnetLaplace
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from lae_backpack.posterior.choices import require_one_of
from lae_backpack.posterior.layers import layers_of
from lae_backpack.posterior.sampling import evaluating, without_hooks

STRUCTURES = ("scalar", "layerwise")
Groups = Sequence[Sequence[str]]


class PriorGroups:
    """Prior precisions, one for each group of parameter tensors."""

    def __init__(self, la: ParametricLaplace, groups: str | Groups) -> None:
        """Say which tensor belongs to which group.

        Args:
            la: The posterior.
            groups: ``"scalar"``, ``"layerwise"`` (one for each tensor, as laplace-torch
                understands it), or names of parameters, group by group; those without a
                group share one more.

        Raises:
            ValueError: If a name is unknown or occurs twice.
        """
        model = la.model
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        sizes = [p.numel() for p in la.params]
        if isinstance(la, SubnetLaplace):
            if groups != "scalar":
                raise ValueError(
                    f"A subnetwork has one prior precision, got groups={groups!r}. "
                    "Use groups='scalar'."
                )
            sizes = [la.n_params_subnet]
        if isinstance(groups, str):
            require_one_of("groups", groups, STRUCTURES)
            member = range(len(sizes)) if groups == "layerwise" else [0] * len(sizes)
        else:
            member = _members(groups, names)
        device = la._device
        self.of_tensor = torch.tensor(list(member), device=device)  # [L]
        self.count = int(self.of_tensor.max()) + 1
        self._sizes = sizes

    def sums(self, numbers: Tensor) -> Tensor:
        """Add up within groups.

        Args:
            numbers: One for each weight.  # [P]

        Returns:
            One for each group.  # [G]
        """
        # Tensor by tensor: adding one number after the other would lose digits.
        sums = torch.stack([part.sum() for part in numbers.split(self._sizes)])
        return numbers.new_zeros(self.count).index_add_(0, self.of_tensor, sums)

    def present(self, la: ParametricLaplace) -> Tensor:
        """The groups' geometric means of the prior precisions that there are.

        Args:
            la: The posterior.

        Returns:
            One for each group.  # [G]
        """
        logs = self.sums(la.prior_precision_diag.detach().log())
        return (logs / self.sums(torch.ones_like(la.prior_precision_diag))).exp()

    def install(self, la: ParametricLaplace, precisions: Tensor) -> None:
        """Give a posterior its prior.

        Args:
            la: The posterior.
            precisions: One for each group.  # [G]
        """
        alone = self.count == 1
        la.prior_precision = precisions if alone else precisions[self.of_tensor]


@torch.no_grad()
def normalised_groups(
    model: Module, x: Tensor, tolerance: float = 0.02
) -> list[list[str]]:
    """Find layers whose scale makes no difference, because a normalisation follows.

    Each layer's weights are doubled, with batch norm on the statistics of ``x``. If the
    output changes far less than by a random change of the same size, the layer is
    normalised. So it does not matter how the model calls its normalisations.

    Args:
        model: The model; it stays as it is.
        x: A batch of at least two samples.  # [N, *in]
        tolerance: How much less: normalisations add a small number to variances, so
            the output does change a little.

    Returns:
        The names of the parameters of each such layer.

    Raises:
        ValueError: If there are too few samples to take statistics of.
    """
    if len(x) < 2:
        raise ValueError(
            f"Batch norm needs at least 2 samples, got {len(x)}. Give a larger batch."
        )
    bare = without_hooks(model)
    own = dict(bare.named_parameters())
    draw = torch.Generator(x.device).manual_seed(0)
    groups = []
    with _batch_statistics(bare):

        def output(parameters: dict[str, Tensor]) -> Tensor:
            buffers = {name: b.clone() for name, b in bare.named_buffers()}
            return functional_call(bare, {**parameters, **buffers}, (x,))

        before = output({})
        for layer in layers_of(bare):
            if not any(own[name].dim() > 1 for name in layer.sizes):
                continue  # a normalisation's own scale and shift
            doubled = {name: 2 * own[name] for name in layer.sizes}
            other = {name: own[name] + _of_size(own[name], draw) for name in doubled}
            changes = [(output(w) - before).norm() for w in (doubled, other)]
            if changes[0] < tolerance * changes[1]:
                groups.append(list(layer.sizes))
    return groups


def _of_size(tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.empty_like(tensor).normal_(generator=generator)
    return noise * (tensor.norm() / noise.norm())


@contextmanager
def _batch_statistics(model: Module) -> Iterator[None]:
    with evaluating(model):
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        for module in norms:
            module.training = True
        try:
            yield
        finally:
            for module in norms:
                module.training = False


def _members(groups: Groups, names: list[str]) -> list[int]:
    """Number the groups; parameters without one come last.

    Returns:
        The group of each parameter.

    Raises:
        ValueError: If a name is unknown or occurs twice.
    """
    numbers: dict[str, int] = {}
    for number, group in enumerate(group for group in groups if group):
        for name in group:
            if name not in names:
                raise ValueError(
                    f"groups has {name!r}, which is no trainable parameter of the "
                    f"model. Allowed: {names}."
                )
            if name in numbers:
                raise ValueError(
                    f"groups has {name!r} twice. A parameter has one prior: drop one."
                )
            numbers[name] = number
    rest = max(numbers.values(), default=-1) + 1
    return [numbers.get(name, rest) for name in names]
