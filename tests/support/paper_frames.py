"""Made-up tables of all experiments, shaped like real ones, which reproduce every claim of the paper."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd

from taurank_paper.folder import printed
from taurank_paper.plan import ASSIGNMENTS, ITEMS
from taurank_paper.scores import METRICS

CAPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7)
BEST_CAP = {"original": 0.01, "personalized": 0.3}
PLACES = list(itertools.product(ITEMS, ASSIGNMENTS))
MIDDLE = {"CP@10": 0.1, "CP@100": 0.03, "CDCG": 1.4, "CAR": 0.7}


def frames() -> dict[str, pd.DataFrame]:
    """All tables, as an experiment would leave them."""
    car = printed()["car"].copy()
    car.loc[car["method"] == "dlce", "mean"] = 0.5
    weights = [(i, w / 10, 0.009 + 1e-5 * (w / 10 - 0.7) ** 2) for i in ITEMS for w in range(1, 21)]
    density = [(*place, low / 50, (low + 1) / 50, 1.0) for place in PLACES for low in range(50)]
    return {
        "statistics": printed()["statistics"],
        "statistics_brier": pd.DataFrame(weights, columns=["items", "prior_weight", "brier"]),
        "statistics_density": pd.DataFrame(density, columns=["items", "setting", "low", "high", "density"]),
        "comparison": _comparison(),
        "car": car,
        "capping": _capping(),
        "estimators": printed()["estimators"].assign(
            mae=lambda f: f["mae"] * 0.9, bias=0.001, truth=lambda f: f["truth"].fillna(0.7)
        ),
        "unevenness": _unevenness(),
        "misspecification": _misspecification(),
        "losses": _losses(),
    }


def save(tables: dict[str, pd.DataFrame], folder: Path, preset: str = "quick", weeks: int = 53) -> Path:
    """The folder of a run."""
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    run = {"versions": {"taurank": "0.0", "python": "3.11"}, "seed": 0, "preset": preset, "weeks": weeks,
           "seconds": dict.fromkeys(tables, 12.5), "source": None, "date": "2020-01-01"}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return folder


def _comparison() -> pd.DataFrame:
    """Scores in the order the paper claims, far beyond noise; P@10 in the opposite order of CP@10."""
    order = {
        ("category", "original"): "popular blce ulbpr ulrmf cause dlto dlce truth",
        ("category", "personalized"): "popular blce ulrmf ulbpr cause dlce dlto truth",
        ("product", "original"): "popular cause blce ulbpr ulrmf dlto dlce truth",
        ("product", "personalized"): "popular cause ulrmf blce ulbpr dlce dlto truth",
    }
    rows = []
    for (items, setting), methods in order.items():
        for metric, (place, method) in itertools.product((*METRICS, "P@10"), enumerate(methods.split())):
            lead = place + (8 if items == "product" and method in ("dlce", "dlto") else 0)
            mean = 10.0 + lead if metric != "P@10" else 30.0 - place
            rows.append((items, setting, method, metric, mean, 0.1))
    frame = pd.DataFrame(rows, columns=["items", "setting", "method", "metric", "mean", "std"])
    settings = json.dumps({"factors": 200, "regularization": 0.01, "cap": 0.01})
    return frame.assign(settings=settings, seconds=31.2, updates=60_000_000)


def _capping() -> pd.DataFrame:
    rows = []
    for items, setting in PLACES:
        away = [abs(np.log(cap / BEST_CAP[setting])) for cap in CAPS]
        rows += [(items, setting, "dlce", "CDCG", c, 1.5 - 0.06 * a, 0.02) for c, a in zip(CAPS, away, strict=True)]
    rows += [("category", "personalized", "dlce", "CAR", c, 0.65 + 0.1 * abs(np.log(c / 0.1)), 0.04) for c in CAPS]
    return pd.DataFrame(rows, columns=["items", "setting", "method", "metric", "cap", "mean", "std"])


def _unevenness() -> pd.DataFrame:
    lift = {"bpr": 0.8, "ulbpr": 0.95, "ulrmf": 0.85, "cause": 0.97, "dlto": 1.12, "blce": 0.9, "dlce": 1.1}
    rows = [
        (items, beta, method, metric, MIDDLE[metric] * by * (1 + 0.2 * beta), 0.02 * MIDDLE[metric])
        for items in ITEMS
        for beta in (0.5, 1.0, 1.5, 2.0, 2.5)
        for method, by in lift.items()
        for metric in METRICS
    ]
    frame = pd.DataFrame(rows, columns=["items", "beta", "method", "metric", "mean", "std"])
    return frame.assign(setting="personalized")


def _misspecification() -> pd.DataFrame:
    rows: list[tuple[object, ...]] = []
    for (items, setting), metric in itertools.product(PLACES[:3], METRICS):
        middle, place = MIDDLE[metric], (items, setting)
        rows += [
            (*place, "dlce", "misspecified", xi, metric, middle * (1.1 - 0.15 * xi), 0.02 * middle)
            for xi in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
        ]
        rows.append((*place, "dlce", "estimated", None, metric, middle * 1.04, 0.02 * middle))
        rows.append((*place, "blce", "none", None, metric, middle * 0.9, 0.02 * middle))
        rows.append((*place, "ulbpr", "none", None, metric, middle * 0.96, 0.02 * middle))
    columns = ["items", "setting", "method", "propensity", "xi", "metric", "mean", "std"]
    return pd.DataFrame(rows, columns=columns)


def _losses() -> pd.DataFrame:
    rows = [
        (items, setting, loss, factors, metric, MIDDLE[metric] * by * (1 - 3 / factors), 0.02 * MIDDLE[metric])
        for items, setting in PLACES[:2]
        for loss, by in (("logistic", 1.0), ("sigmoid", 1.01), ("hinge", 0.93))
        for factors in (25, 50, 100, 200, 400, 800)
        for metric in METRICS
    ]
    frame = pd.DataFrame(rows, columns=["items", "setting", "loss", "factors", "metric", "mean", "std"])
    return frame.assign(method="dlce")
