"""Data sets by name, from files that are there already."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from torch import Tensor

from lae_backpack.datasets.folder import read_folder, read_folder_labels, subfolders
from lae_backpack.datasets.idx import read_idx
from lae_backpack.datasets.npz import read_npz_images, read_npz_labels
from lae_backpack.datasets.pixels import as_images
from lae_backpack.datasets.published import NAMES, from_torchvision
from lae_backpack.datasets.published import download as download_with_torchvision

Split = Literal["train", "test"]
VARIABLE = "LAE_DATA"
PREFIXES = {"train": "train", "test": "t10k"}


def load_images(
    name: str,
    split: Split = "train",
    directory: str | Path | None = None,
    download: bool = False,
) -> Tensor:
    """The images of a data set.

    Looks in the directory for idx files as MNIST is published (``<name>/``, or where
    torchvision puts them, ``.gz`` or not), then for ``<name>.npz``, then for a folder
    of images ``<name>/<split>/``, then asks torchvision, if it is installed.

    Args:
        name: The data set, for instance ``"mnist"`` or ``"fashion-mnist"``.
        split: ``"train"`` or ``"test"``.
        directory: Where to look; by default what ``LAE_DATA`` says.
        download: Have torchvision fetch it first if it is not there.

    Returns:
        Pixels in [0, 1].  # [N, C, H, W]
    """
    return _load(name, split, directory, download, "images-idx3-ubyte")


def load_labels(
    name: str,
    split: Split = "train",
    directory: str | Path | None = None,
    download: bool = False,
) -> Tensor:
    """The labels of a data set; for a folder of images the place of the subfolder.

    Args:
        name: The data set.
        split: ``"train"`` or ``"test"``.
        directory: Where to look; by default what ``LAE_DATA`` says.
        download: Have torchvision fetch it first if it is not there.

    Returns:
        The classes.  # [N]
    """
    return _load(name, split, directory, download, "labels-idx1-ubyte")


def _load(
    name: str, split: str, directory: str | Path | None, download: bool, kind: str
) -> Tensor:
    """Read a data set from the first place that has it.

    Returns:
        Images or labels.

    Raises:
        ValueError: If there is no such split, or nobody says where the data is.
        FileNotFoundError: If it is not there.
    """
    if split not in PREFIXES:
        raise ValueError(f"split must be one of {tuple(PREFIXES)}, got {split!r}.")
    given = directory or os.environ.get(VARIABLE)
    if not given:
        raise ValueError(
            f"Nobody says where {name!r} is. Pass directory=, or set {VARIABLE}."
        )
    root = Path(given)
    places = _places(name, split, root, kind)
    of_torchvision = from_torchvision if not any(map(Path.exists, places)) else None
    if of_torchvision and download:
        download_with_torchvision(name, split, root)
    for place, read in places.items():
        if place.exists():
            return read(place)
    if of_torchvision and (found := of_torchvision(name, split, root)):
        return found["images" not in kind]
    looked_for = ", ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"{PREFIXES[split]}-{kind} of {name!r} is missing. Looked for: {looked_for}. "
        "Put one of them there, or pass download=True, which asks torchvision."
    )


def _places(
    name: str, split: str, root: Path, kind: str
) -> dict[Path, Callable[[Path], Tensor]]:
    """Where a data set may be, and how to read it there.

    Returns:
        Readers by path, in the order of looking.
    """
    wants_images = kind.startswith("images")

    def idx(path: Path) -> Tensor:
        numbers = read_idx(path)
        return as_images(numbers.numpy(), path.name) if wants_images else numbers.long()

    def npz(path: Path) -> Tensor:
        return (read_npz_images if wants_images else read_npz_labels)(path, split)

    def folder(path: Path) -> Tensor:
        if wants_images:
            return read_folder(path)
        # Of both splits: a class may be missing in one of them.
        classes = {c for s in PREFIXES for c in subfolders(path.parent / s)}
        return read_folder_labels(path, sorted(classes))

    folders = [root / name]
    if name in NAMES and name.endswith("mnist"):  # so does torchvision store them
        folders.append(root / NAMES[name] / "raw")
    file = f"{PREFIXES[split]}-{kind}"
    places: dict[Path, Callable[[Path], Tensor]] = {
        place / (file + end): idx for place in folders for end in (".gz", "")
    }
    places |= {root / f"{name}.npz": npz, root / name / f"{name}.npz": npz}
    places[root / name / split] = folder
    return places
