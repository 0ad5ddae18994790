"""What a cluster costs: speed against threads, memory and traffic at 100 M positives, top-10 lists.

    python benchmarks/cluster.py threads  --positives 10_000_000               (a) two workers against two threads
    python benchmarks/cluster.py scale    --positives 100_000_000              (b) one epoch: memory, ns/update
    python benchmarks/cluster.py scale    --positives 10_000_000               (b) the same, smaller, to compare with
    python benchmarks/cluster.py lists    --positives 100_000_000 --k 10       (c) top-10 of all users to Parquet

The log is written once per size as sharded Parquet, by a generator that streams; --folder says where. Sizes follow
from the positives: 2 % users and 0.2 % items (at least 2,000), as in 100 M positives, 2 M users and 200 k items.
(c) uses the model that (b) saved, or without one a model of that size with random factors; it needs no log.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import taurank as tr
from taurank.cluster.fit import DistributedFit
from taurank.data.ids import Ids
from taurank.data.storage import ShardedArray, write_shard

ROWS_PER_GROUP = 1 << 19
TIMES = 50
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["threads", "scale", "lists"])
    parser.add_argument("--positives", type=int, default=10_000_000)
    parser.add_argument("--factors", type=int)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--users", type=int, help="of (c): the first so many, default all")
    parser.add_argument("--folder", type=Path, default=Path("cluster-benchmark"))
    parser.add_argument("--address", help="of a running cluster; default: Ray on this machine")
    given = parser.parse_args()
    log = given.folder / f"log-{given.positives}"
    if given.part != "lists" and not log.exists():
        report("write the log", lambda: write_log(log, given.positives))
    {"threads": compare_threads, "scale": one_epoch, "lists": write_lists}[given.part](log, given)


def write_log(folder: Path, positives: int) -> None:
    """Positives only, file by file: a user has the same share of all files, so no file holds whole users."""
    temporary = folder.with_name(folder.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files = max(1, positives // (1 << 22))
    for file, batches in enumerate(np.array_split(np.arange(-(-positives // ROWS_PER_GROUP)), files)):
        with pq.ParquetWriter(temporary / f"part-{file:04d}.parquet", SCHEMA) as writer:
            for batch in batches:
                first = int(batch) * ROWS_PER_GROUP
                writer.write_table(rows(first, min(ROWS_PER_GROUP, positives - first), positives))
    temporary.rename(folder)


SCHEMA = pa.schema(
    [
        ("user_id", pa.int64()), ("item_id", pa.int64()), ("time", pa.int32()), ("treated", pa.int8()),
        ("outcome", pa.int8()), ("propensity", pa.float32()),
    ]
)  # fmt: skip


def rows(first: int, count: int, positives: int) -> pa.Table:
    """Rows first … first + count − 1. Row n is user n mod users, so no two rows are the same cell."""
    users, items = sizes(positives)
    rng = np.random.default_rng([17, first])
    number = np.arange(first, first + count)
    visit = number // users  # the how many-th row of its user: each has a time of its own, and then another item
    popular = (items * rng.power(0.5, count)).astype(np.int64) // TIMES * TIMES
    item = (popular + visit % TIMES + visit // TIMES * TIMES) % items
    columns = [
        (number % users) * 3, item, (visit % TIMES).astype(np.int32), (rng.random(count) < 0.4).astype(np.int8),
        np.ones(count, np.int8), rng.uniform(0.05, 0.95, count).astype(np.float32),
    ]  # fmt: skip
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)


def sizes(positives: int) -> tuple[int, int]:
    return max(1000, positives // 50), max(2000, positives // 500)


def compare_threads(log: Path, given: Any) -> None:
    """(a) Updates per second of an epoch, both by the clock, without reading; threads and workers take turns."""
    factors, workers, local = given.factors or 64, given.workers, tr.Log.read(log)
    model = learner(factors, given.epochs + 1, workers)
    tables, epoch = model._initial(local, SEED), model.prepare(local)
    with tr.cluster.connect(given.address, workers) as cluster:
        workers_fit = DistributedFit(cluster.read_log(log), model)
        workers_fit.begin(SEED, None)
        seconds = []
        for number in range(given.epochs + 1):
            a = clocked(lambda n=number: epoch.run(tables, SEED, n, model._schedule(model.epochs).rate(n), workers))
            b = clocked(lambda n=number: workers_fit.run(None, SEED, n, model._schedule(model.epochs).rate(n), 1))
            seconds.append((a, b))
        stored = (workers_fit.users, workers_fit.items)
        same = all(
            np.array_equal(np.asarray(one), table[:, :factors]) for one, table in zip(stored, tables, strict=True)
        )
    turns = np.array(seconds[1:])  # the first turn compiles and loads
    for name, each in zip(("threads", "workers"), turns.T, strict=True):
        speed = given.positives / float(np.median(each)) / 1e6
        print(f"{given.positives:,} positives, d = {factors}, {workers} {name}: {speed:.2f} M updates/s")
    ratios = turns[:, 0] / turns[:, 1]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    print(f"ratio {middle:.3f} (median of {len(turns)} turns, quartiles {low:.3f} and {high:.3f}); same bits: {same}")


def clocked(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def one_epoch(log: Path, given: Any) -> None:
    """(b) Memory of every process, and nanoseconds per update."""
    factors = given.factors or 32
    with tr.cluster.connect(given.address, given.workers) as cluster, Memory(cluster) as memory:
        data = report("read and check the log", lambda: cluster.read_log(log))
        times: list[float] = []
        computed: list[float] = []
        with timed(DistributedFit, "run", times, memory.cpu_seconds, computed):
            model = learner(factors, given.epochs, 1)
            report(f"load and {given.epochs} epochs", lambda: model.fit(data, None))
        model.save(given.folder / f"model-{given.positives}")
    second, cpu = (float(np.median(each[1:] or each)) for each in (times, computed))
    users, items = sizes(given.positives)
    share = given.positives * 12 / given.workers / 1e6
    held = (users / given.workers + items) * factors * 4 / 1e6
    print(f"{given.positives:,} positives, {users:,} users, {items:,} items, d = {factors}, {given.workers} workers")
    print(f"epoch {second:.2f} s, {second * 1e9 * given.workers / given.positives:.1f} ns/update and worker")
    print(f"CPU time of the workers {cpu:.2f} s an epoch, {cpu * 1e9 / given.positives:.1f} ns/update")
    bound = 3 * share + held
    print(f"share of the positives {share:.0f} MB, factors {held:.0f} MB: 3 × share + factors {bound:.0f} MB")
    memory.show()


def write_lists(log: Path, given: Any) -> None:
    """(c) Lists for all users of a model."""
    stored, target = given.folder / f"model-{given.positives}", given.folder / f"lists-{given.positives}"
    if not stored.exists():
        report("draw a model", lambda: draw_model(stored, given))
    model = report("load the model", lambda: tr.load(stored))
    users = None if given.users is None else model.users.values[: given.users]
    shutil.rmtree(target, ignore_errors=True)
    with tr.cluster.connect(given.address, given.workers) as cluster, Memory(cluster) as memory:
        began = time.perf_counter()
        count = report(f"top {given.k}", lambda: cluster.write_recommendations(model, target, users, k=given.k))
        each = (time.perf_counter() - began) * given.workers / (count / given.k)
        used = memory.cpu_seconds()
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{count:,} rows, top {given.k} of {len(model.items):,} items, {size / 1e6:,.0f} MB of Parquet")
    print(
        f"{each * 1e6:,.0f} µs per user and worker by the clock, {used / (count / given.k) * 1e6:,.0f} µs of CPU time"
    )
    memory.show()


def draw_model(folder: Path, given: Any) -> None:
    """Random factors, in files as a fit writes them; some items are liked by most users, as in a trained model."""
    users, items = sizes(given.positives)
    rng, parts = np.random.default_rng(3), []
    model = learner(given.factors or 32, given.epochs, 1)
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        for first in range(0, users, 1 << 18):
            rows = rng.standard_normal((min(1 << 18, users - first), model.factors), np.float32)
            rows[:, 0] = 1
            parts.append(write_shard(Path(temporary), "user_factors", rows))
        model.user_factors_ = ShardedArray(parts)
        model.item_factors_ = rng.standard_normal((items, model.factors), np.float32)
        model.users_, model.items_ = Ids(np.arange(users) * 3, "user_id"), Ids(np.arange(items), "item_id")
        model.popularity_, model.log_fingerprint_ = np.ones(items, np.int64), None
        model.save(folder)


def learner(factors: int, epochs: int, threads: int) -> Any:
    return tr.DLCE(factors=factors, epochs=epochs, random_state=1, threads=threads)


@contextmanager
def timed(owner: Any, name: str, seconds: list[float], clock: Any, on_clock: list[float]) -> Iterator[None]:
    """Measure every call of a function, by the time and by another clock."""
    before = getattr(owner, name)

    def measured(*arguments: Any) -> Any:
        began, other = time.perf_counter(), clock()
        result = before(*arguments)
        seconds.append(time.perf_counter() - began)
        on_clock.append(clock() - other)
        return result

    setattr(owner, name, measured)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Memory:
    """Peaks of the memory of the driver and of every worker, without what they share (the object store)."""

    def __init__(self, cluster: Any) -> None:
        self.processes = {f"worker {n}": psutil.Process(pid) for n, pid in enumerate(cluster.pool.pids())}
        self.processes["driver"] = psutil.Process()
        self.peaks = dict.fromkeys(self.processes, 0)
        self.over = threading.Event()

    def __enter__(self) -> Memory:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()

    def cpu_seconds(self) -> float:
        """The CPU time of the workers so far."""
        return float(sum(sum(one.cpu_times()[:2]) for name, one in self.processes.items() if name != "driver"))

    def show(self) -> None:
        for name, peak in self.peaks.items():
            print(f"peak of {name}: {peak / 1e6:,.0f} MB")

    def _watch(self) -> None:
        while not self.over.wait(0.2):
            for name, own in self._own():
                self.peaks[name] = max(self.peaks[name], own)

    def _own(self) -> Iterator[tuple[str, int]]:
        for name, process in self.processes.items():
            try:
                info = process.memory_info()
            except psutil.Error:
                continue
            yield name, info.rss - info.shared


def report(what: str, work: Any) -> Any:
    began = time.perf_counter()
    result = work()
    print(f"{what}: {time.perf_counter() - began:.1f} s", flush=True)
    return result


if __name__ == "__main__":
    main()
