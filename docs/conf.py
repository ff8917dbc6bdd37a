"""Sphinx configuration."""

import os
import re
import sys
from pathlib import Path

# One folder up is the package, so that the site describes the code beside it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import supported_layers  # noqa: E402  after the path is set

project = "lae_backpack"
copyright = "2026, the lae_backpack developers"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "tutorials/GALLERY_HEADER.rst"]
autodoc_member_order = "bysource"
# What overrides laplace-torch says what laplace-torch says, in another markup.
autodoc_inherit_docstrings = False
autodoc_typehints = "description"
autoclass_content = "both"  # what __init__ says of its arguments, too
myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3
# The tutorials register layers of their own, so this comes before they run.
myst_substitutions = {"supported_layers": supported_layers.table()}

html_theme = "furo"
html_title = "lae_backpack"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples/tutorials",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"\.py$",  # run all of them
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 0,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "default_thumb_file": str(Path(__file__).parent / "_static" / "what_travels.svg"),
    "plot_gallery": "True",
}


def quote_shapes(app, what, name, obj, options, lines):  # noqa: D103
    # Shapes stand in docstrings as comments, "# [N, *in]"; a star is markup in rst.
    lines[:] = [re.sub(r"(?<=\s)# (\[.*?\.?)$", r"``\1``", line) for line in lines]


def setup(app):  # noqa: D103
    app.connect("autodoc-process-docstring", quote_shapes, priority=100)
