"""Laplace over the code: a Gaussian for each image, from the decoder's curvature."""

from lae_backpack.latent.bridge import sampled_posteriors
from lae_backpack.latent.code_model import CodeModel
from lae_backpack.latent.latent_laplace import LatentLaplace
from lae_backpack.latent.mode import halved_decay
from lae_backpack.latent.vlae import VLAE

__all__ = ["VLAE", "CodeModel", "LatentLaplace", "halved_decay", "sampled_posteriors"]
