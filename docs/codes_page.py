"""The page of results of Gaussians over codes, made from measured results.

python docs/codes_page.py            # print it
python docs/codes_page.py --write    # put it into docs/codes.md
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from statistics import mean

from published_numbers import VLAE_NATS
from published_statements import NotRunError, Statement
from readme_section import Section
from reproduction import Row, chosen, content_of, number
from result_tables import ROOT, Experiment, Table, filled, head, line_of, measures

MARGINS = {data: vlae - vae for data, (vae, vlae) in VLAE_NATS.items()}
NAMES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "binary": "binarised MNIST"}
TITLES = {"vae": "VAE", "savae": "SA-VAE", "hf": "VAE + HF", "vlae": "VLAE"}
MEASURES = {
    "test_log_likelihood": "log-likelihood",
    "standard_error": "its standard error",
    "test_elbo": "bound",
    "training_seconds": "seconds of training",
    "lowering_decayed": "updates that lower log p(x, z)",
    "lowering_full": "of full ones",
    "lowering_guarded": "of guarded ones",
}
TABLE = Experiment(
    "vlae",
    "Table 1 of the paper, in small",
    (
        Table(
            ("data", "model", "updates", "lr"),
            measures(MEASURES),
            caption="Nats of test images, by importance sampling; the small network "
            "of the paper. The paper trains for "
            "up to 2,000 epochs, and ends with {:g} (VAE) and {:g} (VLAE, one update) "
            "on MNIST: we compare leads and order, not values.".format(
                *VLAE_NATS["mnist"]
            ),
        ),
    ),
    shares_models=False,
)
LONGER = Experiment(
    "longer_vlae",
    "Longer training",
    (
        Table(
            ("data", "model", "updates", "lr"),
            measures(MEASURES),
            caption="Twice the epochs. At the paper's own learning rate, which is too "
            "low for so few epochs, VLAE's lead is far smaller.",
        ),
    ),
    shares_models=False,
)


def lead(
    rows: list[Row], data: str, updates: int, others: tuple[str, ...] = ("vae",)
) -> float:
    """How far VLAE is above the best of others, in the mean over seeds.

    Args:
        rows: The results.
        data: The data set.
        updates: Of VLAE.
        others: The other models, with any number of updates and learning rate.

    Returns:
        Nats of log-likelihood.

    Raises:
        NotRunError: If one of them is not there.
    """
    found: dict[tuple[str, int, float], list[float]] = {}
    for row in chosen(rows, {"data": data}):
        key = row["model"], row["updates"], row["lr"]
        found.setdefault(key, []).append(row["test_log_likelihood"])
    own = [mean(v) for (m, t, _), v in found.items() if (m, t) == ("vlae", updates)]
    theirs = {m: [mean(v) for key, v in found.items() if key[0] == m] for m in others}
    if not own or not all(theirs.values()):
        raise NotRunError
    return max(own) - max(chain.from_iterable(theirs.values()))


def gain_by_updates(rows: list[Row], data: str) -> float:
    """What eight updates are above one.

    Args:
        rows: The results.
        data: The data set.

    Returns:
        Nats of log-likelihood.
    """
    return lead(rows, data, 8) - lead(rows, data, 1)


def _said(
    words: str,
    found: Callable[[list[Row]], float],
    least: float,
    experiment: Experiment = TABLE,
) -> Statement:
    return Statement(experiment.name, words, found, least, "nats")


def _margin(data: str, experiment: Experiment, when: str) -> Statement:
    words = (
        f"{when} one update VLAE is above the VAE by the paper's "
        f"{round(MARGINS[data], 2):g} nats on {NAMES[data]}"
    )
    found = partial(lead, data=data, updates=1)
    return _said(words, found, MARGINS[data], experiment)


STATEMENTS = (
    *(_margin(data, TABLE, "With") for data in NAMES),
    *(_margin(data, LONGER, "Trained for longer, with") for data in NAMES),
    *(
        _said(
            f"With one update VLAE is above VAE, SA-VAE and Householder flow on {name}",
            partial(lead, data=data, updates=1, others=("vae", "savae", "hf")),
            0.0,
        )
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
)


def costs() -> list[str]:
    """What steps cost.

    Returns:
        Markdown; nothing if they were not measured.
    """
    content = content_of("vlae_cost")
    if content is None:
        return []
    updates = list(dict.fromkeys(row["T"] for row in content["rows"]))
    lines = head(["pixels", "code", *updates])
    for key in dict.fromkeys((row["pixels"], row["code"]) for row in content["rows"]):
        own = chosen(content["rows"], dict(zip(("pixels", "code"), key, strict=True)))
        ratios = [number(row["ratio"]) for row in own]
        lines.append(line_of([*map(str, key), *ratios]))
    words = (
        "A training step of VLAE, in steps of a VAE with a code of the same size, by "
        f"the number of updates (`{content['environment']['command']}`, medians of "
        "interleaved rounds)."
    )
    return ["## Cost", "", filled(words), "", *lines, ""]


def figures() -> list[str]:
    """Figures 3 and 4 of the paper.

    Returns:
        Markdown; nothing if they were not drawn.
    """
    content = content_of("figures_vlae")
    if content is None:
        return []
    correlations = ", ".join(
        f"{TITLES[name]} {number(value)}"
        for name, value in content["mean_correlation"].items()
    )
    words = (
        "Paths of the mode on the bound, for codes of two numbers, and covariances of "
        "one image's code, whose mean absolute correlations are: "
        f"{correlations}. By `{content['environment']['command']}`: "
        f"{content['epochs']} epochs of {content['train_images']:,} images."
    )
    drawn = [
        f"![{name}](../examples/experiments/results/{name}.png)"
        for name in ("paths_vlae", "covariances_vlae")
    ]
    return ["## Figures 3 and 4", "", filled(words), "", drawn[0], "", drawn[1], ""]


def page() -> str:
    """The whole page, what does not hold first.

    Returns:
        Markdown.
    """
    said = sorted(
        ((s.words, *s.verdict()) for s in STATEMENTS),
        key=lambda row: {False: 0, True: 1, None: 2}[row[1]],
    )
    words = {True: "holds", False: "does not hold", None: "not run yet"}
    lines = head(["statement of the paper", "verdict", "evidence"])
    lines += [line_of([text, words[holds], found]) for text, holds, found in said]
    title = "## What holds at our budget, and what does not"
    about = (
        "All models have the same epochs, learning rate, batches and seed; the rate is "
        "the best of three for the VAE on MNIST."
    )
    parts = [title, "", filled(about), "", *lines, ""]
    return "\n".join([
        *parts,
        *TABLE.markdown(),
        *LONGER.markdown(),
        *figures(),
        *costs(),
    ])


SECTION = Section("codes", page, ROOT / "docs" / "codes.md")

if __name__ == "__main__":
    SECTION.print_or_write(__doc__ or "")
