"""What the attacks on processes run: fits, searches and writes that say when they have begun."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import taurank as tr


def data() -> Any:
    return tr.World.synthetic(400, 120, random_state=0).sample(5, random_state=1)


def learner(name: str, epochs: int) -> Any:
    kind: Any = tr.learners.LEARNERS[name]
    return kind(factors=16, epochs=epochs, learning_rate=0.003, random_state=0, threads=2)


def warm_up(name: str, log: tr.Log) -> None:
    """Compile before the clock starts, so that signals arrive during training."""
    learner(name, 1).fit(log, show_progress=False)


def endless(name: str) -> None:
    log = data().log
    warm_up(name, log)
    print("training", flush=True)
    learner(name, 1_000_000).fit(log, show_progress=False)


def fit(name: str, checkpoint: str) -> None:
    log = data().log
    warm_up(name, log)
    print("training", flush=True)
    model = learner(name, 60).fit(log, show_progress=False, checkpoint=checkpoint, checkpoint_minutes=0)
    factors = (model.user_factors_, model.item_factors_)
    print(json.dumps({"bits": [hashlib.sha256(table.tobytes()).hexdigest() for table in factors]}))


def search(journal: str) -> None:
    train, test = data(), data()
    print("searching", flush=True)
    tr.tune(
        "dlce", train.log, test.truth, trials=6, space={"regularization": [0.1, 0.01, 0.001], "cap": [0.01, 0.1]},
        fixed={"factors": 8, "epochs": 20}, journal=journal, show_progress=False,
    )  # fmt: skip


def write(folder: str) -> None:
    log = data().log
    model = tr.Popular().fit(log)
    print("writing", flush=True)
    while True:
        log.write(Path(folder) / "log.parquet")
        log.write(Path(folder) / "log.csv")
        model.save(Path(folder) / "model")


def check(folder: str) -> None:
    for name in ("log.parquet", "log.csv"):
        if (Path(folder) / name).exists():
            tr.Log.read(Path(folder) / name)
    if (Path(folder) / "model").exists():
        tr.load(Path(folder) / "model")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jobs: dict[str, Callable[..., None]] = {
        "endless": endless,
        "fit": fit,
        "search": search,
        "write": write,
        "check": check,
    }
    jobs[sys.argv[1]](*sys.argv[2:])
