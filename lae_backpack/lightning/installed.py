"""Lightning, by whichever of its two names the user has it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

NAMES = ("lightning.pytorch", "pytorch_lightning")


def find_lightning() -> ModuleType:
    """Import Lightning.

    Returns:
        The package that the user has imported already: a Trainer of one name takes no
        module of the other. Otherwise the first that is installed.

    Raises:
        ImportError: If none is.
        ModuleNotFoundError: If it lacks something itself.
    """
    for name in sorted(NAMES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.split(".")[0]):
                raise
    raise ImportError(
        "lae_backpack.lightning needs Lightning, which is not installed. Run "
        'pip install "lae-backpack[lightning]".'
    )


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    _found = find_lightning()
    Callback, LightningModule = _found.Callback, _found.LightningModule
    Trainer = _found.Trainer
