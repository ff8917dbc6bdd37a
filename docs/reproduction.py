"""Holds measured results against what others report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from published_numbers import Claim

RESULTS = Path(__file__).parents[1] / "examples" / "experiments" / "results"
Row = dict[str, Any]


def content_of(experiment: str) -> dict[str, Any] | None:
    """What was measured.

    Args:
        experiment: Its name.

    Returns:
        The file's content, ``None`` if it was not run yet.
    """
    file = RESULTS / f"{experiment}.json"
    return json.loads(file.read_text()) if file.exists() else None


def rows_of(experiment: str) -> list[Row]:
    """The rows of an experiment's longest training.

    Args:
        experiment: Its name.

    Returns:
        Rows; of each net and data set those with most epochs, none if it was not run.
    """
    content = content_of(experiment) or {"rows": []}
    longest: dict[Any, int] = {}
    for row in content["rows"]:
        world = row.get("net"), row.get("data"), row.get("task")
        longest[world] = max(longest.get(world, 0), row["epochs"])
    return [
        row
        for row in content["rows"]
        if row["epochs"] == longest[row.get("net"), row.get("data"), row.get("task")]
    ]


def chosen(rows: Iterable[Row], where: Row) -> list[Row]:
    """Some rows.

    Args:
        rows: All rows.
        where: What these have.

    Returns:
        Those that have it.
    """
    return [row for row in rows if where.items() <= row.items()]


def number(value: float) -> str:
    """A number with as many digits as can be told apart.

    Args:
        value: The number.

    Returns:
        Its text.
    """
    size = abs(value)
    digits = 3 if size < 2 else 2 if size < 100 else 1
    return f"{value:,.{digits}f}"


def seeds_together(values: list[float]) -> str:
    """Numbers of several seeds.

    Args:
        values: The numbers.

    Returns:
        Their mean, and their standard deviation if there are several.
    """
    if not values:
        return ""
    if len(values) == 1:
        return number(values[0])
    return f"{number(mean(values))} ± {number(stdev(values))}"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: The claim.
        ours: Our numbers, one for each seed.
        holds: Whether ours are as good, ``None`` if there are none.
    """

    claim: Claim
    ours: list[float]
    holds: bool | None

    @classmethod
    def of(cls, claim: Claim) -> Verdict:
        """Judge a claim.

        Args:
            claim: The claim.

        Returns:
            The verdict.
        """
        rows = chosen(rows_of(claim.experiment), claim.where)
        ours = [row[claim.measure] for row in rows]
        if not ours:
            return cls(claim, ours, None)
        above = mean(ours) - claim.target
        worse = {"lower": above, "higher": -above, "same": abs(above)}[claim.better]
        return cls(claim, ours, worse <= claim.tolerance)

    def __str__(self) -> str:
        """The verdict in a word or two."""
        if self.holds is None:
            return "not run yet"
        better = self.claim.better
        if self.holds and better == "same":
            return "as there"
        if self.holds:
            ahead = abs(mean(self.ours) - self.claim.target) > self.claim.tolerance
            return "better" if ahead else "reached"
        side = "higher" if mean(self.ours) > self.claim.target else "lower"
        return f"differs: {side}" if better == "same" else f"not reached: {side}"


@dataclass(frozen=True)
class Statement:
    """Something that the paper says in words, and how it is looked up in our rows.

    Attributes:
        experiment: Ours, by the name of its results.
        words: What is said.
        numbers: Gives the evidence, which has to be above the threshold.
        threshold: That.
        evidence: What the number is, in words.
    """

    experiment: str
    words: str
    numbers: Callable[[list[Row]], float]
    threshold: float
    evidence: str

    def verdict(self) -> tuple[bool | None, str]:
        """Look it up.

        Returns:
            Whether it holds, ``None`` if it was not run yet, and the evidence.
        """
        try:
            found = self.numbers(rows_of(self.experiment))
        except (KeyError, ValueError):  # models are missing, or all of it
            return None, "not run yet"
        return found > self.threshold, f"{self.evidence}: {number(found)}"


