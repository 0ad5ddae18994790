"""``taurank data | log | propensity | paper | demo``, as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.builders import synthetic_log
from support.command_line import Command
from taurank import Gains, Log, World, dunnhumby
from taurank.worlds.shop import Shop


def test_synthetic_writes_log_truth_and_their_origin(taurank: Command, tmp_path: Path) -> None:
    arguments = ("data", "synthetic", "--users", 30, "--items", 20, "--times", 2, "--seed", 5, "--out")
    assert taurank(*arguments, tmp_path / "a").code == 0
    assert taurank(*arguments, tmp_path / "b").code == 0
    log, again = (Log.read(tmp_path / folder / "log.parquet") for folder in "ab")
    assert log.equals(again)
    assert (log.n_users, log.n_items, log.n_times) == (30, 20, 2)
    truth = Gains.read(tmp_path / "a" / "truth.parquet")
    assert set(truth.value) == {-1.0, 1.0}
    facts = json.loads((tmp_path / "a" / "world.json").read_text(encoding="utf-8"))
    assert facts["origin"]["maker"] == "synthetic"
    assert (facts["seed"], facts["rows"], facts["effects"]) == (5, len(log), len(truth))


def test_a_sample_seed_draws_again_from_the_same_world(taurank: Command, tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 2)):
        options = ("--sample-seed", seed, "--propensity", "personalized", "--out", tmp_path / folder)
        assert taurank("data", "synthetic", "--users", 30, "--items", 20, *options).code == 0
        facts = json.loads((tmp_path / folder / "world.json").read_text(encoding="utf-8"))
        assert facts["origin"]["personalized"]["beta"] == 2.0
    first, second = (Log.read(tmp_path / folder / "log.parquet").to_frame() for folder in "ab")
    both = first.merge(second, on=["user_id", "item_id"], suffixes=("", "_again"))
    assert len(both) > 10
    assert (both["propensity"] == both["propensity_again"]).all()
    assert not first.equals(second)


def test_a_shop_with_a_violation(taurank: Command, tmp_path: Path) -> None:
    size = ("--users", 20, "--items", 120, "--weeks", 1, "--out", tmp_path)
    assert taurank("data", "shop", *size, "--violation", "delay=0.4", "--violation", "every-visit=1").code == 0
    violations = Shop.load(tmp_path / "shop.json").violations
    assert (violations.delay, violations.every_visit) == (0.4, 1)
    assert taurank("data", "shop", *size, "--violation", "delays=0.4").refused_with("there is no violation 'delays'")
    assert taurank("data", "shop", *size, "--violation", "delay=4").refused_with("delay must be a number")


def test_log_check_prints_what_describe_returns(taurank: Command, shop: Path) -> None:
    finished = taurank("log", "check", shop / "train.parquet")
    assert finished.code == 0
    printed = dict(line.rsplit(maxsplit=1) for line in finished.out.splitlines())
    described = Log.read(shop / "train.parquet").describe()
    assert list(printed) == [*described.keys()]
    for name, value in described.items():
        assert float(printed[str(name)].replace(",", "")) == pytest.approx(float(value), rel=1e-5)


def test_log_check_without_propensities_and_of_bad_input(taurank: Command, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,treated,outcome\n1,2,1,0\n")
    assert "not recorded" in taurank("log", "check", path).out
    path.write_text("user_id,item_id,treated,outcome,propensity\n1,2,1,0,1.0\n1,3,1,0,0.5\n")
    finished = taurank("log", "check", path)
    assert finished.refused_with("column 'propensity'")
    assert "1.0" in finished.err


def test_log_build(taurank: Command, tmp_path: Path) -> None:
    shown, bought, out = (tmp_path / name for name in ("shown.csv", "bought.csv", "log.parquet"))
    shown.write_text("user_id,item_id,timestamp\n1,tea,2024-01-01 10:00:00\n2,tea,2024-01-09 10:00:00\n")
    bought.write_text("user_id,item_id,timestamp\n1,tea,2024-01-02 12:00:00\n3,ham,2024-01-03 12:00:00\n")
    finished = taurank("log", "build", shown, bought, "--out", out)
    assert finished.code == 0
    assert "Wrote Log(3 rows" in finished.out
    log = Log.read(out)
    assert (log.n_users, log.n_times, int(log.treated.sum()), int(log.outcome.sum())) == (3, 2, 2, 2)


def test_propensity_estimate_and_diagnose(taurank: Command, shop: Path, tmp_path: Path) -> None:
    without, estimated, page = (tmp_path / name for name in ("without.csv", "estimated.parquet", "page.html"))
    log = Log.read(shop / "train.parquet")
    Log.from_frame(log.to_frame().drop(columns="propensity")).write(without)
    assert taurank("propensity", "diagnose", without).refused_with("taurank propensity estimate")
    assert taurank("propensity", "estimate", without, "--threads", 2, "--out", estimated).code == 0
    assert len(Log.read(estimated)) == len(log)
    assert Log.read(estimated).propensity is not None
    finished = taurank("propensity", "diagnose", estimated, "--html", page, "--format", "json")
    assert finished.code == 0
    assert json.loads(finished.out)
    assert "<svg" in page.read_text(encoding="utf-8")


def test_paper(taurank: Command, tmp_path: Path) -> None:
    finished = taurank("paper", "statistics", "--preset", "smoke", "--out", tmp_path / "paper")
    assert finished.code == 0
    assert f"Wrote {tmp_path / 'paper' / 'report.html'}." in finished.out
    assert (tmp_path / "paper" / "report.html").exists()
    assert taurank("paper", "nothing", "--preset", "smoke", "--out", tmp_path).refused_with("nothing")


def test_the_demo_compares_rankings(taurank: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What every visitor runs first, on a small world in place of the shopping data."""
    monkeypatch.setenv("COLUMNS", "80")
    made = World.synthetic(150, 60, random_state=0)
    rates = (made.treated_rate, made.control_rate, made.propensity)
    world = World(*rates, made.users, made.items, origin={"weeks": 12})
    monkeypatch.setattr(dunnhumby, "world", lambda items: world)
    finished = taurank("demo", "--threads", 1)
    assert finished.code == 0, finished.err
    rows = [line.split() for line in finished.out.splitlines()]
    effects = {row[0]: float(row[2]) for row in rows if row[1:2] == ["truth"]}
    assert set(effects) == {"Popular", "BPR", "DLCE", "EmpiricalBayes"}
    assert effects["EmpiricalBayes"] > effects["DLCE"] > effects["Popular"]
    assert f"{effects['EmpiricalBayes'] / effects['BPR']:.0f}" in finished.out
    assert max(map(len, finished.out.splitlines())) <= 80


