"""EmpiricalBayes: the posterior mean effect of every pair, under a prior that is learned from the log.

``docs/empirical_bayes.md`` has the equations and what they reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from taurank._types import Floats32
from taurank._validation import check_choice, check_integer, check_number
from taurank.data.features import Features
from taurank.data.ids import Codes, Ids
from taurank.data.log import Log
from taurank.data.schema import Array
from taurank.errors import InputError
from taurank.learners.base import Learner
from taurank.learners.empirical_bayes import taste as tastes
from taurank.learners.empirical_bayes.choice import PRIORS, STEPS, Fits, Setting, best_taste, choose
from taurank.learners.empirical_bayes.counts import Floats, Pairs, count, hold_out, without_cold
from taurank.learners.empirical_bayes.covariates import NOTHING_KNOWN, Covariates, VectorMap
from taurank.learners.empirical_bayes.folding import fold_counts
from taurank.learners.empirical_bayes.link import STRAIGHT, Link
from taurank.learners.empirical_bayes.merging import added
from taurank.learners.options import Record, TrainingOptions, UpdateOptions
from taurank.learners.update import NewRows

AUTO = "auto"
BLOCK = 2**20  # pairs scored at a time
_COUNTS = ("rows", "treated", "treated_positives", "control_positives")
MAX_RANK = 256
MIN_USERS, MIN_ROWS = 20_000, 2_000_000  # that the choice is made by, where a log has more


@dataclass(kw_only=True, eq=False)
class EmpiricalBayes(Learner):
    """Rank by E[μ^T − μ^C | the pair's counts], an effect in purchases per recommendation.

    ``prior`` is what a pair's rates are expected to be before its own counts are seen: those of the item
    ("item"), of the item's pairs that were recommended as often ("exposure") or with a similar propensity
    ("propensity"), or what the user's other items say ("taste"). "auto" chooses by the likelihood of the last
    time, which is held out for that. ``strength`` is how much the prior counts: in pairs of an item that its
    cluster of items stands for (None: 3), or, for taste, in purchases of the pair (None: chosen the same way).
    ``rank`` is the rank of taste. ``settings_`` has the held-out log-likelihood per cell of every setting tried.

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
        "pair_start": Array("int64", ("users + 1",), offsets_of="pairs"),
        "pair_item": Array("int32", ("pairs",), below="items"),
        "pair_score": Array("float32", ("pairs",)),
        "pair_deviation": Array("float32", ("pairs",), minimum=0.0),
        "unseen": Array("float32", ("items",)),
        "unseen_deviation": Array("float32", ("items",), minimum=0.0),
        "user_vector": Array("float64", ("users", "vector")),
        "item_vector": Array("float64", ("items", 2, "vector")),
        "mean_rate": Array("float64", ("items", 2), minimum=0.0),
        "taste_setting": Array("float64", (2,), minimum=0.0),  # shape and times
        "taste_link": Array("float64", (2, 3), optional=True),
        "chosen": Array("float64", (5,), minimum=0.0, optional=True),  # prior, strength, steps, rank, own
        "times": Array("int64", (1,), minimum=1, maximum=2**31 - 1, optional=True),
        **{f"pair_{name}": Array("int32", ("pairs",), minimum=0, optional=True) for name in _COUNTS},
        "pair_propensity": Array("float32", ("pairs",), optional=True),
        "pair_chances": Array("int32", ("pairs",), minimum=0, optional=True),  # these three of eligibility tables
        "item_cells": Array("float64", ("items",), minimum=0.0, optional=True),
        "user_cells": Array("float64", ("users",), minimum=0.0, optional=True),
        "absent_chances": Array("int32", ("items",), minimum=0, optional=True),
        "cold_user": Array("uint8", ("users",), maximum=1, optional=True),  # these two of features
        "cold_item": Array("uint8", ("items",), maximum=1, optional=True),
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
        if "cold_user_" not in self.__dict__:
            raise InputError(
                "this model was fitted without features of users, so it cannot use those of new users; leave them "
                "out, or fit it with features."
            )
        matrix = features.of_users(known.extended(log.users))
        if matrix is None:
            raise InputError("these features have no table of users; new users need one.")
        vectors = np.zeros((matrix.shape[0], self.user_vector_.shape[1]))
        vectors[: len(known)] = self.user_vector_
        bought = np.zeros(len(vectors))
        bought[: len(known)] = self._pairs().bought_by_user()
        self._fold(log, VectorMap(matrix, bought).predict(vectors)[len(known) :])

    def _train(self, log: Log, options: TrainingOptions) -> list[Record]:
        self._learn(log, Covariates.of(options.features, log.users, log.items))
        return self._checked_once(options)

    def _update(self, rows: NewRows, options: UpdateOptions) -> list[Record]:
        if options.features is None and self._is_featured():
            raise InputError(
                "this EmpiricalBayes was fitted with features; give update the tables of all users and items as "
                "well: features=…"
            )
        self._learn_more(rows.log, Covariates.of(options.features, rows.log.users, rows.log.items))
        return self._checked_once(options)

    def _learn(self, log: Log, covariates: Covariates) -> None:
        _check_arms(log)
        self.settings_: dict[Setting, float] = {}
        setting = self._setting(log, covariates)
        self._store(covariates.warm(count(log)), setting, best_taste(self.settings_, self.rank), covariates)

    def _learn_more(self, log: Log, covariates: Covariates) -> None:
        known, setting, rank = self._pairs(), self._chosen(), self.user_vector_.shape[1]
        self._check_propensity(log, setting)
        of_cold = Setting("taste", float(self.taste_setting_[0]), rank=rank) if rank else best_taste({}, self.rank)
        self._store(covariates.warm(added(known, log)), setting, of_cold, covariates)

    def _fold(self, log: Log, goal: Floats | None) -> None:
        """``goal`` is what the features of these users say about their vectors of taste."""
        known, setting, is_featured = self._pairs(), self._chosen(), self._is_featured()
        new = without_cold(count(log), users=goal is not None, items=False)
        self._check_propensity(log, setting)
        item_rate = self._fitted("mean_rate_")
        taste = tastes.fold_taste(new, self._fitted("item_vector_"), item_rate, self._link(), goal)
        self.user_vector_ = taste.users
        self.taste_setting_ = np.array([self._fitted("taste_setting_")[0], log.n_times], np.float64)
        if setting.prior == "taste":
            self._store_tasted(new, taste, setting.strength)
        else:
            result = fold_counts(known, new, setting, item_rate if is_featured else None, self.threads)
            self._store_pairs(new, result.pair)
            self.unseen_, self.unseen_deviation_ = _effect(result.absent)
        self._store_counts(new)
        self.__dict__.pop("cold_user_", None)
        if goal is not None:
            self.cold_user_ = (np.diff(new.start) == 0).astype(np.uint8)

    def score_block(self, user_codes: Codes) -> Floats32:
        return self._filled(user_codes, self._fitted("pair_score_"), *self._absent(user_codes)[:1])

    def deviation_block(self, user_codes: Codes) -> Floats32:
        """The posterior standard deviation of every score of these users."""
        return self._filled(user_codes, self._fitted("pair_deviation_"), *self._absent(user_codes)[1:])

    def deviation(self, users: Any, items: Any) -> Floats32:
        """The posterior standard deviation of the score of each pair (users[n], items[n])."""
        return self._of_pairs(self.deviation_block, users, items)

    def _check_propensity(self, log: Log, setting: Setting) -> None:
        if setting.prior == "propensity":
            log.recorded_propensity("EmpiricalBayes with prior='propensity'")

    def _setting(self, log: Log, covariates: Covariates) -> Setting:
        """What was asked for, or the best of what may be chosen from."""
        if self.prior == "propensity":
            log.recorded_propensity("EmpiricalBayes with prior='propensity'")
        usable = [prior for prior in PRIORS if prior != "propensity" or not log.n_without_propensity]
        priors = usable if self.prior == AUTO else [self.prior]
        if self.prior != AUTO and self.strength is not None and (self.prior != "taste" or self.rank is not None):
            steps = 0 if self.prior == "taste" else STEPS[0]
            return Setting(self.prior, self.strength, steps, self.rank or 0)
        log, covariates = _sampled(log, covariates)
        held_out = hold_out(log)
        held_out = replace(held_out, pairs=covariates.warm(held_out.pairs))
        self.settings_ = choose(held_out, priors, self.strength, self.rank, self.threads, covariates)
        return max(self.settings_, key=lambda setting: self.settings_[setting])

    def _store(self, pairs: Pairs, setting: Setting, of_cold: Setting, covariates: Covariates) -> None:
        """``of_cold`` is the setting of taste for users and items without rows."""
        fits = Fits(pairs, self.threads, covariates)
        if setting.prior == "taste":
            self._store_taste(fits, setting)
        else:
            self._store_counted(fits, setting)
            if covariates.given:
                self._store_vectors(fits, of_cold)
        numbers = (setting.strength, setting.steps, setting.rank, setting.own)
        self.chosen_ = np.array([PRIORS.index(setting.prior), *numbers], np.float64)
        self._store_counts(pairs)
        self._store_cold(pairs, covariates.users is not None, covariates.items is not None)

    def _store_counted(self, fits: Fits, setting: Setting) -> None:
        result, n_items = fits.counted(setting), fits.pairs.n_items
        self._store_pairs(fits.pairs, result.pattern, result.pair_entry)
        self.unseen_, self.unseen_deviation_ = _effect(result.absent)
        self.user_vector_, self.item_vector_ = np.zeros((fits.pairs.n_users, 0)), np.zeros((n_items, 2, 0))
        self.mean_rate_, self.taste_setting_, self.taste_link_ = np.zeros((n_items, 2)), np.zeros(2), STRAIGHT

    def _store_taste(self, fits: Fits, setting: Setting) -> None:
        self._store_vectors(fits, setting)
        self._store_tasted(fits.pairs, fits.taste(setting.rank), setting.strength)
        self.unseen_ = self.unseen_deviation_ = np.zeros(fits.pairs.n_items, np.float32)

    def _store_vectors(self, fits: Fits, setting: Setting) -> None:
        taste = fits.taste(setting.rank)
        self.user_vector_, self.item_vector_, self.mean_rate_ = taste.users, taste.items, taste.means
        self.taste_link_ = taste.link
        self.taste_setting_ = np.array([setting.strength, fits.pairs.times], np.float64)

    def _store_tasted(self, pairs: Pairs, taste: tastes.Taste, strength: float) -> None:
        """Scores under taste, in blocks: the moments of all pairs would take more memory than the log."""
        self.pair_start_, self.pair_item_ = pairs.start, pairs.item
        self.pair_score_, self.pair_deviation_ = np.empty((2, len(pairs.item)), np.float32)
        for begin in range(0, len(pairs.item), BLOCK):
            part = slice(begin, begin + BLOCK)
            moments = tastes.pair_moments(pairs, taste, strength, part)
            self.pair_score_[part], self.pair_deviation_[part] = _effect(moments)

    def _link(self) -> Link:
        """Models of earlier versions have none."""
        return np.asarray(self.__dict__.get("taste_link_", STRAIGHT))

    def _store_pairs(self, pairs: Pairs, moments: Floats, entry: npt.NDArray[Any] | None = None) -> None:
        """``entry`` says which of the moments each pair has, if not one after the other."""
        self.pair_start_, self.pair_item_ = pairs.start, pairs.item
        score, deviation = _effect(moments)
        self.pair_score_ = score if entry is None else score[entry]
        self.pair_deviation_ = deviation if entry is None else deviation[entry]

    def _store_counts(self, pairs: Pairs) -> None:
        """What an update and new users need: the counts, and the chances where eligibility tables limit them."""
        for name in ("pair_propensity_", "pair_chances_", "item_cells_", "user_cells_", "absent_chances_"):
            self.__dict__.pop(name, None)
        self.times_ = np.array([pairs.times], np.int64)
        for name in _COUNTS:
            setattr(self, f"pair_{name}_", getattr(pairs, name))
        if pairs.propensity is not None:
            self.pair_propensity_ = pairs.propensity
        if pairs.limited:
            self.pair_chances_, self.absent_chances_ = pairs.chances, pairs.absent_chances()
            self.item_cells_, self.user_cells_ = pairs.item_cells, pairs.user_cells

    def _store_cold(self, pairs: Pairs, users: bool, items: bool) -> None:
        """Which users and items get their scores from their features alone."""
        self.__dict__.pop("cold_user_", None)
        self.__dict__.pop("cold_item_", None)
        if users:
            self.cold_user_ = ((np.diff(pairs.start) == 0) & (pairs.user_cells == 0)).astype(np.uint8)
        if items:
            without_rows = np.bincount(pairs.item, minlength=pairs.n_items) == 0
            self.cold_item_ = (without_rows & (pairs.item_cells == 0)).astype(np.uint8)

    def _is_featured(self) -> bool:
        return "cold_user_" in self.__dict__ or "cold_item_" in self.__dict__

    def _pairs(self) -> Pairs:
        """The counts of the model."""
        if "times_" not in self.__dict__:
            raise InputError(
                "this model was saved by a version of taurank that did not store its counts, so it cannot take in "
                "new rows; fit it again."
            )
        times, n_users, n_items = int(self.times_[0]), len(self.pair_start_) - 1, len(self.unseen_)
        stored: Mapping[str, Any] = self.__dict__
        user_cells = stored.get("user_cells_", np.full(n_users, float(n_items * times)))
        rows, treated, bought, otherwise = (stored[f"pair_{name}_"] for name in _COUNTS)
        pairs = Pairs(
            self.pair_start_, self.pair_item_, rows, treated, bought, otherwise, stored.get("pair_propensity_"),
            stored.get("pair_chances_", np.broadcast_to(np.int32(times), len(self.pair_item_))),
            stored.get("item_cells_", np.full(n_items, float(n_users * times))), user_cells, times,
            float(np.count_nonzero(user_cells)),
        )  # fmt: skip
        return without_cold(pairs, "cold_user_" in stored, "cold_item_" in stored)

    def _chosen(self) -> Setting:
        prior, strength, steps, rank, own = self.chosen_
        return Setting(PRIORS[int(prior)], float(strength), int(steps), int(rank), float(own))

    def _absent(self, user_codes: Codes) -> tuple[Floats32, Floats32]:
        """Scores and deviations as if none of these users' pairs had rows, users × items."""
        shape = (len(user_codes), len(self._fitted("unseen_")))
        unseen = np.broadcast_to(self.unseen_, shape), np.broadcast_to(self.unseen_deviation_, shape)
        is_cold, is_taste = self._is_cold(user_codes), self._is_taste()
        if not is_taste and not is_cold.any():
            return unseen
        strength, times = self.taste_setting_
        chances = np.where(is_cold, 0, self.__dict__.get("absent_chances_", int(times)))
        nothing = np.empty((0, 2), np.float32)
        taste = tastes.Taste(self.user_vector_, self.item_vector_, self.mean_rate_, nothing, self._link())
        score, deviation = tastes.absent_effects(taste, self.user_vector_[user_codes], strength, chances, is_cold)
        if is_taste:
            return score, deviation
        return np.where(is_cold, score, unseen[0]), np.where(is_cold, deviation, unseen[1])

    def _is_cold(self, user_codes: Codes) -> npt.NDArray[np.bool_]:
        """Which pairs are known by features alone, users × items; one row for all users if that says it."""
        of_item = self.__dict__.get("cold_item_", np.zeros(len(self.unseen_), np.uint8))
        of_user = self.__dict__["cold_user_"][user_codes] if "cold_user_" in self.__dict__ else np.zeros(1, np.uint8)
        return np.asarray((of_user[:, None] | of_item) > 0)

    def _is_taste(self) -> bool:
        """Whether taste is the prior of all pairs, and not of cold ones alone."""
        has_vectors = self.user_vector_.shape[1] > 0
        return has_vectors and ("chosen_" not in self.__dict__ or self._chosen().prior == "taste")

    def _filled(self, user_codes: Codes, values: Floats32, absent: Floats32) -> Floats32:
        """A fresh block: ``absent``, with the values of the pairs that have rows."""
        first, last = self.pair_start_[user_codes], self.pair_start_[user_codes + 1]
        row = np.repeat(np.arange(len(user_codes)), last - first)
        within = np.arange(len(row)) - np.repeat(np.cumsum(last - first) - last, last - first)
        block = np.array(absent, np.float32)
        block[row, self.pair_item_[within]] = values[within]
        return block


def _effect(moments: Floats) -> tuple[Floats32, Floats32]:
    """Mean and standard deviation of μ^T − μ^C."""
    effect = moments[:, 0] - moments[:, 1]
    deviation = np.sqrt(np.maximum(moments[:, 2] - effect**2, 0.0))
    return effect.astype(np.float32), deviation.astype(np.float32)


def _sampled(log: Log, covariates: Covariates) -> tuple[Log, Covariates]:
    """What the choice is made by: of a large log every n-th user, so that it needs no further memory of its size."""
    step = min(log.n_users // MIN_USERS, len(log) // MIN_ROWS)
    if step < 2:
        return log, covariates
    users = log.users.decode(np.arange(0, log.n_users, step))
    of_users = None if covariates.users is None else covariates.users[::step]
    return log.select(users=users), replace(covariates, users=of_users)


def _check_arms(log: Log) -> None:
    treated = int(np.count_nonzero(log.treated))
    for arm, cells in (("treated", treated), ("untreated", log.cells - treated)):
        if cells == 0:
            raise InputError(f"EmpiricalBayes needs both arms, and nothing in this log is {arm}.")
