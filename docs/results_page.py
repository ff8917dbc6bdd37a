"""The page of results of the paper's experiments, made from measured results.

python docs/results_page.py            # print it
python docs/results_page.py --write    # put it into docs/results.md
"""

from __future__ import annotations

from itertools import chain

from published_numbers import CLAIMS, CODE, PAPER
from published_statements import STATEMENTS
from readme_section import Section
from reproduction import Verdict, content_of, rows_of, seeds_together
from result_tables import (
    ROOT,
    Column,
    Experiment,
    Table,
    filled,
    head,
    line_of,
    measures,
)

SCORES = {
    "log_likelihood": "log-likelihood",
    "typicality": "typicality",
    "output_deviation": "output deviation",
    "latent_deviation": "latent deviation",
    "output_variance": "output variance",
    "latent_variance": "latent variance",
    "pairwise_divergence": "pairwise divergence",
}
ERRORS = {
    "error_of_networks": "error of networks",
    "error_of_mean": "error of their mean",
}


EXPERIMENTS = (
    Experiment(
        "table2",
        "Table 2: reconstruction of MNIST",
        (
            Table(
                ("way", "structure", "noise", "recipe"),
                measures(
                    ERRORS
                    | {
                        "log_density_unit_noise": "log-density, noise 1",
                        "log_density_residual_noise": "log-density, residual noise",
                    }
                ),
                caption="Squared errors are summed over pixels; the paper calls that "
                "of sampled networks minus log p. The log-densities are Gaussian, in "
                "nats, with the mean over networks inside the logarithm. Post hoc, the "
                "prior is by the evidence with noise 1, and has a precision of 1 with "
                "the noise of the residuals, if it is not chosen by the log-density of "
                "1,000 validation images. Muon is the better recipe of the next part; "
                "by Adam, exact curvature was measured, too, but is no part of the set "
                "any more: post hoc it had the numbers of the calibrated diagonal, and "
                "online, within 0.1, those of the mixed one.",
            ),
        ),
    ),
    Experiment(
        "longer_training",
        "How far longer and better training get",
        (
            Table(
                ("model", "recipe", "epochs", "lr", "seed"),
                measures({
                    "train": "training images",
                    "validation": "validation images",
                    "test": "test images",
                }),
                caption="Squared errors of the mean weights on MNIST, the linear net: "
                "the training of table 2, three times as many epochs from a three "
                "times higher learning rate, and six times as many by another recipe: "
                "Muon for the matrices between hidden layers, Adam for all else, "
                "batches of 256, rates that fall in a straight line, and noise of 0.2 "
                "on the encoder's inputs in training. The recipe was chosen by "
                "validation images; its 120 epochs were fixed after the error of a "
                "plain run of 80 on test images had been seen, too.",
            ),
        ),
    ),
    Experiment(
        "ood_scores",
        "Figures 9 and 10: outliers",
        (
            Table(
                ("data", "net", "recipe", "epochs", "test_images", "model"),
                tuple(Column(t, "auroc", {"score": s}) for s, t in SCORES.items()),
                caption="Area under the ROC curve; outliers are the other of MNIST and "
                "Fashion-MNIST. The paper's sigmas are deviations, summed over pixels "
                "or over the code. Rows of less than 10,000 test images are of the "
                "first ones, where MNIST's are harder to tell. That all images and "
                "deviations are taken was decided after results of the first ones and "
                "of variances had been seen; both raise most numbers. Pixels that are "
                "zero in all training images leave first-layer weights at the prior; "
                "frozen, these do not vary. Muon-late is Muon with more epochs, the "
                "first half of them at the mean weights, and a look at the curvature "
                "at every fourth step; it was chosen by validation images, the last of "
                "four such runs, and is not compared with baselines, which have fewer "
                "epochs.",
            ),
        ),
        ("ood_curves", "ood_histograms"),
    ),
    Experiment(
        "imputing",
        "Table 3 and figure 11: missing halves",
        (
            Table(
                ("model",),
                measures({
                    "error_of_samples": "error of samples",
                    "error_of_mean": "error of their mean",
                    "accuracy": "accuracy",
                    "ece": "ECE",
                    "mce": "MCE",
                    "rmsce": "RMSCE",
                    "classes_seen": "digits seen",
                    "truth_among_them": "true one among them",
                    "digits_generated": "digits from noise",
                }),
                caption="Errors of the missing upper half against the clean image, "
                "summed over its pixels; the paper's compare with noise, and are not "
                "comparable. Digits seen: how many different ones the classifier sees "
                "among the modes of an image.",
            ),
        ),
    ),
    Experiment(
        "few_labels",
        "Figure 12: few labels; a replacement for table 4",
        (
            Table(
                ("model",),
                tuple(
                    Column(str(n), "accuracy", {"per_class": n})
                    for n in (1, 2, 4, 6, 8, 10, 15, 25, 50, 100)
                ),
                {"task": "classes"},
                "Accuracy by the number of labelled images of each class, MNIST.",
            ),
            Table(
                ("recipe", "attribute", "model"),
                measures({"accuracy": "accuracy", "by_guessing": "larger class"}),
                {"task": "attributes"},
                "A replacement for CelebA: ten labels of attributes of Fashion-MNIST.",
            ),
        ),
    ),
    Experiment(
        "latent_maps",
        "Figures 1 and 8: maps of codes",
        (
            Table(
                ("model",),
                measures({
                    "deviation_at_data": "deviation at data",
                    "deviation_on_map": "on the whole map",
                    "correlation_with_distance": "rank correlation with distance",
                }),
                caption="The decoder's standard deviation, the mean over pixels, and "
                "its correlation with the distance to the nearest code.",
            ),
        ),
    ),
    Experiment(
        "ablations",
        "Ablations of online training",
        (
            Table(
                ("data", "choice", "way"),
                measures(
                    ERRORS
                    | {
                        "auroc_error": "AUROC, error",
                        "auroc_output": "AUROC, output variance",
                        "auroc_latent": "AUROC, latent variance",
                    }
                ),
                caption='One choice at a time is not the default; "as published" is '
                "all that the published code does otherwise, and exact curvature and "
                "the faster ema differ in two.",
            ),
        ),
    ),
)


