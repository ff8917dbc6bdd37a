"""Files that are whole or not there, and that run no code when read."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

FORMAT = "lae_backpack online run"
VERSION = 2


class CheckpointError(ValueError):
    """A file that is no checkpoint of this run."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; a crash leaves the old file or the new one, never half.

    Args:
        path: Where to.
        state: Tensors, numbers, texts, and lists and dicts of them.
    """
    content = {"format": FORMAT, "version": VERSION, **state}
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path: Where from.

    Returns:
        The state, on the CPU.

    Raises:
        CheckpointError: If the file is cut short, or something else.
    """
    file = io.BytesIO(path.read_bytes())  # a file that may not be read says so itself
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the bytes lead it to
        raise CheckpointError(
            f"{path.name} cannot be read as a checkpoint: it is cut short, damaged, or "
            "another kind of file. Delete it to start anew, or give another path."
        ) from error
    kind = content.get("format") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind != FORMAT:
        raise CheckpointError(
            f"{path.name} is not a checkpoint of fit_online. Give a path that "
            "fit_online(checkpoint=...) has written."
        )
    version = content.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise CheckpointError(
            f"{path.name} has version {version}, this package reads 1 to {VERSION}. "
            "Use the package that wrote it."
        )
    return content if version == VERSION else _from_version_1(content)


def _from_version_1(content: dict[str, Any]) -> dict[str, Any]:
    # There was one process, and its random states were not in a list.
    of_ranks: dict[str, Any] = {
        name: [content[name]] for name in ("now", "epoch_start") if name in content
    }
    posterior = content.get("posterior")
    if isinstance(posterior, dict):  # said so also where nothing was to be shrunk
        shrinks = bool(posterior.get("n_probes")) and posterior.get("shrink")
        of_ranks["posterior"] = posterior | {"shrink": bool(shrinks)}
    return content | of_ranks | {"n_ranks": 1, "version": VERSION}


def _sync_directory(directory: Path) -> None:
    # The new name itself has to reach the disk; not every system lets one ask for it.
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(directory, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
