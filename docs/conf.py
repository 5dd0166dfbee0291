"""Settings of the documentation's site: ``python -m sphinx -W docs OUT``."""

from __future__ import annotations

import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
# The extension below, and the checkout that the reference is made from.
sys.path[:0] = [str(_DOCS / "_extension"), str(_DOCS.parent)]

project = "Hopper"
html_title = "Hopper"
extensions = ["myst_parser", "sphinx.ext.autodoc", "site_extension"]
exclude_patterns = ["_extension"]

# "--option" in a sentence is not a dash.
smartquotes = False
# Anchors of headings are those that GitHub makes, so that links work in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
myst_url_schemes = ["http", "https", "mailto", "repository"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 80

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
# Blocks without a language are drawings, and commands with their explanations.
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "monokai"
