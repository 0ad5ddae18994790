"""The diagnosis: its sums against plain loops, what it can and cannot tell, and what it says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taurank as tr
from support.builders import cells_frame, purchases_log, sparse_log
from taurank.errors import InputError
from taurank.report.diagnosis import diagnose

N_USERS, N_ITEMS, N_TIMES = 60, 40, 3


def slow_sums(frame: pd.DataFrame) -> dict[str, float]:
    """The formulas, row by row."""
    total = variance = 0.0
    weights: dict[int, list[float]] = {0: [], 1: []}
    for row in frame.itertuples():
        p: Any = row.propensity
        if row.treated:
            total += 1 / p
            variance += (1 - p) / p**2
        if row.outcome:
            weights[int(bool(row.treated))].append(1 / p if row.treated else 1 / (1 - p))
    n = N_USERS * N_ITEMS * N_TIMES
    kish = {arm: sum(w) ** 2 / sum(x * x for x in w) for arm, w in weights.items()}
    return {"ratio": total / n, "error": math.sqrt(variance) / n, "treated": kish[1], "control": kish[0]}


def test_the_sums_are_the_formulas() -> None:
    frame = cells_frame()
    expected = slow_sums(frame)
    d = diagnose(sparse_log(frame))
    assert d.n_cells == N_USERS * N_ITEMS * N_TIMES
    assert d.treated_total.ratio == pytest.approx(expected["ratio"], rel=1e-12)
    assert d.treated_total.error == pytest.approx(expected["error"], rel=1e-12)
    assert d.treated.effective == pytest.approx(expected["treated"], rel=1e-12)
    assert d.control.effective == pytest.approx(expected["control"], rel=1e-12)
    bought = frame[frame["outcome"] == 1]
    assert d.treated.purchases == (bought["treated"] == 1).sum() == sum(d.treated.histogram)
    assert d.control.purchases == (bought["treated"] == 0).sum() == sum(d.control.histogram)


def test_the_ratio_is_1_on_average_and_its_error_is_its_spread() -> None:
    treated = []
    for seed in range(150):
        frame = cells_frame()
        rng = np.random.default_rng(seed)
        frame["treated"] = (rng.random(len(frame)) < frame["propensity"]).astype(int)
        treated.append(diagnose(sparse_log(frame)).treated_total.z)
    assert abs(np.mean(treated)) < 4 / math.sqrt(len(treated))
    assert 0.8 < np.std(treated) < 1.2


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (None, "log must be a Log, got a"),
        ("log.parquet", "log must be a Log, got a"),
        (replace(sparse_log(cells_frame()), propensity=None), "needs the column 'propensity'"),
    ],
)
def test_only_a_log_with_propensities_is_diagnosed(log: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        diagnose(log)


def test_a_quarter_always_shown_is_poor() -> None:
    log = purchases_log([0.9999] * 100 + [0.5] * 300, [1] * 100 + [1, 0] * 150)
    d = diagnose(log)
    assert d.always_share == 0.25
    assert d.level == "poor"
    sentence = "25% of the purchases were of items this user is always shown (propensity 0.999 or more)"
    assert f"{sentence}: effects there cannot be estimated from this log" in d.verdict


def test_good_and_poor_overlap_are_called_so() -> None:
    world = tr.World.synthetic(200, 150, random_state=0)
    d = diagnose(world.sample(times=5, random_state=1).log)
    assert d.level == "good"
    assert d.verdict.startswith("Overlap is good: 100% of the purchases")
    d = diagnose(world.personalized(2.0).sample(times=5, random_state=1).log)
    assert d.level == "poor"
    assert "always shown" in d.verdict
    assert d.always_share > 0.2


def test_wrong_propensities_are_noticed() -> None:
    world = tr.World.synthetic(200, 150, random_state=0)
    log = world.sample(times=5, random_state=1).log
    assert log.propensity is not None
    halved = diagnose(log.with_propensity(log.propensity / 2))
    assert halved.treated_total.ratio == pytest.approx(2, rel=0.05)
    assert "seem too small" in halved.verdict
    shifted = diagnose(world.misspecified(0.8).sample(times=5, random_state=1).log)
    assert abs(shifted.treated_total.ratio - 1) < 0.05  # the total does not see it …
    assert shifted.items.far_share > 0.2  # … the sums of single items do
    assert shifted.level == "poor"
    assert diagnose(log).items.far_share < 0.05


def test_few_or_no_purchases_are_said() -> None:
    frame = cells_frame()
    none = diagnose(sparse_log(frame.assign(outcome=0)))
    assert "There is no treated purchase" in none.verdict
    assert none.treated.effective == 0.0
    few = frame.assign(outcome=np.where(frame["user_id"] < 2, frame["outcome"], 0))
    assert "treated purchases are few" in diagnose(sparse_log(few)).verdict


def test_what_is_bought_only_if_shown_can_be_compared() -> None:
    """A perfect experiment: the control rate is known to be about zero."""
    rng = np.random.default_rng(0)
    user, item = np.divmod(np.arange(2000 * 50), 50)
    shown = rng.random(len(user)) < 0.05
    frame = pd.DataFrame({"user_id": user, "item_id": item, "treated": shown, "propensity": 0.05})
    frame = frame.assign(outcome=shown & (rng.random(len(user)) < 0.3))
    found = diagnose(tr.Log.from_frame(frame[shown].astype({"treated": int, "outcome": int}), users=range(2000)))
    assert found.control.purchases == 0
    assert found.level == "caution"
    assert "There is no control purchase" in found.verdict


@pytest.mark.parametrize("tiny", [5e-324, 1e-100, 1e-20])
def test_one_tiny_propensity_does_not_silence_the_check(tiny: float) -> None:
    world = tr.World.synthetic(100, 80, random_state=0)
    log = world.sample(times=3, random_state=1).log
    assert log.propensity is not None
    assert diagnose(log).level == "good"
    propensity = log.propensity.copy()
    propensity[np.flatnonzero(log.treated)[0]] = tiny
    d = diagnose(log.with_propensity(propensity))
    assert d.level == "poor"
    assert f"A cell with propensity {tiny:.2g} was treated; among 24,000 cells" in d.verdict
    json.dumps(d.to_dict(), allow_nan=False)


def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = cells_frame()
    logs = [
        sparse_log(frame),
        tr.Log.from_frame(frame),
        purchases_log([0.9999] * 100 + [0.5] * 300, [1] * 100 + [1, 0] * 150),
    ]
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        for d in map(diagnose, logs):
            lines = str(d).splitlines()
            assert max(map(len, lines)) <= width
            words = set(str(d).split())
            assert set(d.verdict.split()) <= words
            assert set(" ".join(d.to_frame()["reading"]).split()) <= words


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-6, 1 - 1e-6), st.integers(0, 1)), min_size=1, max_size=60))
def test_kish_lies_between_one_and_all(rows: list[tuple[float, int]]) -> None:
    d = diagnose(purchases_log([p for p, _ in rows], [z for _, z in rows]))
    for arm in (d.treated, d.control):
        if arm.purchases:
            assert 1 - 1e-9 <= arm.effective <= arm.purchases * (1 + 1e-9)
        assert sum(arm.histogram) == arm.purchases
    json.dumps(d.to_dict(), allow_nan=False)


def test_frame_dict_and_text_say_the_same() -> None:
    d = diagnose(sparse_log(cells_frame()))
    table = d.to_frame()
    assert list(table.columns) == ["check", "value", "expected", "reading"]
    values = table.set_index("check")["value"]
    assert values["Σ 1/P over treated cells, per cell"] == d.treated_total.ratio
    plain = json.loads(json.dumps(d.to_dict(), allow_nan=False))
    assert plain["treated"]["effective"] == d.treated.effective
    assert (plain["level"], plain["verdict"]) == (d.findings[0].level, d.verdict)
    assert plain["findings"][0]["sentence"] == d.verdict == d.findings[0].sentence
    assert d.findings[0].advice in str(d).replace("\n  ", " ")