def test_propensities_of_pairs_and_recorded_ones(taurank: Command, tmp_path: Path) -> None:
    """Half of the rows record a propensity: those stay; the exposure model fills in the others."""
    log = synthetic_log(users=40, items=20, times=3)
    frame = log.to_frame()
    frame.loc[::2, "propensity"] = None
    partial, out = tmp_path / "partial.csv", tmp_path / "full.parquet"
    frame.to_csv(partial, index=False)
    finished = taurank("propensity", "estimate", partial, "--threads", 1, "--out", out)
    assert finished.code == 0
    assert f"Kept {len(frame) // 2:,} recorded propensities" in finished.out
    assert "Pair-level calibration" in finished.out
    assert Log.read(out).to_frame()["propensity"][1::2].tolist() == frame["propensity"][1::2].tolist()


def test_propensities_of_slates(taurank: Command, tmp_path: Path) -> None:
    table, out = tmp_path / "candidates.csv", tmp_path / "out.csv"
    table.write_text("slate_id,item_id,weight\n1,a,3\n2,b,1\n1,c,1\n2,d,1\n")
    assert taurank("propensity", "slates", table, "--size", 1, "--out", out).code == 0
    np.testing.assert_allclose(pd.read_csv(out)["propensity"], [0.75, 0.5, 0.25, 0.5], atol=1e-9)
    greedy = ("propensity", "slates", table, "--size", 1, "--policy", "epsilon-greedy-slates", "--out", out)
    assert taurank(*greedy).refused_with("--epsilon")
    assert taurank(*greedy, "--epsilon", 0.2).code == 0
    np.testing.assert_allclose(pd.read_csv(out)["propensity"], [0.9, 0.5, 0.1, 0.5])
    table.write_text("slate,item_id,weight\n1,a,3\n")
    assert taurank("propensity", "slates", table, "--size", 1, "--out", out).refused_with("slate_id and score")
