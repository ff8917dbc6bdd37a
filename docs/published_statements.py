"""What the paper says in words, and how it is looked up in measured results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from reproduction import Row, chosen, number, rows_of


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
    return min(leads)


def _lead_on_attributes(rows: list[Row]) -> float:
    def overall(model: str) -> float:
        own = chosen(rows, {"model": model, "task": "attributes"})
        return mean(row["accuracy"] for row in own)

    return overall("online") - max(
        overall(m) for m in ("autoencoder", "VAE", "MC dropout")
    )


def _distance(model: str) -> Callable[[list[Row]], float]:
    def correlation(rows: list[Row]) -> float:
        own = chosen(rows, {"model": model})
        return mean(row["correlation_with_distance"] for row in own)

    return correlation


def _certainty(rows: list[Row]) -> float:
    paths = [path for row in chosen(rows, {"model": "online"}) for path in row["paths"]]
    return mean(1 - p["deviation_on_path"] / p["deviation_on_line"] for p in paths)


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
        "Shortest paths are less uncertain than straight lines",
        _certainty,
        0.0,
        "by which share of the deviation",
    ),
)
