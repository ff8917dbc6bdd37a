"""Laplace approximations for networks with many outputs.

A plugin for laplace-torch and BackPACK.
"""

from lae_backpack.curvature.errors import UnsupportedLayerError, UnsupportedModelError
from lae_backpack.curvature.extensions import (
    BatchDiagGGNApprox,
    BatchDiagGGNMixed,
    DiagGGNApprox,
    DiagGGNMixed,
)
from lae_backpack.curvature.registry import register_rule, supported_layers
from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.elementwise import ElementwiseRule
from lae_backpack.curvature.rules.loss_rule import LossRule
from lae_backpack.curvature.sweep import diag_ggn
from lae_backpack.latent import bridge as _bridge  # noqa: F401  la.latent(include=...)
from lae_backpack.posterior import last_layer as _  # noqa: F401  explains itself
from lae_backpack.posterior.autoencoder import LaplaceAE
from lae_backpack.posterior.block_diagonal import BlockDiagLaplace
from lae_backpack.posterior.encoder_decoder import AutoEncoder
from lae_backpack.posterior.online.settings import OnlineSettings
from lae_backpack.posterior.structures import (
    ApproxDiagLaplace,
    CalibratedDiagLaplace,
    MixedDiagLaplace,
)

__all__ = [
    # BackPACK extensions
    "BatchDiagGGNApprox",
    "BatchDiagGGNMixed",
    "DiagGGNApprox",
    "DiagGGNMixed",
    # structures for laplace-torch
    "ApproxDiagLaplace",
    "BlockDiagLaplace",
    "CalibratedDiagLaplace",
    "MixedDiagLaplace",
    # autoencoders
    "AutoEncoder",
    "LaplaceAE",
    "OnlineSettings",
    # curvature without gradients
    "diag_ggn",
    # your own layers
    "DiagRule",
    "ElementwiseRule",
    "LossRule",
    "register_rule",
    "supported_layers",
    "UnsupportedLayerError",
    "UnsupportedModelError",
]
