"""The behavioral suite of every learner, for learners of your own.

    from taurank.testing import check_learner
    check_learner(MyLearner)

It fits the learner many times on a small synthetic log and raises AssertionError with one sentence if a promise
that taurank makes to its users does not hold.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from taurank._threads import one_blas_thread
from taurank.data.cell_table import fingerprint
from taurank.data.log import Log
from taurank.errors import InputError, first_line
from taurank.estimation.gains import Gains
from taurank.evaluation.evaluate import evaluate
from taurank.learners import Learner, Record, learner_class, learner_name, load
from taurank.worlds.world import World

COLUMNS = ["user_id", "item_id", "score", "rank"]


def check_learner(learner: type[Learner] | Learner) -> None:
    """Raise AssertionError unless ``learner`` behaves as every learner of taurank does.

    A class is tried with its default hyper-parameters, except that ``factors`` and ``epochs`` are made small; an
    instance, which need not be fitted, is tried with its own.
    """
    case = _case(learner)
    for check in CHECKS:
        try:
            check(case)
        except Exception as error:
            sentence = f"ended {check.__name__} with {type(error).__name__}: {first_line(error)}"
            if isinstance(error, InputError):
                sentence = f"refused an ordinary input in {check.__name__}: {error}"
            elif isinstance(error, AssertionError):
                sentence = str(error)
            raise AssertionError(f"{case.kind.__name__}: {sentence}.") from error


@dataclass(frozen=True)
class Case:
    """A learner under test, a log, and gains to validate by."""

    kind: type[Learner]
    params: dict[str, Any]
    log: Log
    other: Log
    gains: Gains

    def make(self, **changes: Any) -> Learner:
        return self.kind(**{**self.params, "random_state": 0, **changes})

    def fitted(self, **changes: Any) -> Learner:
        return self.make(**changes).fit(self.log)


def _case(learner: type[Learner] | Learner) -> Case:
    instance = learner if isinstance(learner, Learner) else learner_class(learner)()
    params = instance.get_params(deep=False)
    if not isinstance(learner, Learner):
        params |= {name: value for name, value in (("factors", 5), ("epochs", 3)) if name in params}
    world = World.synthetic(70, 12, random_state=0, effect_spread=1.0)
    sample, other = world.sample(10, random_state=1), world.sample(4, random_state=2)
    return Case(type(instance), params, sample.log, other.log, other.truth)


def check_hyper_parameters(case: Case) -> None:
    """get_params returns what the constructor was given, so that scikit-learn's clone works."""
    learner = case.make()
    given = {name: copy.deepcopy(value) for name, value in learner.get_params().items()}
    _require(case.kind(**given).get_params() == learner.get_params(), "clone changed the hyper-parameters")
    again = case.kind(**given).get_params()
    _require(all(again[name] is given[name] for name in given), "its constructor alters a hyper-parameter")
    _require(learner.set_params(random_state=7) is learner, "set_params must return the learner")
    _require(learner.get_params()["random_state"] == 7, "set_params had no effect")
    _refuses(lambda: learner.set_params(no_such_parameter=1), "set_params with an unknown name")
    _refuses(lambda: learner.recommend([1]), "recommend before fit")
    _refuses(lambda: learner.fit("log"), "fit with something that is not a log")  # type: ignore[arg-type]


def check_fit(case: Case) -> None:
    """fit returns the learner, knows the catalog, and leaves the log alone."""
    before, learner = fingerprint(case.log), case.make()
    _require(learner.fit(case.log) is learner, "fit must return the learner")
    _require(fingerprint(case.log) == before, "fit changed the log")
    _require(learner.log_fingerprint_ == before, "log_fingerprint_ is not that of the log")
    _require(learner.users == case.log.users, "its users are not those of the log")
    _require(learner.items == case.log.items, "its items are not those of the log")
    updates = learner.updates_per_epoch(case.log)
    _require(isinstance(updates, int) and updates >= 0, "updates_per_epoch must be an integer ≥ 0")
    columns = list(learner.history_)[:3]
    _require(columns == ["epoch", "loss", "updates"], f"history_ begins with the columns {columns}")


def check_scores(case: Case) -> None:
    """score_block returns a fresh array of finite numbers, one row per user."""
    learner, codes = case.fitted(), np.array([3, 0, 3], np.int32)
    scores = learner.score_block(codes)
    given, shape = type(scores).__name__, (3, case.log.n_items)
    _require(isinstance(scores, np.ndarray), f"score_block returned {given}, not a NumPy array")
    _require(scores.shape == shape, f"score_block returned the shape {scores.shape}, not {shape}")
    _require(scores.dtype in (np.float32, np.float64), f"score_block returned {scores.dtype}, not float32")
    _require(bool(np.isfinite(scores).all()), "score_block returned scores that are not finite")
    _require(bool((scores[0] == scores[2]).all()), "the same user has two different scores in one block")
    copied = scores.copy()
    scores[:] = -1
    _require(_same(learner.score_block(codes), copied), "writing to the scores changed the learner")
    _require(codes.tolist() == [3, 0, 3], "score_block changed its argument")


def check_seed(case: Case) -> None:
    """Same seed, same bits: after a fit to another log, for any number of threads, and whoever else is asked for."""
    first = _scores(case.fitted())
    _require(_same(first, _scores(case.fitted())), "the same seed gave other scores")
    again = case.make().fit(case.other).fit(case.log)
    _require(_same(first, _scores(again)), "a second fit depends on the first one")
    if "threads" in case.params:
        for threads in (1, 2, 3):
            same = _same(first, _scores(case.fitted(threads=threads)))
            _require(same, f"the scores with {threads} threads differ from those with all cores")
    learner = case.fitted()
    together = learner.recommend(k=case.log.n_items).set_index("user_id")["score"]
    for user in case.log.users.values.to_pylist()[::9]:
        alone = learner.recommend([user], k=case.log.n_items)["score"]
        _require(_same(alone, together[user]), f"user {user} has other scores alone than among all users")


