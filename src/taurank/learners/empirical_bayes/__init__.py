"""EmpiricalBayes, chapter by chapter.

``prior`` (what a prior is, and how well it predicts), ``counted`` (priors of counts: items, clusters, groups),
``grid`` (the same on a grid of rates), ``groups`` (which pairs share a prior), ``rates`` (mean rates of items),
``taste`` and ``link`` (what other items say), ``covariates`` (features), ``choice`` (which prior), ``learner`` (the
public class). Counts are those of ``learners.pairs``.
"""

from __future__ import annotations

from taurank.learners.empirical_bayes.learner import EmpiricalBayes

__all__ = ["EmpiricalBayes"]
