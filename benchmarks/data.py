"""Time and memory of the data layer: python benchmarks/data.py [dunnhumby] [sample] [read]

dunnhumby   the cold build of the product world, and the same steps in plain pandas: ratio, peaks
sample      ten draws from the product world: peak memory on top of the world itself
read        a log of 50 million rows in Parquet: written by a script, then read, with its peak memory

Every measured job runs in a process of its own, and jobs that are compared take turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROUNDS = 3
READ_ROWS = 50_000_000
ROWS_PER_USER = 50
CHUNK_ROWS = 1_000_000
N_ITEMS = 10_000
N_TIMES = 10
GB = 1e9
ARRAYS = ("users", "items", "treated", "control", "propensity")


def dunnhumby() -> None:
    """Both builds in turn; the arrays of the last round are compared."""
    jobs = ("build_taurank", "build_pandas")
    results: dict[str, list[dict[str, Any]]] = {job: [] for job in jobs}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for job in jobs:
                results[job].append(run(job, str(Path(folder) / f"{job}.npz")))
        check_same(*(Path(folder) / f"{job}.npz" for job in jobs))
    for job in jobs:
        peak = max(result["peak"] for result in results[job]) / GB
        text = ", ".join(f"{r['seconds']:.1f} s (CPU {r['cpu']:.1f} s)" for r in results[job])
        print(f"  {job:14s} {text}; peak memory {peak:.2f} GB")
    for clock in ("seconds", "cpu"):
        fast, slow = ([result[clock] for result in results[job]] for job in jobs)
        ratios = [b / a for a, b in zip(fast, slow, strict=True)]
        text = ", ".join(f"{ratio:.1f}" for ratio in ratios)
        print(f"  pandas / taurank, {clock}: {text}; median {statistics.median(ratios):.1f} (wanted: 3)")
    print("  peak memory of taurank wanted: under 1.5 GB; the two return the same arrays")


def sample() -> None:
    result = run("sample_world")
    print(f"  {result['rows']:,} rows in the log, {result['seconds']:.1f} s")
    print(f"  peak on top of the world: {result['extra'] / GB:.2f} GB (wanted: under 1)")


def read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "log.parquet")
        written = run("write_log", path)
        result = run("read_log", path)
    print(f"  {written['rows']:,} rows, {written['bytes'] / GB:.2f} GB of Parquet")
    print(
        f"  read as {result['rows']:,} rows, {result['users']:,} users, {result['items']:,} items in "
        f"{result['seconds']:.1f} s; peak memory {result['peak'] / GB:.2f} GB (wanted: under 4)"
    )


# ---- jobs: each runs alone in a process ------------------------------------------------------------------


def build_taurank(path: str) -> dict[str, Any]:
    from taurank import dunnhumby

    world, result = timed(lambda: dunnhumby.world("product", cache=False))
    users, items = world.users.values.to_numpy(), world.items.values.to_numpy()
    rates = world.treated_rate, world.control_rate, world.propensity
    save(path, dict(zip(ARRAYS, (users, items, *rates), strict=True)))
    return result


def build_pandas(path: str) -> dict[str, Any]:
    from taurank.worlds import complete_journey

    folder = complete_journey.find_files(None).folder
    arrays, result = timed(lambda: pandas_world(folder, weight=0.9))
    save(path, arrays)
    return result


def sample_world() -> dict[str, Any]:
    import taurank as tr

    world = tr.dunnhumby.world("product")
    before = reset_peak()
    drawn, result = timed(lambda: world.sample(times=10, random_state=0))
    return {**result, "rows": len(drawn.log), "extra": result["peak"] - before}


def write_log(path: str) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    writer: Any = None
    for start in range(0, READ_ROWS, CHUNK_ROWS):
        table = pa.table(log_rows(start, min(CHUNK_ROWS, READ_ROWS - start), rng))
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()
    return {"rows": READ_ROWS, "bytes": Path(path).stat().st_size}


def read_log(path: str) -> dict[str, Any]:
    import taurank as tr

    log, result = timed(lambda: tr.Log.read(path))
    return {**result, "rows": len(log), "users": log.n_users, "items": log.n_items}


def log_rows(start: int, rows: int, rng: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
    """Shuffled rows; a user's items come from disjoint ranges, so that no pair occurs twice."""
    row = start + rng.permutation(rows)
    width = N_ITEMS // ROWS_PER_USER
    propensity = rng.uniform(0.05, 0.95, rows)
    return {
        "user_id": row // ROWS_PER_USER,
        "item_id": (row % ROWS_PER_USER) * width + rng.integers(0, width, rows),
        "time": rng.integers(0, N_TIMES, rows),
        "treated": (rng.random(rows) < propensity).astype(np.int8),
        "outcome": (rng.random(rows) < 0.1).astype(np.int8),
        "propensity": propensity,
    }


