"""Mistakes people make, each met with one sentence: found by trying to break things."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from taurank.data import storage
from taurank.errors import InputError


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.World.synthetic(30, 20, random_state=0).sample(3, random_state=1).log


def quick(**options: Any) -> tr.DLCE:
    return tr.DLCE(**{"factors": 4, "epochs": 2, "random_state": 0, **options})


def test_a_refused_refit_leaves_the_learner_as_it_was(log: tr.Log) -> None:
    model = quick().fit(log)
    before = model.recommend(k=3)
    rows = log.to_frame().drop(columns="propensity")
    with pytest.raises(InputError, match="propensity"):
        model.fit(tr.Log.from_frame(rows.assign(user_id=rows["user_id"] + 1000)))
    pd.testing.assert_frame_equal(model.recommend(k=3), before)


class TestFiles:
    def test_a_partitioned_folder_is_refused(self, log: tr.Log, tmp_path: Path) -> None:
        log.to_frame().to_parquet(tmp_path / "part", partition_cols=["time"])
        with pytest.raises(InputError, match=r"folder name 'time=0' is the value of a column"):
            tr.Log.read(tmp_path / "part")

    def test_leftovers_of_other_tools_are_passed_over(self, log: tr.Log, tmp_path: Path) -> None:
        log.write(tmp_path / "log.parquet")
        (tmp_path / "._log.parquet").write_text("x")
        (tmp_path / ".ipynb_checkpoints").mkdir()
        log.write(tmp_path / ".ipynb_checkpoints" / "log.parquet")
        (tmp_path / "_SUCCESS").write_text("")
        assert tr.Log.read(tmp_path).equals(log)
        assert tr.Log.read(tmp_path / "*").equals(log)

    def test_links_are_followed_and_special_files_kept(self, log: tr.Log, tmp_path: Path) -> None:
        link, real, pipe = (tmp_path / name for name in ("link.parquet", "real.parquet", "pipe.parquet"))
        real.write_text("old")
        link.symlink_to(real)
        log.write(link)
        assert link.is_symlink()
        assert tr.Log.read(real).equals(log)
        os.mkfifo(pipe)
        for act in (lambda: log.write(pipe), lambda: tr.Log.read(pipe)):
            with pytest.raises(InputError, match="not a regular file"):
                act()

    def test_an_unknown_separator_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text("user_id|item_id|treated|outcome\n1|2|1|1\n")
        with pytest.raises(InputError, match="Separate columns by commas, semicolons or tabs"):
            tr.Log.read(tmp_path / "log.csv")

    def test_models_of_another_version(self, tmp_path: Path) -> None:
        facts = {"learner": "newest", "taurank": "9.0", "hyper_parameters": {}}
        storage.write(tmp_path / "model", "model", facts, {"ids": np.zeros(1, np.uint8)})
        with pytest.raises(InputError, match=r"written by taurank 9\.0"):
            tr.load(tmp_path / "model")

    def test_numpy_hyper_parameters_are_saved(self, log: tr.Log, tmp_path: Path) -> None:
        model = quick(factors=np.int64(4), cap=np.float32(0.5), random_state=np.int64(3)).fit(log)
        model.save(tmp_path / "model")
        assert tr.load(tmp_path / "model").hyper_parameters()["factors"] == 4


def test_tiny_propensities_do_not_break_the_figures(log: tr.Log) -> None:
    tiny = log.with_propensity(np.full(len(log), 1e-100))
    assert str(tr.diagnose(tiny))
    assert tr.gains.ips(log.with_propensity(np.full(len(log), 1e-9))).value.max() == pytest.approx(1e9)
    with pytest.raises(InputError, match="too small to be inverted; give a cap"):
        tr.gains.ips(tiny)


MISTAKES: dict[str, Callable[[tr.Log], Any]] = {
    "k": lambda log: tr.Popular().fit(log).recommend([1], k=3.0),  # type: ignore[arg-type]
    "threads": lambda log: tr.Popular().fit(log).recommend([1], threads="2"),  # type: ignore[arg-type]
    "times": lambda log: tr.World.synthetic(3, 3, 0).sample(1.5),  # type: ignore[arg-type]
    "random_state": lambda log: tr.World.synthetic(3, 3, -1),
    "log": lambda log: quick().fit(log.to_frame()),  # type: ignore[arg-type]
    "pairs": lambda log: tr.Popular().fit(log).score([0, 1, 2], [0, 1]),
    "path": lambda log: tr.Log.read(None),
    "id_types": lambda log: tr.Log.read("x.csv", id_types={"user": "string"}),
    "with_propensity": lambda log: log.with_propensity("half"),
    "not fitted": lambda log: quick().save("x"),
    "world": lambda log: tr.World("a", "b", "c", [1], [1]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: str, log: tr.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("user_id,item_id,treated,outcome\n1,2,1,1\n")
    with pytest.raises(InputError) as caught:
        MISTAKES[mistake](log)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
