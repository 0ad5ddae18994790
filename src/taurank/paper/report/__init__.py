"""The report: tables, charts and texts on one page."""
