"""Sphinx settings of the documentation site: ``make docs``. How to add pages: docs/README.md."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
WORKERS = int(os.environ.get("DOCS_WORKERS", "1"))
sys.path[:0] = [str(DOCS / "_extensions"), str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:3])  # of the processes that run examples

from unmanaged_figures import UnmanagedFigures  # noqa: E402

from credo._version import __version__  # noqa: E402

project = "credo"
author = "The credo developers"
copyright = "2026, the credo developers"
version = release = __version__
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    # of this folder, _extensions
    "repository_pages",
    "benchmark_board",
    "api_reference",
    "formula_blocks",
    "mathml",
    "korean_search",
]
# No intersphinx: it downloads the inventories of other projects when the site is built, and builds are offline.

# pages
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
exclude_patterns = ["_build", "_extensions", "examples", "examples.md", "auto_examples/**/*.md5", "api/backreferences"]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]  # the functions of sphinx_gallery_conf cannot be pickled

# Markdown, in the parts of it that GitHub shows as well
myst_enable_extensions = ["attrs_block", "deflist", "dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
myst_dmath_double_inline = True

# Python
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# examples: docs/examples/plot_*.py, run once until they change
sphinx_gallery_conf = {
    "examples_dirs": ["examples"],
    "gallery_dirs": ["auto_examples"],
    "backreferences_dir": "api/backreferences",
    "doc_module": ("credo",),
    "filename_pattern": r"/plot_",
    "image_scrapers": ("matplotlib", UnmanagedFigures()),
    "within_subsection_order": "FileNameSortKey",
    "copyfile_regex": r".*\.json",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "min_reported_time": float("inf"),  # times of whatever machine built the site
    "parallel": WORKERS if WORKERS > 1 else False,
    "reset_modules": ("matplotlib",),
    "thumbnail_size": (400, 280),
    "write_computation_times": False,
    "nested_sections": True,
    "plot_gallery": "True",
}

if tags.has("catalogues"):  # noqa: F821, from Sphinx: docs/translations.py reads the strings of the pages only
    extensions = [name for name in extensions if name not in ("sphinx_gallery.gen_gallery", "api_reference")]
    exclude_patterns += ["auto_examples", "api/generated", "results"]

# mathematics: MathML, which browsers draw themselves
html_math_renderer = "mathml"

# the site
html_theme = "pydata_sphinx_theme"
html_title = "credo"
html_static_path = ["_static"]
html_css_files = ["credo.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "credo"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navbar_end": ["language_switch", "theme-switcher"],
    "navbar_persistent": ["search-button"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "collapse_navigation": True,  # pages of the reference would each list all others
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {
    page: []
    for page in ("index", "choose", "glossary", "changelog", "benchmarks", "traps", "gallery", "design", "results/*")
}
html_context = {"default_mode": "auto"}

# Korean: docs/locale/ko, built by `make docs` into html/ko
locale_dirs = ["locale"]
gettext_compact = False
gettext_uuid = False
gettext_location = False
gettext_additional_targets = []
