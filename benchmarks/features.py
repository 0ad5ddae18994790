"""Next week and cold start: what an update, fold-in and features are worth, by the true effects of a world.

    python benchmarks/features.py [update] [cold] [journey] [--quick]

update    a model of nine times, updated with three more times that bring a tenth of new users and items
cold      a tenth of users and items without any row, features against none, where features explain 70 % of tastes
journey   the same on The Complete Journey (categories), with demographics and the product hierarchy

A number is the mean true effect μ^T − μ^C of the ten best items of each user (five among the cold items).
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit

sys.path[:0] = [str(Path(__file__).parent.parent / "src")]

import taurank as tr  # noqa: E402

COLD = 0.1  # share of users and items
LEARNERS: dict[str, dict[str, Any]] = {
    "bpr": {"factors": 32, "epochs": 100, "learning_rate": 0.03, "threads": 1},
    "dlce": {"factors": 32, "epochs": 100, "learning_rate": 0.003, "threads": 1},
    "blce": {"factors": 32, "epochs": 100, "learning_rate": 0.003, "threads": 1},
    "countingbayes": {},
    "empiricalbayes": {"threads": 1},
}
WITH_FEATURES = ("bpr", "dlce", "blce", "empiricalbayes")


class Split(NamedTuple):
    """A world, a log of it, and the positions of users and items that have no row in the log."""

    world: tr.World
    log: tr.Log
    users: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]

    def worth(self, model: tr.Learner, users: Any = None, items: Any = None, k: int = 10) -> float:
        """The mean effect of the k best of these items for these users (None: all that have rows)."""
        users = np.setdiff1d(np.arange(self.world.n_users), self.users) if users is None else users
        items = np.setdiff1d(np.arange(self.world.n_items), self.items) if items is None else items
        effect = (self.world.treated_rate - self.world.control_rate)[np.ix_(users, items)]
        rows = model.users.encode_known(self.world.users.decode(users))
        scores = model.score_block(rows)[:, model.items.encode_known(self.world.items.decode(items))]
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return float(np.take_along_axis(effect, best, 1).mean(dtype=np.float64))


def split(world: tr.World, times: int, seed: int) -> Split:
    """A log without a tenth of the users and items, whose catalog has all of them."""
    rng = np.random.default_rng(seed)
    users, items = (rng.choice(n, round(COLD * n), replace=False) for n in (world.n_users, world.n_items))
    rows = world.sample(times, random_state=seed + 1).log.to_frame()
    hidden = rows["user_id"].isin(world.users.decode(users).to_pylist())
    hidden |= rows["item_id"].isin(world.items.decode(items).to_pylist())
    log = tr.Log.from_frame(rows[~hidden], users=world.users.values, items=world.items.values)
    return Split(world, log, users, items)


def featured_world(n_users: int, n_items: int, seed: int, explained: float = 0.7) -> tuple[tr.World, tr.Features]:
    """Tastes and effects of rank 4, of which linear features explain a share."""
    rng, width = np.random.default_rng(seed), 6
    x, z = rng.standard_normal((n_users, width)), rng.standard_normal((n_items, width))

    def side(features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        known = features @ rng.standard_normal((width, 4)) / np.sqrt(width)
        return np.asarray(np.sqrt(explained) * known + np.sqrt(1 - explained) * rng.standard_normal(known.shape))

    taste, lift = (side(x) @ side(z).T / 2 for _ in range(2))
    control = -3 + taste + 0.4 * rng.standard_normal((1, n_items))
    rates = (expit(control + 0.7 + lift), expit(control), 0.1 + 0.8 * expit(-1 + 0.5 * taste))
    users = pd.DataFrame(x).add_prefix("x").assign(user_id=range(n_users))
    items = pd.DataFrame(z).add_prefix("z").assign(item_id=range(n_items))
    return tr.World(*rates, np.arange(n_users), np.arange(n_items)), tr.Features(users, items)


def benchmark_update(quick: bool) -> pd.DataFrame:
    sizes = (300, 80) if quick else (2000, 500)
    world = tr.World.synthetic(*sizes, random_state=3, effect_spread=1.0)
    parts = split(world, 9, 4)
    past = tr.Log.from_frame(parts.log.to_frame())
    later = world.sample(3, random_state=9).log.to_frame()
    news = tr.Log.from_frame(later.assign(time=later["time"] + 9))
    both = tr.Log.from_frame(pd.concat([past.to_frame(), news.to_frame()]))
    rows = []
    for name in LEARNERS:
        stale = _fitted(name, past)
        models: dict[str, Callable[[], tr.Learner]] = {
            "another fit": partial(_fitted, name, both),
            "update(log)": partial(_updated, stale, news, None),
            "update(log, past)": partial(_updated, stale, news, past),
            "fold_in(log)": partial(stale.fold_in, news),
        }
        for label, make in models.items():
            make()  # once before the clock: compiles
            began = time.perf_counter()
            model = make()
            seconds = time.perf_counter() - began
            old = np.nan if label == "fold_in(log)" else parts.worth(model)
            rows.append((name, label, seconds, old, parts.worth(model, parts.users)))
    return pd.DataFrame(rows, columns=["learner", "model", "seconds", "old users", "new users"])


def _fitted(name: str, log: tr.Log, features: tr.Features | None = None) -> tr.Learner:
    return tr.learners.LEARNERS[name](**LEARNERS[name], random_state=0).fit(log, None, features=features)


def _updated(model: tr.Learner, news: tr.Log, past: tr.Log | None) -> tr.Learner:
    return copy.copy(model).update(news, past)


def benchmark_cold(quick: bool, learners: Sequence[str] = WITH_FEATURES) -> pd.DataFrame:
    sizes = (300, 80) if quick else (1500, 300)
    tables = []
    for seed in range(1 if quick else 3):
        world, features = featured_world(*sizes, seed)
        tables.append(_cold(split(world, 6, seed + 50), features, learners).assign(seed=seed))
    whole = pd.concat(tables).drop(columns="seed")
    return whole.groupby(["learner", "features"], sort=False, as_index=False).mean()


def benchmark_journey(quick: bool, learners: Sequence[str] = WITH_FEATURES) -> pd.DataFrame:
    world, features = tr.dunnhumby.world("category"), tr.dunnhumby.features("category")
    return _cold(split(world, 2 if quick else 10, 60), features, learners)


def _cold(parts: Split, features: tr.Features, learners: Sequence[str]) -> pd.DataFrame:
    rows = []
    for name in learners:
        for label, given in (("none", None), ("prior" if name == "empiricalbayes" else "pull 10", features)):
            model = _fitted(name, parts.log, given)
            warm, cold_users = parts.worth(model), parts.worth(model, parts.users)
            rows.append((name, label, warm, cold_users, parts.worth(model, None, parts.items, 5)))
    popular = tr.Popular().fit(parts.log)
    rows.append(("popular", "none", parts.worth(popular), parts.worth(popular, parts.users), np.nan))
    return pd.DataFrame(rows, columns=["learner", "features", "warm", "cold users", "cold items"])


def to_markdown(table: pd.DataFrame) -> str:
    cells = table.map(lambda cell: f"{cell:.4f}" if isinstance(cell, float) else str(cell))
    lines: list[list[str]] = [[str(name) for name in table], ["---"] * table.shape[1], *cells.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run_parts(parts: Mapping[str, Callable[[bool], pd.DataFrame]], description: str | None) -> None:
    """The command line of a benchmark: run the parts that are named, or all, and print their tables."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(parts))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.parts or parts:
        print(f"\n{name}\n{to_markdown(parts[name](arguments.quick))}", flush=True)


if __name__ == "__main__":
    run_parts({"update": benchmark_update, "cold": benchmark_cold, "journey": benchmark_journey}, __doc__)
