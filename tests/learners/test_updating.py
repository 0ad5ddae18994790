"""New rows, users and items for a fitted learner: ``update`` and ``fold_in``."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from taurank.errors import InputError
from taurank.learners import LEARNERS, Learner
from taurank.learners.factors import FactorLearner
from taurank.learners.pairwise import scarcity
from taurank.learners.update import NewRows

TRAINED = [name for name, learner in LEARNERS.items() if issubclass(learner, FactorLearner)]
COUNTING = ["popular", "countingbayes"]
LATE_USERS, LATE_ITEMS = {3, 77, 140, 141}, {5, 31}


@pytest.fixture(scope="module")
def world() -> tr.World:
    return tr.World.synthetic(150, 40, random_state=0, effect_spread=1.0)


@pytest.fixture(scope="module")
def frame(world: tr.World) -> pd.DataFrame:
    """Ten times; some users and items appear with the ninth."""
    rows = world.sample(10, random_state=1).log.to_frame()
    late = rows["user_id"].isin(LATE_USERS) | rows["item_id"].isin(LATE_ITEMS)
    return rows[(rows["time"] >= 8) | ~late]


@pytest.fixture(scope="module")
def past(frame: pd.DataFrame) -> tr.Log:
    return tr.Log.from_frame(frame[frame["time"] < 8])


@pytest.fixture(scope="module")
def news(frame: pd.DataFrame) -> tr.Log:
    return tr.Log.from_frame(frame[frame["time"] >= 8])


@pytest.fixture(scope="module")
def models(past: tr.Log) -> dict[str, Learner]:
    return {name: make(name).fit(past, None) for name in LEARNERS}


def make(name: str, **options: Any) -> Learner:
    small = {"factors": 8, "epochs": 20, "learning_rate": 0.03, "threads": 1} if name in TRAINED else {}
    return LEARNERS[name](**{"random_state": 0, **small, **options})


def scores(learner: Learner, users: Any, items: Any) -> np.ndarray:
    """Scores by id, whatever the order of the catalog."""
    block = learner.score_block(learner.users.encode_known(users))
    return block[:, learner.items.encode_known(items)]


def everyone(log: tr.Log) -> tuple[Any, Any]:
    return log.users.values, log.items.values


@pytest.mark.parametrize("name", LEARNERS)
class TestUpdate:
    def test_catalog_grows_behind_the_known_ids(self, name: str, models: Any, past: tr.Log, news: tr.Log) -> None:
        model = copy.copy(models[name]).update(news)
        assert model.users == past.users.extended(news.users)
        assert model.items == past.items.extended(news.items)
        assert set(model.users.values.to_pylist()) >= LATE_USERS
        sold = pd.concat([past.to_frame(), news.to_frame()]).groupby("item_id")["outcome"].sum()
        assert model.popularity_.tolist() == sold.reindex(model.items.values.to_pylist()).tolist()
        frame = model.recommend(sorted(LATE_USERS), k=5)
        assert len(frame) == 5 * len(LATE_USERS)
        assert list(model.history_)[:3] == ["epoch", "loss", "updates"]

    def test_same_bits_from_a_file_and_for_any_threads(
        self, name: str, models: Any, past: tr.Log, news: tr.Log, tmp_path: Path
    ) -> None:
        models[name].save(tmp_path / "model")
        loaded = tr.load(tmp_path / "model")
        if name in TRAINED:
            loaded.set_params(threads=3)
        for learner in (loaded, first := copy.copy(models[name])):
            learner.update(news, past)
        assert np.array_equal(scores(first, *everyone(news)), scores(loaded, *everyone(news)))
        loaded.save(tmp_path / "updated")
        again = tr.load(tmp_path / "updated")
        assert np.array_equal(scores(again, *everyone(news)), scores(loaded, *everyone(news)))

    def test_a_failed_update_changes_nothing(self, name: str, models: Any, past: tr.Log, news: tr.Log) -> None:
        model = copy.copy(models[name])
        before = scores(model, *everyone(past))

        def stop(*_: Any) -> None:
            raise KeyError

        with pytest.raises(KeyError):
            model.update(news, callback=stop)
        assert model.users == past.users
        assert np.array_equal(scores(model, *everyone(past)), before)

    def test_refuses_rows_it_has_learned_from(self, name: str, models: Any, past: tr.Log) -> None:
        with pytest.raises(InputError, match="already learned from these rows"):
            models[name].update(past)


def test_the_seed_of_an_update_follows_from_all_it_sees(models: Any, past: tr.Log, news: tr.Log) -> None:
    model, factors = models["dlce"], np.ones(3, np.float32)
    rows, with_past = (NewRows.of(model, news, before) for before in (None, past))
    seeds = [rows.seed(0), rows.seed(1), rows.seed(0, factors), rows.seed(0, 2 * factors), with_past.seed(0)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**56


@pytest.mark.parametrize("name", COUNTING)
@pytest.mark.parametrize("with_past", [False, True])
def test_counting_learners_add_up_to_the_bits_of_a_fit(
    name: str, with_past: bool, models: Any, past: tr.Log, news: tr.Log
) -> None:
    """To all rows, where the new items could not be recommended before."""
    updated = copy.copy(models[name]).update(news, past if with_past else None)
    earlier = past.reindex(past.users.extended(news.users), past.items.extended(news.items))
    earlier = replace(earlier, eligibility=earlier.eligibility.with_items(len(past.items)))
    again = make(name).fit(earlier.concat(news.reindex(earlier.users, earlier.items)))
    assert np.array_equal(scores(updated, *everyone(again)), scores(again, *everyone(again)))  # type: ignore[arg-type]


def test_an_update_does_not_choose_its_length(models: Any, news: tr.Log) -> None:
    with pytest.raises(InputError, match="an update does not choose its length"):
        copy.copy(models["dlce"]).update(news, validation="auto")


def test_drawn_learners_refuse_values_of_new_users_as_a_fit_does(models: Any, news: tr.Log) -> None:
    valued = tr.Log.from_frame(news.to_frame().assign(value=lambda rows: 2.0 * rows["outcome"]))
    with pytest.raises(InputError, match="cannot weigh them by the column 'value'"):
        models["ulbpr"].fold_in(valued)


def test_users_without_new_rows_keep_their_factors(models: Any, past: tr.Log, news: tr.Log) -> None:
    rows = news.to_frame()
    few = tr.Log.from_frame(rows[rows["user_id"] % 3 == 0])
    updated = copy.copy(models["dlce"]).update(few)
    silent = np.flatnonzero(np.array(past.users.values.to_pylist()) % 3 != 0)
    assert np.array_equal(updated.user_factors_[silent], models["dlce"].user_factors_[silent])
    bought = few.users.values.take(np.unique(few.user[few.outcome == 1])).to_pylist()
    active = past.users.encode([user for user in bought if user not in LATE_USERS])
    changed = (updated.user_factors_[active] != models["dlce"].user_factors_[active]).any(axis=1)
    assert changed.all()


def test_a_killed_update_resumes_to_the_same_bits(models: Any, past: tr.Log, news: tr.Log, tmp_path: Path) -> None:
    whole = copy.copy(models["dlce"]).update(news, epochs=4)
    killed = copy.copy(models["dlce"])
    stops: dict[str, Any] = {"checkpoint": tmp_path / "half", "checkpoint_minutes": 0.0, "validate_every": 1}

    def stop(_: Learner, record: Any) -> None:
        if record.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed.update(news, epochs=4, callback=stop, **stops)
    assert killed.update(news, epochs=4, **stops) is killed
    assert np.array_equal(killed.user_factors_, whole.user_factors_)
    other = make("dlce", random_state=5).fit(past, None)
    with pytest.raises(InputError, match="belongs to another fit"):
        other.update(news, epochs=4, **stops)


def test_an_update_is_close_to_a_refit(world: tr.World, frame: pd.DataFrame, past: tr.Log) -> None:
    """On average over seeds, which differ by a few percent each."""
    effect = np.asarray(world.treated_rate, np.float64) - world.control_rate

    def worth(learner: Learner) -> float:
        best = np.argsort(-scores(learner, range(150), range(40)), axis=1, kind="stable")[:, :10]
        return float(np.take_along_axis(effect, best, 1).mean())

    log, new, ratios = tr.Log.from_frame(frame), tr.Log.from_frame(frame[frame["time"] >= 8]), []
    for seed in range(4):
        options = {"factors": 8, "epochs": 100, "learning_rate": 0.01, "threads": 1, "random_state": seed}
        refit = make("dlce", **options).fit(log, None)
        updated = make("dlce", **options).fit(past, None).update(new, past)
        ratios.append(worth(updated) / worth(refit))
        assert updated.history_["updates"].sum() <= 0.1 * refit.history_["updates"].sum()
    assert np.mean(ratios) > 0.92


class TestFoldIn:
    @pytest.mark.parametrize("name", LEARNERS)
    def test_serves_old_and_new_users_in_one_call(self, name: str, models: Any, news: tr.Log) -> None:
        model = models[name]
        frame = model.recommend([141, 0, 3], k=4, history=news)
        assert frame["user_id"].tolist() == [141] * 4 + [0] * 4 + [3] * 4
        alone = model.recommend([0], k=4)
        assert np.array_equal(frame["score"][4:8], alone["score"])
        folded = model.fold_in(news)
        assert set(folded.users.values.to_pylist()) == LATE_USERS
        assert folded.items == model.items
        if name != "random":
            assert np.array_equal(folded.recommend([141], k=4)["item_id"], frame["item_id"][:4])

    @pytest.mark.parametrize("name", ["bpr", "dlce", "dlto", "countingbayes"])
    def test_depends_on_the_users_own_rows_alone(self, name: str, models: Any, news: tr.Log) -> None:
        together = models[name].set_params(**({"threads": 3} if name in TRAINED else {})).fold_in(news)
        rows = news.to_frame()
        mine = rows[rows["user_id"] == 77].sample(frac=1.0, random_state=0)
        alone = models[name].fold_in(tr.Log.from_frame(mine, items=news.items.values, times=news.times.values))
        items = models[name].items.values
        assert np.array_equal(scores(together, [77], items), scores(alone, [77], items))

    @pytest.mark.parametrize("name", ["bpr", "dlce", "dlto", "blce", "ulbpr"])
    def test_a_user_without_rows_is_the_mean_user(self, name: str, models: Any, news: tr.Log) -> None:
        rows = news.to_frame()
        log = tr.Log.from_frame(rows[rows["user_id"] != 3], users=range(150))
        folded = models[name].fold_in(log)
        factors = folded.user_factors_[folded.users.encode_known([3])[0]]
        assert np.allclose(factors, models[name].user_factors_.mean(axis=0), atol=1e-6)

    def test_learns_what_a_fit_would(self) -> None:
        """New users served by fold-in are nearly as well off as after a fit with them.

        By BLCE: its weights are alike, so that 100 users are enough to tell.
        """
        world = tr.World.synthetic(500, 60, random_state=3, effect_spread=1.0)
        log, late = world.sample(6, random_state=13).log, range(0, 500, 5)
        rows = log.to_frame()
        early = tr.Log.from_frame(rows[~rows["user_id"].isin(late)], items=range(60))
        options = {"epochs": 40, "learning_rate": 0.01}
        folded, fitted = make("blce", **options).fit(early, None).fold_in(log), make("blce", **options).fit(log, None)
        effect = (np.asarray(world.treated_rate, np.float64) - world.control_rate)[late]

        def worth(learner: Learner) -> float:
            best = np.argsort(-scores(learner, late, range(60)), axis=1, kind="stable")[:, :5]
            return float(np.take_along_axis(effect, best, 1).mean())

        assert worth(folded) > 0.95 * worth(fitted)
        assert worth(folded) > 1.5 * worth(make("popular").fit(log))

    def test_words_for_what_cannot_be_done(self, models: Any, past: tr.Log) -> None:
        with pytest.raises(InputError, match="knows all users of this log"):
            models["dlce"].fold_in(past)
        assert len(models["dlce"].recommend(history=past, k=1)) == past.n_users


class TestCountingFold:
    def test_is_the_formula_over_the_users_own_times(self, models: Any, past: tr.Log, news: tr.Log) -> None:
        """Twin: counts of user 3 over the two new times, with the item means of the fit."""
        model, rows = models["countingbayes"], past.to_frame()
        mine, w = news.to_frame().query("user_id == 3"), model.weight
        for item in (0, 1, 17):
            seen = rows[rows["item_id"] == item]
            treated, control = seen[seen["treated"] == 1], seen[seen["treated"] == 0]
            means = (treated["outcome"].mean(), control["outcome"].sum() / (past.n_users * 8 - len(treated)))
            own = mine[mine["item_id"] == item]
            shown = own[own["treated"] == 1]
            bought = own[own["treated"] == 0]["outcome"].sum()
            expected = (shown["outcome"].sum() + w * means[0]) / (len(shown) + w)
            expected -= (bought + w * means[1]) / (2 - len(shown) + w)
            assert scores(model.fold_in(news), [3], [item])[0, 0] == pytest.approx(expected, abs=1e-6)


class TestJoined:
    def test_repeated_cells_are_refused(self, past: tr.Log) -> None:
        with pytest.raises(InputError, match=r"repeat a \(user_id, item_id, time\) of the past log"):
            past.concat(past)

    def test_logs_without_times_become_two_times(self, past: tr.Log) -> None:
        rows = past.to_frame().query("time == 0").drop(columns="time")
        both = tr.Log.from_frame(rows).concat(tr.Log.from_frame(rows))
        assert (both.n_times, both.timed, len(both)) == (2, True, 2 * len(rows))
        with pytest.raises(InputError, match="column 'time'"):
            past.concat(tr.Log.from_frame(rows))

    def test_without_propensities_in_one_log_the_joined_one_has_none(self, past: tr.Log, news: tr.Log) -> None:
        without = tr.Log.from_frame(news.to_frame().drop(columns="propensity"))
        assert past.concat(without).propensity is None


class OnePass(Learner):
    """A learner of somebody else, which cannot take in new rows."""

    def learn(self, log: tr.Log) -> None:
        self.n_rows_ = len(log)

    def score_block(self, user_codes: Any) -> np.ndarray:
        return np.full((len(user_codes), len(self.items)), self.n_rows_, np.float32)


def test_a_learner_of_ones_own_updates_with_the_past(past: tr.Log, news: tr.Log) -> None:
    model = OnePass().fit(past)
    with pytest.raises(InputError, match="past=log"):
        model.update(news)
    assert model.n_rows_ == len(past)
    assert model.update(news, past).n_rows_ == len(past) + len(news)
    with pytest.raises(InputError, match="cannot fold in"):
        OnePass().fit(past).fold_in(news)


def test_popularity_weighs_values_and_is_stored(tmp_path: Path) -> None:
    frame = pd.DataFrame({
        "user_id": [0, 1, 2, 0], "item_id": ["a", "a", "b", "c"], "treated": [1, 0, 1, 1], "outcome": [1, 1, 1, 0],
        "value": [2.0, 1.5, 9.0, 0.0],
    })  # fmt: skip
    log = tr.Log.from_frame(frame)
    learner = tr.Popular().fit(log)
    np.testing.assert_array_equal(learner.popularity_, [3.5, 9.0, 0.0])
    assert learner.recommend(k=1)["item_id"].tolist() == ["b", "b", "b"]
    learner.save(tmp_path / "popular.model")
    np.testing.assert_array_equal(tr.load(tmp_path / "popular.model").popularity_, [3.5, 9.0, 0.0])
    counted = tr.Popular().fit(tr.Log.from_frame(frame.drop(columns="value")))
    assert counted.popularity_.dtype == np.int64
    np.testing.assert_array_equal(counted.popularity_, [2, 1, 0])


@pytest.mark.parametrize("name", ["ulbpr", "ulrmf", "cause"])
def test_new_users_without_a_class_of_cells_are_folded_in_untrained(
    name: str, models: dict[str, Learner], frame: pd.DataFrame
) -> None:
    """No treated positive in the whole folded log: the new users begin, and stay, as the mean of all."""
    rows = frame[(frame["time"] >= 8) & frame["user_id"].isin(LATE_USERS)]
    rows = rows[(rows["treated"] == 0) | (rows["outcome"] == 0)]
    rows = rows[rows["treated"] == 0] if name == "cause" else rows
    folded: Any = models[name].fold_in(tr.Log.from_frame(rows))
    assert len(folded.user_factors_) > 0
    assert np.allclose(folded.user_factors_, models[name].user_factors_.mean(axis=0), atol=1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["bpr", "dlce", "ulrmf", "cause"])
def test_items_that_came_later_reach_the_lists(name: str) -> None:
    """A fifth of the items comes with the last two of eight times; taken for never bought before, none is listed."""
    world = tr.World.synthetic(300, 60, random_state=1)
    rows, late = world.sample(8, random_state=1).log.to_frame(), np.arange(0, 60, 5)
    past = tr.Log.from_frame(rows[(rows["time"] < 6) & ~rows["item_id"].isin(late)], users=range(300))
    news = tr.Log.from_frame(rows[rows["time"] >= 6], users=range(300))
    model = make(name, factors=32, epochs=100).fit(past, None).update(news, past=past)
    listed = model.recommend(k=10)["item_id"].isin(late).mean()
    assert 0.04 < listed < 0.4


def test_purchases_of_an_item_that_came_late_weigh_more() -> None:
    pairs = pd.DataFrame([(t, i) for t in range(4) for i in range(5) if i < 4 or t == 3], columns=["time", "item_id"])
    rows = pd.DataFrame({"user_id": [0, 1, 1], "item_id": [0, 4, 1], "time": [0, 3, 3], "treated": 0, "outcome": 1})
    assert scarcity(tr.Log.from_frame(rows, candidates=pairs, items=range(5))).tolist() == [1, 1, 1, 1, 4]
