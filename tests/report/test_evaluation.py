"""The page of an evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from taurank import World, effect_curve, evaluate


def test_an_evaluation_as_a_page() -> None:
    pytest.importorskip("altair")
    from taurank.report.evaluation import evaluation_page

    world = World.synthetic(100, 30, random_state=0)
    sample, scores = world.sample(3, random_state=1), np.asarray(world.control_rate)
    page = evaluation_page(evaluate({"today": scores, "other": -scores}, sample.log, "CP@5", detail=True))
    assert "All estimators" in page
    assert "doubly robust" in page
    assert page.count("<svg") == 1
    assert "eliev" not in evaluation_page(evaluate(scores, sample.truth, "CP@5"))


def test_a_curve_as_a_chart_and_a_page() -> None:
    pytest.importorskip("altair")
    from taurank.report.evaluation import curve_page

    world = World.synthetic(100, 30, random_state=0)
    log, scores = world.sample(3, random_state=1).log, np.asarray(world.treated_rate) - world.control_rate
    curve = effect_curve(scores, log)
    assert {layer["mark"]["type"] for layer in curve.plot().to_dict()["layer"]} == {"area", "line"}
    page = curve_page(curve)
    assert page.count("<svg") == 2
    assert "AUTOC" in page
    assert curve_page(effect_curve(scores, log, by="k")).count("<svg") == 1
    assert evaluate(scores, log).plot().to_dict()["layer"]
    assert evaluate({"a": scores, "b": -scores}, log).plot("CDCG").to_dict()["layer"]
