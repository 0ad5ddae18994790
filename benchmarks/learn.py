"""How fast the learners learn and recommend, how they grow, how well DLCE ranks.

    pip install -r benchmarks/requirements.txt
    python benchmarks/learn.py [speed] [drawn] [topk] [scale] [quality] [lengths] [--quick]
    python benchmarks/learn.py converge [--out folder] [--updates millions] [--items …] [--methods …] [--quick]

speed     updates per second of DLCE, beside implicit's BPR and beside a kernel that only touches the rows
drawn     updates per second of CPU of the methods that draw their samples, beside BPR
topk      the ten best items of every user, trained factors and noise, beside implicit's `recommend`
scale     time per update and memory of a fit on 1, 10 and 50 million positives
quality   DLCE and BLCE on Category-Original, by the truth of ten fresh weeks
lengths   what a fit chooses by itself, beside the best of its lengths, on the kinds of worlds of worlds.py
converge  updates until 99 % of the best CDCG, constant rate against a falling one (see converge.py); takes hours,
          so it runs only if named

Contestants take turns in one run, and a ratio is the median over the turns of the ratio within a turn.
``--quick`` makes everything small, to see that it runs.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # every contestant brings threads of its own

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent)]

import converge  # noqa: E402
import taurank as tr  # noqa: E402
import worlds  # noqa: E402
from taurank import gains  # noqa: E402
from taurank.data.ids import Catalog, Ids  # noqa: E402
from taurank.data.log import Log  # noqa: E402
from taurank.evaluation.evaluate import evaluate  # noqa: E402
from taurank.learners.lengths import lengths_of  # noqa: E402
from taurank.learners.training import Epoch  # noqa: E402
from taurank.sgd.scheduler import Factors  # noqa: E402
from touch import Touch  # noqa: E402

WANTED_IMPLICIT, WANTED_MEMORY, WANTED_LENGTH = 2.5, 3, 0.97
SEED = 41
WANTED_ULBPR, WANTED_CAUSE = 0.73, 0.57  # of the speed of BPR
TURNS = 15
ITEMS_OF_SCALE, POSITIVES_PER_USER = 20_000, 50
GOALS = {"CP@10": 0.100, "CP@100": 0.026, "CDCG": 1.20}
BIASED_BELOW = 0.06
RULE: dict[str, Any] = {"learning_rate": 0.003, "regularization": 0.03}
BIASED_RULE = RULE | {"regularization": 0.01}  # for each method what does best in the week of validation


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    sections = {
        "speed": speed, "drawn": drawn, "topk": topk, "scale": scale, "quality": quality, "lengths": lengths,
    }  # fmt: skip
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join([*sections, "converge"]))
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path, default=Path("converge"), help="folder of the section converge")
    parser.add_argument("--updates", type=float, help="millions, the most of a fit of converge; else the authors'")
    parser.add_argument("--items", nargs="+", default=["category", "product"])
    parser.add_argument("--methods", nargs="+", default=list(converge.METHODS))
    parser.add_argument("--threads", type=int, default=2, help="of converge")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(grow(arguments.child)))
        return 0
    if arguments.sections == ["converge"]:
        return run_converge(arguments)
    if unknown := set(arguments.sections) - set(sections):
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(sections)}")
    met = [sections[name](arguments.quick) for name in arguments.sections or sections]
    return 0 if all(met) or arguments.quick else 1


def run_converge(arguments: argparse.Namespace) -> int:
    updates = None if arguments.updates is None else round(1e6 * arguments.updates)
    sizes = converge.Sizes(arguments.out, updates, arguments.threads)
    if arguments.quick:
        sizes = converge.Sizes(arguments.out, updates or 4_000_000, arguments.threads, factors=16, first=1_000_000)
    settings = [setting for setting in converge.SETTINGS if setting[0] in arguments.items]
    converge.run(settings, arguments.methods, sizes)
    return 0


# Speed of training


def speed(quick: bool) -> bool:
    """Ours includes everything an epoch needs: new blocks, planning, drawing. The touch has none of it to do."""
    log = category(0, 1 if quick else 10).log
    learner = tr.DLCE(**RULE, random_state=0)
    cells = learner.gains(log)
    print(f"speed: {len(cells):,} positives, {log.n_users:,} users, {log.n_items:,} items; load {load()}")
    print("  million updates a second, and ratios (lowest-highest of the turns)")
    print("    d threads   DLCE  implicit  touch   DLCE / implicit      DLCE / touch")
    good = True
    for factors in (64, 200, 400):
        for threads in (1, 2):
            contestants = racers(log, cells, factors, threads, 1 if quick else 5)
            seconds = take_turns(contestants, 2 if quick else TURNS) / len(cells)
            rates = [f"{value:7.1f}" for value in np.median(1e-6 / seconds, axis=0)]
            implicit, touch = seconds[:, 1] / seconds[:, 0], seconds[:, 2] / seconds[:, 0]
            print(f"  {factors:3d} {threads:7d}", *rates, f"  {spread(implicit)}  {spread(touch)}", flush=True)
            good &= bool(np.median(implicit) >= WANTED_IMPLICIT)
    print(f"  wanted: {WANTED_IMPLICIT} times implicit")
    return good


def racers(log: Log, cells: gains.Gains, factors: int, threads: int, epochs: int) -> list[Callable[[], float]]:
    """DLCE, implicit's BPR and the touch: each runs some epochs and returns the seconds of one."""
    learner = tr.DLCE(**RULE, factors=factors, random_state=0)
    epoch, tables, passed = learner.prepare(log), learner._initial(log, 0), iter(range(10**9))
    touch, matrix = Touch(cells, learner._initial(log, 0), threads), rows_of(cells)

    def ours() -> float:
        began = time.perf_counter()
        for _ in range(epochs):
            epoch.run(tables, 0, next(passed), learner.learning_rate, threads)
        return (time.perf_counter() - began) / epochs

    def implicit() -> float:
        from implicit.cpu.bpr import BayesianPersonalizedRanking

        options = {"iterations": epochs, "num_threads": threads, "verify_negative_samples": False}
        model = BayesianPersonalizedRanking(factors=factors, random_state=0, **options)
        passes: list[float] = []
        model.fit(matrix, show_progress=False, callback=lambda _, seconds, *rest: passes.append(seconds))
        return sum(passes) / epochs

    return [ours, implicit, lambda: touch.seconds(next(passed), epochs)]


