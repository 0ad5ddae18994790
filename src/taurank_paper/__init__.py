"""The paper's experiments, an application of taurank: every table and figure of section 5, from TOML to a report.

``plan`` reads the experiments' files, ``splits`` draws the weeks, ``fits`` trains and measures, ``tables`` and
``runner`` write what was measured; ``comparison`` and ``claims`` compare it with the paper's figures, ``report``
writes the page. ``runner.run`` does it all; the command is ``taurank paper``.
"""
