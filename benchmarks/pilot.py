"""Is the answer of a pilot right? Made-up shops, whose truth is known, from messy tables to the report.

    python benchmarks/pilot.py --users 20000 --items 1000 --seeds 1 2 3
    python benchmarks/pilot.py --users 200000 --items 20000 --seeds 1 --time-only

For each shop: every ranking's estimate, interval and truth; whether the order by the estimates is the order by truth
wherever the estimates differ significantly; whether the interval covers; what was refused. Then the same shop without
recorded propensities and with the additive model, which must be refused. Time and peak memory at the end.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import taurank as tr
from taurank.pilot import Pilot
from taurank.pilot.tables import IDS, read_table
from taurank.worlds.shop import Shop, first_of_each
from taurank.worlds.shop_tables import write_tables


def main() -> None:
    options = _options()
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shop = Shop.draw(options.users, options.items, options.weeks, seed)
            start = time.perf_counter()
            counts = write_tables(shop, folder, threads=options.threads)
            print(
                f"\nseed {seed}: {shop!r}, {counts['impressions']:,} impressions, {counts['purchases']:,} purchases"
            )
            print(f"tables written in {time.perf_counter() - start:.0f} s")
            start = time.perf_counter()
            result = tr.pilot.run(folder / "pilot.toml", folder / "out", threads=options.threads)
            print(f"pilot in {time.perf_counter() - start:.0f} s, peak memory {_peak():.2f} GB")
            print(result)
            if not options.time_only:
                _check(result, shop, options.threads)
                _without_propensities(shop, folder, options.threads)


def _check(result: Pilot, shop: Shop, threads: int | None) -> None:
    """Estimates against the truth of the same weeks, in the same unit: purchases per visit."""
    truth = {name: _truth(shop, result, name) for name in _rankers(result)}
    if result.estimate is None:
        print("  refused before any training")
        return
    rows = {name: ranker[result.config.pilot.metric] for name, ranker in result.estimate.items()}
    k = result.config.pilot.k
    covered = 0
    for name, one in rows.items():
        low, high, true = k * one.low, k * one.high, truth[name]
        covered += low <= true <= high
        print(
            f"  {name:<8} estimate {k * one.mean:.3f} ({low:.3f} to {high:.3f})  truth {true:.3f}  "
            f"{'covered' if low <= true <= high else 'NOT COVERED'}  "
            f"{'believe' if one.verdict is not None and one.verdict.believe else 'refused'}"
        )
    right, clear = _order(result, truth, threads)
    print(
        f"  order right in {right} of {clear} significant pairs; {covered} of {len(rows)} intervals cover the truth"
    )


def _rankers(result: Pilot) -> dict[str, Any]:
    today = read_table(result.config.tables.named()["today"], result.config, IDS, ("score",))
    return {"today": today, **result.rankings}


def _truth(shop: Shop, result: Pilot, name: str) -> float:
    """The mean over all visits of the log's users in the measured weeks."""
    ranker = _rankers(result)[name]
    lists = ranker if name == "today" else ranker.recommend(k=result.config.pilot.k)
    test, first = result.test, result.log.n_times - result.test.n_times
    lists = lists[lists["item_id"].isin(shop.items.values.to_pylist())]
    lists = lists[lists["user_id"].isin(test.users.values.to_pylist())]
    pairs = first_of_each(lists, result.config.pilot.k)
    visits = shop.visited[:, first:].sum(1)[shop.users.encode_known(pairs["user_id"].array)]
    effect = shop.effect(pairs["user_id"].array, pairs["item_id"].array)
    everyone = shop.visited[:, first:].sum(1)[shop.users.encode_known(test.users.values.to_pandas().array)]
    return float((effect * visits).sum() / everyone.sum())


def _order(result: Pilot, truth: dict[str, float], threads: int | None) -> tuple[int, int]:
    """Pairs of rankings that the paired interval of the library tells apart, and those in the order of the truth."""
    rankers, gains = _rankers(result), tr.gains.recommended(result.test)
    right = clear = 0
    for first, second in combinations(truth, 2):
        pair = tr.compare(
            rankers[first],
            rankers[second],
            gains,
            result.config.pilot.metric,
            level=result.config.pilot.level,
            unlisted="last",
            threads=threads,
        )
        winner = pair.winner
        if winner is not None:
            clear += 1
            right += (winner == "first") == (truth[first] > truth[second])
    return right, clear


def _without_propensities(shop: Shop, folder: Path, threads: int | None) -> None:
    other = folder / "unrecorded"
    other.mkdir()
    write_tables(shop, other, recorded="nothing", threads=threads)
    plan = (other / "pilot.toml").read_text().replace('propensity = "chance"\n', "")
    for model in ("additive", "exposure"):
        (other / f"{model}.toml").write_text(plan + f'propensity = "{model}"\n')
        result = tr.pilot.run(other / f"{model}.toml", other / model, threads=threads)
        print(f"  nothing recorded, {model} model: {result.answer.decision}. {result.answer.sentence}")
        if result.answer.decision != "unknown":
            _check(result, shop, threads)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=1_000)
    parser.add_argument("--weeks", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--time-only", action="store_true", help="Only time and memory, no check against the truth.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
