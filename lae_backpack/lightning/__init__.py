"""Online training in anyone's Lightning Trainer."""

from lae_backpack.lightning.module import LaplaceAEModule

__all__ = ["LaplaceAEModule"]
