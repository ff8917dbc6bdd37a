"""A folder of image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lae_backpack.datasets.errors import DataFileError
from lae_backpack.datasets.pixels import as_images

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm")
MODES = ("L", "RGB", "RGBA")
GREY = ("1", "L", "LA")  # Pillow's names
# Pillow reads 16-bit files of these formats as 32-bit integers, up to 65,535.
FORMATS_OF_16_BITS = ("PNG", "PPM")


def read_folder(
    folder: str | Path,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
) -> Tensor:
    """Images of a folder and its subfolders, in the order of their names.

    Grey images of 16 bits keep their depth. Files with 32-bit integers or floats are
    refused: nothing in them says which numbers are black and white.

    Args:
        folder: The folder.
        size: Height and width to which images are resized; ``None`` takes them as
            they are, if all have the same.
        mode: Pillow's name for the pixels, ``"L"`` for grey, ``"RGB"`` for colour,
            ``"RGBA"`` with transparency; ``None`` is grey if the first image is, else
            colour.

    Returns:
        Pixels in [0, 1].  # [N, C, H, W]

    Raises:
        ValueError: If there is no such mode.
        DataFileError: If images cannot be read, or differ in size, or the range of
            their pixels is unknown.
    """
    if mode not in (None, *MODES):
        raise ValueError(f"mode must be one of {MODES} or None, got {mode!r}.")
    pillow = _pillow()
    pixels: list[Any] = []
    files = image_files(folder)
    for file in files:
        try:
            with pillow.open(file) as image:
                image.load()
        except (OSError, ValueError, SyntaxError) as error:
            raise DataFileError(
                f"{file.name} cannot be read as an image ({error}). Remove it."
            ) from error
        grey = image.mode in GREY or _is_16_bit(image)
        mode = mode or ("L" if grey else "RGB")
        pixels.append(_pixels(image, mode, size, file.name))
        if pixels[-1].shape != pixels[0].shape:
            raise DataFileError(
                f"{file.name} has shape {list(pixels[-1].shape)}, {files[0].name} "
                f"{list(pixels[0].shape)}. Use read_folder(folder, size=(height, "
                "width)), which resizes."
            )
    return as_images(np.stack(pixels), str(folder))


def _is_16_bit(image: Any) -> bool:
    in_32 = image.mode == "I" and image.format in FORMATS_OF_16_BITS
    return image.mode.startswith("I;16") or in_32


def _pixels(
    image: Any, mode: str, size: tuple[int, int] | None, name: str
) -> NDArray[np.generic]:
    """Bring an image to its mode and size.

    Returns:
        Pixels in [0, 1].  # [H, W] or [H, W, C]

    Raises:
        DataFileError: If nobody knows the range of the image's pixels.
    """
    deep = _is_16_bit(image)
    if image.mode in ("I", "F") and not deep:
        raise DataFileError(
            f"{name} has pixels of Pillow's mode {image.mode!r}, whose range is "
            "unknown, expected 8 or 16 bits. Scale it and save it as 16-bit PNG."
        )
    if deep:  # Pillow itself would cut off all that is above 255
        rounding = 0 if mode == "L" else 0.5
        image = image.convert("F").point(lambda value: value / 257 + rounding)
    if not deep or mode != "L":
        image = (image.convert("L") if deep else image).convert(mode)
    if size is not None:
        image = image.resize((size[1], size[0]))
    # Resizing floats overshoots.
    return np.divide(np.asarray(image), 255, dtype=np.float32).clip(0, 1)


def read_folder_labels(folder: str | Path, classes: Sequence[str]) -> Tensor:
    """Labels of the same images: which subfolder each is in.

    Args:
        folder: The folder.
        classes: Names of subfolders; their places are the labels.

    Returns:
        The classes.  # [N]

    Raises:
        DataFileError: If an image is in none of them.
    """
    folder = Path(folder)
    names = [file.relative_to(folder).parts[0] for file in image_files(folder)]
    if strangers := sorted(set(names) - set(classes)):
        raise DataFileError(
            f"{strangers[0]!r} in {folder} is in no class. Put images into one "
            "subfolder for each class."
        )
    return torch.tensor([list(classes).index(name) for name in names])


def subfolders(folder: str | Path) -> list[str]:
    """Names of a folder's subfolders, sorted.

    Args:
        folder: The folder, which need not be there.

    Returns:
        The names.
    """
    folder = Path(folder)
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in found if path.is_dir())


def image_files(folder: str | Path) -> list[Path]:
    """Image files of a folder and its subfolders, sorted.

    Args:
        folder: The folder.

    Returns:
        The files.

    Raises:
        FileNotFoundError: If there is no such folder, or no image in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in ENDINGS)
    if not files:
        raise FileNotFoundError(
            f"No image is in {folder}. Looked for files that end with "
            f"{', '.join(ENDINGS)}, in subfolders too."
        )
    return files


def _pillow() -> Any:
    """Pillow's image module, which only image files need.

    Returns:
        ``PIL.Image``.

    Raises:
        ImportError: If Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Image files need Pillow, which is not installed. Run: pip install pillow"
        ) from error
    return Image
