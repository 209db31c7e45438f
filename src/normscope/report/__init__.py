"""Reports: results as text, HTML pages, plots and SARIF."""
