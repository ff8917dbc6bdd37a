"""Predictive mean and variance without ever building a Jacobian.

Everything here takes a batch in chunks and draws each network once for all of them, so
results do not depend on how the batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp

from lae_backpack.posterior.choices import require_at_least_one
from lae_backpack.posterior.chunks import (
    Batch,
    Pieces,
    located,
    moments_of,
    rows_of,
    stacked,
)
from lae_backpack.posterior.sampling import Weights, WeightSampler

Run = Callable[[Weights, Any], Tensor]


def sampled(
    run: Run,
    sampler: WeightSampler,
    chunks: Sequence[Batch],
    n_samples: int,
    generator: torch.Generator | None = None,
) -> Iterator[Pieces]:
    """Outputs of sampled networks, one after the other.

    Args:
        run: Runs a network, given its weights and inputs.
        sampler: Draws the weights.
        chunks: A batch.  # [n, *in] each
        n_samples: How many networks.
        generator: Where randomness comes from.

    Yields:
        The outputs of each, to be used before the next.  # [n, *out] each
    """
    require_at_least_one("n_samples", n_samples)
    for weights in sampler.draws(n_samples, generator):
        yield map(partial(run, weights), chunks)


def linearised(
    run: Run,
    sampler: WeightSampler,
    chunks: Sequence[Batch],
    n_samples: int,
    generator: torch.Generator | None = None,
) -> Iterator[Pieces]:
    """Outputs of the linearised model, one Jacobian-vector product each.

    Args:
        run: Runs a network, given its weights and inputs, without BackPACK's hooks.
        sampler: Draws the weights.
        chunks: A batch.  # [n, *in] each
        n_samples: How many deviations from the mean.
        generator: Where randomness comes from.

    Yields:
        ``f(x; mean) + J deviation``, to be used before the next.  # [n, *out] each
    """
    require_at_least_one("n_samples", n_samples)
    mean = sampler.by_name(sampler.mean)

    def push(deviation: Weights, x: Batch) -> Tensor:
        output, pushed, *_ = jvp(lambda w: run(w, x), (mean,), (deviation,))
        return output + pushed

    for deviation in sampler.deviations(n_samples, generator):
        yield map(partial(push, sampler.by_name(deviation)), chunks)


@torch.no_grad()
def sampled_moments(
    run: Run,
    sampler: WeightSampler,
    chunks: Sequence[Batch],
    n_samples: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance over sampled networks, in memory that does not grow with them.

    Args:
        run: Runs a network, given its weights and inputs.
        sampler: Draws the weights.
        chunks: A batch.  # [n, *in] each
        n_samples: How many networks.
        generator: Where randomness comes from.

    Returns:
        Mean and unbiased variance.  # [N, *out] each
    """
    outputs = sampled(run, sampler, chunks, n_samples, generator)
    return moments_of(outputs, rows_of(chunks))


@torch.no_grad()
def samples(
    run: Run,
    sampler: WeightSampler,
    chunks: Sequence[Batch],
    n_samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Outputs of sampled networks, all at once.

    Args:
        run: Runs a network, given its weights and inputs.
        sampler: Draws the weights.
        chunks: A batch.  # [n, *in] each
        n_samples: How many networks.
        generator: Where randomness comes from.

    Returns:
        The outputs.  # [S, N, *out]
    """
    outputs = sampled(run, sampler, chunks, n_samples, generator)
    return stacked(outputs, n_samples, rows_of(chunks))


@torch.no_grad()
def linearised_moments(
    run: Run,
    sampler: WeightSampler,
    chunks: Sequence[Batch],
    n_samples: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the linearised model.

    Args:
        run: Runs a network, given its weights and inputs, without BackPACK's hooks.
        sampler: Draws the weights.
        chunks: A batch.  # [n, *in] each
        n_samples: How many deviations from the mean.
        generator: Where randomness comes from.

    Returns:
        The model's output, which is the mean, and the variance.  # [N, *out] each
    """
    own = sampler.by_name(sampler.mean)
    mean = torch.cat([run(own, x) for x in chunks])
    squares = torch.zeros_like(mean)
    for outputs in linearised(run, sampler, chunks, n_samples, generator):
        for rows, output in located(outputs):
            squares[rows] += (output - mean[rows]).square()
    return mean, squares.div_(n_samples)  # the mean is known, so no n - 1


@torch.no_grad()
def mean_probabilities(networks: Iterable[Pieces], n_rows: int) -> Tensor:
    """Class probabilities averaged over networks.

    Args:
        networks: The networks' logits, with classes along dimension 1.
        n_rows: The samples in all chunks together.

    Returns:
        Probabilities.  # [N, C, ...]
    """
    softmax = partial(torch.softmax, dim=1)
    return moments_of((map(softmax, pieces) for pieces in networks), n_rows)[0]
