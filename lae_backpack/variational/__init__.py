"""Variational Laplace: variances that are trained together with the weights."""

from lae_backpack.variational.objective import Terms
from lae_backpack.variational.variational_laplace import VariationalLaplace

__all__ = ["Terms", "VariationalLaplace"]
