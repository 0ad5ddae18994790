"""Which prior, and how strong: the one that best predicts what was held out.

Every candidate is fitted to all times but the last, and scored by the likelihood of the last time's cells.

A log with one time holds out a fifth of its pairs instead. These are predicted without counts of their own, so what
is compared is what each prior expects of them. How strong a prior should be stays at its usual value: two
distributions of rates with the same mean give one trial per pair the same probability, so such a log cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from taurank.learners.empirical_bayes.counted import SHAPES, CountPrior
from taurank.learners.empirical_bayes.covariates import NOTHING_KNOWN, Covariates
from taurank.learners.empirical_bayes.groups import GROUPS
from taurank.learners.empirical_bayes.prior import HeldOut, Prior, Setting
from taurank.learners.empirical_bayes.taste import TastePrior

PRIORS = (*GROUPS, "taste")
STRENGTHS = (3.0, 300.0, 30_000.0)  # of the pull toward the cluster, in pairs; groups are compared at the second
MORE_STEPS = 10  # tried where the weakest pull is best
TASTE_STRENGTHS = (1.0, 3.0, 10.0)  # shapes of the Gamma prior
USUAL_TASTE, RANK = 1.0, 16


def make_prior(setting: Setting, threads: int | None = 1) -> Prior:
    return TastePrior(setting, threads) if setting.prior == "taste" else CountPrior(setting, threads)


def usual(prior: str, strength: float | None = None, rank: int | None = None) -> Setting:
    """The setting of a prior where nothing tells how strong it should be."""
    if prior == "taste":
        return Setting(prior, strength or USUAL_TASTE, rank or RANK)
    return Setting(prior, strength or STRENGTHS[1])


def choose(
    held_out: HeldOut, priors: Sequence[str], strength: float | None, rank: int | None, threads: int | None = 1,
    covariates: Covariates = NOTHING_KNOWN,
) -> dict[Setting, float]:  # fmt: skip
    """The log-likelihood of the held-out cells under every setting that was tried.

    First the groups of pairs, then how strongly each segment is pulled to its cluster, then taste.
    """
    scores: dict[Setting, float] = {}

    def try_settings(prior: Prior, settings: Iterable[Setting]) -> None:
        for setting in settings:
            scores[setting] = replace(prior, setting=setting).log_likelihood(held_out)

    def with_strengths(setting: Setting, strengths: Iterable[float]) -> list[Setting]:
        return [replace(setting, strength=strength) for strength in strengths]

    fixed = strength is not None or held_out.hides_pairs
    best: Prior | None = None
    for name in priors:
        if name != "taste":
            # one clustering is enough; a fine one, because items whose cluster fits them badly rely on their own
            # pairs, and the choice would overrate these
            prior = CountPrior(usual(name, strength), threads, SHAPES[-1:]).fit(held_out.pairs, covariates)
            try_settings(prior, [prior.setting])
            best = prior if best is None or scores[prior.setting] > scores[best.setting] else best
    if best is not None and not fixed:
        try_settings(best, with_strengths(best.setting, (STRENGTHS[0], STRENGTHS[2])))
        chosen = max(scores, key=lambda setting: scores[setting])
        if chosen.strength == STRENGTHS[0]:
            try_settings(best, [replace(chosen, steps=MORE_STEPS)])
    if "taste" in priors:
        latent = TastePrior(usual("taste", strength, rank), threads).fit(held_out.pairs, covariates)
        try_settings(latent, [latent.setting] if fixed else with_strengths(latent.setting, TASTE_STRENGTHS))
    return scores
