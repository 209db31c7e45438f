"""How the documentation is built: ``make docs``."""

from __future__ import annotations

import normscope

project = "Normscope"
author = "The Normscope authors"
version = release = normscope.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"Normscope {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["normscope.css"]
exclude_patterns = ["_build", "figures/README.md"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
nitpicky = False
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository are checked by a test
# The tutorials are executed as the pages are built, in a folder of their own.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
