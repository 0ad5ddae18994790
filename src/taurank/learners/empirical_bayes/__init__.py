"""EmpiricalBayes, chapter by chapter.

``grid`` (priors on a grid of rates), ``counted`` (priors of counts), ``latent`` (taste and exposure: what other items
say), ``choice`` (which prior, with which weight), ``learner`` (the public class). Counts are those of
``learners.pairs``.
"""

from __future__ import annotations

from taurank.learners.empirical_bayes.learner import EmpiricalBayes

__all__ = ["EmpiricalBayes"]
