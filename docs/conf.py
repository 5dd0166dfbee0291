"""Settings of the documentation's site: ``python -m sphinx -W docs OUT``."""

from __future__ import annotations

import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(_DOCS / "_extension"))

project = "Hopper"
html_title = "Hopper"
extensions = ["myst_parser", "site_extension"]
exclude_patterns = ["_extension"]

# "--option" in a sentence is not a dash.
smartquotes = False
# Anchors of headings are those that GitHub makes, so that links work in both places.
myst_heading_anchors = 4
myst_url_schemes = ["http", "https", "mailto", "repository"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
# Blocks without a language are drawings, and commands with their explanations.
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "monokai"
