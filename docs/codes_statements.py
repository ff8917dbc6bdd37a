"""What the paper says of Gaussians over codes, and how our results are asked for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from statistics import mean

from published_numbers import VLAE_NATS
from published_statements import NotRunError, Statement
from reproduction import Row, chosen

MARGINS = {data: vlae - vae for data, (vae, vlae) in VLAE_NATS.items()}
NAMES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "binary": "binarised MNIST"}


def nats(rows: list[Row], data: str, model: str, updates: int | None = None) -> float:
    """The best log-likelihood of a model, in the mean over seeds.

    Args:
        rows: The results.
        data: The data set.
        model: The model, with any learning rate.
        updates: Of the model; any number if not given.

    Returns:
        Nats.

    Raises:
        NotRunError: If it is not there.
    """
    found: dict[tuple[int, float], list[float]] = {}
    for row in chosen(rows, {"data": data, "model": model}):
        if updates in (None, row["updates"]):
            key = row["updates"], row["lr"]
            found.setdefault(key, []).append(row["test_log_likelihood"])
    if not found:
        raise NotRunError
    return max(map(mean, found.values()))


def lead(
    rows: list[Row], data: str, updates: int | None, others: tuple[str, ...] = ("vae",)
) -> float:
    """How far VLAE is above the best of others.

    Args:
        rows: The results.
        data: The data set.
        updates: Of VLAE; the best number if there is none.
        others: The other models, with any number of updates.

    Returns:
        Nats of log-likelihood.
    """
    best = max(nats(rows, data, other) for other in others)
    return nats(rows, data, "vlae", updates) - best


def gain_by_updates(rows: list[Row], data: str) -> float:
    """What eight updates are above one.

    Args:
        rows: The results.
        data: The data set.

    Returns:
        Nats of log-likelihood.
    """
    return nats(rows, data, "vlae", 8) - nats(rows, data, "vlae", 1)


def _said(
    experiment: str, words: str, found: Callable[[list[Row]], float], least: float
) -> Statement:
    return Statement(experiment, words[0].upper() + words[1:], found, least, "nats")


def _margin(experiment: str, data: str, when: str) -> Statement:
    words = (
        f"{when}with one update VLAE is above the VAE by the paper's "
        f"{round(MARGINS[data], 2):g} nats on {NAMES[data]}"
    )
    found = partial(lead, data=data, updates=1)
    return _said(experiment, words, found, MARGINS[data])


def _orders(experiment: str, data: str, when: str) -> tuple[Statement, ...]:
    above = f"VLAE is above VAE, SA-VAE and Householder flow on {NAMES[data]}"
    ahead = partial(lead, data=data, others=("vae", "savae", "hf"))
    better = f"{when}eight updates are better than one on {NAMES[data]}"
    return (
        _said(
            experiment, f"{when}with one update {above}", partial(ahead, updates=1), 0.0
        ),
        _said(
            experiment,
            f"{when}with its best number of updates {above}",
            partial(ahead, updates=None),
            0.0,
        ),
        _said(experiment, better, partial(gain_by_updates, data=data), 0.0),
    )


STATEMENTS = (
    *(_margin("vlae", data, "") for data in NAMES),
    *(_margin("longer_vlae", data, "Trained for longer, ") for data in NAMES),
    _margin("clipped_vlae", "binary", "Gradients clipped, "),
    *chain.from_iterable(_orders("vlae", data, "") for data in NAMES),
    *_orders("clipped_vlae", "binary", "Gradients clipped, "),
)
