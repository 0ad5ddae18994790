"""Forks and threads after drawing and fitting, each of which must simply work."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import taurank as tr

NAMES = ("bpr", "ulbpr", "ulrmf", "cause")


def work(seed: int) -> int:
    sample = tr.World.synthetic(60, 40, random_state=seed).sample(2, random_state=seed)
    for name in NAMES:
        kind: Any = tr.learners.LEARNERS[name]
        model = kind(factors=8, epochs=2, random_state=0, threads=2).fit(sample.log)
        tr.evaluate(model, sample.truth, "CP@10")
    return seed


def fork() -> None:
    work(0)
    child = os.fork()
    if child == 0:
        work(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def pool() -> None:
    work(0)
    with ProcessPoolExecutor(2, get_context("fork")) as workers:
        assert list(workers.map(work, range(1, 4))) == [1, 2, 3]


def threads() -> None:
    done: list[int] = []
    running = [threading.Thread(target=lambda n=n: done.append(work(n))) for n in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert sorted(done) == [0, 1]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"fork": fork, "pool": pool, "threads": threads}[sys.argv[1]]()
