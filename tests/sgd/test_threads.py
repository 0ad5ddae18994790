"""Our own threads: interrupts, exceptions, forks, several callers, absurd thread counts."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taurank
from support.factors import some_pairs, some_positives, start_tables
from taurank import BPR, DLCE, ULBPR, Log, World
from taurank._threads import MAX_THREADS, Flag, map_blocks, run_interruptibly, run_together, worker_count
from taurank.sgd import scheduler
from taurank.sgd.kernels import pair_params
from taurank.sgd.scheduler import run_pairwise_epoch, run_samples
from taurank.sgd.strata import Strata

INTERRUPTS = int(os.environ.get("TAURANK_INTERRUPTS", "24"))

# A process that fits over and over; after each interrupt it reports what it caught and what was left behind.
FITTER = """
import json, signal, sys, threading
import taurank as tr
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
log = tr.World.synthetic(300, 200, random_state=0).sample(3, random_state=1).log
kinds = [tr.DLCE, tr.BPR, tr.ULBPR, tr.CausE]
learners = [kind(factors=16, epochs=20, threads=4, random_state=0, learning_rate=0.003).fit(log) for kind in kinds]
for number in range(int(sys.argv[1])):
    learner = learners[number % len(learners)]
    try:
        print("ready", flush=True)
        while True:
            learner.fit(log)
    except BaseException as caught:
        error = type(caught).__name__
    threads = threading.active_count()
    print(json.dumps({"error": error, "threads": threads, "fitted": hasattr(learner, "item_factors_")}), flush=True)
"""


def test_interrupts_leave_nothing_behind() -> None:
    """Ctrl-C and SIGTERM at random moments: the right exception, no thread left, no process that hangs."""
    moments = random.Random(0)
    signals = [(signal.SIGINT, "KeyboardInterrupt")] * (INTERRUPTS // 2)
    signals += [(signal.SIGTERM, "SystemExit")] * (INTERRUPTS // 2)
    moments.shuffle(signals)
    command = [sys.executable, "-X", "faulthandler", "-c", FITTER, str(len(signals))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(120 + len(signals), process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            for sent, error in signals:
                assert process.stdout.readline() == "ready\n"
                time.sleep(moments.uniform(0, 0.05))
                process.send_signal(sent)
                while not select.select([process.stdout], [], [], 20)[0]:
                    process.send_signal(sent)  # Python drops what a handler raises inside a weakref callback
                line = process.stdout.readline()
                assert line, f"the process ended with code {process.wait(60)}"
                assert json.loads(line) == {"error": error, "threads": 1, "fitted": True}
            assert process.wait(60) == 0
        finally:
            process.kill()
            watchdog.cancel()


@pytest.mark.parametrize("run", ["pass", "pairs"])
def test_an_exception_in_one_worker_stops_the_others(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that fails never finishes its unit: without the flag the others would wait for it forever."""
    strata, tables = Strata(200, 150, 40_000, pairs=run == "pairs"), start_tables(200, 150, 8)
    params = pair_params(0.02, 0.01)
    work, calls = scheduler._work, iter(range(10**9))

    def fail_once(ticket: int, factors: Any, job: Any, planning: Any, params: Any, progress: Any, stats: Any) -> int:
        if next(calls) == 0:
            progress.taken[0] += 1  # takes a ticket and dies with it
            raise MemoryError("no room for the plan")
        return int(work(ticket, factors, job, planning, params, progress, stats))

    monkeypatch.setattr(scheduler, "_work", fail_once)
    positives, pairs = some_positives(200, 150, 40_000), some_pairs(200, 150, 40_000)
    epoch: Any = run_pairwise_epoch if run == "pass" else run_samples
    before = set(threading.enumerate())  # other tests of this process may have threads of their own
    with pytest.raises(MemoryError, match="no room"):
        epoch(tables, positives if run == "pass" else pairs, strata, 1, 0, params, 3)
    assert set(threading.enumerate()) <= before


def test_an_interrupt_of_a_wait_is_not_hidden_by_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Event.wait raises if a signal arrives between the release of its lock and the wait."""

    def interrupted(self: threading.Condition, timeout: float | None = None) -> bool:
        self._release_save()  # type: ignore[attr-defined]
        monkeypatch.undo()
        raise KeyboardInterrupt

    def work(stop: Flag) -> None:
        monkeypatch.setattr(threading.Condition, "wait", interrupted)
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work)
    with pytest.raises(RuntimeError, match="a task's own"):
        run_interruptibly(lambda stop: (_ for _ in ()).throw(RuntimeError("a task's own unlocked lock")))


def test_an_exception_reaches_the_caller() -> None:
    def fail(begin: int, end: int) -> None:
        raise ValueError(f"block {begin}")

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="block"):
        map_blocks(fail, 100, 3)
    with pytest.raises(KeyError):
        run_interruptibly(lambda stop: {"a": 1}["b"])
    assert set(threading.enumerate()) <= before


def test_a_system_without_threads_is_told_and_stops_the_started_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def wait(stop: Flag) -> None:
        while not stop[0]:
            time.sleep(0.001)

    monkeypatch.setattr(threading.Thread, "start", limited)
    stop = np.zeros(1, np.int64)
    with pytest.raises(RuntimeError, match="start new thread"):
        run_together(lambda: wait(stop), 5, stop)
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("n", [0, 1, 5, 1000])
def test_blocks_cover_everything_once(n: int) -> None:
    seen = np.zeros(n, np.int64)

    def count(begin: int, end: int) -> None:
        seen[begin:end] += 1

    for threads in (1, 2, 7):
        map_blocks(count, n, threads)
    assert (seen == 3).all()


def test_absurd_numbers_of_threads_are_capped() -> None:
    assert worker_count(3) == 3
    assert worker_count(10**9) <= max(MAX_THREADS, os.cpu_count() or 1)
    log = World.synthetic(30, 20, random_state=0).sample(1, random_state=1, threads=10**9).log
    few, many = (ULBPR(factors=4, epochs=1, threads=threads, random_state=0).fit(log) for threads in (1, 10**4))
    assert np.array_equal(few.item_factors_, many.item_factors_)


def small_log() -> Log:
    return World.synthetic(40, 30, random_state=0).sample(2, random_state=1, threads=2).log


def fit_small(name: str) -> bytes:
    learner = {"DLCE": DLCE, "BPR": BPR, "ULBPR": ULBPR}[name](factors=4, epochs=2, threads=2, random_state=0)
    return bytes(learner.fit(small_log()).item_factors_.tobytes())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_after_threads_were_used_works() -> None:
    """Sampling and a drawn fit first, in the parent; a pool of forked children then does the same."""
    want = [fit_small(name) for name in ("DLCE", "ULBPR")]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(fit_small, ["DLCE", "ULBPR"]).get(timeout=120) == want


def test_python_threads_may_fit_at_the_same_time() -> None:
    names = ["DLCE", "BPR", "ULBPR", "ULBPR"]
    want, results = {name: fit_small(name) for name in names}, dict[int, bytes]()

    def fit(number: int) -> None:
        results[number] = fit_small(names[number])

    callers = [threading.Thread(target=fit, args=(number,)) for number in range(len(names))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
    assert [results[number] for number in range(len(names))] == [want[name] for name in names]


def test_no_kernel_uses_threads_of_numba() -> None:
    """Neither forks nor two callers at once are safe with them."""
    sources = list(Path(taurank.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    assert [path.name for path in sources if re.search(r"parallel=True|prange", path.read_text("utf-8"))] == []