# ---- the same steps in pandas ----------------------------------------------------------------------------


def pandas_world(folder: Path, weight: float) -> dict[str, npt.NDArray[Any]]:
    """Products as items: the steps of docs/notes/dunnhumby.md, only the needed columns, the big join by week."""
    import pandas as pd

    columns = ["product_id", "store_id", "week", "mailer_location"]
    mailed = pd.read_parquet(folder / "promotions.parquet", columns=columns)
    mailed = mailed[mailed["mailer_location"] != "0"].drop(columns="mailer_location")
    columns = ["household_id", "product_id", "store_id", "week"]
    purchase = pd.read_parquet(folder / "transactions.parquet", columns=columns)
    for column in ("product_id", "store_id", "week"):
        purchase = purchase[purchase[column].isin(mailed[column].unique())]
    purchase = purchase.drop_duplicates()
    enough = [purchase.groupby(c)["week"].transform("nunique") >= 10 for c in ("household_id", "product_id")]
    kept = purchase[enough[0] & enough[1]]

    key = ["household_id", "week"]
    stop = kept[[*key, "store_id"]].drop_duplicates()
    mailed = mailed[mailed["product_id"].isin(kept["product_id"].unique())].drop_duplicates()
    bought = kept[[*key, "product_id"]].drop_duplicates().merge(stop, on=key)
    bought = bought.merge(mailed.assign(z=True), on=["product_id", "store_id", "week"], how="left")
    bought["z"] = bought["z"].notna()
    bought = bought.groupby([*key, "product_id"])["z"].any().reset_index()
    arms = bought.groupby("product_id")["z"].nunique()
    items = np.sort(arms.index[arms == 2].to_numpy())
    users = np.sort(kept["household_id"].unique())

    def table(rows: Any, counted: npt.NDArray[np.int64]) -> None:
        np.add.at(
            counted,
            (users.searchsorted(rows["household_id"]), items.searchsorted(rows["product_id"])),
            1,
        )

    bought = bought[bought["product_id"].isin(items)]
    mailed = mailed[mailed["product_id"].isin(items)]
    a_treated, a_control, b_treated = (np.zeros((len(users), len(items)), np.int64) for _ in range(3))
    table(bought[bought["z"]], a_treated)
    table(bought[~bought["z"]], a_control)
    for week, featured in mailed.groupby("week"):
        seen = stop[stop["week"] == week].merge(featured, on="store_id")
        table(seen[["household_id", "product_id"]].drop_duplicates(), b_treated)
    visits = stop.drop_duplicates(key).groupby("household_id").size().to_numpy()[:, None]

    def smoothed(count: npt.NDArray[Any], total: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        rate = (count + weight * count.mean(axis=0)) / (total + weight * total.mean(axis=0))
        return np.asarray(rate.clip(0, 1), dtype=np.float32)

    return {
        "users": users,
        "items": items,
        "treated": smoothed(a_treated, b_treated),
        "control": smoothed(a_control, visits - b_treated),
        "propensity": smoothed(b_treated, visits).clip(np.float32(1e-6), np.float32(1 - 1e-6)),
    }


def save(path: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    np.savez(path, allow_pickle=False, **arrays)


def check_same(one: Path, other: Path) -> None:
    with np.load(one) as first, np.load(other) as second:
        for name in ARRAYS:
            np.testing.assert_array_equal(first[name], second[name])


# ---- processes and their memory --------------------------------------------------------------------------


def run(job: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--job", job, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def timed(job: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """A job's result; its seconds, those of all its threads together, and the peak memory in bytes."""
    start, cpu = time.perf_counter(), time.process_time()
    made = job()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return made, {"seconds": seconds, "cpu": cpu, "peak": memory("VmHWM")}


def reset_peak() -> int:
    """Reset the peak; return the resident size now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(field: str) -> int:
    # Not resource.getrusage: its peak is inherited from the process that started this one.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status; this benchmark needs Linux")


SECTIONS: dict[str, Callable[[], None]] = {"dunnhumby": dunnhumby, "sample": sample, "read": read}
JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    job.__name__: job for job in (build_taurank, build_pandas, sample_world, write_log, read_log)
}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--job"]:
        print(json.dumps(JOBS[arguments[1]](*arguments[2:])))
        return
    unknown = [name for name in arguments if name not in SECTIONS]
    if unknown:
        sys.exit(f"there is no section '{unknown[0]}'; choose from {', '.join(SECTIONS)}.")
    for name in arguments or SECTIONS:
        print(name, flush=True)
        SECTIONS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
