"""Sphinx configuration: `make docs` builds the site into build/docs; warnings are errors."""

import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "src")]

project = "sheafdeq"
author = "the sheafdeq authors"
try:
    release = metadata.version("sheafdeq")
except metadata.PackageNotFoundError:
    release = "from source"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
    "plain_docstrings",
    "made_pages",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = [
    "figures",
    "_extensions",
    "gallery/**/*.ipynb",
    "gallery/**/*.py",
    "gallery/**/*.zip",
    "gallery/**/*.json",
]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
# links to files outside docs/ (RESULTS.md) are right in the repository; tests/docs checks that
# every link leads somewhere
suppress_warnings = ["config.cache", "myst.header", "myst.xref_missing"]

html_theme = "furo"
html_title = "sheafdeq"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures show them already
autodoc_default_options = {"members": True, "show-inheritance": True}
add_module_names = False

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r".*\.py",
    "image_scrapers": ("matplotlib",),
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e6,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "show_signature": False,
}
