"""EmpiricalBayes: the posterior mean effect of every pair, under a prior that is learned from the log.

``docs/empirical_bayes.md`` has the equations and what they reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from taurank._checks import Allowed, Range
from taurank._types import Codes, Floats, Floats32, Mask
from taurank.data.features import Features
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.errors import InputError
from taurank.learners.empirical_bayes.choice import PRIORS, HeldOut, Setting, choose, fit_prior, usual
from taurank.learners.empirical_bayes.counted import CountPrior, effect, fold_counts
from taurank.learners.empirical_bayes.taste import (
    Covariates,
    Taste,
    TastePrior,
    VectorMap,
    absent_effects,
    fold_taste,
)
from taurank.learners.options import Record, TrainingOptions, UpdateOptions
from taurank.learners.pairs import PairLearner, Pairs, added, check_arms, count, stored_pairs, without_cold
from taurank.learners.update import NewRows

AUTO = "auto"
MAX_RANK = 256
MIN_USERS, MIN_ROWS = 20_000, 2_000_000  # that the choice is made by, where a log has more


@dataclass(kw_only=True, eq=False)
class EmpiricalBayes(PairLearner):
    """Rank by E[μ^T − μ^C | the pair's counts], an effect in purchases per recommendation.

    ``prior`` is what a pair's rates are expected to be before its own counts are seen: those of the item
    ("item"), of the item's pairs that were recommended as often ("exposure") or with a similar propensity
    ("propensity"), or what the user's other items say ("taste"). "auto" chooses by the likelihood of the last
    time, which is held out for that; a log with one time gets "propensity", or "exposure" where some row has none.
    ``strength`` is how much the prior counts: in pairs of an item that its cluster of items stands for, or, for
    taste, in purchases of the pair (None: chosen the same way). ``rank`` is the rank of taste (None: 16).
    ``settings_`` has the held-out log-likelihood per cell of every setting tried, ``setting_`` the one chosen.

    With ``features``, items' mean rates and the vectors of taste are shrunk toward what the features predict, and
    users and items without rows get a score from taste, whichever prior the other pairs have.

    >>> import taurank as tr
    >>> log = tr.World.synthetic(n_users=100, n_items=20, random_state=0).sample(times=3, random_state=1).log
    >>> model = tr.EmpiricalBayes().fit(log, show_progress=False)
    >>> list(model.recommend(users=[7], k=3))
    ['user_id', 'item_id', 'score', 'rank']
    """

    prior: str = AUTO
    strength: float | None = None
    rank: int | None = None
    threads: int | None = None

    scores_are_effects: ClassVar[bool] = True
    allowed: ClassVar[Allowed] = {
        "prior": (AUTO, *PRIORS),
        "strength": Range(1e-6, 1e12, optional=True),
        "rank": Range(1, MAX_RANK, integer=True, optional=True),
        "threads": Range(1, integer=True, optional=True),
    }
    uses_features: ClassVar[bool] = True
    stored: ClassVar[Mapping[str, Array]] = {
        **stored_pairs("int32"),
        "pair_score": Array("float32", ("pairs",)),
        "pair_deviation": Array("float32", ("pairs",), minimum=0.0),
        "unseen": Array("float32", ("items",)),  # pairs without rows, but for taste
        "unseen_deviation": Array("float32", ("items",), minimum=0.0),
        "absent_chances": Array("int32", ("items",), minimum=0),
        "cold_user": Array("bool", ("users",)),  # scores follow from features alone
        "cold_item": Array("bool", ("items",)),
        "taste_users": Array("float64", ("users", "rank of taste"), optional=True),
        "taste_items": Array("float64", ("items", 2, "rank of taste"), optional=True),
        "taste_means": Array("float64", ("items", 2), minimum=0.0, optional=True),
        "taste_link": Array("float64", (2, 3), optional=True),
    }
    space: ClassVar[Mapping[str, Sequence[Any]]] = {"prior": PRIORS}

    def fold(self, log: Log) -> None:
        """The posteriors of these users' pairs under the priors of the fit."""
        self._fold(log, None)

    def fold_featured(self, log: Log, known: Ids, features: Features) -> None:
        """The same; users without rows get what their features say, as learned from the known users' taste."""
        if "users" not in self._fitted("featured_") or self.taste_ is None:
            raise InputError(
                "this model was fitted without features of users, so it cannot use those of new users; leave them "
                "out, or fit it with features."
            )
        matrix = features.matrix(known.extended(log.users))
        if matrix is None:
            raise InputError("these features have no table of users; new users need one.")
        unknown = matrix.shape[0] - len(known)
        bought = np.pad(self.counts_.bought_by_user(), (0, unknown))
        vectors = np.pad(self.taste_.users, ((0, unknown), (0, 0)))
        self._fold(log, VectorMap(matrix, bought).predict(vectors)[-unknown:])

    def _train(self, log: Log, options: TrainingOptions) -> list[Record]:
        self._check_log(log, self.prior)
        check_arms(type(self).__name__, log.treated, log.treated.sum() < log.cells)
        covariates = Covariates.of(options.features, log.users, log.items)
        self.settings_: dict[Setting, float] = self._tried(log, covariates)
        prior = ("exposure" if log.n_without_propensity else "propensity") if self.prior == AUTO else self.prior
        best = max(self.settings_, key=self.settings_.__getitem__, default=usual(prior, self.strength, self.rank))
        tastes = [setting for setting in self.settings_ if setting.prior == "taste"]
        of_cold = max(tastes, key=self.settings_.__getitem__, default=usual("taste", None, self.rank))
        self.setting_: Setting = best
        self.latent_: Setting = best if best.prior == "taste" else of_cold
        self._learn(covariates.warm(count(log, propensity=True)), covariates)
        return self._checked_once(options)

    def _tried(self, log: Log, covariates: Covariates) -> dict[Setting, float]:
        """The settings that may be chosen from, by a sample of the users of a large log; none without a choice."""
        if log.n_times == 1 or (self.prior != AUTO and self.strength is not None):
            return {}
        step = min(log.n_users // MIN_USERS, len(log) // MIN_ROWS)
        if step > 1:
            log = log.select(users=log.users.decode(np.arange(0, log.n_users, step)))
            covariates = covariates._replace(users=None if covariates.users is None else covariates.users[::step])
        priors = [self.prior]
        if self.prior == AUTO:
            priors = [prior for prior in PRIORS if prior != "propensity" or not log.n_without_propensity]
        return choose(HeldOut.of(log, covariates), priors, self.strength, self.rank, covariates, self.threads)

    def _update(self, rows: NewRows, options: UpdateOptions) -> list[Record]:
        """Add up the counts, and fit the prior that was chosen before to all of them."""
        if options.features is None and self.featured_:
            raise InputError(
                "this EmpiricalBayes was fitted with features; give update the tables of all users and items as "
                "well: features=…"
            )
        self._check_log(rows.log, self.setting_.prior)
        covariates = Covariates.of(options.features, rows.log.users, rows.log.items)
        self._learn(covariates.warm(added(self._fitted("counts_"), rows.log)), covariates)
        return self._checked_once(options)

    def _check_log(self, log: Log, prior: str) -> None:
        if log.value is not None:
            raise InputError(
                "EmpiricalBayes estimates rates of purchases and cannot weigh them by the column 'value'; leave the "
                "column out, or use CountingBayes."
            )
        if prior == "propensity":
            log.recorded_propensity("EmpiricalBayes with prior='propensity'")

    def _learn(self, pairs: Pairs, covariates: Covariates) -> None:
        prior = fit_prior(self.setting_, pairs, covariates, self.threads)
        nothing = np.zeros(pairs.n_items, np.float32)
        self.unseen_, self.unseen_deviation_ = nothing, nothing
        if isinstance(prior, CountPrior):
            self.unseen_, self.unseen_deviation_ = effect(prior.absent)
        self.featured_: list[str] = [name for name, matrix in covariates._asdict().items() if matrix is not None]
        # the taste of all pairs, or of those that features alone say something about
        latent = prior
        if self.featured_ and isinstance(prior, CountPrior):
            latent = fit_prior(self.latent_, pairs, covariates, self.threads)
        self.taste_: Taste | None = latent.taste if isinstance(latent, TastePrior) else None
        has_rows = np.bincount(pairs.item, minlength=pairs.n_items) > 0
        self.cold_item_ = ~has_rows & (pairs.item_cells == 0) & ("items" in self.featured_)
        self._set_pairs(pairs, prior.pair_effects(), (pairs.user_cells == 0) & ("users" in self.featured_))

    def _fold(self, log: Log, goal: Floats | None) -> None:
        """``goal`` is what the features of these users say about their vectors of taste."""
        known, setting = self._fitted("counts_"), self.setting_
        self._check_log(log, setting.prior)
        new = without_cold(count(log, propensity=known.propensity is not None), goal is not None, items=False)
        if self.taste_ is not None:
            folded = fold_taste(new, self.taste_, setting.strength, goal)
            self.taste_ = folded.taste
        if setting.prior == "taste":
            effects = folded.pair_effects()
        else:
            item_rate = self.taste_.means if self.taste_ is not None and self.featured_ else None
            effects, (self.unseen_, self.unseen_deviation_) = fold_counts(
                known, new, setting.prior, setting.strength, item_rate, self.threads
            )
        self._set_pairs(new, effects, np.full(new.n_users, goal is not None))

    def _set_pairs(self, pairs: Pairs, effects: tuple[Floats32, Floats32], may_be_cold: Mask) -> None:
        self.counts_, self.absent_chances_ = pairs, pairs.absent_chances()
        self.pair_score_, self.pair_deviation_ = effects
        self.cold_user_ = (np.diff(pairs.start) == 0) & may_be_cold

    def score_block(self, user_codes: Codes) -> Floats32:
        return self._filled(user_codes, self._fitted("pair_score_"), self._absent(user_codes)[0])

    def deviation_block(self, user_codes: Codes) -> Floats32:
        """The posterior standard deviation of every score of these users."""
        return self._filled(user_codes, self._fitted("pair_deviation_"), self._absent(user_codes)[1])

    def deviation(self, users: Any, items: Any) -> Floats32:
        """The posterior standard deviation of the score of each pair (users[n], items[n])."""
        return self._of_pairs(self.deviation_block, users, items)

    def _absent(self, user_codes: Codes) -> tuple[Floats32, Floats32]:
        """Scores and deviations as if none of these users' pairs had rows: users × items, or one row for all."""
        is_taste, is_cold = self.setting_.prior == "taste", self.cold_user_[user_codes][:, None] | self.cold_item_
        usual = self.unseen_, self.unseen_deviation_
        if self.taste_ is None or not (is_taste or is_cold.any()):
            return usual
        chances = np.where(is_cold, 0, self.absent_chances_)
        effects = absent_effects(self.taste_, user_codes, self.latent_.strength, chances, is_cold)
        if is_taste:
            return effects
        score, deviation = (np.where(is_cold, *values) for values in zip(effects, usual, strict=True))
        return score, deviation

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        taste = {} if self.taste_ is None else {f"taste_{name}": array for name, array in vars(self.taste_).items()}
        facts = {"setting": asdict(self.setting_), "latent": asdict(self.latent_), "features": self.featured_}
        return {**super()._state()[0], **taste}, facts

    def _set_state(self, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        taste = {name.removeprefix("taste_"): array for name, array in arrays.items() if name.startswith("taste_")}
        super()._set_state({name: array for name, array in arrays.items() if name[6:] not in taste}, metadata)
        self.taste_ = Taste(**taste) if taste else None
        self.setting_, self.latent_ = (Setting(**metadata[name]) for name in ("setting", "latent"))
        self.featured_ = list(metadata["features"])