def rows_of(cells: gains.Gains) -> Any:
    """The positives as implicit expects them; an item bought twice is there twice, as in taurank."""
    import scipy.sparse as sparse

    order = np.lexsort((cells.item, cells.user))
    start = np.concatenate(([0], np.cumsum(np.bincount(cells.user, minlength=cells.n_users))))
    parts = (np.ones(len(cells), np.float32), cells.item[order], start.astype(np.int32))
    return sparse.csr_matrix(parts, shape=(cells.n_users, cells.n_items))


# Methods that draw


def drawn(quick: bool) -> bool:
    log = category(0, 1 if quick else 10).log
    print(f"drawn: {int(log.outcome.sum()):,} updates an epoch; load {load()}")
    print("  million updates a second of CPU, and ratios to BPR (medians of the turns)")
    print("    d threads    BPR  ULBPR  ULRMF  CausE    ULBPR  ULRMF  CausE")
    good = True
    for factors in (200, 400):
        for threads in (1, 2):
            learners = [kind(factors=factors) for kind in (tr.BPR, tr.ULBPR, tr.ULRMF, tr.CausE)]
            contestants = [repeated(learner, log, threads) for learner in learners]
            seconds = take_turns(contestants, 2 if quick else TURNS)
            rates = [f"{log.outcome.sum() / value / 1e6:6.1f}" for value in np.median(seconds, axis=0)]
            ratios = np.median(seconds[:, :1] / seconds[:, 1:], axis=0)
            print(f"  {factors:3d} {threads:7d}", *rates, "  ", *(f"{ratio:6.2f}" for ratio in ratios), flush=True)
            good &= bool(ratios[0] >= WANTED_ULBPR and ratios[2] >= WANTED_CAUSE)
    print(f"  wanted: ULBPR at least {WANTED_ULBPR} of BPR's speed, CausE {WANTED_CAUSE}")
    return good


def repeated(learner: Any, log: Log, threads: int) -> Callable[[], float]:
    epoch, factors, number = learner.prepare(log), learner._initial(log, 0), iter(range(10**9))
    return timed(lambda: epoch.run(factors, 0, next(number), learner.learning_rate, threads), time.process_time)


# Speed of recommending


def topk(quick: bool) -> bool:
    """On the same factors. Ours is a frame with the caller's ids and ranks; implicit's are two arrays."""
    world = tr.dunnhumby.world("category" if quick else "product")
    product = tr.DLCE(**RULE, factors=200, epochs=30).fit(world.sample(1, random_state=0).log, None)
    large = tr.DLCE(**RULE, factors=64, epochs=5).fit(synthetic(10_000 if quick else 1_000_000), None)
    noise = copy.copy(large)  # nothing that decays: all columns must be multiplied
    for name in ("user_factors_", "item_factors_"):
        setattr(noise, name, np.random.default_rng(0).standard_normal(getattr(large, name).shape, np.float32))
    print(f"topk: 10 best; load {load()}")
    return all(
        [
            race(product, "product data", 1.2, quick),
            race(large, "synthetic", 1.5, quick),
            race(noise, "noise", 1, quick),
        ]
    )


