"""What the paper says of Gaussians over codes, and how our results are asked for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    words: str,
    found: Callable[[list[Row]], float],
    least: float,
    experiment: str = "vlae",
) -> Statement:
    return Statement(experiment, words, found, least, "nats")


def _margin(data: str, experiment: str, when: str) -> Statement:
    words = (
        f"{when} one update VLAE is above the VAE by the paper's "
        f"{round(MARGINS[data], 2):g} nats on {NAMES[data]}"
    )
    found = partial(lead, data=data, updates=1)
    return _said(words, found, MARGINS[data], experiment)


STATEMENTS = (
    *(_margin(data, "vlae", "With") for data in NAMES),
    *(_margin(data, "longer_vlae", "Trained for longer, with") for data in NAMES),
    *(
        _said(
            f"With {when} VLAE is above VAE, SA-VAE and Householder flow on {name}",
            partial(lead, data=data, updates=updates, others=("vae", "savae", "hf")),
            0.0,
        )
        for updates, when in ((1, "one update"), (None, "its best number of updates"))
        for data, name in NAMES.items()
    ),
    *(
        _said(
            f"Eight updates are better than one on {name}",
            partial(gain_by_updates, data=data),
            0.0,
        )
        for data, name in NAMES.items()
    ),
    _said(
        "With clipped gradients eight updates are better than one on binarised MNIST",
        partial(gain_by_updates, data="binary"),
        0.0,
        "clipped_vlae",
    ),
)
