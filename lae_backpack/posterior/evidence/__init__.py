"""Prior and noise precision by the evidence, and which weights to spend effort on."""

from lae_backpack.posterior.evidence.at_optimum import (
    linear_optimum,
    maximise_linear_evidence,
)
from lae_backpack.posterior.evidence.effective import (
    effective_parameters,
    marginal_variances,
)
from lae_backpack.posterior.evidence.groups import normalised_groups
from lae_backpack.posterior.evidence.mackay import Evidence, maximise_evidence
from lae_backpack.posterior.evidence.subnetwork import (
    largest_variances,
    subnetwork_laplace,
)

__all__ = [
    "Evidence",
    "effective_parameters",
    "largest_variances",
    "linear_optimum",
    "marginal_variances",
    "maximise_evidence",
    "maximise_linear_evidence",
    "normalised_groups",
    "subnetwork_laplace",
]
