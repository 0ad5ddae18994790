"""EmpiricalBayes, chapter by chapter.

``counts`` (rows to counts of pairs), ``groups`` (which pairs share a prior), ``rates`` (mean rates of items),
``grid`` (priors and posteriors), ``model`` (from counts to posteriors), ``taste`` (what other items say), ``choice``
(which prior), ``learner`` (the public class).
"""

from __future__ import annotations

from taurank.learners.empirical_bayes.learner import EmpiricalBayes

__all__ = ["EmpiricalBayes"]
