"""The paper's experiments, an application of taurank: every table and figure of section 5, from TOML to a report.

``plan`` reads the experiments' files, ``worlds`` draws the weeks, ``fits`` trains and measures, ``rows`` makes the
tables of it; ``claims`` compares them with the paper's figures, ``report`` writes the page. ``runner.run`` does it
all; the command is ``taurank paper``.
"""
