"""How fast metrics are, beside a data frame and beside a full sort, and how much memory they take.

Run ``python benchmarks/measure.py``. Speed: all four metrics on 2,000 users × 8,000 items with 1 % non-zero
gains, the runs of the contestants taking turns; the ratio of their medians is what counts. Memory: a factor
model on 50,000 items with 10 gains a user, for 20,000 and for 200,000 users, each in a process of its own.
A third figure is the answer that a user waits for: ``print(evaluate(model, log))`` of 10,000 users × 20,000 items and
400,000 rows, the doubly robust estimate with default metrics, on two threads; at most 5 seconds and 20 ns per cell.
``--against FOLDER`` instead compares the speed with that of another checkout, whose runs take turns with ours.
``--quick`` makes everything small, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

HERE = Path(__file__).parents[1]
sys.path[:0] = [str(Path(os.environ.get("TAURANK_CHECKOUT", HERE)) / "src"), str(HERE / "tests")]

import taurank as tr  # noqa: E402  # only its public names, which other checkouts have too
from taurank import Gains, evaluate  # noqa: E402

PLAIN = ("P@10", "P@100", "DCG", "AR")
METRICS = tuple("C" + name for name in PLAIN)
FACTORS = 64
WANTED_PANDAS, WANTED_ARGSORT = 100, 3
MOST_SECONDS, MOST_PER_CELL = 5.0, 20e-9  # of an estimate, printed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--against", metavar="FOLDER", help="another checkout to compare the speed with")
    parser.add_argument("--speed-child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory-child", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_child:
        print(json.dumps(measure_memory(*arguments.memory_child)))
        return 0
    scale = 10 if arguments.quick else 1
    if arguments.speed_child:
        serve_runs(arguments.speed_child)
        return 0
    if arguments.against:
        show_against(Path(arguments.against), scale)
        return 0
    fast_enough = show_speed(2000 // scale, 8000 // scale)
    fast_enough = show_estimate(10_000 // scale, 20_000 // scale) and fast_enough
    show_memory([20_000 // scale, 200_000 // scale], 50_000 // scale)
    return 0 if fast_enough or arguments.quick else 1


def show_speed(n_users: int, n_items: int) -> bool:
    from support.twins import by_argsort, by_pandas

    rng = np.random.default_rng(0)
    made = random_gains(rng, n_users, n_items, n_items // 100)
    print(f"speed: {n_users:,} users × {n_items:,} items, {len(made):,} gains, {', '.join(METRICS)}")
    fast = True
    for kind in (np.float32, np.float64):
        scores = np.argsort(rng.random((n_users, n_items)), axis=1).astype(kind)  # no ties
        contestants: dict[str, Callable[[], Any]] = {
            "taurank": partial(evaluate, scores, made, METRICS),
            "argsort": partial(by_argsort, scores, made, PLAIN),
            "pandas": partial(by_pandas, scores, made, PLAIN),
        }
        check_agreement(contestants)
        seconds = take_turns(contestants, {"taurank": 15, "argsort": 5, "pandas": 3})
        fast = show_ratios(np.dtype(kind).name, seconds) and fast
    return fast


def show_estimate(n_users: int, n_items: int, runs: int = 3) -> bool:
    rng = np.random.default_rng(0)
    log, model = random_log(rng, n_users, n_items), FactorModel(rng, n_users, n_items)
    seconds, spent = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(runs + 1):  # the first compiles
            start, cpu = time.perf_counter(), time.process_time()
            str(evaluate(model, log, threads=2))
            seconds.append(time.perf_counter() - start)
            spent.append(time.process_time() - cpu)
    best, cells = min(seconds[1:]), n_users * n_items
    print(
        f"estimate: {n_users:,} users × {n_items:,} items, {len(log):,} rows, two threads: {best:.2f} s, "
        f"{best / cells * 1e9:.1f} ns per cell (at most {MOST_SECONDS:g} s and {MOST_PER_CELL * 1e9:g} ns); "
        f"{min(spent[1:]) / cells * 1e9:.1f} ns of a CPU",
        flush=True,
    )
    return best <= min(MOST_SECONDS, MOST_PER_CELL * cells)


def random_log(rng: np.random.Generator, n_users: int, n_items: int) -> tr.Log:
    """40 rows a user, most of them shown, at any of 8 times."""
    cells = np.unique(rng.integers(0, n_users * n_items * 8, 40 * n_users))
    treated = rng.random(len(cells)) < 0.6
    columns = {
        "user_id": cells // (n_items * 8), "item_id": cells // 8 % n_items, "time": cells % 8,
        "treated": treated.astype(int), "outcome": (~treated | (rng.random(len(cells)) < 0.1)).astype(int),
        "propensity": rng.uniform(0.01, 0.5, len(cells)),
    }  # fmt: skip
    return tr.Log.from_frame(pd.DataFrame(columns), users=range(n_users), items=range(n_items), times=range(8))


def check_agreement(contestants: dict[str, Callable[[], Any]]) -> None:
    result = np.stack([metric.per_user for metric in contestants["taurank"]().values()])
    assert np.allclose(result, contestants["argsort"](), rtol=0, atol=1e-9)
    frame = contestants["pandas"]().groupby("user").sum()
    assert np.allclose(result[:, frame.index], frame.to_numpy().T, rtol=0, atol=1e-9)


def take_turns(contestants: dict[str, Callable[[], Any]], runs: dict[str, int]) -> dict[str, float]:
    """Median seconds of each; a round runs each contestant its share of times."""
    rounds = min(runs.values())
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            for _ in range(max(1, runs[name] // rounds)):
                start = time.perf_counter()
                contestant()
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def show_ratios(kind: str, seconds: dict[str, float]) -> bool:
    own = seconds["taurank"]
    pandas, argsort = seconds["pandas"] / own, seconds["argsort"] / own
    print(
        f"  {kind}: taurank {own:.4f} s\n"
        f"    argsort twin {seconds['argsort']:.3f} s: {argsort:.1f} times (wanted {WANTED_ARGSORT})\n"
        f"    pandas twin {seconds['pandas']:.2f} s: {pandas:.0f} times (wanted {WANTED_PANDAS})",
        flush=True,
    )
    return pandas >= WANTED_PANDAS and argsort >= WANTED_ARGSORT


def cases(scale: int) -> dict[str, Callable[[], Any]]:
    """What is timed against another checkout."""
    rng = np.random.default_rng(0)
    n_users, n_items = 2000 // scale, 8000 // scale
    made = random_gains(rng, n_users, n_items, n_items // 100)
    few = random_gains(rng, n_users, n_items, 10)
    scores = np.argsort(rng.random((n_users, n_items)), axis=1)
    single, double, model = scores.astype(np.float32), scores.astype(np.float64), FactorModel(rng, n_users, n_items)
    personal = tr.World.synthetic(n_users, 1000 // scale, random_state=0).personalized(2.0)
    weeks = tr.gains.capped_ips(personal.sample(5, random_state=1).log, 0.01)
    log = random_log(rng, n_users, n_items)
    return {
        "array, float32": partial(evaluate, single, made, METRICS),
        "array, float64": partial(evaluate, double, made, METRICS),
        "array, 10 gains a user": partial(evaluate, single, few, METRICS),
        "factor model": partial(evaluate, model, made, METRICS),
        "array, bad overlap": partial(evaluate, personal.treated_rate, weeks, METRICS),
        "factor model, from a log, printed": lambda: str(evaluate(model, log)),
    }


def serve_runs(scale: int) -> None:
    """A child process: for each name of a case on a line, run it and print its seconds and CPU seconds."""
    warnings.simplefilter("ignore")
    ready = cases(scale)
    for line in sys.stdin:
        start, spent = time.perf_counter(), time.process_time()
        ready[line.strip()]()
        print(time.perf_counter() - start, time.process_time() - spent, flush=True)


def show_against(other: Path, scale: int, rounds: int = 21) -> None:
    print(f"speed against {other}: {rounds} alternating runs, there → here (ratio)")
    command = [sys.executable, __file__, "--speed-child", str(scale)]
    children = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TAURANK_CHECKOUT": str(folder)},
        )
        for folder in (other, HERE)
    ]  # fmt: skip
    for name in cases(10):
        pairs = np.array([[ask(child, name) for child in children] for _ in range(rounds + 1)])[1:]
        median, best = np.median(pairs[:, :, 0], axis=0), pairs[:, :, 1].min(axis=0)
        print(
            f"  {name}: median seconds {median[0]:.4f} → {median[1]:.4f} ({median[1] / median[0]:.3f}), "
            f"least CPU seconds {best[0]:.4f} → {best[1]:.4f} ({best[1] / best[0]:.3f})",
            flush=True,
        )
    for child in children:
        child.communicate()


def ask(child: subprocess.Popen[str], name: str) -> list[float]:
    assert child.stdin is not None
    assert child.stdout is not None
    print(name, file=child.stdin, flush=True)
    return [float(seconds) for seconds in child.stdout.readline().split()]


def show_memory(users: list[int], n_items: int) -> None:
    print(f"memory: {n_items:,} items, {FACTORS} factors, 10 gains a user")
    for n_users in users:
        command = [sys.executable, __file__, "--memory-child", str(n_users), str(n_items)]
        seen = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"  {n_users:,} users: peak {seen['peak']:.0f} MB, "
            f"{seen['peak'] - seen['before']:.0f} MB more than before the evaluation "
            f"(factors and gains are {seen['inputs']:.0f} MB, all scores would be "
            f"{n_users * n_items * 4 / 1e6:,.0f} MB); {seen['seconds']:.1f} s",
            flush=True,
        )


def measure_memory(n_users: int, n_items: int) -> dict[str, float]:
    """Peak memory in MB before and after an evaluation; a tiny one first, to load what is compiled."""
    rng = np.random.default_rng(0)
    evaluate(FactorModel(rng, 8, 50), random_gains(rng, 8, 50, 2))
    model, made = FactorModel(rng, n_users, n_items), random_gains(rng, n_users, n_items, 10)
    arrays = (model.user_factors, model.item_factors, made.user, made.item, made.time, made.value)
    before, start = peak_memory(), time.perf_counter()
    evaluate(model, made)
    seconds = time.perf_counter() - start
    inputs = sum(array.nbytes for array in arrays) / 1e6
    return {"before": before, "peak": peak_memory(), "inputs": inputs, "seconds": seconds}


class FactorModel:
    """Scores as products of factors, like a fitted learner."""

    def __init__(self, rng: np.random.Generator, n_users: int, n_items: int) -> None:
        one = random_gains(rng, n_users, n_items, 1)
        self.users, self.items = one.users, one.items
        self.user_factors = rng.standard_normal((n_users, FACTORS), np.float32)
        self.item_factors = rng.standard_normal((n_items, FACTORS), np.float32)

    def score_block(self, user_codes: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        return self.user_factors[user_codes] @ self.item_factors.T


def random_gains(rng: np.random.Generator, n_users: int, n_items: int, per_user: int) -> Gains:
    """About ``per_user`` gains of ±1 a user, at different items."""
    user = np.repeat(np.arange(n_users, dtype=np.int32), per_user)
    step = n_items // per_user
    item = np.tile(np.arange(per_user, dtype=np.int32) * step, n_users)
    item += rng.integers(0, step, len(item), dtype=np.int32)
    value = rng.choice([-1.0, 1.0], len(item))
    frame = pd.DataFrame({"user_id": user, "item_id": item, "value": value})
    return Gains.from_frame(frame, users=range(n_users), items=range(n_items), name="truth")


def peak_memory() -> float:
    """The peak of this process in MB (VmHWM, which unlike ru_maxrss does not include the parent process)."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
