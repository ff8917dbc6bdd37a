"""The page of the demo: one file, figures and all."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from demo_data import DemoImages
from explorer import MARKS, Grid, data_address, explorer_data
from judging import SCORES, Evidence, Judgement
from torch import Tensor

from lae_backpack.downstream import plots
from lae_backpack.downstream.imputation import Imputation

HERE = Path(__file__).parent
PANE = 280  # pixels of the explorer's pictures, about
DPI = 150
Panels = Iterator[tuple[Any, str]]  # figures, and what they are of
READING = (
    "Errors are squared, summed over the pixels of a test image. AUROC is 1 when a "
    "score tells all outliers from all test images, 0.5 when it knows nothing. The "
    "variance of the networks is what the weights do not know, and online training "
    "keeps it small: it ranks pixels by their error, but is not as large as that. "
    "Intervals fit better with the noise of pixels added, or with the variance "
    "multiplied by one number; both are measured on the training images."
)


@dataclass(frozen=True)
class Found:
    """Everything that is shown."""

    images: DemoImages
    codes: Tensor  # of the test images, [N, 2]
    grid: Grid
    judgement: Judgement
    evidence: Evidence
    chosen: Tensor  # which test images are shown
    observed: Tensor  # what is seen of those to be filled in, [H, W]
    imputation: Imputation
    n_networks: int
    seconds: float  # of training
    n_epochs: int


def write_page(found: Found, path: Path) -> None:
    """Write the page.

    Args:
        found: What to show.
        path: The file.
    """
    images = found.images
    height, width = images.test.shape[-2:]
    data = explorer_data(found.grid, found.codes, images.labels, images.class_names)
    numbers = images.class_names == tuple("0123456789")
    parts = {
        "title": html.escape(images.name),
        "style": (HERE / "style.css").read_text(),
        "summary": (
            f"Trained online for {found.n_epochs} epochs on {len(images.train):,} "
            f"images in {found.seconds:.0f} seconds; judged with {found.n_networks} "
            f"sampled networks on {len(images.test):,} test images."
        ),
        "marks": "digits are test images" if numbers else _key(images.class_names),
        "pane_width": str(width * (PANE // width)),
        "pane_height": str(height * (PANE // width)),
        "table": _table(found.judgement),
        "reading": READING,
        "figures": "\n".join(_figures(found)),
        # A closing tag within the data would end the script.
        "explorer_data": json.dumps(data).replace("</", "<\\/"),
        "explorer_script": (HERE / "explorer.js").read_text(),
    }
    page = (HERE / "page.html").read_text()
    for name, content in parts.items():
        page = page.replace("{{" + name + "}}", content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _key(names: tuple[str, ...]) -> str:
    classes = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    return f"numbers are the classes of test images ({html.escape(classes)})"


def _table(judgement: Judgement) -> str:
    rows = []
    for name, numbers in judgement.rows():
        kind = "" if name.startswith(" ") else ' class="heading"'
        span = "" if numbers else ' colspan="3"'
        cells = "".join(f"<td>{html.escape(number)}</td>" for number in numbers)
        head = f'<th scope="row"{span}>{html.escape(name.strip())}</th>'
        rows.append(f"<tr{kind}>{head}{cells}</tr>")
    return "<table>" + "".join(rows) + "</table>"


def _figures(found: Found) -> list[str]:
    seen = found.evidence
    first, *_ = found.images.outliers
    return [
        _section(
            "latent-map",
            "Latent map",
            _draw_map(found),
            "Codes of the test images over the standard deviation of what sampled "
            "decoders make of each place. Away from the data they disagree more.",
        ),
        _section(
            "reconstructions",
            "Reconstructions",
            _draw_reconstructions(found),
            f"One test image of each class, the mean over {found.n_networks} networks, "
            "and where they disagree.",
        ),
        _section(
            "histograms",
            f"Scores of test images and of outliers ({html.escape(first)})",
            _draw_histograms(seen.inside, seen.outside[first], first),
            "Further right is more outlying. Test images are filled, outliers hatched.",
        ),
        _section(
            "roc",
            "ROC curves",
            _draw_rocs(seen),
            "Images upside down are hard to tell: some look as before.",
        ),
        _section(
            "variance",
            "Variance against error",
            _draw_variance(found),
            "Each point is a tenth of the test images or of their pixels. On the grey "
            "line the variance is as large as the squared error.",
        ),
        _section(
            "imputations",
            "Half-hidden images",
            _draw_imputations(found),
            "The lower half is hidden, and filled in by sampled networks in several "
            "ways; on the right how much they differ.",
        ),
    ]


def _section(name: str, title: str, panels: Panels, caption: str) -> str:
    """A heading, figures beside each other where there is room, and a caption."""
    shown = []
    for figure, what in panels:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=DPI)
        plt.close(figure)
        address = data_address(file.getvalue(), "image/png")
        words = html.escape(f"{title}{what}. {caption}")
        shown.append(f'<img src="{address}" alt="{words}">')
    kind = "panels" if len(shown) > 1 else "single"
    return (
        f'<h2 id="{name}">{title}</h2>\n<figure><div class="{kind}">{"".join(shown)}'
        f"</div><figcaption>{caption}</figcaption></figure>"
    )


def _draw_map(found: Found) -> Panels:
    figure, ax = plt.subplots(figsize=(6.4, 5), layout="constrained")
    marks = found.codes[:MARKS], found.images.labels[:MARKS]
    at = found.grid.uncertainty, found.grid.extent
    plots.latent_map(*marks, *at, ax=ax)
    yield figure, ""


def _draw_reconstructions(found: Found) -> Panels:
    figure, ax = plt.subplots(figsize=(6.8, 1.9), layout="constrained")
    shown, seen = found.chosen, found.evidence
    deviation = seen.variance[shown].sqrt()
    plots.reconstructions(found.images.test[shown], seen.mean[shown], deviation, ax=ax)
    yield figure, ""


def _draw_histograms(
    inside: dict[str, Tensor], outside: dict[str, Tensor], name: str
) -> Panels:
    names = ("test images", name)
    for score, words in SCORES.items():
        figure, ax = plt.subplots(figsize=(4.3, 3.1), layout="constrained")
        words = f"minus {words}" if score == "log_likelihood" else words
        pair = inside[score], outside[score]
        plots.score_histograms(*pair, name=words, names=names, ax=ax)
        yield figure, f": {words}"


def _draw_rocs(seen: Evidence) -> Panels:
    inside = {score: seen.inside[score] for score in SCORES}
    for name, outside in seen.outside.items():
        figure, ax = plt.subplots(figsize=(4.3, 4.3), layout="constrained")
        plots.roc_curves(inside, outside, names=SCORES, ax=ax)
        ax.set_title(f"outliers: {name}")
        yield figure, f", outliers: {name}"


def _draw_variance(found: Found) -> Panels:
    seen = found.evidence
    squares = (seen.mean - found.images.test).square()
    variances = {
        "networks": seen.variance,
        f"networks x {seen.scale:.0f}": seen.scale * seen.variance,
        "networks and noise": seen.variance + seen.noise,
    }
    for title, first in (("images", 1), ("pixels", 0)):
        figure, ax = plt.subplots(figsize=(4.3, 3.9), layout="constrained")
        for label, each in variances.items():
            pair = each.flatten(first), squares.flatten(first)
            if first:
                pair = pair[0].sum(1), pair[1].sum(1)
            plots.variance_against_error(*pair, label=label, ax=ax)
        ax.set_title(title)
        yield figure, f", {title}"


def _draw_imputations(found: Found) -> Panels:
    figure, ax = plt.subplots(figsize=(6.4, 4.5), layout="constrained")
    x = found.images.test[found.chosen[: found.imputation.mean.shape[1]]]
    plots.imputations(x, found.observed, found.imputation, ax=ax)
    yield figure, ""


def one_of_each(labels: Tensor) -> Tensor:
    """Where each class is first.

    Args:
        labels: Classes.  # [N]

    Returns:
        Places.  # [number of classes]
    """
    classes = labels.unique().tolist()
    return torch.tensor([int((labels == c).nonzero()[0]) for c in classes])