def _lead_with_few_labels(rows: list[Row]) -> float:
    leads = []
    for count in {row["per_class"] for row in rows if row.get("per_class", 99) <= 15}:
        own = chosen(rows, {"per_class": count, "task": "classes"})
        by_model = {row["model"]: [] for row in own}
        for row in own:
            by_model[row["model"]].append(row["accuracy"])
        online = mean(by_model.pop("online"))
        leads.append(online - max(mean(v) for v in by_model.values()))
    return mean(leads)


def _lead_on_attributes(rows: list[Row]) -> float:
    def overall(model: str) -> float:
        own = chosen(rows, {"model": model, "task": "attributes"})
        return mean(row["accuracy"] for row in own)

    return overall("online") - max(overall(m) for m in ("autoencoder", "VAE"))


def _distance(model: str) -> Callable[[list[Row]], float]:
    def correlation(rows: list[Row]) -> float:
        own = chosen(rows, {"model": model})
        return mean(row["correlation_with_distance"] for row in own)

    return correlation


def _shortening(rows: list[Row]) -> float:
    paths = [path for row in chosen(rows, {"model": "online"}) for path in row["paths"]]
    return mean(1 - path["length_of_path"] / path["length_of_line"] for path in paths)


def _gain_online(noise: str) -> Callable[[list[Row]], float]:
    def gain(rows: list[Row]) -> float:
        def least(way: str, noise: str) -> float:
            errors: dict[str, list[float]] = {}
            for row in chosen(rows, {"way": way, "noise": noise}):
                errors.setdefault(row["structure"], []).append(row["error_of_networks"])
            return min(mean(found) for found in errors.values())

        return least("post hoc", noise) - least("online", "unit")

    return gain


def _change_by_freezing(rows: list[Row]) -> float:
    def auroc(model: str) -> float:
        where = {"net": "linear", "data": "mnist", "score": "output_variance"}
        return mean(row["auroc"] for row in chosen(rows, {**where, "model": model}))

    return auroc("online, dead pixels frozen") - auroc("online")


def _more_digits(rows: list[Row]) -> float:
    seen: dict[str, list[float]] = {}
    for row in rows:
        if "classes_seen" in row:
            seen.setdefault(row["model"], []).append(row["classes_seen"])
    online = mean(seen.pop("online"))
    seen.pop("post hoc")
    return online - max(mean(found) for found in seen.values())


STATEMENTS = (
    *(
        Statement(
            "table2",
            f"Networks reconstruct better online than post hoc, {words} (table 2)",
            _gain_online(noise),
            0.0,
            "squared error of the best post hoc, minus that of the best online",
        )
        for noise, words in (
            ("unit", "with noise 1 and a prior by the evidence, as in the paper"),
            ("residual", "also with the noise of the residuals"),
        )
    ),
    Statement(
        "ood_scores",
        "Weights of pixels that are always zero are not what tells outliers (MNIST, "
        "linear net, online)",
        _change_by_freezing,
        -0.02,
        "change of the AUROC of output variance when they are frozen",
    ),
    Statement(
        "imputing",
        "Trained online, fillings show more different digits than any baseline's "
        "(figure 11)",
        _more_digits,
        0.0,
        "digits seen, minus those of the best baseline",
    ),
    Statement(
        "few_labels",
        "Trained online, it is the best with 1 to 15 labels of each class (figure 12)",
        _lead_with_few_labels,
        0.0,
        "its mean lead in accuracy over the best other model",
    ),
    Statement(
        "few_labels",
        "Trained online, it is ahead with ten labels of an attribute (table 4; "
        "Fashion-MNIST's groups of classes replace CelebA)",
        _lead_on_attributes,
        0.0,
        "its lead in mean accuracy over the best of autoencoder and VAE",
    ),
    *(
        Statement(
            "latent_maps",
            f"{model.capitalize()}, uncertainty grows away from data (figures 1, 8)",
            _distance(model),
            0.0,
            "rank correlation with the distance to the nearest code",
        )
        for model in ("post hoc", "online")
    ),
    Statement(
        "latent_maps",
        "Shortest paths under the posterior are shorter than straight lines",
        _shortening,
        0.0,
        "by which share",
    ),
)