def check_storage(case: Case) -> None:
    """save and load, and pickle, bring back the same learner."""
    learner = case.fitted()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        learner.save(path)
        loaded = load(path)
    try:
        pickled = pickle.loads(pickle.dumps(learner))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(f"it cannot be pickled ({error}); define it at the top level of a module") from error
    _require(learner_class(learner_name(case.kind)) is case.kind, f"{learner_name(case.kind)} is another class")
    for way, again in (("load", loaded), ("pickle", pickled)):
        _require(type(again) is case.kind, f"{way} returned another class: {type(again)}")
        _require(again.get_params() == learner.get_params(), f"{way} changed its hyper-parameters")
        _require(again.users == learner.users and again.items == learner.items, f"{way} changed its catalog")
        _require(again.log_fingerprint_ == learner.log_fingerprint_, f"{way} lost the log's fingerprint")
        _require(_same(_scores(again), _scores(learner)), f"{way} changed its scores; is an array not in stored?")


def check_recommend(case: Case) -> None:
    """The best items of each user, in order, as a stable sort of all scores finds them."""
    learner, k = case.fitted(), 5
    frame = learner.recommend(k=k)
    _require(list(frame) == COLUMNS, f"recommend returned the columns {list(frame)}")
    scores, items = _scores(learner), np.array(learner.items.values)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    _require(_same(frame["item_id"], items[best].ravel()), "recommend disagrees with a full sort of the scores")
    _require(_same(frame["score"], np.take_along_axis(scores, best, 1).ravel()), "recommend returns other scores")
    _require(_same(frame["rank"], np.tile(np.arange(1, k + 1), len(scores))), "ranks must run from 1 to k")
    pairs = learner.score(frame["user_id"], frame["item_id"])
    _require(_same(pairs, frame["score"]), "score and recommend disagree")
    few = learner.recommend([2, 1], k=50, candidates=[4, 8])
    _require(few["user_id"].tolist() == [2, 2, 1, 1], "recommend must return users in the order asked for")
    _require(set(few["item_id"]) == {4, 8}, "recommend must choose among the candidates")
    popular = learner.recommend([999], k=3, unknown_users="popular")
    expected = np.argsort(-learner.popularity_, kind="stable")[:3].tolist()
    _require(popular["item_id"].tolist() == expected, "an unknown user must get the most popular items")


def check_failed_fit(case: Case) -> None:
    """A fit that fails or is interrupted leaves the learner as it was."""

    def stop(*_: Any) -> NoReturn:
        raise InterruptedError

    learner = case.fitted()
    before, keys = _scores(learner), set(vars(learner))
    try:
        learner.fit(case.other, callback=stop)
    except InterruptedError:
        _require(set(vars(learner)) == keys, "a failed fit changed its attributes")
        _require(_same(_scores(learner), before), "a failed fit changed its scores")
    else:
        _require(False, "fit never called its callback, or swallowed the exception of the callback")


def check_validation(case: Case) -> None:
    """Several metrics, a history with a column for each, and a callback that can evaluate the learner."""
    seen: list[Record] = []

    def watch(learner: Learner, record: Record) -> None:
        seen.append(record)
        value = evaluate(learner, case.gains, "CAR")["CAR"].mean
        _require(value == record.metrics["CAR"], "the callback's learner is not the one that was measured")

    learner = case.make().fit(case.log, case.gains, metric=["CDCG", "CAR"], validate_every=1, callback=watch)
    history = learner.history_
    _require(len(seen) == len(history) > 0, "the callback must be called after every check")
    for name in ("CDCG", "CAR"):
        values = [record.metrics[name] for record in seen]
        _require(_same(history[name], values), f"history_ has other values of {name} than the callback got")
    best = evaluate(learner, case.gains, "CDCG")["CDCG"].mean
    _require(best == history["CDCG"].max(), "the fitted learner is not that of the best epoch")


def check_logs(case: Case) -> None:
    """Text ids, users without rows, no propensities."""
    rows = case.log.to_frame()
    rows["user_id"], rows["item_id"] = "u" + rows["user_id"].astype(str), "i" + rows["item_id"].astype(str)
    silent = Log.from_frame(rows, users=["nobody", *sorted(set(rows["user_id"]))])
    frame = case.make().fit(silent).recommend(["nobody", "u7"], k=2)
    _require(frame["user_id"].tolist() == ["nobody"] * 2 + ["u7"] * 2, "a user without rows must be served, too")
    _require(bool(frame["item_id"].str.startswith("i").all()), "recommend must return the caller's own ids")
    without = Log.from_frame(rows.drop(columns="propensity"))
    if case.kind.needs_propensity:
        _refuses(lambda: case.make().fit(without), "a log without propensities (it declares needs_propensity)")
    else:
        case.make().fit(without)


CHECKS: tuple[Callable[[Case], None], ...] = (
    check_hyper_parameters, check_fit, check_scores, check_seed, check_storage, check_recommend, check_failed_fit,
    check_validation, check_logs,
)  # fmt: skip


def _scores(learner: Learner) -> npt.NDArray[Any]:
    with one_blas_thread():
        return np.asarray(learner.score_block(np.arange(len(learner.users), dtype=np.int32)))


def _same(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a), np.asarray(b))


def _refuses(action: Callable[[], object], what: str) -> None:
    try:
        action()
    except InputError:
        return
    _require(False, f"{what} must raise InputError")


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)
