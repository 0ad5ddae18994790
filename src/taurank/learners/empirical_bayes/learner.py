"""EmpiricalBayes: the posterior mean effect of every pair, under a prior that is learned from the log.

``docs/empirical_bayes.md`` has the equations and what they reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from taurank._checks import check_choice, check_integer, check_number
from taurank._types import Codes, Floats, Floats32, Mask
from taurank.data.features import Features
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.errors import InputError
from taurank.learners.empirical_bayes.choice import PRIORS, choose, make_prior, usual
from taurank.learners.empirical_bayes.counted import CountPrior, fold_counts
from taurank.learners.empirical_bayes.covariates import NOTHING_KNOWN, Covariates, VectorMap
from taurank.learners.empirical_bayes.prior import Setting, effect, hold_out
from taurank.learners.empirical_bayes.taste import Taste, TastePrior, absent_effects, fold_taste
from taurank.learners.options import Record, TrainingOptions, UpdateOptions
from taurank.learners.pairs import PairLearner, Pairs, added, count, stored_pairs, without_cold
from taurank.learners.update import NewRows

AUTO = "auto"
MAX_RANK = 256
MIN_USERS, MIN_ROWS = 20_000, 2_000_000  # that the choice is made by, where a log has more


@dataclass(frozen=True)
class Posterior:
    """What is stored of the posteriors: effects and deviations of pairs, and what is expected of all other pairs."""

    pair_score: Floats32
    pair_deviation: Floats32
    unseen: Floats32  # of each item's pairs without rows, but for taste
    unseen_deviation: Floats32
    absent_chances: Codes
    cold_user: Mask  # users and items whose scores follow from features alone
    cold_item: Mask


@dataclass(kw_only=True, eq=False)
class EmpiricalBayes(PairLearner):
    """Rank by E[μ^T − μ^C | the pair's counts], an effect in purchases per recommendation.

    ``prior`` is what a pair's rates are expected to be before its own counts are seen: those of the item
    ("item"), of the item's pairs that were recommended as often ("exposure") or with a similar propensity
    ("propensity"), or what the user's other items say ("taste"). "auto" chooses by the likelihood of the last
    time, which is held out for that. ``strength`` is how much the prior counts: in pairs of an item that its
    cluster of items stands for, or, for taste, in purchases of the pair (None: chosen the same way).
    ``rank`` is the rank of taste (None: 16). ``settings_`` has the held-out log-likelihood per cell of every setting
    tried, ``setting_`` the one that was chosen.

    With ``features``, items' mean rates and the vectors of taste are shrunk toward what the features predict, and
    users and items without rows get a score from taste, whichever prior the other pairs have.
    """

    prior: str = AUTO
    strength: float | None = None
    rank: int | None = None
    threads: int | None = None

    scores_are_effects: ClassVar[bool] = True
    uses_features: ClassVar[bool] = True
    stored: ClassVar[Mapping[str, Array]] = {
        **stored_pairs("int32"),
        "pair_score": Array("float32", ("pairs",)),
        "pair_deviation": Array("float32", ("pairs",), minimum=0.0),
        "unseen": Array("float32", ("items",)),
        "unseen_deviation": Array("float32", ("items",), minimum=0.0),
        "absent_chances": Array("int32", ("items",), minimum=0),
        "cold_user": Array("bool", ("users",)),
        "cold_item": Array("bool", ("items",)),
        "taste_users": Array("float64", ("users", "rank of taste"), optional=True),
        "taste_items": Array("float64", ("items", 2, "rank of taste"), optional=True),
        "taste_means": Array("float64", ("items", 2), minimum=0.0, optional=True),
        "taste_link": Array("float64", (2, 3), optional=True),
    }
    space: ClassVar[Mapping[str, Sequence[Any]]] = {"prior": PRIORS}

    def __post_init__(self) -> None:
        check_choice("prior", self.prior, (AUTO, *PRIORS))
        if self.strength is not None:
            check_number("strength", self.strength, 1e-6, 1e12)
        if self.rank is not None:
            check_integer("rank", self.rank, 1, MAX_RANK)
        if self.threads is not None:
            check_integer("threads", self.threads)

    def learn(self, log: Log) -> None:
        self._learn(log, NOTHING_KNOWN)

    def learn_more(self, log: Log) -> None:
        """Add up the counts, and fit the prior that was chosen before to all of them."""
        self._learn_more(log, NOTHING_KNOWN)

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
        vectors = np.zeros((matrix.shape[0], self.taste_.users.shape[1]))
        vectors[: len(known)] = self.taste_.users
        bought = np.zeros(len(vectors))
        bought[: len(known)] = self.counts_.bought_by_user()
        self._fold(log, VectorMap(matrix, bought).predict(vectors)[len(known) :])

    def _train(self, log: Log, options: TrainingOptions) -> list[Record]:
        self._learn(log, Covariates.of(options.features, log.users, log.items))
        return self._checked_once(options)

    def _update(self, rows: NewRows, options: UpdateOptions) -> list[Record]:
        if options.features is None and self.featured_:
            raise InputError(
                "this EmpiricalBayes was fitted with features; give update the tables of all users and items as "
                "well: features=…"
            )
        self._learn_more(rows.log, Covariates.of(options.features, rows.log.users, rows.log.items))
        return self._checked_once(options)

    def _learn(self, log: Log, covariates: Covariates) -> None:
        self._check_log(log)
        treated = int(np.count_nonzero(log.treated))
        for arm, cells in (("treated", treated), ("untreated", log.cells - treated)):
            if cells == 0:
                raise InputError(f"EmpiricalBayes needs both arms, and nothing in this log is {arm}.")
        self.settings_: dict[Setting, float] = self._tried(log, covariates)
        best = max(self.settings_, key=lambda setting: self.settings_[setting], default=None)
        tastes = [setting for setting in self.settings_ if setting.prior == "taste"]
        of_cold = max(tastes, key=lambda setting: self.settings_[setting], default=usual("taste", None, self.rank))
        setting = best or usual(self.prior, self.strength, self.rank)
        self._set_posteriors(covariates.warm(count(log, propensity=True)), setting, of_cold, covariates)

    def _learn_more(self, log: Log, covariates: Covariates) -> None:
        self._check_log(log)
        of_cold = usual("taste", None, self.rank)
        if self.taste_ is not None:
            of_cold = Setting("taste", self.taste_strength_, self.taste_.users.shape[1])
        pairs = added(self._fitted("counts_"), log)
        self._set_posteriors(covariates.warm(pairs), self.setting_, of_cold, covariates)

    def _check_log(self, log: Log) -> None:
        if log.value is not None:
            raise InputError(
                "EmpiricalBayes estimates rates of purchases and cannot weigh them by the column 'value'; leave the "
                "column out, or use CountingBayes."
            )
        asked = self.setting_.prior if "setting_" in self.__dict__ else self.prior
        if asked == "propensity":
            log.recorded_propensity("EmpiricalBayes with prior='propensity'")

    def _tried(self, log: Log, covariates: Covariates) -> dict[Setting, float]:
        """The settings that may be chosen from; none if everything is given."""
        usable = [prior for prior in PRIORS if prior != "propensity" or not log.n_without_propensity]
        if self.prior != AUTO and self.strength is not None:
            return {}
        log, covariates = _sampled(log, covariates)
        held_out = hold_out(log)
        held_out = replace(held_out, pairs=covariates.warm(held_out.pairs))
        priors = usable if self.prior == AUTO else [self.prior]
        return choose(held_out, priors, self.strength, self.rank, self.threads, covariates)

    def _set_posteriors(self, pairs: Pairs, setting: Setting, of_cold: Setting, covariates: Covariates) -> None:
        """``of_cold`` is the setting of taste for users and items without rows."""
        prior = make_prior(setting, self.threads).fit(pairs, covariates)
        nothing = np.zeros(pairs.n_items, np.float32)
        unseen = effect(prior.absent) if isinstance(prior, CountPrior) else (nothing, nothing)
        latent = prior
        if covariates.given and setting.prior != "taste":
            latent = make_prior(of_cold, self.threads).fit(pairs, covariates)
        # the prior of all pairs, or of those that features alone say something about
        self.taste_: Taste | None = latent.taste if isinstance(latent, TastePrior) else None
        self.taste_strength_: float = latent.setting.strength
        self.counts_, self.setting_ = pairs, setting
        self.featured_: list[str] = [name for name in ("users", "items") if getattr(covariates, name) is not None]
        has_rows = np.bincount(pairs.item, minlength=pairs.n_items) > 0
        self.posterior_: Posterior = Posterior(
            *prior.pair_effects(), *unseen, pairs.absent_chances(),
            cold_user=_cold(np.diff(pairs.start) > 0, pairs.user_cells, "users" in self.featured_),
            cold_item=_cold(has_rows, pairs.item_cells, "items" in self.featured_),
        )  # fmt: skip

    def _fold(self, log: Log, goal: Floats | None) -> None:
        """``goal`` is what the features of these users say about their vectors of taste."""
        self._check_log(log)
        known, setting = self._fitted("counts_"), self.setting_
        propensity = known.propensity is not None
        new = without_cold(count(log, propensity=propensity), users=goal is not None, items=False)
        if self.taste_ is not None:
            self.taste_, left_out = fold_taste(new, self.taste_, goal)
        if setting.prior == "taste":
            pair = TastePrior(setting, 1, new, self.taste_, left_out).pair_effects()
            unseen = self.posterior_.unseen, self.posterior_.unseen_deviation
        else:
            item_rate = self.taste_.means if self.taste_ is not None and self.featured_ else None
            pair, unseen = fold_counts(known, new, setting, item_rate, self.threads)
        cold_user = _cold(np.diff(new.start) > 0, np.zeros(new.n_users), goal is not None)
        self.counts_ = new
        self.posterior_ = Posterior(*pair, *unseen, new.absent_chances(), cold_user, self.posterior_.cold_item)

    def score_block(self, user_codes: Codes) -> Floats32:
        return self._filled(user_codes, self._fitted("posterior_").pair_score, self._absent(user_codes)[0])

    def deviation_block(self, user_codes: Codes) -> Floats32:
        """The posterior standard deviation of every score of these users."""
        return self._filled(user_codes, self._fitted("posterior_").pair_deviation, self._absent(user_codes)[1])

    def deviation(self, users: Any, items: Any) -> Floats32:
        """The posterior standard deviation of the score of each pair (users[n], items[n])."""
        return self._of_pairs(self.deviation_block, users, items)

    def _absent(self, user_codes: Codes) -> tuple[Floats32, Floats32]:
        """Scores and deviations as if none of these users' pairs had rows: users × items, or one row for all."""
        stored, is_taste = self.posterior_, self.setting_.prior == "taste"
        is_cold = stored.cold_user[user_codes][:, None] | stored.cold_item
        if self.taste_ is None or not (is_taste or is_cold.any()):
            return stored.unseen, stored.unseen_deviation
        chances = np.where(is_cold, 0, stored.absent_chances)
        score, deviation = absent_effects(self.taste_, user_codes, self.taste_strength_, chances, is_cold)
        if is_taste:
            return score, deviation
        return np.where(is_cold, score, stored.unseen), np.where(is_cold, deviation, stored.unseen_deviation)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {**self.typed_arrays(self.counts_), **vars(self.posterior_)}
        if self.taste_ is not None:
            arrays.update({f"taste_{name}": array for name, array in vars(self.taste_).items()})
        facts = {"setting": asdict(self.setting_), "taste_strength": self.taste_strength_, "features": self.featured_}
        return arrays, facts

    def _set_state(self, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self.counts_ = Pairs.from_arrays(arrays)
        self.posterior_ = Posterior(**{field.name: arrays[field.name] for field in fields(Posterior)})
        names = [field.name for field in fields(Taste)] if "taste_users" in arrays else []
        self.taste_ = Taste(**{name: arrays[f"taste_{name}"] for name in names}) if names else None
        self.setting_, self.taste_strength_ = Setting(**metadata["setting"]), float(metadata["taste_strength"])
        self.featured_ = list(metadata["features"])


def _cold(has_rows: Mask, cells: Floats, featured: bool) -> Mask:
    """Which users or items get their scores from their features alone."""
    return np.asarray(~has_rows & (cells == 0) & featured)


def _sampled(log: Log, covariates: Covariates) -> tuple[Log, Covariates]:
    """What the choice is made by: of a large log every n-th user, so that it needs no further memory of its size."""
    step = min(log.n_users // MIN_USERS, len(log) // MIN_ROWS)
    if step < 2:
        return log, covariates
    users = log.users.decode(np.arange(0, log.n_users, step))
    of_users = None if covariates.users is None else covariates.users[::step]
    return log.select(users=users), replace(covariates, users=of_users)
