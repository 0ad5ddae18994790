"""EmpiricalBayes: the posterior mean effect of every pair, under priors that are learned from the log.

``docs/notes/empirical_bayes.md`` has the equations and what they reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from taurank._checks import Allowed, Range
from taurank._types import Codes, Floats, Floats32
from taurank.data.features import Features
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.errors import InputError
from taurank.learners.empirical_bayes.choice import HeldOut, log_likelihood, weights_of_effects
from taurank.learners.empirical_bayes.counted import EDGES, SHAPES, CountPrior, effect, fold_counts
from taurank.learners.empirical_bayes.latent import Covariates, Latent, fit_latent, fold_latent, goal_of
from taurank.learners.options import Record, TrainingOptions, UpdateOptions
from taurank.learners.pairs import PairLearner, Pairs, added, check_arms, count, stored_pairs, without_cold
from taurank.learners.update import NewRows

AUTO, TASTE = "auto", "taste"
MAX_RANK = 256
STRENGTHS = (300.0, 3.0)  # of the pull toward the cluster, in pairs
MIN_USERS, MIN_ROWS = 1_000, 1_000_000  # that choices are made by, where a log has more
MARGIN = 0.02  # taste whose log-likelihood is worse by this share has nothing to add


@dataclass(kw_only=True, eq=False)
class EmpiricalBayes(PairLearner):
    """Rank by E[μ^T − μ^C | the log], an effect in purchases per recommendation.

    Two priors are combined: one for a pair's own counts, and ``taste``, what the user's other items and all their
    recommendations say. A log with one time cannot tell how large effects are: a pair has one trial, and nothing can
    be held out. There the prior is "item", both weights are ½, and scores only order the items. With ``features``,
    items' mean rates and the vectors of taste are shrunk toward what the features predict, and users and items
    without rows get a score from taste, whichever prior the other pairs have.

    Parameters
    ----------
    prior : what a pair's rates are expected to be before its own counts are seen: those of the item ("item"), of the
        item's pairs that were recommended as often ("exposure") or with a similar propensity ("propensity"). "auto"
        chooses by the likelihood of the last time, which is held out for that, and weights its effects and those of
        taste by how well they predict what recommendations did at that time; "taste" is taste alone, and any other
        prior has no taste
    strength : how many pairs of an item its cluster of items stands for (None: 300, or 3 if "auto" finds that better)
    rank : of taste
    threads : changes the speed, never a bit of the result (None: all cores)

    Attributes
    ----------
    likelihoods_ : the held-out log-likelihood per cell of every prior and strength tried
    chosen_, strength_ : those of the prior of counts
    weights_ : of the effects by counts and by taste

    Examples
    --------
    >>> import taurank as tr
    >>> log = tr.World.synthetic(100, 20, random_state=0).sample(3, random_state=1).log
    >>> model = tr.EmpiricalBayes().fit(log, show_progress=False)
    >>> list(model.recommend(users=[7], k=3))
    ['user_id', 'item_id', 'score', 'rank']
    """

    prior: str = AUTO
    strength: float | None = None
    rank: int = 20
    threads: int | None = None

    scores_are_effects: ClassVar[bool] = True
    allowed: ClassVar[Allowed] = {
        "prior": (AUTO, *EDGES, TASTE),
        "strength": Range(1e-6, 1e12, optional=True),
        "rank": Range(1, MAX_RANK, integer=True),
        "threads": Range(1, integer=True, optional=True),
    }
    uses_features: ClassVar[bool] = True
    stored: ClassVar[Mapping[str, Array]] = {
        **stored_pairs("int32"),
        "weights": Array("float64", (2,), minimum=0.0, maximum=1e6),  # of counts and of taste
        "pair_score": Array("float32", ("pairs",)),
        "pair_deviation": Array("float32", ("pairs",), minimum=0.0),
        "unseen": Array("float32", ("items",)),  # pairs without rows, by their counts
        "unseen_deviation": Array("float32", ("items",), minimum=0.0),
        "cold_user": Array("bool", ("users",)),  # scores follow from features alone
        "cold_item": Array("bool", ("items",)),
        "taste_users": Array("float32", ("users", "taste"), optional=True),
        "taste_user_squares": Array("float32", ("users", "squares of taste"), optional=True),
        "taste_items": Array("float32", ("items", 3, "taste"), optional=True),
        "taste_item_squares": Array("float32", ("items", 3, "squares of taste"), optional=True),
    }
    space: ClassVar[Mapping[str, Sequence[Any]]] = {"prior": (AUTO, *EDGES, TASTE)}

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
        bought, vectors = self.counts_.bought_by_user(), self.taste_.users.astype(np.float64)
        goal = goal_of(matrix, np.pad(bought, (0, unknown)), np.pad(vectors, ((0, unknown), (0, 0))))
        self._fold(log, goal[-unknown:])

    def _train(self, log: Log, options: TrainingOptions) -> list[Record]:
        self._check_log(log, self.prior)
        check_arms(type(self).__name__, log.treated, log.treated.sum() < log.cells)
        covariates = Covariates.of(options.features, log.users, log.items)
        self.likelihoods_: dict[tuple[str, float], float] = {}
        self.chosen_, self.strength_ = "item" if self.prior == AUTO else self.prior, self.strength or STRENGTHS[0]
        weights = {AUTO: [0.5, 0.5], TASTE: [0.0, 1.0]}.get(self.prior, [1.0, 0.0])
        if self.prior == AUTO and log.n_times > 1:
            weights = self._choose(log, covariates)
        self.weights_ = np.array(weights)
        self._learn(covariates.warm(count(log, propensity=True)), covariates)
        return self._checked_once(options)

    def _choose(self, log: Log, covariates: Covariates) -> list[float]:
        """Set ``chosen_`` by the held-out time of a sample of users, and return the weights of counts and taste."""
        step = min(log.n_users // MIN_USERS, len(log) // MIN_ROWS)
        if step > 1:
            log = log.select(users=log.users.decode(np.arange(0, log.n_users, step)))
            covariates = covariates._replace(users=None if covariates.users is None else covariates.users[::step])
        held_out = HeldOut.of(log, covariates)
        # one clustering is enough; a fine one, because items whose cluster fits them badly rely on their own
        # pairs, and the choice would overrate these
        priors = [each for each in EDGES if each != "propensity" or not log.n_without_propensity]
        fit = partial(CountPrior.of, features=covariates.items, threads=self.threads, shapes=SHAPES[-1:])
        fitted = {(prior, self.strength_): fit(held_out.pairs, prior, self.strength_) for prior in priors}
        scores = {setting: log_likelihood(counts, held_out) for setting, counts in fitted.items()}
        best = max(scores, key=scores.__getitem__)
        if self.strength is None:  # groups are compared at one strength, then the best of them is tried at another
            other = best[0], STRENGTHS[1]
            fitted[other] = replace(fitted[best], strength=other[1])
            scores[other] = log_likelihood(fitted[other], held_out)
            best = max(scores, key=scores.__getitem__)
        self.chosen_, self.strength_ = best
        taste = fit_latent(held_out.pairs, self.rank, self.threads, covariates)
        self.likelihoods_ = scores | {(TASTE, 0.0): log_likelihood(taste, held_out)}
        if self.likelihoods_[TASTE, 0.0] < (1.0 + MARGIN) * scores[best]:
            return [*weights_of_effects([fitted[best]], held_out), 0.0]
        return weights_of_effects([fitted[best], taste], held_out)

    def _update(self, rows: NewRows, options: UpdateOptions) -> list[Record]:
        """Add up the counts, and fit the priors that were chosen before to all of them."""
        if options.features is None and self.featured_:
            raise InputError(
                "this EmpiricalBayes was fitted with features; give update the tables of all users and items as "
                "well: features=…"
            )
        self._check_log(rows.log, self.chosen_)
        covariates = Covariates.of(options.features, rows.log.users, rows.log.items)
        counts = added(
            self._fitted("counts_"), rows.log, dated=not self.featured_
        )  # features say more of what is new
        self._learn(covariates.warm(counts), covariates)
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
        effects = (np.zeros(len(pairs.item), np.float32),) * 2
        self.unseen_, self.unseen_deviation_ = (np.zeros(pairs.n_items, np.float32),) * 2
        if self.weights_[0]:
            counts = CountPrior.of(pairs, self.chosen_, self.strength_, covariates.items, self.threads)
            effects, (self.unseen_, self.unseen_deviation_) = counts.pair_effects(), effect(counts.absent.T)
        self.featured_: list[str] = [name for name, matrix in covariates._asdict().items() if matrix is not None]
        self.taste_: Latent | None = None
        if self.weights_[1] or self.featured_:
            self.taste_ = fit_latent(pairs, self.rank, self.threads, covariates)
        has_rows = np.bincount(pairs.item, minlength=pairs.n_items) > 0
        self.cold_item_ = ~has_rows & (pairs.item_cells == 0) & ("items" in self.featured_)
        self.counts_, (self.pair_score_, self.pair_deviation_) = pairs, effects
        self.cold_user_ = (np.diff(pairs.start) == 0) & (pairs.user_cells == 0) & ("users" in self.featured_)

    def _fold(self, log: Log, goal: Floats | None) -> None:
        """``goal`` is what the features of these users say about their vectors of taste."""
        known = self._fitted("counts_")
        self._check_log(log, self.chosen_)
        new = without_cold(count(log, propensity=known.propensity is not None), goal is not None, items=False)
        if self.taste_ is not None:
            self.taste_ = fold_latent(new, self.taste_, goal, self.threads)
        effects = (np.zeros(len(new.item), np.float32),) * 2
        if self.weights_[0]:
            effects, (self.unseen_, self.unseen_deviation_) = fold_counts(
                known, new, self.chosen_, self.strength_, self.threads
            )
        self.counts_, (self.pair_score_, self.pair_deviation_) = new, effects
        self.cold_user_ = (np.diff(new.start) == 0) & (goal is not None)

    def score_block(self, user_codes: Codes) -> Floats32:
        return self._blended(user_codes, self._fitted("pair_score_"), self.unseen_, 0)

    def deviation_block(self, user_codes: Codes) -> Floats32:
        """The posterior standard deviation of every score of these users."""
        return self._blended(user_codes, self._fitted("pair_deviation_"), self.unseen_deviation_, 1)

    def deviation(self, users: Any, items: Any) -> Floats32:
        """The posterior standard deviation of the score of each pair (users[n], items[n])."""
        return self._of_pairs(self.deviation_block, users, items)

    def _blended(self, user_codes: Codes, of_pairs: Floats32, unseen: Floats32, which: int) -> Floats32:
        """Weighted sums of counts and taste, and taste alone for what is cold; two posteriors of one effect agree in
        their errors, so deviations add up the same way."""
        by_counts = self._filled(user_codes, of_pairs, unseen)
        of_counts, of_taste = self.weights_.astype(np.float32)
        is_cold = self.cold_user_[user_codes][:, None] | self.cold_item_
        if self.taste_ is None or not (of_taste or is_cold.any()):
            return np.asarray(by_counts * of_counts, np.float32)
        by_taste = effect(self.taste_.moments(user_codes))[which]
        return np.asarray(np.where(is_cold, by_taste, of_counts * by_counts + of_taste * by_taste), np.float32)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        taste = {} if self.taste_ is None else {f"taste_{name}": array for name, array in vars(self.taste_).items()}
        return {**super()._state()[0], **taste}, {
            "chosen": [self.chosen_, self.strength_],
            "features": self.featured_,
        }

    def _set_state(self, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        taste = {name.removeprefix("taste_"): array for name, array in arrays.items() if name.startswith("taste_")}
        super()._set_state({name: array for name, array in arrays.items() if name[6:] not in taste}, metadata)
        self.taste_ = Latent(**taste) if taste else None
        (self.chosen_, self.strength_), self.featured_ = metadata["chosen"], list(metadata["features"])
