"""How the documentation is built: ``make docs``."""

from __future__ import annotations

import normscope

project = "Normscope"
author = "The Normscope authors"
version = release = normscope.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"Normscope {release}"
exclude_patterns = ["figures/README.md"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
nitpicky = False
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository are checked by a test
