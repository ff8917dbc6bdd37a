"""Few labels: nearest neighbours among codes that are embedded many times."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lae_backpack.downstream.models import Encodes, codes, require_images
from lae_backpack.posterior.choices import require_at_least, require_at_least_one
from lae_backpack.posterior.chunks import automatic_size


class CodeNeighbours:
    """Classifies by the nearest codes of labelled images.

    Each labelled image has a code by each of several sampled encoders, so that an
    uncertain one reaches further. Other images are where their mean code is.

    Attributes:
        n_neighbours: How many neighbours vote; chosen by cross-validation.
        accuracies: What cross-validation found, by the number of neighbours; empty
            where a class has a single image, and the least number is taken.
    """

    n_neighbours: int
    accuracies: dict[int, float]

    def __init__(
        self,
        la: Encodes,
        n_copies: int = 100,
        neighbours: Sequence[int] = (1, 3, 5, 7, 9),
        n_folds: int = 5,
        generator: torch.Generator | None = None,
    ) -> None:
        """Choose how.

        Args:
            la: A LaplaceAE, or what else has ``latent_samples``.
            n_copies: Codes of each image.
            neighbours: How many copies may vote.
            n_folds: Folds of the cross-validation; never more than the rarest class
                has images, so that each fold has some.
            generator: Where randomness comes from.

        Raises:
            ValueError: If there is nothing to choose from.
        """
        require_at_least_one("n_copies", n_copies)
        require_at_least("n_folds", n_folds, 2)
        if len(neighbours) == 0:
            raise ValueError("neighbours is empty. Give numbers to choose from.")
        for number in neighbours:
            require_at_least_one("neighbours", number)
        self._la = la
        self._n_copies = n_copies
        self._allowed = sorted(set(neighbours))
        self._n_folds = n_folds
        self._generator = generator
        self._copies: Tensor | None = None  # [S, N, K]

    def fit(self, x: Tensor, labels: Tensor) -> CodeNeighbours:
        """Embed labelled images, and choose the number of neighbours.

        Args:
            x: The images.  # [N, *in]
            labels: Their classes, integers or bools.  # [N]

        Returns:
            Itself.

        Raises:
            ValueError: If there are fewer copies than neighbours.
        """
        require_images(x)
        _require_labels(x, labels)
        copies = codes(self._la, x, self._n_copies, self._generator)
        classes, own = labels.to(copies.device).unique(return_inverse=True)
        folds = self._folds(own)
        # A fold is predicted by the others; one fold means that there is no choice.
        largest = int(folds.bincount().max()) if folds.any() else 0
        allowed = [k for k in self._allowed if k <= self._n_copies * (len(x) - largest)]
        if not allowed:
            raise ValueError(
                f"neighbours must have one of at most "
                f"{self._n_copies * (len(x) - largest)}, the copies there are, got "
                f"{self._allowed}. Label more images, or ask for more copies."
            )
        accuracies = _cross_validated(copies, own, folds, allowed)
        self.n_neighbours = max(
            accuracies, key=accuracies.__getitem__, default=allowed[0]
        )
        self.accuracies = accuracies
        self._copies, self._own, self._classes = copies, own, classes
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: The images.  # [N, *in]

        Returns:
            Their classes, by the most votes; the nearest of several.  # [N]

        Raises:
            RuntimeError: If there are no labelled images.
        """
        if self._copies is None:
            raise RuntimeError("There are no labelled images. Call fit(x, labels).")
        require_images(x)
        found = codes(self._la, x, self._n_copies, self._generator).mean(0)
        nearest = _nearest_labels(found, self._copies, self._own, self.n_neighbours)
        return self._classes[_elected(nearest, self.n_neighbours)]

    def accuracy(self, x: Tensor, labels: Tensor) -> float:
        """How many images are classified rightly.

        Args:
            x: The images.  # [N, *in]
            labels: Their true classes.  # [N]

        Returns:
            The share.
        """
        require_images(x)
        _require_labels(x, labels)
        predicted = self.predict(x)
        return float((predicted == labels.to(predicted)).double().mean())

    def _folds(self, own: Tensor) -> Tensor:
        """Which fold each image, with all its copies, is in; classes are spread."""
        n_folds = min(self._n_folds, int(own.bincount().min()))
        device = "cpu" if self._generator is None else self._generator.device
        order = torch.randperm(len(own), generator=self._generator, device=device)
        order = order.to(own.device)
        by_class = order[own[order].argsort(stable=True)]
        folds = torch.empty_like(own)
        folds[by_class] = torch.arange(len(own), device=own.device) % n_folds
        return folds


def _cross_validated(
    copies: Tensor, own: Tensor, folds: Tensor, allowed: list[int]
) -> dict[int, float]:
    if not folds.any():
        return {}
    right = dict.fromkeys(allowed, 0)
    for fold in folds.unique():
        out = folds == fold
        centre = copies[:, out].mean(0)
        nearest = _nearest_labels(centre, copies[:, ~out], own[~out], max(allowed))
        for k in allowed:
            right[k] += int((_elected(nearest, k) == own[out]).sum())
    return {k: count / len(own) for k, count in right.items()}


def _nearest_labels(points: Tensor, copies: Tensor, own: Tensor, k: int) -> Tensor:
    """The labels of the nearest copies, nearest first.  # [N, k]."""
    flat = copies.flatten(0, 1)  # [S * N, K]
    labels = own.repeat(len(copies))
    chunks = points.split(automatic_size(points, len(flat)))
    found = [
        torch.cdist(c, flat).topk(k, largest=False, sorted=True)[1] for c in chunks
    ]
    return labels[torch.cat(found)]


def _elected(nearest: Tensor, k: int) -> Tensor:
    # What is added halves with each rank and sums to less than one: it decides between
    # equally many votes only, for the class whose nearest member is nearer.
    ranks = torch.arange(k, dtype=torch.float64, device=nearest.device)
    votes = (1 + 0.5 ** (1 + ranks)).expand(len(nearest), k)
    total = votes.new_zeros(len(nearest), int(nearest.max()) + 1)
    return total.scatter_add_(1, nearest[:, :k], votes).argmax(1)


def _require_labels(x: Tensor, labels: Tensor) -> None:
    if labels.shape != x.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"labels must be [{len(x)}] integers or bools, one for each image, got "
            f"{labels.dtype} of shape {tuple(labels.shape)}."
        )
