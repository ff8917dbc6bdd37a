"""Sphinx configuration."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "lae_backpack"
copyright = "2026, the lae_backpack developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
# What overrides laplace-torch says what laplace-torch says, in another markup.
autodoc_inherit_docstrings = False
autodoc_typehints = "description"
# README links into the repository, which is not part of the site.
suppress_warnings = ["myst.xref_missing"]


def quote_shapes(app, what, name, obj, options, lines):  # noqa: D103
    # Shapes stand in docstrings as comments, "# [N, *in]"; a star is markup in rst.
    lines[:] = [re.sub(r"\s+# (\[.*?\.?)$", r" ``\1``", line) for line in lines]


def setup(app):  # noqa: D103
    app.connect("autodoc-process-docstring", quote_shapes, priority=100)
