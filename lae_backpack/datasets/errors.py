"""What goes wrong with files."""


class DataFileError(ValueError):
    """A file that does not hold what its name promises."""
