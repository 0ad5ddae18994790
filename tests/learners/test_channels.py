"""Several channels of recommendation: the log of each, and the best channel of each pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from taurank.errors import InputError


def two_worlds() -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """Mailers help users below 60 and displays the others; item 0 is helped by nothing."""
    rng = np.random.default_rng(0)
    user, item, time = (axis.ravel() for axis in np.indices((120, 8, 12)))
    likes = {"mailer": user < 60, "display": user >= 60}
    chance = np.full(len(user), 0.1)
    shown = {channel: rng.random(len(user)) < 0.4 for channel in likes}
    for channel in likes:
        chance = chance + np.where(likes[channel] & (item > 0), 0.5, -0.05) * shown[channel]
    outcome = (rng.random(len(user)) < np.clip(chance, 0, 1)).astype(int)
    cells = pd.DataFrame({"user_id": user, "item_id": item, "time": time, "outcome": outcome})
    rows = [cells[shown[channel]].assign(channel=channel, treated=1, propensity=0.4) for channel in likes]
    rows.append(cells[~shown["mailer"] & ~shown["display"] & (outcome == 1)].assign(channel=None, treated=0))
    return likes, pd.concat(rows, ignore_index=True)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return two_worlds()[1]


@pytest.fixture(scope="module")
def channels(frame: pd.DataFrame) -> tr.Channels:
    return tr.Channels.from_frame(frame)


def test_the_log_of_a_channel_has_the_others_as_background(frame: pd.DataFrame, channels: tr.Channels) -> None:
    """Twin: cell by cell."""
    assert list(channels) == ["display", "mailer"]
    log, cells = channels["mailer"].to_frame(), frame.groupby(["user_id", "item_id", "time"])
    by_cell: Any = log.set_index(["user_id", "item_id", "time"])
    for number, (cell, rows) in enumerate(cells):
        if number % 97:
            continue
        mailed = bool((rows["channel"] == "mailer").any())
        if mailed or rows["outcome"].iloc[0] == 1:
            assert by_cell.loc[cell, "treated"] == mailed
            assert by_cell.loc[cell, "outcome"] == rows["outcome"].iloc[0]
            assert np.isnan(by_cell.loc[cell, "propensity"]) == (not mailed)
        else:
            assert cell not in by_cell.index
    assert channels["mailer"].catalog == channels["display"].catalog


def test_finds_the_channel_that_helps_and_nothing_where_none_does(channels: tr.Channels) -> None:
    best = tr.BestChannel({"mailer": tr.CountingBayes(), "display": tr.CountingBayes()}).fit(channels)
    lists = best.recommend(k=3)
    helped = np.where(lists["user_id"] < 60, "mailer", "display")
    assert (lists["channel"] == helped).mean() > 0.95
    assert (lists["item_id"] == 0).mean() < 0.05
    assert lists.groupby("user_id")["rank"].apply(lambda rank: list(rank) == list(range(1, len(rank) + 1))).all()
    assert (lists["score"] > 0).all()
    assert best.recommend(k=8, min_effect=5.0).empty


def test_is_the_largest_score_of_the_learners(channels: tr.Channels) -> None:
    best = tr.BestChannel({"mailer": tr.CountingBayes(), "display": tr.CountingBayes()}).fit(channels)
    for row in best.recommend([7, 100], k=3).itertuples():
        each = {channel: learner.score([row.user_id], [row.item_id])[0] for channel, learner in best.learners.items()}
        assert row.score == max(each.values()) == each[str(row.channel)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.drop(columns="channel"), "no column 'channel'"),
        (lambda rows: rows.drop(columns="treated"), "no column 'treated'"),
        (lambda rows: rows.assign(channel=None), "has no value"),
        (lambda rows: rows.assign(outcome=np.arange(len(rows)) % 2), "rows with different outcomes"),
        (lambda rows: pd.concat([rows, rows.head(3)]), "3 rows repeat"),
    ],
)
def test_refuses(change: Any, words: str, frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match=words):
        tr.Channels.from_frame(change(frame))


def test_refuses_what_is_not_there(channels: tr.Channels, frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="no channel 'radio'; known: display, mailer"):
        channels["radio"]
    with pytest.raises(InputError, match="at least one channel"):
        tr.BestChannel({})
    with pytest.raises(InputError, match="scores of BPR for 'mailer' only order the items"):
        tr.BestChannel({"mailer": tr.BPR()})
    few = tr.Channels.from_frame(frame[frame["user_id"] < 50])
    models = {"mailer": tr.CountingBayes().fit(channels["mailer"]), "display": tr.CountingBayes().fit(few["display"])}
    with pytest.raises(InputError, match="different users or items"):
        tr.BestChannel(models).recommend()


def test_a_saved_best_channel_recommends_the_same(channels: tr.Channels, tmp_path: Path) -> None:
    models = {"mailer": tr.CountingBayes(), "display": tr.EmpiricalBayes(threads=1, prior="item")}
    best = tr.BestChannel(models).fit(channels)
    best.save(tmp_path / "best.model")
    again = tr.BestChannel.load(tmp_path / "best.model")
    assert list(again.learners) == ["mailer", "display"]
    pd.testing.assert_frame_equal(again.recommend(k=3), best.recommend(k=3))


def test_a_file_that_is_not_a_best_channel_is_refused(channels: tr.Channels, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        tr.BestChannel.load(tmp_path / "nothing.model")
    (tmp_path / "text.model").write_text("text")
    with pytest.raises(InputError, match="is not a complete taurank file"):
        tr.BestChannel.load(tmp_path / "text.model")
    with pytest.raises(InputError, match="not fitted"):
        tr.BestChannel({"mailer": tr.CountingBayes()}).save(tmp_path / "unfitted.model")
    assert not (tmp_path / "unfitted.model").exists()


def three_arms(n: int = 30_000) -> pd.DataFrame:
    """An experiment with two kinds of mail and none, a third of the users each: who visited, and who spent what."""
    rng = np.random.default_rng(5)
    arm = rng.integers(0, 3, n)
    visit = (rng.random(n) < np.array([0.106, 0.183, 0.151])[arm]).astype(int)
    names = np.array([None, "men", "women"], dtype=object)
    users = pd.DataFrame({"user_id": np.arange(n), "item_id": "mail", "channel": names[arm], "outcome": visit})
    return users.assign(treated=(arm > 0).astype(int), propensity=1 / 3)


@pytest.mark.parametrize("recorded", ["shares", "rows", "nothing"])
def test_arms_that_exclude_each_other_are_compared_with_none(recorded: str) -> None:
    """The twin: the difference of the means of an arm and of those without mail."""
    users = three_arms()
    rows, exclusive = users[(users["treated"] == 1) | (users["outcome"] == 1)], True
    options: dict[str, Any] = {"exclusive": {"men": 1 / 3, "women": 1 / 3} if recorded == "shares" else exclusive}
    if recorded == "rows":  # a row for each channel of each user
        rows = pd.concat([rows.assign(channel=name, treated=rows["channel"] == name) for name in ("men", "women")])
    arms = tr.Channels.from_frame(rows, users=users["user_id"], **options)
    mean = users.assign(channel=users["channel"].fillna("none")).groupby("channel")["outcome"].mean()
    for name, log in arms.items():
        difference = mean[name] - mean["none"]
        ranking = np.ones((log.n_users, 1))
        result = tr.evaluate(ranking, tr.gains.naive(log), "CP@1")
        assert result["CP@1"].mean == pytest.approx(difference, abs=1e-9)
        assert log.cells == (users["channel"] != {"men": "women", "women": "men"}[name]).sum()
        assert log.eligibility.outside[0] == log.n_users - log.cells
        if recorded == "nothing":
            assert log.propensity is None
        else:
            np.testing.assert_allclose(np.asarray(log.propensity), 0.5)
            weighted = tr.evaluate(ranking, tr.gains.ips(log), "CP@1")["CP@1"]
            assert weighted.low < difference < weighted.high


def test_refuses_arms_that_do_not_exclude_each_other(frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match=r"users got several channels at one time \(user_id, time\)"):
        tr.Channels.from_frame(frame, exclusive=True)
    with pytest.raises(InputError, match=r"the share of every channel \(men, women\), in all less than 1"):
        tr.Channels.from_frame(three_arms(100), exclusive={"men": 0.5, "women": 0.5})
