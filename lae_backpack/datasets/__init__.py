"""Images from files that are there already; downloads only with ``download=True``."""

from lae_backpack.datasets.errors import DataFileError
from lae_backpack.datasets.folder import read_folder, read_folder_labels
from lae_backpack.datasets.idx import read_idx
from lae_backpack.datasets.loading import Split, load_images, load_labels
from lae_backpack.datasets.npz import read_npz_images, read_npz_labels

__all__ = [
    "DataFileError",
    "Split",
    "load_images",
    "load_labels",
    "read_folder",
    "read_folder_labels",
    "read_idx",
    "read_npz_images",
    "read_npz_labels",
]
