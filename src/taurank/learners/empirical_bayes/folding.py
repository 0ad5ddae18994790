"""Users that appeared after the fit: posteriors of their pairs under the priors of the pairs in the model."""

from __future__ import annotations

import numpy as np

from taurank.learners.empirical_bayes.choice import GROUPS, RATES, Setting
from taurank.learners.empirical_bayes.counts import Floats, Pairs
from taurank.learners.empirical_bayes.groups import Groups
from taurank.learners.empirical_bayes.merging import all_pairs, beside
from taurank.learners.empirical_bayes.model import Posterior, item_rates, posterior, segment


def fold_counts(
    known: Pairs, new: Pairs, setting: Setting, item_rate: Floats | None, threads: int | None
) -> Posterior:
    """``item_rate`` are the mean rates of the items if they follow from more than their counts.

    The new users' pairs are scored together with those of the model, with a weight of 0.

    Their pairs without rows had other chances than those of the model, so each group gets one more user who has
    every item and never a purchase.
    """
    of_known, of_new = GROUPS[setting.prior](known), GROUPS[setting.prior](new)
    probe = all_pairs(of_known.number, known.n_items, new.absent_chances())
    together = beside(beside(known, new), probe)
    of_probe = np.repeat(np.arange(of_known.number), known.n_items)
    groups = Groups(of_known.number, np.concatenate((of_known.of_pair, of_new.of_pair, of_probe)), of_known.absent)
    means = item_rates(together) if item_rate is None else item_rate
    fitted = segment(together, groups, RATES, means, threads)
    moments = posterior(fitted, setting.strength, setting.steps, setting.own, threads).pair[len(known.item) :]
    own, absent = np.split(moments, [len(new.item)])
    by_group = absent.reshape(of_known.number, known.n_items, 3)
    return Posterior(own, np.arange(len(own)), np.einsum("ig,gim->im", fitted.absent_share, by_group))
