"""Is the answer of a pilot right? Made-up shops, whose truth is known, from messy tables to the report.

    python benchmarks/pilot.py --users 5000 --items 300 --seeds 31 32 33
    python benchmarks/pilot.py --plain --violations none
    python benchmarks/pilot.py --users 200000 --items 20000 --seeds 21 --time-only

For each kind of shop, without and with one violation of what an estimate assumes, and for each seed: what the pilot
answers; whether the choice is the best ranking in truth, or its truth lies within the interval of the best one's
estimate; how many intervals cover the truth; how large the estimate of the choice is, as a multiple of its truth; and
whether the pilot says a word of caution. ``--plain`` leaves out the tables of visits and categories, ``--unrecorded``
the propensities.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

import taurank as tr
from taurank.pilot import Pilot
from taurank.worlds.shop import Shop
from taurank.worlds.shop_tables import write_tables
from taurank.worlds.shop_visits import Violations

KINDS = {
    "none": Violations(),
    "delay": Violations(delay=0.4),
    "saturation": Violations(saturation=0.2),
    "replacement": Violations(replacement=0.5),
    "every visit": Violations(every_visit=True),
    "intent": Violations(intent=1.0),
    "position": Violations(position=0.05),
    "returns": Violations(returns=0.3),
}


class Row(NamedTuple):
    shop: str
    seed: int
    answer: str
    right: str  # the choice is the best ranking, or cannot be told from it
    covered: int
    intervals: int
    ratio: float  # estimate / truth of the choice, or of the best ranking
    cautions: int
    seconds: float


def main() -> None:
    options = _options()
    rows = []
    for kind in options.violations:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as name:
                row = _run(kind, seed, Path(name), options)
            rows.append(row)
            print(*row, sep="\t", flush=True)
    frame = pd.DataFrame(rows)
    print(frame.to_string(index=False, float_format="%.2f"))
    counts, covered = frame["right"].value_counts(normalize=True), frame["covered"].sum()
    shares = ", ".join(f"{name} {share:.0%}" for name, share in counts.items())
    print(f"right: {shares}; intervals cover {covered / max(1, frame['intervals'].sum()):.0%}; {_peak():.2f} GB")


def _run(kind: str, seed: int, folder: Path, options: argparse.Namespace) -> Row:
    shop = Shop.draw(options.users, options.items, options.weeks, seed, KINDS[kind])
    recorded: Any = "nothing" if options.unrecorded else "propensity"
    write_tables(shop, folder, recorded=recorded, threads=options.threads)
    plan = tomllib.loads((folder / "pilot.toml").read_text())
    if options.plain:
        kept = ("impressions", "purchases", "today")
        plan["tables"] = {name: plan["tables"][name] for name in kept}
        plan["columns"].pop("visits.timestamp")
        plan["pilot"] = {}
    if options.learners:
        plan["pilot"]["learners"] = options.learners
    if options.unrecorded:
        plan["columns"].pop("propensity", None)
    plan["tables"] = {name: str(folder / path) for name, path in plan["tables"].items()}
    start = time.perf_counter()
    result = tr.pilot.run(plan, folder / "out", threads=options.threads, show_progress=options.time_only)
    seconds = time.perf_counter() - start
    if options.verbose or options.time_only:
        print(result)
    if options.time_only or result.estimate is None:
        return Row(kind, seed, result.answer.decision, "refused", 0, 0, float("nan"), 0, seconds)
    return _compare(result, shop, kind, seed, seconds)


def _compare(result: Pilot, shop: Shop, kind: str, seed: int, seconds: float) -> Row:
    """Estimates against the truth, in the same unit: purchases per visit, of all weeks."""
    assert result.estimate is not None
    options = result.setting.config.pilot
    k, items = options.k, set(shop.items.values.to_pylist())
    known = set(result.setting.test.users.values.to_pylist())
    truth, estimates = {}, {}
    for name, ranker in result.estimate.items():
        lists = shop.today() if name == "today" else result.rankings[name].recommend(k=k)
        lists = lists[lists["item_id"].isin(items)]
        share = shop.visited[shop.users.encode_known(sorted(known))].sum() / shop.visited.sum()
        truth[name] = shop.value(lists[lists["user_id"].isin(known)], k) / share
        estimates[name] = ranker[options.metric]
    best, choice = max(truth, key=lambda name: truth[name]), result.answer.choice
    right = "refused"
    if choice is not None:
        right = "yes" if choice == best or k * estimates[best].low <= truth[choice] else "no"
    covered = sum(k * one.low <= truth[name] <= k * one.high for name, one in estimates.items())
    ratio = k * estimates[choice or best].mean / truth[choice or best]
    answer, notes = f"{result.answer.decision} {choice or ''}", len(result.cautions)
    return Row(kind, seed, answer, right, covered, len(truth), ratio, notes, seconds)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def shop_parser(text: str | None, users: int, seeds: list[int]) -> argparse.ArgumentParser:
    """The options of a benchmark on made-up shops."""
    parser = argparse.ArgumentParser(description=(text or "").split("\n")[0])
    parser.add_argument("--users", type=int, default=users)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--weeks", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    return parser


def _options() -> argparse.Namespace:
    parser = shop_parser(__doc__, 5_000, [31, 32, 33])
    parser.add_argument("--violations", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--plain", action="store_true", help="No tables of visits, items and categories.")
    parser.add_argument("--unrecorded", action="store_true", help="No propensities.")
    parser.add_argument("--learners", nargs="+", help="In place of the pilot's own.")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--verbose", action="store_true", help="Print every answer.")
    parser.add_argument("--time-only", action="store_true", help="Only time and memory, no check against the truth.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
