"""Long fits with the authors' numbers of updates: snapshots, sharing, resuming; and draws of the training log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from support.experiments import GOOD, result_cache, small, write
from taurank.learners import Learner
from taurank.learners.training import Schedule
from taurank_paper import plan as plans
from taurank_paper import rows
from taurank_paper.fits import FitSpec, Rhythm, weeks_of
from taurank_paper.plan import Dataset, Plan, Times
from taurank_paper.runner import run
from taurank_paper.worlds import fit_seed

DATASET = Dataset("category", times=Times(4, 1, 3))


def authors_plan(name: str = "comparison") -> Plan:
    return plans.load(name, plans.load_preset("authors"))


def spec(**snapshots: int) -> FitSpec:
    named = {name.replace("_at_", "@"): updates for name, updates in snapshots.items()}
    return FitSpec.of(DATASET, "dlce", {"factors": 4, "rate_decay": 1.0}, 10**10, 4, snapshots=named)


def test_a_run_serves_all_metrics_with_the_same_steps() -> None:
    """DLCE in category, personalized: CP@10 and CDCG differ only in their updates, CP@100 and CAR in γ and χ."""
    fits = [
        fit
        for name in ("comparison", "car")
        for fit in rows.fits_of(authors_plan(name))
        if fit.method == "dlce" and str(fit.dataset) == "category personalized"
    ]
    million = 10**6
    assert sorted(([dict(fit.snapshots) for fit in dict.fromkeys(fits)]), key=str) == [
        {"CAR": 500 * million}, {"CDCG": 1000 * million, "CP@10": 10000 * million}, {"CP@100": 1000 * million},
    ]  # fmt: skip


def test_every_snapshot_is_a_check() -> None:
    for fit in rows.fits_of(authors_plan()):
        if fit.snapshots:
            rhythm = Rhythm.of(fit, per_epoch=300_000)
            assert rhythm.epochs // rhythm.every >= fit.validations
            for _, updates in fit.snapshots:
                assert rhythm.epoch(updates) % rhythm.every == 0
                assert rhythm.epoch(updates) * 300_000 == pytest.approx(updates, rel=0.05)


def test_a_snapshot_is_what_a_shorter_fit_ends_with(tmp_path: Path) -> None:
    cache = result_cache(tmp_path)
    split = cache.splits.split(DATASET)
    per_epoch = tr.DLCE().updates_per_epoch(split.train)
    both = cache.result(spec(CDCG=4 * per_epoch, CP_at_10=8 * per_epoch))
    alone = cache.result(spec(CDCG=4 * per_epoch))
    assert both.values["CDCG"] == alone.values["CDCG"]
    assert both.values["CP@10"].updates == 8 * per_epoch
    assert [check["updates"] for check in both.curve] == [2 * per_epoch * number for number in (1, 2, 3, 4)]
    learner = tr.DLCE(**dict(spec(CDCG=1).settings), epochs=4, random_state=fit_seed(DATASET))
    learner.fit(split.train, validation=None)
    assert both.values["CDCG"].weeks == weeks_of(learner, split, ["CDCG"], 1)["CDCG"]


def test_a_killed_fit_ends_with_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    per_epoch = tr.DLCE().updates_per_epoch(result_cache(tmp_path).splits.split(DATASET).train)
    fit = spec(CDCG=4 * per_epoch, CP_at_10=8 * per_epoch)
    whole = result_cache(tmp_path / "whole").result(fit)
    plain_fit = Learner.fit

    def eager(self: Learner, *args: Any, **options: Any) -> Learner:  # a checkpoint after every epoch
        return plain_fit(self, *args, **{**options, "checkpoint_minutes": 0.0})

    monkeypatch.setattr(Learner, "fit", eager)
    epochs = iter(range(5))
    cache = result_cache(tmp_path / "killed")
    plain_rate = Schedule.rate

    def dying(self: Schedule, epoch: int) -> float:
        if next(epochs, None) is None:
            raise KeyboardInterrupt
        return plain_rate(self, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Schedule, "rate", dying)
        with pytest.raises(KeyboardInterrupt):
            cache.result(fit)
    resumed = cache.result(fit)
    assert resumed.values == whole.values
    assert resumed.curve == whole.curve
    assert {path.suffix for path in cache.folder.iterdir()} == {".json"}


def test_draws_are_independent_and_the_seed_of_the_search_is_none_of_them() -> None:
    plan = plans.load("comparison", plans.load_preset("full"))
    seeds = [dataset.seed for dataset in plan.drawn(plan.datasets[0])]
    assert len(seeds) == len(set(seeds)) >= 5
    assert plan.datasets[0].seed not in seeds
    other = plans.load("comparison", plan.preset, seed=100)
    assert not {dataset.seed for dataset in other.drawn(other.datasets[0])} & set(seeds)
    capping = plans.load("capping", plans.load_preset("full"))
    assert [dataset.seed for dataset in capping.drawn(capping.datasets[0])] == seeds[:1]


def test_a_row_has_the_weeks_of_every_draw(tmp_path: Path) -> None:
    text = "spread = true\ntimes = {train = 2, test = 3}\n" + GOOD.replace("dlce", "popular")
    preset = small(draws=(1, 2))
    plan = plans.load(write(tmp_path, text), preset)
    cache = result_cache(tmp_path, preset)
    row = rows.frames(plan, cache)["mine"].iloc[0]
    weeks = np.array(json.loads(row["weeks"]))
    assert weeks.shape == (2, 3)
    assert row["mean"] == pytest.approx(weeks.mean())
    assert row["std"] == pytest.approx(weeks.std())
    assert not np.allclose(weeks[0], weeks[1])


def test_the_seed_is_that_of_the_command(tmp_path: Path) -> None:
    text = "times = {train = 2, test = 3}\n" + GOOD.replace('"dlce"}', '"popular"}, {name = "random"}')
    path = write(tmp_path, text, "a_b.toml")
    scores = []
    for seed in (5, 6):
        out = run(path, "smoke", out=tmp_path / str(seed), seed=seed, show_progress=False)
        assert json.loads((out / "run.json").read_text())["seed"] == [seed]
        scores.append(pd.read_csv(out / "a_b.csv")["mean"].iloc[0])
    assert scores[0] != scores[1]