def race(learner: Any, data: str, wanted: float, quick: bool) -> bool:
    """Our lists of all users against implicit's."""
    from implicit.cpu.bpr import BayesianPersonalizedRanking

    factors = learner.item_factors_.shape[1]
    print(f"  {data}: {len(learner.users):,} users, {len(learner.items):,} items, d = {factors}; wanted: {wanted}")
    print("  threads  taurank  implicit  implicit / taurank")
    good, all_users = True, np.arange(len(learner.users))
    for threads in (1, 2):
        model = BayesianPersonalizedRanking(factors=factors - 1, num_threads=threads)  # and one for the bias
        model.user_factors, model.item_factors = learner.user_factors_, learner.item_factors_

        def ours(threads: int = threads) -> Any:
            return learner.recommend(k=10, threads=threads)

        def theirs(model: Any = model, users: Any = all_users) -> Any:
            return model.recommend(users, None, N=10, filter_already_liked_items=False)

        check_same(ours(), theirs())
        seconds = take_turns([timed(ours), timed(theirs)], 2 if quick else TURNS)
        ratio = seconds[:, 1] / seconds[:, 0]
        fast, slow = np.median(seconds, axis=0)
        print(f"  {threads:7d}  {fast:5.2f} s   {slow:5.2f} s   {spread(ratio)}", flush=True)
        good &= bool(np.median(ratio) >= wanted)
    return good


def check_same(frame: Any, arrays: Any) -> None:
    scores = frame["score"].to_numpy().reshape(-1, 10)
    assert np.allclose(scores, arrays[1], atol=1e-5), "the two do not find the same items"


# Growth


def scale(quick: bool) -> bool:
    sizes = [10_000, 100_000] if quick else [1_000_000, 10_000_000, 50_000_000]
    print(f"scale: d = 64, {POSITIVES_PER_USER} positives a user, {ITEMS_OF_SCALE:,} items, 2 threads")
    print("   positives  ns/update  CPU ns/update   preparing  log MB  factors MB  fit's peak MB  allowed MB")
    good = True
    for size in sizes:
        command = [sys.executable, __file__, "--child", str(size)]
        seen = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        allowed = WANTED_MEMORY * seen["log"] + seen["factors"]
        print(
            f"  {size:10,d}  {seen['update']:9.1f}  {seen['cpu']:13.1f}  {seen['prepare']:8.1f} s  {seen['log']:6.0f}"
            f"  {seen['factors']:10.0f}  {seen['peak']:13.0f}  {allowed:10.0f}",
            flush=True,
        )
        good &= seen["peak"] <= allowed
    print(f"  wanted: memory at most {WANTED_MEMORY} times the log's arrays plus the factors")
    return good


