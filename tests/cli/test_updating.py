"""``taurank update`` and ``taurank recommend --history``, as a person meets them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.command_line import Command
from taurank import Log, load


@pytest.fixture
def folder(taurank: Command, shop: Path, tmp_path: Path) -> Path:
    """A model without the users above 50 and the last time; the rest in another log."""
    rows = Log.read(shop / "train.parquet").to_frame()
    known = (rows["time"] < rows["time"].max()) & (rows["user_id"] <= 50)
    Log.from_frame(rows[known]).write(tmp_path / "past.parquet")
    Log.from_frame(rows[rows["time"] == rows["time"].max()]).write(tmp_path / "new.parquet")
    options = ("--set", "factors=8", "--set", "epochs=10", "--out", tmp_path / "model.tau")
    finished = taurank("fit", "dlce", tmp_path / "past.parquet", *options)
    assert finished.code == 0, finished.err
    return tmp_path


def test_update_writes_the_model_that_python_would(taurank: Command, folder: Path) -> None:
    logs = (folder / "new.parquet", "--past", folder / "past.parquet")
    finished = taurank("update", folder / "model.tau", *logs, "--out", folder / "next.tau")
    assert finished.code == 0, finished.err
    assert "Wrote DLCE, updated with Log(" in finished.out
    model = load(folder / "model.tau").update(*(Log.read(folder / name) for name in ("new.parquet", "past.parquet")))
    assert np.array_equal(load(folder / "next.tau").user_factors_, model.user_factors_)  # type: ignore[attr-defined]


def test_recommend_serves_new_users_from_their_rows(taurank: Command, folder: Path) -> None:
    options = ("--history", folder / "new.parquet", "--k", 3, "--out", folder / "best.csv")
    finished = taurank("recommend", folder / "model.tau", *options)
    assert finished.code == 0, finished.err
    lists = pd.read_csv(folder / "best.csv")
    assert set(lists["user_id"]) == set(Log.read(folder / "new.parquet").users.values.to_pylist())
    assert lists["user_id"].max() > 50
