"""The suite: all learners with all defaults on kinds of worlds that differ in what usually breaks a method.

    python benchmarks/worlds.py                                  # development seeds, every kind and learner
    python benchmarks/worlds.py --report                         # reporting seeds: for tables, never for choosing
    python benchmarks/worlds.py --learners empiricalbayes --seeds 1     # the table of docs/notes/empirical_bayes.md
    python benchmarks/worlds.py --kinds rare one_time --learners dlce bpr --seeds 1
    python benchmarks/worlds.py --movielens FOLDER               # with a world of MovieLens-100K ratings
    python benchmarks/worlds.py --table --out worlds.jsonl       # print the tables of what has been measured

Each line of ``--out`` is one fit: quality by the world's true effects μ^T − μ^C, CPU seconds, and how much of what
the ten best scores of a user promise comes true. Two worlds are measured at a time (``--jobs``), each fit with one
thread. A run that is stopped resumes where it was; remove lines to measure again. The first table has CP@10, the
second CDCG, in percent of the best learner of that kind, means over seeds; then what the scores promise, and seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, logit

sys.path[:0] = [str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent)]

import taurank as tr  # noqa: E402
from features import to_markdown  # noqa: E402

METRICS = ["CP@10", "CDCG"]
DEVELOPMENT, REPORTING = (11, 12, 13), (7101, 7102, 7103)
USERS, ITEMS, TIMES = 1000, 200, 10
Array = npt.NDArray[np.float64]


class Case(NamedTuple):
    """A log to learn from, and the true effect of every pair."""

    log: tr.Log
    effect: Array  # users × items


def taste(rng: np.random.Generator, users: int = USERS, items: int = ITEMS, rank: int = 6) -> Array:
    """Low-rank tastes of unit variance."""
    p, q = rng.standard_normal((users, rank)), rng.standard_normal((items, rank))
    return np.asarray(p @ q.T / np.sqrt(rank))


def levels(rng: np.random.Generator, users: int = USERS, items: int = ITEMS, spread: float = 0.7) -> Array:
    """How active a user and how popular an item is, in log-odds."""
    return np.asarray(0.5 * rng.standard_normal((users, 1)) + spread * rng.standard_normal((1, items)))


def at_mean(log_odds: Array, mean: float) -> Array:
    """Probabilities of these log-odds, shifted so that their mean is about ``mean``."""
    shift = 0.0
    for _ in range(60):
        rate = expit(log_odds + shift)
        shift -= (rate.mean() - mean) / max(float((rate * (1 - rate)).mean()), 1e-9)
        shift = float(np.clip(shift, -30, 30))
    return np.asarray(expit(log_odds + shift))


def case(
    treated: npt.ArrayLike, control: npt.ArrayLike, propensity: npt.ArrayLike, seed: int, times: int = TIMES
) -> Case:
    world = tr.World(treated, control, propensity, *(np.arange(n) for n in np.shape(treated)))
    return Case(world.sample(times, random_state=seed + 50_000).log, effect_of(world))


def effect_of(world: tr.World) -> Array:
    return np.asarray(world.treated_rate, np.float64) - world.control_rate


def shown_by_taste(rng: np.random.Generator, control: Array, share: float = 0.3) -> Array:
    """Exposure that follows purchases and has a part of its own, with overlap."""
    return np.asarray(0.05 + 0.9 * at_mean(0.6 * logit(control) + 0.5 * rng.standard_normal(control.shape[1]), share))


def synthetic(rng: np.random.Generator, seed: int, times: int = TIMES) -> Case:
    world = tr.World.synthetic(USERS, ITEMS, random_state=seed)
    return Case(world.sample(times, random_state=seed + 50_000).log, effect_of(world))


def one_time(rng: np.random.Generator, seed: int) -> Case:
    return synthetic(rng, seed, 1)


def fifty_times(rng: np.random.Generator, seed: int) -> Case:
    world = tr.World.synthetic(400, 100, random_state=seed, purchase_rate=0.03)
    return Case(world.sample(50, random_state=seed + 50_000).log, effect_of(world))


def independent(rng: np.random.Generator, seed: int) -> Case:
    """Who is moved by a recommendation has nothing to do with who buys anyway."""
    control = expit(-3 + levels(rng) + taste(rng))
    treated = control + (1 - control) * 0.15 * expit(2 * taste(rng) - 1)
    return case(treated, control, shown_by_taste(rng, control), seed)


def annoyed(rng: np.random.Generator, seed: int) -> Case:
    """Recommending a favorite makes its purchase less likely."""
    log_odds = levels(rng) + taste(rng)
    control = expit(-3 + log_odds)
    treated = expit(-3 + log_odds + 1.0 - 1.2 * log_odds + 0.4 * taste(rng))
    return case(treated, control, shown_by_taste(rng, control), seed)


def proportional(rng: np.random.Generator, seed: int) -> Case:
    """The effect is proportional to the purchase rate, as most recommenders assume without saying so."""
    control = expit(-3.3 + levels(rng) + taste(rng))
    return case(np.minimum(1.8 * control, 0.98), control, shown_by_taste(rng, control), seed)


def rare(rng: np.random.Generator, seed: int) -> Case:
    """Recommendations are rare: P between .001 and .01, with larger effects."""
    log_odds = levels(rng, 3000) + taste(rng, 3000)
    control = expit(-3.5 + log_odds)
    treated = expit(-3.5 + 0.6 * log_odds + 2.0 + 0.7 * taste(rng, 3000))
    propensity = np.clip(0.003 * np.exp(0.8 * rng.standard_normal((1, ITEMS)) + 0.2 * log_odds), 0.001, 0.01)
    return case(treated, control, propensity, seed, 20)


def near_deterministic(rng: np.random.Generator, seed: int) -> Case:
    """Favorites are nearly always shown and others nearly never."""
    world = tr.World.synthetic(USERS, ITEMS, random_state=seed)
    log_odds = logit(world.control_rate.astype(np.float64))
    propensity = np.clip(at_mean(4 * (log_odds - log_odds.mean()), 0.25), 0.002, 0.998)
    return case(world.treated_rate, world.control_rate, propensity, seed)


def by_taste(rng: np.random.Generator, seed: int) -> Case:
    """The paper's personalized propensities: P falls with an item's rank for the user."""
    world = tr.World.synthetic(USERS, ITEMS, random_state=seed).personalized(1.0)
    return Case(world.sample(TIMES, random_state=seed + 50_000).log, effect_of(world))


def long_tail(rng: np.random.Generator, seed: int) -> Case:
    """Many items, few of which sell: popularity falls as 1 / rank."""
    users, items = 1500, 600
    popularity = -np.log1p(np.arange(items))[rng.permutation(items)][None]
    log_odds = popularity + 0.5 * rng.standard_normal((users, 1)) + taste(rng, users, items)
    control = expit(-0.5 + log_odds)
    treated = expit(-0.5 + log_odds + 0.6 + 0.6 * taste(rng, users, items))
    return case(treated, control, shown_by_taste(rng, control, 0.15), seed)


def tiny(rng: np.random.Generator, seed: int) -> Case:
    world = tr.World.synthetic(50, 20, random_state=seed)
    return Case(world.sample(TIMES, random_state=seed + 50_000).log, effect_of(world))


def wrong_propensities(rng: np.random.Generator, seed: int) -> Case:
    """Recorded log-odds of P are pulled to their mean by 30 %."""
    world = tr.World.synthetic(USERS, ITEMS, random_state=seed).misspecified(0.3)
    return Case(world.sample(TIMES, random_state=seed + 50_000).log, effect_of(world))


def estimated_propensities(rng: np.random.Generator, seed: int) -> Case:
    """None was recorded; they are estimated as the command line does by default."""
    found = synthetic(rng, seed)
    return found._replace(log=tr.propensity.estimate(replace(found.log, propensity=None), random_state=seed))


def late_items(rng: np.random.Generator, seed: int) -> Case:
    """A fifth of the items comes in the last two of ten times: they could not be shown before."""
    found = synthetic(rng, seed)
    late = rng.permutation(ITEMS)[: ITEMS // 5]
    rows = found.log.to_frame()
    rows = rows[~(rows["item_id"].isin(late) & (rows["time"] < TIMES - 2))]
    pairs = pd.MultiIndex.from_product([range(TIMES), range(ITEMS)], names=["time", "item_id"]).to_frame(index=False)
    pairs = pairs[~(pairs["item_id"].isin(late) & (pairs["time"] < TIMES - 2))]
    ids: dict[str, Any] = {"users": range(USERS), "items": range(ITEMS), "times": range(TIMES)}
    return found._replace(log=tr.Log.from_frame(rows, **ids, candidates=pairs))


def unstructured(rng: np.random.Generator, seed: int) -> Case:
    """No low rank: what one item of a user did says nothing about the others."""
    shape = (USERS, ITEMS)
    control = expit(-3 + 0.5 * rng.standard_normal((1, ITEMS)) + rng.standard_normal(shape))
    treated = expit(logit(control) + 0.7 + rng.standard_normal(shape))
    return case(treated, control, shown_by_taste(rng, control), seed)


def category_original(rng: np.random.Generator, seed: int) -> Case:
    world = tr.dunnhumby.world("category")
    return Case(world.sample(10, random_state=seed + 50_000).log, effect_of(world))


def category_personalized(rng: np.random.Generator, seed: int) -> Case:
    world = tr.dunnhumby.world("category").personalized()
    return Case(world.sample(10, random_state=seed + 50_000).log, effect_of(world))


def movielens(folder: Path) -> Callable[[np.random.Generator, int], Case]:
    """A world of MovieLens-100K: who watches a movie once she knows it, and who would have known it anyway.

    In the spirit of Sato et al. (arXiv 2012.09442): μ^T follows the predicted rating, and μ^C = μ^T times the
    probability that the user comes across the movie by herself, which follows who rated what.
    """
    ratings = pd.read_csv(folder / "ml-100k.inter", sep="\t")
    user, item = (pd.factorize(ratings[f"{name}_id:token"])[0] for name in ("user", "item"))
    known = np.zeros((user.max() + 1, item.max() + 1))
    known[user, item] = 1.0
    often = known.sum(axis=0) >= 20
    stars = np.zeros_like(known)
    stars[user, item] = ratings["rating:float"]
    known, stars = known[:, often], stars[:, often]
    predicted = _completed(stars, known, rank=8)
    seen = np.linalg.svd(known, full_matrices=False)
    awareness = (seen[0][:, :8] * seen[1][:8]) @ seen[2][:8]

    def make(rng: np.random.Generator, seed: int) -> Case:
        treated = at_mean(1.5 * (predicted - predicted.mean()), 0.15)
        aware = at_mean(4 * awareness, 0.25)
        return case(treated, treated * aware, 0.02 + 0.9 * at_mean(4 * awareness, 0.1), seed)

    return make


def _completed(stars: Array, known: Array, rank: int, rounds: int = 30) -> Array:
    """All ratings, from those that are known: shrunk means of users and items plus a soft-thresholded SVD."""
    mean = stars.sum() / known.sum()
    item = ((stars - mean) * known).sum(axis=0) / (known.sum(axis=0) + 5)
    user = ((stars - mean - item) * known).sum(axis=1, keepdims=True) / (known.sum(axis=1, keepdims=True) + 5)
    base = mean + item + user
    filled = np.zeros_like(stars)
    for _ in range(rounds):
        left, values, right = np.linalg.svd(np.where(known > 0, stars - base, filled), full_matrices=False)
        filled = (left[:, :rank] * np.maximum(values[:rank] - 5.0, 0.0)) @ right[:rank]
    return np.asarray(base + filled)


KINDS: dict[str, Callable[[np.random.Generator, int], Case]] = {
    make.__name__: make
    for make in (
        synthetic, independent, annoyed, proportional, rare, near_deterministic, by_taste, long_tail, one_time,
        fifty_times, late_items, tiny, wrong_propensities, estimated_propensities, unstructured, category_original,
        category_personalized,
    )
}  # fmt: skip


def measured(name: str, found: Case, seed: int) -> dict[str, Any]:
    """Quality by the true effects, the CPU seconds of the fit, and what the ten best scores promise and bring."""
    learner = tr.learners.learner_class(name)()
    fixed = {"random_state": seed, "threads": 1}
    learner.set_params(**{key: value for key, value in fixed.items() if key in learner.get_params()})
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner.fit(found.log)
    seconds = time.process_time() - began
    n_users, n_items = found.effect.shape
    cells = np.divmod(np.arange(found.effect.size), n_items)
    frame = pd.DataFrame({"user_id": cells[0], "item_id": cells[1], "value": found.effect.ravel()})
    ids = [each.values for each in (found.log.users, found.log.items)]
    frame["user_id"], frame["item_id"] = (np.asarray(each)[code] for each, code in zip(ids, cells, strict=True))
    result = tr.evaluate(learner, tr.Gains.from_frame(frame, *ids, kind="effect"), METRICS)
    row = {metric: float(result[metric].mean) for metric in METRICS} | {"seconds": round(seconds, 2)}
    if learner.scores_are_effects:
        scores = np.asarray(learner.score_block(np.arange(n_users, dtype=np.int32)), np.float64)
        best = np.argpartition(-scores, 9, axis=1)[:, :10]
        promised, true = (np.take_along_axis(each, best, axis=1).sum() for each in (scores, found.effect))
        row["promised"] = float(promised / true)
    return row


def run(options: argparse.Namespace) -> None:
    """Two worlds at a time; the slowest kinds come last in ``KINDS`` and start first."""
    seeds = (REPORTING if options.report else DEVELOPMENT)[: options.seeds]
    kinds = options.kinds or [*KINDS, *(["movielens"] if options.movielens else [])]
    with ProcessPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(measure_world, options, kind, seed) for kind in reversed(kinds) for seed in seeds]
        for future in as_completed(futures):
            future.result()


def measure_world(options: argparse.Namespace, kind: str, seed: int) -> None:
    """Append a line for every learner that has none of this world yet."""
    done = {row["learner"] for row in lines(options.out) if (row["kind"], row["seed"]) == (kind, seed)}
    wanted = [name for name in options.learners if name not in done]
    if not wanted:
        return
    make = movielens(options.movielens) if kind == "movielens" else KINDS[kind]
    found = make(np.random.default_rng([zlib.crc32(kind.encode()), seed]), seed)
    for name in wanted:
        row = {"kind": kind, "learner": name, "seed": seed, **measured(name, found, seed)}
        print(f"{kind:24} {name:16} {seed:5}", *(f"{key} {row[key]:.4g}" for key in list(row)[3:]), flush=True)
        with options.out.open("a") as stream:
            stream.write(json.dumps(row) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def print_tables(path: Path) -> None:
    order = {kind: n for n, kind in enumerate([*KINDS, "movielens"])}
    rows = pd.DataFrame(lines(path)).sort_values("kind", key=lambda kind: kind.map(order), kind="stable")
    if rows["learner"].nunique() == 1:  # nothing to compare with
        means = rows.groupby("kind", sort=False).mean(numeric_only=True).drop(columns="seed")
        print(f"\n{to_markdown(means.reset_index())}")
        return
    by_learner = rows.groupby(["kind", "learner"], sort=False)
    for metric in METRICS:
        mean = by_learner[metric].mean().unstack()[list(rows["learner"].unique())]
        share = 100 * mean.div(mean.max(axis=1), axis=0)
        share.loc["mean"] = share.mean()
        share.loc["worst"] = share.iloc[:-1].min()
        rounded = share.round(0).astype("Int64").reset_index()  # some may not be measured yet
        print(f"\n{metric}, percent of the best learner\n\n{to_markdown(rounded)}")
    if "promised" in rows:
        promised = (
            rows.groupby(["kind", "learner"], sort=False)["promised"].mean().unstack().dropna(axis=1, how="all")
        )
        print("\nPromised by the ten best scores of a user, in multiples of their true effect")
        print(f"\n{to_markdown(promised.round(2).reset_index())}")
    seconds = rows.groupby("learner", sort=False)["seconds"].mean().round(1)
    print(f"\nCPU seconds of a fit, with one thread\n\n{to_markdown(seconds.reset_index())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, "movielens"])
    parser.add_argument("--learners", nargs="+", default=list(tr.learners.LEARNERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="reporting seeds instead of development seeds")
    parser.add_argument("--jobs", type=int, default=2, help="worlds at a time, one core each")
    parser.add_argument("--movielens", type=Path, help="the folder with ml-100k.inter")
    parser.add_argument("--out", type=Path, default=Path("out/worlds.jsonl"))
    parser.add_argument("--table", action="store_true", help="measure nothing, print the tables")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if not options.table:
        run(options)
    print_tables(options.out)


if __name__ == "__main__":
    main()