def failures() -> list[str]:
    """What did not reproduce, and what was not tried.

    Returns:
        Markdown.
    """
    verdicts = [Verdict.of(claim) for claim in CLAIMS]
    said = [(s, *s.verdict()) for s in STATEMENTS]
    wrong = [
        f"- {v.claim.what}: {seeds_together(v.ours)} where "
        f"{v.claim.target:,g} is reported ({v}). Ours is different in this: "
        f"{v.claim.why}."
        for v in verdicts
        if v.holds is False
    ]
    wrong += [
        f"- *{s.words}*: no. {text}." for s, holds, text in said if holds is False
    ]
    verdict_of = {
        "comparisons with published numbers": [v.holds for v in verdicts],
        "statements of the paper": [holds for s, holds, _ in said if s.of_paper],
        "statements of ours": [holds for s, holds, _ in said if not s.of_paper],
    }
    count = " ".join(
        f"Of {len(found)} {what}, {found.count(True)} reproduced, "
        f"{found.count(False)} did not, {found.count(None)} were not run yet."
        for what, found in verdict_of.items()
    )
    never = (
        "Not tried, because the data are not to be had: CelebA (table 4, figure 13), "
        "and KMNIST as outliers. The parts below say what replaces them."
    )
    blank = [""] if wrong else []
    title = ["## What did not reproduce", ""]
    rest = filled(f"{never} {time_of_all()}")
    return [*title, filled(count), "", *wrong, *blank, rest, ""]


def hours_of(experiment: str) -> float:
    """How long an experiment's runs took.

    Args:
        experiment: Its name.

    Returns:
        Hours of one core; rows of one run have the same time, which counts once.
    """
    return sum({row["seconds"] for row in rows_of(experiment)}) / 3600


def time_of_all() -> str:
    """How long all runs took.

    Returns:
        A sentence.
    """
    names = [e.name for e in EXPERIMENTS if content_of(e.name) is not None]
    hours = sum(map(hours_of, names))
    return (
        f"The runs that are shown took {hours:.1f} hours of one core, which are "
        f"{hours / 2:.1f} hours on two."
    )


def comparison() -> list[str]:
    """The table "paper / published code / ours".

    Returns:
        Markdown.
    """
    titles = ("number", "paper", "published code", "ours", "verdict", "what differs")
    lines = head(list(titles))
    for verdict in map(Verdict.of, CLAIMS):
        claim = verdict.claim
        theirs = ["" if n is None else f"{n:,g}" for n in (claim.paper, claim.code)]
        ours = seeds_together(verdict.ours)
        lines.append(line_of([claim.what, *theirs, ours, str(verdict), claim.why]))
    statements = head(["statement", "said by", "verdict", "evidence"])
    for statement in STATEMENTS:
        holds, text = statement.verdict()
        word = {True: "holds", False: "does not hold", None: ""}[holds]
        whose = "the paper" if statement.of_paper else "us"
        statements.append(line_of([statement.words, whose, word, text]))
    words = (
        f"Paper: {PAPER}. Published code: {CODE}. Ours has to be at least as good, "
        "within the paper's own spread or a few hundredths; baselines have to be "
        "neither better nor worse."
    )
    title = ["## Paper, published code, ours", "", filled(words), ""]
    return [*title, *lines, "", *statements, ""]


def page() -> str:
    """The whole page, failures first.

    Returns:
        Markdown.
    """
    parts = chain.from_iterable(experiment.markdown() for experiment in EXPERIMENTS)
    return "\n".join([*failures(), *comparison(), *parts])


SECTION = Section("results", page, ROOT / "docs" / "results.md")

if __name__ == "__main__":
    SECTION.print_or_write(__doc__ or "")
