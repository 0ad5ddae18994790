"""The report of a run of the paper's experiments: one page, one text, one table of verdicts."""

from taurank import report

report.require()  # before any module here imports altair