def grow(positives: int) -> dict[str, float]:
    """One fit; memory in MB above what Python and the compiled kernels take."""
    Clocked(factors=64, epochs=1).fit(synthetic(1000))
    reset_peak()
    before = peak()
    log = synthetic(positives)
    reset_peak()
    learner = Clocked(factors=64, epochs=max(3, 30_000_000 // positives), threads=2, random_state=0)
    began = time.perf_counter()
    learner.fit(log)
    rest = time.perf_counter() - began - sum(wall for wall, _ in learner.passes)
    arrays = (log.user, log.item, log.time, log.treated, log.outcome, log.propensity)
    wall, cpu = np.median(learner.passes, axis=0) / positives * 1e9
    return {
        "update": wall, "cpu": cpu, "prepare": rest, "peak": peak() - before,
        "log": sum(array.nbytes for array in arrays if array is not None) / 1e6,
        "factors": (learner.user_factors_.nbytes + learner.item_factors_.nbytes) / 1e6,
    }  # fmt: skip


class Clocked(tr.DLCE):
    """DLCE that notes the seconds of its epochs, by the clock and of the processor."""

    def prepare(self, log: Log) -> Epoch:
        epoch, self.passes = super().prepare(log), list[tuple[float, float]]()

        def run(tables: Factors, seed: int, number: int, rate: float, threads: int) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            stats = epoch.run(tables, seed, number, rate, threads)
            self.passes.append((time.perf_counter() - wall, time.process_time() - cpu))
            return stats

        return Epoch(run, epoch.updates)


def synthetic(positives: int) -> Log:
    """Every user buys 50 times, popular items more often; a third of it was recommended."""
    rng, users = np.random.default_rng(0), max(1, positives // POSITIVES_PER_USER)
    lists = (users, "user_id"), (ITEMS_OF_SCALE, "item_id"), (POSITIVES_PER_USER, "time")
    catalog = Catalog(*(Ids(np.arange(size), column) for size, column in lists))
    user = np.repeat(np.arange(users, dtype=np.int32), POSITIVES_PER_USER)
    item = (ITEMS_OF_SCALE * rng.random(len(user), np.float32) ** 2).astype(np.int32)
    np.minimum(item, ITEMS_OF_SCALE - 1, out=item)
    time_of = np.tile(np.arange(POSITIVES_PER_USER, dtype=np.int32), users)
    treated = (rng.random(len(user), np.float32) < 1 / 3).astype(np.int8)
    propensity = rng.uniform(0.05, 0.95, len(user))
    return Log(catalog, user, item, time_of, treated, np.ones(len(user), np.int8), propensity)


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    """The peak of this process since it was last reset, in MB."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


# Quality


def quality(quick: bool) -> bool:
    """Early stopping by the truth of one week; the truth of ten other weeks measures."""
    training, validation, test = category(0, 10), category(1, 1), category(2, 10)
    print("quality: Category-Original, d = 200, at most 400 epochs")
    print("  method  seed  " + "  ".join(f"{name:>7s}" for name in GOALS) + "   epochs")
    good = True
    for learner_of, rule in ((tr.DLCE, RULE), (tr.BLCE, BIASED_RULE)):
        for seed in range(1 if quick else 3):
            learner = learner_of(**rule, factors=200, epochs=20 if quick else 400, random_state=seed)
            learner.fit(training.log, validation.truth, show_progress=False)
            result = {name: metric.mean for name, metric in evaluate(learner, test.truth, list(GOALS)).items()}
            values = "  ".join(f"{value:7.4f}" for value in result.values())
            print(f"  {learner_of.__name__:6s}  {seed:4d}  {values}  {len(learner.history_):7d}", flush=True)
            if learner_of is tr.DLCE:
                good &= all(result[name] >= goal for name, goal in GOALS.items())
            else:
                good &= bool(result["CP@10"] < BIASED_BELOW)
    print(f"  wanted: DLCE at least {GOALS}, BLCE's CP@10 below {BIASED_BELOW}")
    return good


# The cost of the held-out part


def lengths(quick: bool) -> bool:
    """What ``fit(log)`` chooses, by the true effects: beside the best of its lengths, and beside all epochs."""
    print(f"lengths: CP@10 by the truth, world seed {SEED}; CPU of this fit in fits of all epochs; load {load()}")
    print("  world                learner  chosen  best  CP@10 / best  all epochs / best  cost")
    kinds = ["tiny"] if quick else [kind for kind in worlds.KINDS if not kind.startswith("category")]
    shares = [race_of_lengths(kind, name) for kind in kinds for name in ("dlce", "dlto", "bpr")]
    print(f"  wanted: at least {WANTED_LENGTH} of the best; lowest {min(shares):.3f}, mean {np.mean(shares):.3f}")
    return min(shares) >= WANTED_LENGTH


def race_of_lengths(kind: str, name: str) -> float:
    rng = np.random.default_rng([zlib.crc32(kind.encode()), SEED])
    found, options = worlds.KINDS[kind](rng, SEED), {"random_state": SEED, "threads": 1}
    learner: Any = tr.learners.LEARNERS[name]
    everybody = np.arange(found.log.n_users, dtype=np.int32)

    def quality(model: Any) -> float:
        best = np.argpartition(-model.score_block(everybody), 9, axis=1)[:, :10]
        return float(np.take_along_axis(found.effect, best, axis=1).mean())

    def clocked(*arguments: Any, **more: Any) -> tuple[Any, float]:
        began = time.process_time()
        return learner(**options, **more).fit(found.log, *arguments, show_progress=False), time.process_time() - began

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = {n: clocked(None, epochs=n) for n in lengths_of(learner().epochs)}
        chosen, cost = clocked()
    each = {n: quality(model) for n, (model, _) in fits.items()}
    best, longest = max(each, key=lambda n: each[n]), max(each)
    share = quality(chosen) / each[best] if each[best] > 0 else float(quality(chosen) >= each[best])
    print(
        f"  {kind:22} {name:6} {len(chosen.history_):6d} {best:5d} {share:13.3f} {each[longest] / each[best]:18.3f}"
        f" {cost / fits[longest][1]:5.1f}",
        flush=True,
    )
    return share


# Helpers


def category(seed: int, weeks: int) -> Any:
    return tr.dunnhumby.world("category").sample(weeks, random_state=seed)


def take_turns(contestants: Sequence[Callable[[], float]], turns: int) -> Any:
    """Seconds, turns × contestants; before that each runs once to warm up."""
    for contestant in contestants:
        contestant()
    return np.array([[contestant() for contestant in contestants] for _ in range(turns)])


def timed(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    def run() -> float:
        began = clock()
        call()
        return clock() - began

    return run


def spread(ratios: Any) -> str:
    return f"{np.median(ratios):5.2f} ({np.min(ratios):.2f}-{np.max(ratios):.2f})"


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    sys.exit(main())
