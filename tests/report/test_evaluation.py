"""The page of an evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from taurank import World, evaluate


def test_an_evaluation_as_a_page() -> None:
    pytest.importorskip("altair")
    from taurank.report.evaluation import evaluation_page

    world = World.synthetic(100, 30, random_state=0)
    sample, scores = world.sample(3, random_state=1), np.asarray(world.control_rate)
    page = evaluation_page(evaluate({"today": scores, "other": -scores}, sample.log, "CP@5", detail=True))
    assert "All estimators" in page
    assert "doubly robust" in page
    assert "eliev" not in evaluation_page(evaluate(scores, sample.truth, "CP@5"))
