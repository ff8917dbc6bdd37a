"""One function for each figure: it draws into ``ax`` and returns it.

All are readable in grey and for colour-blind readers: colour maps grow in brightness,
and lines and bars differ by style, too. matplotlib is imported when something is drawn.
"""

from lae_backpack.downstream.plots.codes import latent_map
from lae_backpack.downstream.plots.pictures import imputations, reconstructions
from lae_backpack.downstream.plots.scores import (
    roc_curves,
    score_histograms,
    variance_against_error,
)

__all__ = [
    "imputations",
    "latent_map",
    "reconstructions",
    "roc_curves",
    "score_histograms",
    "variance_against_error",
]
