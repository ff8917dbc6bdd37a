"""What is said in words, by the paper or by us, and how results are asked about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from published_numbers import BETTER, LONGEST, USUAL
from reproduction import Row, chosen, number, rows_of

AS_PAPER = "with noise 1 and a prior by the evidence, as in the paper"
# An ensemble has no code, so that it is not in all experiments.
OTHERS = {"autoencoder", "learned variance", "VAE", "MC dropout", "post hoc"}


class NotRunError(LookupError):
    """Rows that a statement is about are not there yet."""


@dataclass(frozen=True)
class Statement:
    """Something that is said in words, and how it is looked up in our rows.

    Attributes:
        experiment: Ours, by the name of its results.
        words: What is said.
        numbers: Gives the evidence, which has to be above the threshold.
        threshold: That.
        evidence: What the number is, in words.
        of_paper: Whether the paper says it, or only we ask.
    """

    experiment: str
    words: str
    numbers: Callable[[list[Row]], float]
    threshold: float
    evidence: str
    of_paper: bool = True

    def verdict(self) -> tuple[bool | None, str]:
        """Look it up.

        Returns:
            Whether it holds, ``None`` if it was not run yet, and the evidence.
        """
        try:
            found = self.numbers(rows_of(self.experiment))
        except NotRunError:
            return None, "not run yet"
        return found > self.threshold, f"{self.evidence}: {number(found)}"


def _mean(rows: list[Row], measure: str, where: Row) -> float:
    found = [row[measure] for row in chosen(rows, where)]
    if not found:
        raise NotRunError
    return mean(found)


def _lead(rows: list[Row], measure: str, where: Row) -> float:
    """How far online training is above the best of all others."""
    others = {row["model"] for row in chosen(rows, where)} - {"online"}
    if not others >= OTHERS:
        raise NotRunError
    online = _mean(rows, measure, {**where, "model": "online"})
    return online - max(_mean(rows, measure, {**where, "model": m}) for m in others)


def _lead_with_few_labels(rows: list[Row]) -> float:
    counts = {row["per_class"] for row in chosen(rows, {"task": "classes"})}
    few = [{"task": "classes", "per_class": count} for count in counts if count <= 15]
    if not few:
        raise NotRunError
    return min(_lead(rows, "accuracy", where) for where in few)


def _lead_on_attributes(rows: list[Row]) -> float:
    return _lead(rows, "accuracy", {"task": "attributes", **BETTER})


def _distance(model: str) -> Callable[[list[Row]], float]:
    return lambda rows: _mean(rows, "correlation_with_distance", {"model": model})


def _certainty(rows: list[Row]) -> float:
    paths = [path for row in chosen(rows, {"model": "online"}) for path in row["paths"]]
    if not paths:
        raise NotRunError
    return mean(1 - p["deviation_on_path"] / p["deviation_on_line"] for p in paths)


def _of_common_seeds(rows: list[Row]) -> list[Row]:
    """Rows of the seeds that every line of a table has, which alone compare."""
    seeds: dict[tuple[str, ...], set[int]] = {}
    for row in rows:
        line = row["way"], row["structure"], row["noise"]
        seeds.setdefault(line, set()).add(row["seed"])
    common = set.intersection(*seeds.values()) if seeds else set()
    return [row for row in rows if row["seed"] in common]


def _gain_online(recipe: Row, noise: str) -> Callable[[list[Row]], float]:
    def gain(rows: list[Row]) -> float:
        compared = [
            row
            for row in chosen(rows, recipe)
            if (row["way"], row["noise"]) in (("online", "unit"), ("post hoc", noise))
        ]
        rows = _of_common_seeds(compared)

        def least(way: str) -> float:
            structures = {row["structure"] for row in chosen(rows, {"way": way})}
            if not structures:
                raise NotRunError
            return min(
                _mean(rows, "error_of_networks", {"way": way, "structure": structure})
                for structure in structures
            )

        return least("post hoc") - least("online")

    return gain


def _gain(model: str, other: str, where: Row) -> Callable[[list[Row]], float]:
    """How far one model's AUROC is above another's."""

    def gain(rows: list[Row]) -> float:
        own, others = (
            _mean(rows, "auroc", {**where, "model": name}) for name in (model, other)
        )
        return own - others

    return gain


def _ease_of_validation(rows: list[Row]) -> float:
    if not rows:
        raise NotRunError
    return min(row["test"] - row["validation"] for row in rows)


def _more_digits(rows: list[Row]) -> float:
    return _lead([row for row in rows if "classes_seen" in row], "classes_seen", {})


STATEMENTS = (
    *(
        Statement(
            "table2",
            f"Networks reconstruct better online than post hoc, {words} (table 2, "
            f"trained by {recipe['recipe']})",
            _gain_online(recipe, noise),
            0.0,
            "squared error of the best post hoc, minus that of the best online",
            of_paper=noise == "unit",
        )
        for recipe, noise, words in (
            (USUAL, "unit", AS_PAPER),
            (BETTER, "unit", AS_PAPER),
            (USUAL, "residual", "also with the noise of the residuals"),
            (BETTER, "residual", "also with the noise of the residuals"),
            (
                BETTER,
                "residual, prior by validation",
                "also with the noise of the residuals and a prior by validation images",
            ),
        )
    ),
    Statement(
        "longer_training",
        "Validation images, of which the paper's numbers are, have smaller errors than "
        "the test images of ours (table 2)",
        _ease_of_validation,
        0.0,
        "least difference of the mean weights' errors, of four models",
        of_paper=False,
    ),
    Statement(
        "ood_scores",
        "Weights of pixels that are always zero are not what tells outliers (MNIST, "
        "linear net, online)",
        _gain(
            "online, dead pixels frozen",
            "online",
            {"net": "linear", "data": "mnist", "score": "output_variance", **USUAL},
        ),
        -0.02,
        "change of the AUROC of output variance when they are frozen",
        of_paper=False,
    ),
    Statement(
        "ood_scores",
        "Trained for longest, errors tell outliers better online than those of a plain "
        "autoencoder do (Fashion-MNIST, quarter width)",
        _gain(
            "online",
            "autoencoder",
            {
                "net": "conv/4",
                "data": "fashion-mnist",
                "score": "log_likelihood",
                **LONGEST,
            },
        ),
        0.0,
        "lead in the AUROC of log-likelihood",
        of_paper=False,
    ),
    Statement(
        "imputing",
        "Trained online, fillings show more different digits than any other model's "
        "(figure 11)",
        _more_digits,
        0.0,
        "digits seen, minus those of the best other model",
    ),
    Statement(
        "few_labels",
        "Trained online, it is the best with 1 to 15 labels of each class (figure 12)",
        _lead_with_few_labels,
        0.0,
        "its least lead in accuracy over the best other model",
    ),
    Statement(
        "few_labels",
        "Trained online, it is ahead with ten labels of an attribute (table 4; "
        "Fashion-MNIST's groups of classes replace CelebA)",
        _lead_on_attributes,
        0.0,
        "its lead in mean accuracy over the best other model",
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
        "Shortest paths are less uncertain than straight lines",
        _certainty,
        0.0,
        "by which share of the deviation",
        of_paper=False,
    ),
)
