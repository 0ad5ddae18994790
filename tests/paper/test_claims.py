"""Verdicts: every claim on small tables, for each outcome, and on the paper's own figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support import paper_frames as made_up
from taurank_paper import claims, scores
from taurank_paper.folder import printed
from taurank_paper.scores import METRICS, Score, rows_of

Frames = dict[str, pd.DataFrame]
Change = Callable[[Frames], None]


@pytest.fixture
def frames() -> Frames:
    return made_up.frames()


def outcome(frames: Frames, claim: str) -> str:
    (chosen,) = (one for one in claims.CLAIMS if one.id == claim)
    return chosen.assess(frames).verdict


def test_every_claim_is_reproduced_on_tables_made_for_it(frames: Frames) -> None:
    assert {one.claim.id: one.here for one in claims.check(frames) if one.here.verdict != "reproduced"} == {}


def setting(name: str, value: float, **where: Any) -> Change:
    """A change of the means of an experiment where its columns have these values."""

    def change(frames: Frames) -> None:
        frame = frames[name]
        rows = pd.Series(True, index=frame.index)
        for column, wanted in where.items():
            rows &= frame[column].isin(wanted if isinstance(wanted, list) else [wanted])
        assert rows.any()
        frame.loc[rows, "mae" if name == "estimators" else "mean"] = value

    return change


def drop(name: str, column: str, value: Any) -> Change:
    def change(frames: Frames) -> None:
        frames[name] = frames[name][frames[name][column] != value]

    return change


def noisy(name: str) -> Change:
    def change(frames: Frames) -> None:
        frames[name] = frames[name].assign(std=1e6)

    return change


def equal_errors(frames: Frames) -> None:
    """Errors that are neither small nor large."""
    frames["estimators"] = frames["estimators"].assign(mae=0.3 * frames["estimators"]["truth"])


def no_help(frames: Frames) -> None:
    setting("estimators", 0.01, metric="CAR", cap=0.0)(frames)


def some_help(frames: Frames) -> None:
    setting("estimators", 0.1, metric="CAR", cap=0.0)(frames)


def together(frames: Frames) -> None:
    """P@10 in the order of CP@10."""
    frame = frames["comparison"]
    effect = frame[frame["metric"] == "CP@10"]
    frames["comparison"] = pd.concat([frame[frame["metric"] != "P@10"], effect.assign(metric="P@10")])


def cap_at(metric: str, place: str, cap: float) -> Change:
    """The best figure of a curve moved to one cap."""
    value = 0.1 if metric == "CAR" else 9.0
    return setting("capping", value, metric=metric, setting=place, cap=cap)


COMPARED: dict[str, dict[str, Any]] = {
    "dlce-over-blce": {"method": "dlce", "setting": "original", "items": "product"},
    "dlce-over-ulbpr": {"method": "dlce", "setting": "personalized", "items": "category"},
    "dlce-over-dlto-original": {"method": "dlce", "setting": "original", "items": "category"},
    "dlto-over-dlce-personalized": {"method": "dlto", "setting": "personalized", "items": "category"},
    "ulrmf-over-ulbpr-original": {"method": "ulrmf", "setting": "original", "items": "category"},
    "ulbpr-over-ulrmf-personalized": {"method": "ulbpr", "setting": "personalized", "items": "product"},
    "cause-over-both-in-category": {"method": "cause", "setting": "original", "items": "category"},
    "cause-not-in-product": {"method": ["ulrmf", "ulbpr"], "setting": "original", "items": "product"},
    "dlce-mostly-over-others": {"method": "dlce"},
    "lead-larger-in-product": {"method": "dlce", "items": "product"},
}
FAILS: dict[str, Change] = {
    **{claim: setting("comparison", 1.0, metric=list(METRICS), **at) for claim, at in COMPARED.items()},
    "dlce-best-in-car": setting("car", 5.0, method="dlce"),
    "p10-does-not-go-with-cp10": together,
    "intermediate-cap-is-best": cap_at("CDCG", "original", 0.001),
    "larger-cap-when-personalized": cap_at("CDCG", "personalized", 0.003),
    "cap-for-car-around-0.1": cap_at("CAR", "personalized", 0.003),
    "cap-for-car-below-cdcg": cap_at("CAR", "personalized", 0.5),
    "estimators-good-in-original": setting("estimators", 9.0, setting="original"),
    "estimators-poor-in-personalized": setting("estimators", 1e-4, setting="personalized"),
    "cap-helps-estimate-of-car": no_help,
    "robust-to-unevenness": setting("unevenness", 0.001, method="dlce", beta=[1.0, 2.0]),
    "robust-to-misspecification": setting("misspecification", 0.001, method="dlce", xi=0.4),
    "works-with-estimated-propensity": setting("misspecification", 0.001, propensity="estimated"),
    "losses-alike": setting("losses", 0.001, loss="sigmoid"),
    "saturates-in-d": setting("losses", 9.0, factors=800),
}
INCONCLUSIVE: dict[str, Change] = {
    **dict.fromkeys([*COMPARED, "dlce-best-in-car"], noisy("comparison")),
    "dlce-best-in-car": noisy("car"),
    "p10-does-not-go-with-cp10": drop("comparison", "metric", "P@10"),
    "intermediate-cap-is-best": noisy("capping"),
    "larger-cap-when-personalized": noisy("capping"),
    "cap-for-car-around-0.1": drop("capping", "metric", "CAR"),
    "cap-for-car-below-cdcg": noisy("capping"),
    "estimators-good-in-original": equal_errors,
    "estimators-poor-in-personalized": equal_errors,
    "cap-helps-estimate-of-car": some_help,
    "robust-to-unevenness": noisy("unevenness"),
    "robust-to-misspecification": noisy("misspecification"),
    "works-with-estimated-propensity": drop("misspecification", "propensity", "estimated"),
    "losses-alike": drop("losses", "loss", "sigmoid"),
    "saturates-in-d": drop("losses", "factors", 800),  # nothing beyond the paper's d in personalized
}


def test_every_claim_is_tried_both_ways() -> None:
    ids = [claim.id for claim in claims.CLAIMS]
    assert len(ids) == len(set(ids))
    assert set(FAILS) == set(INCONCLUSIVE) == set(ids)


@pytest.mark.parametrize("claim", FAILS)
def test_a_claim_is_not_reproduced_if_the_figures_are_against_it(frames: Frames, claim: str) -> None:
    FAILS[claim](frames)
    assert outcome(frames, claim) == "not reproduced"


@pytest.mark.parametrize("claim", INCONCLUSIVE)
def test_a_claim_is_inconclusive_within_noise_or_without_figures(frames: Frames, claim: str) -> None:
    INCONCLUSIVE[claim](frames)
    assert outcome(frames, claim) == "inconclusive"


def test_a_missing_dataset_leaves_a_claim_inconclusive_but_a_contradiction_decides(frames: Frames) -> None:
    assert all("was not run" in one.here.remark for one in claims.check({}))
    frames["comparison"] = frames["comparison"][frames["comparison"]["items"] == "category"]
    result = next(one.here for one in claims.check(frames) if one.claim.id == "dlce-over-blce")
    assert result.verdict == "inconclusive"
    assert "No figures for product original, product personalized." in result.remark
    FAILS["dlce-over-ulbpr"](frames)
    assert outcome(frames, "dlce-over-ulbpr") == "not reproduced"


def test_the_papers_own_figures_by_the_same_criteria() -> None:
    verdicts = {one.claim.id: one.paper for one in claims.check(printed())}
    assert verdicts["dlce-over-blce"] == "reproduced"
    assert verdicts["dlce-over-dlto-original"] == "inconclusive"  # 0.0826 ± 0.0026 against 0.0825 ± 0.0023
    assert verdicts["cap-helps-estimate-of-car"] == "reproduced"
    assert verdicts["robust-to-unevenness"] == claims.NOT_PRINTED
    assert "not reproduced" not in verdicts.values()


def test_a_difference_counts_beyond_the_larger_standard_deviation() -> None:
    base = Score(1.0, 0.1)
    assert scores.compare("CDCG", Score(1.21, 0.2), base) == 1
    assert scores.compare("CDCG", Score(1.19, 0.2), base) == 0
    assert scores.compare("CDCG", Score(0.79, 0.2), base) == -1
    assert scores.compare("CAR", Score(0.79, 0.2), base) == 1  # smaller is better
    assert scores.compare("CP@100", Score(0.0313, 0.0003), Score(0.0310, 0.0002)) == 0


def score(*draws: list[float]) -> scores.Score:
    return scores.Score(float(np.mean(draws)), 9.0, weeks=tuple(map(tuple, draws)))


def test_scores_with_weeks_are_compared_in_pairs() -> None:
    """Weeks that vary together hide a difference from standard deviations, not from a paired test."""
    weeks = np.linspace(1, 2, 10)
    wobble = 0.001 * np.cos(np.arange(10))
    assert scores.compare("CDCG", score(list(weeks + 0.1 + wobble)), score(list(weeks))) == 1
    assert scores.compare("CDCG", score(list(weeks)), score(list(weeks + 0.1 + wobble))) == -1
    assert scores.compare("CDCG", score(list(weeks + 0.1 * np.cos(np.arange(10)))), score(list(weeks))) == 0
    assert scores.compare("CDCG", score(list(weeks)), score(list(weeks))) == 0


def test_with_several_draws_their_means_are_compared() -> None:
    """Every week of every draw is better, but the draws differ so much that another one might not be."""
    one, two = [[2.0] * 10, [1.1] * 10, [1.01] * 10], [[1.0] * 10] * 3
    assert scores.compare("CDCG", score(*one), score(*two)) == 0
    differences = scores.paired_differences(score(*one), score(*two))
    assert differences is not None
    np.testing.assert_allclose(differences, [1.0, 0.1, 0.01])


def test_the_level_counts_all_comparisons(frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Score] = []
    plain = scores.paired_differences

    def counting(first: Score, second: Score) -> Any:
        calls.append(first)
        return plain(first, second)

    monkeypatch.setattr(scores, "paired_differences", counting)
    claims.check({**printed(), **frames})
    ours = len(calls)
    calls.clear()
    claims.check({})  # the printed figures alone
    assert 0.5 * scores.COMPARISONS < ours - len(calls) <= scores.COMPARISONS


def test_a_second_answer_from_the_authors_settings(frames: Frames) -> None:
    result = claims.check(frames, authors={"comparison": printed()["comparison"]})[0]
    assert result.authors is not None
    assert result.authors.verdict == result.paper == "reproduced"
    assert "DLCE : BLCE" in result.authors.figures
    without = claims.check(frames, authors={"car": printed()["car"]})
    assert [one.claim.id for one in without if one.authors] == ["dlce-best-in-car"]


def test_the_rank_correlation_leaves_the_limits_out() -> None:
    rows = [
        ("category", "original", method, metric, value, 0.0)
        for method, effect, bought in (("bpr", 1, 3), ("dlce", 2, 2), ("dlto", 3, 1), ("truth", 9, 9))
        for metric, value in (("CP@10", effect), ("P@10", bought))
    ]
    frame = pd.DataFrame(rows, columns=["items", "setting", "method", "metric", "mean", "std"])
    value, count = claims.rank_correlation(frame, "P@10", "CP@10")
    assert value == pytest.approx(-1.0)
    assert count == 3
    assert claims.rank_correlation(rows_of(frame, ("product", "original")), "P@10", "CP@10") == (None, 0)


def test_the_papers_tables() -> None:
    table = printed()["comparison"].set_index(["items", "setting", "method", "metric"])
    assert len(table) == 2 * 3 + 2 * 8 * 6  # Random stands once
    assert tuple(table.loc[("category", "original", "dlce", "CP@10"), ["mean", "std"]]) == (0.0826, 0.0026)
    assert tuple(table.loc[("product", "personalized", "dlto", "CP@10"), ["mean", "std"]]) == (0.2708, 0.0041)
    errors = printed()["estimators"].set_index(["setting", "method", "metric", "cap"])
    assert len(errors) == 12 * 10 + 2 * 5
    assert tuple(errors.loc[("personalized", "dlce", "CAR", 0.1), ["mae", "truth"]]) == (0.072, 0.649)
