"""Every argument of every public function of this room, replaced by odd values: one sentence, or a result."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import Gains, Log, Metric, World, bounds, compare, evaluate, gains
from taurank.errors import InputError

ODD: list[Any] = [
    None, True, -1, 0, 5, 10**400, 2**63, 1.5, float("nan"), float("inf"), "", "x", "\x00", b"x", [], [None], ["x"],
    [[1], [2, 3]], {}, {"a": 1}, set(), object(), int, len, 1j, range(3), np.array(5), np.array(["x"]),
    np.zeros((0, 0)), np.zeros((2, 3, 4)), np.full((3, 4), np.nan), pd.DataFrame(), pd.Series([1, 2]),
    datetime.date(2020, 1, 1), iter(()),
]  # fmt: skip
FRAME = pd.DataFrame({"user_id": [0, 1, 2], "item_id": [0, 1, 3], "value": [1.0, 0.0, 1.0]})
ROWS = FRAME.drop(columns="value").assign(treated=[1, 0, 1], outcome=1, propensity=0.5)
LOG = Log.from_frame(ROWS, users=range(3), items=range(4))
MADE, WORLD, SCORES = gains.ips(LOG), World.synthetic(3, 4, random_state=0), np.arange(12.0).reshape(3, 4)
METRIC = evaluate(SCORES, MADE, "CDCG")["CDCG"]
TABLE = evaluate({"a": SCORES, "b": -SCORES}, MADE, "CDCG")
EVALUATE = {"gains": MADE, "metrics": "CDCG", "unlisted": None, "unit": "week", "threads": 1}
EVALUATE |= {"level": 0.9, "by": ["a", "a", "b"], "detail": True}
BOUND = {"world": WORLD, "scores": SCORES, "metric": "CDCG", "propensity": 0.5, "cap": 0.1}
BOUND |= {"cap_treated": 0.1, "cap_control": 0.1}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "evaluate": (evaluate, {"ranker": SCORES, "baseline": None, **EVALUATE}),
    "evaluate several": (evaluate, {"ranker": {"a": SCORES}, "baseline": "a", **EVALUATE}),
    "compare": (compare, {"a": SCORES, "b": SCORES, "gains": MADE, "metric": "CDCG", "unit": "week", "threads": 1}),
    "outcome": (gains.outcome, {"log": LOG}),
    "naive": (gains.naive, {"log": LOG}),
    "ips": (gains.ips, {"log": LOG}),
    "capped_ips": (gains.capped_ips, {"log": LOG, "cap": 0.1, "cap_treated": 0.1, "cap_control": 0.1}),
    "from_frame": (Gains.from_frame, {"frame": FRAME, "users": range(3), "items": range(4), "kind": "effect"}),
    "where": (MADE.where, {"keep": lambda value: value > 0}),
    "expected": (bounds.expected, {"world": WORLD, "scores": SCORES, "metric": "CDCG"}),
    "bias": (bounds.bias, BOUND),
    "deviation": (bounds.deviation, {**BOUND, "confidence": 0.9, "times": 2}),
    "formula": (Metric, {"name": "x", "weight": len, "depth": 3}),
    "interval": (METRIC.interval, {"level": 0.9}),
    "difference": (TABLE.differences["b", "CDCG"].interval, {"level": 0.9}),
}


@pytest.mark.parametrize(("call", "argument"), [(call, name) for call, (_, given) in CALLS.items() for name in given])
def test_an_odd_argument_is_refused_in_one_sentence(call: str, argument: str) -> None:
    function, given = CALLS[call]
    function(**given)
    for value in ODD:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                function(**{**given, argument: value})
            except InputError as error:
                sentence = str(error)
                assert sentence.endswith(".")
                assert len(sentence) < 700
