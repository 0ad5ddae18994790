"""How figures are compared: what counts as a difference, and how many differences make a finding.

A difference between two figures counts if it is larger than the larger of their two standard deviations over
the test weeks. That is about two standard errors of a difference between means over ten independent weeks,
and leaves room for what one model trained with another seed would change. Everything below is "within noise".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

Frames = Mapping[str, pd.DataFrame]

SMALLER_IS_BETTER = ("CAR",)
THREE_DECIMALS = ("CDCG", "CAR")
SIGNS = {1: "▲", 0: "≈", -1: "▼"}
ROUNDING = 1e-9  # 0.0313 − 0.0310 is no more than 0.0003
LIMITS = ("truth", "ten_weeks")
NAMES = {
    "random": "Random", "popular": "Popular", "bpr": "BPR", "ulbpr": "ULBPR", "ulrmf": "ULRMF", "cause": "CausE",
    "dlto": "DLTO", "blce": "BLCE", "dlce": "DLCE", "countingbayes": "CountingBayes", "truth": "Truth",
    "ten_weeks": "What ten weeks can tell",
}  # fmt: skip


class Finding(NamedTuple):
    """Whether a claim holds (None: cannot be told), the figures, one line per setting, and a remark."""

    holds: bool | None
    figures: str = ""
    remark: str = ""


class Figure(NamedTuple):
    """A mean over test weeks and its standard deviation, and whose it is."""

    mean: float
    std: float
    owner: str = ""


class SettingResult(NamedTuple):
    """One setting's share of a finding: for the claim (1), within noise (0), against it (-1), missing (None)."""

    place: str
    sign: int | None
    words: str = ""


def name(key: str) -> str:
    """A method as people write it."""
    return NAMES.get(key, key)


def methods_of(frame: pd.DataFrame) -> list[str]:
    """The methods that occur: the paper's in its order, a researcher's own behind them, the limits last."""
    found = list(frame["method"].unique())
    own = [key for key in found if key not in NAMES]
    known = [key for key in NAMES if key in found]
    return [*(key for key in known if key not in LIMITS), *own, *(key for key in known if key in LIMITS)]


def of_dlce(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of DLCE, in a frame that may hold nothing else and then does not say so."""
    return frame[frame["method"] == "dlce"] if "method" in frame else frame


def say(metric: str, value: float) -> str:
    """A figure with as many decimals as the paper prints."""
    return f"{value:.3f}" if metric in THREE_DECIMALS else f"{value:.4f}"


def lookup(frame: pd.DataFrame, owner: str = "", **where: object) -> Figure | None:
    """The one row of the frame with these values; None if there is none."""
    fits = frame["mean"].notna().to_numpy()
    for column, value in where.items():
        fits = fits & (frame[column].to_numpy() == value)
    if not fits.any():
        return None
    rows = frame.iloc[[int(fits.argmax())]]
    spread = rows["std"].iloc[0]
    return Figure(float(rows["mean"].iloc[0]), 0.0 if pd.isna(spread) else float(spread), owner)


def best(figures: Iterable[Figure | None], metric: str) -> Figure | None:
    """The best of them; None if one is missing."""
    found = list(figures)
    known = [figure for figure in found if figure is not None]
    if not known or len(known) < len(found):
        return None
    pick: Callable[..., Figure] = min if metric in SMALLER_IS_BETTER else max
    return pick(known, key=lambda figure: figure.mean)


def noise(first: Figure, second: Figure) -> float:
    return max(first.std, second.std)


def compare(ours: Figure, theirs: Figure, metric: str) -> int:
    """1 if ours is better by more than the noise, -1 if worse by more, 0 if within it."""
    gap = ours.mean - theirs.mean
    if metric in SMALLER_IS_BETTER:
        gap = -gap
    within = noise(ours, theirs) * (1 + ROUNDING)
    return 0 if abs(gap) <= within else 1 if gap > 0 else -1


def majority(signs: Sequence[int]) -> int:
    """The sign that more metrics have: one clear metric decides where the others are within noise."""
    total = sum(signs)
    return (total > 0) - (total < 0)


def compare_methods(
    frame: pd.DataFrame, ours: Sequence[str], theirs: Sequence[str], metrics: Sequence[str], place: str, **at: object
) -> SettingResult:
    """The best of ours against the best of theirs in one place, metric by metric."""
    met: list[tuple[str, Figure, Figure]] = []
    for metric in metrics:
        one, two = (
            best((lookup(frame, method, method=method, metric=metric, **at) for method in side), metric)
            for side in (ours, theirs)
        )
        if one is not None and two is not None:
            met.append((metric, one, two))
    signs = [compare(one, two, metric) for metric, one, two in met]
    return SettingResult(place, majority(signs) if signs else None, _matches(met, signs))


def aggregate(parts: Sequence[SettingResult], remark: str = "") -> Finding:
    """A claim about several places: against it in one, it does not hold; for it in all, it holds."""
    known = [part for part in parts if part.sign is not None]
    missing = [part.place for part in parts if part.sign is None]
    lines = [f"{part.place}: {part.words}" for part in known]
    if any(part.sign == -1 for part in known):
        holds: bool | None = False
    else:
        holds = None if missing or not known or any(part.sign == 0 for part in known) else True
    notes = [f"No figures for {', '.join(missing)}." if missing else "", _noisy(known, holds), remark]
    return Finding(holds, "\n".join(lines), " ".join(note for note in notes if note))


def _noisy(parts: Sequence[SettingResult], holds: bool | None) -> str:
    """Where a claim stays open although there are figures."""
    places = [part.place for part in parts if part.sign == 0]
    return f"Neither way beyond noise: {', '.join(places)}." if places and holds is None else ""


def _matches(met: Sequence[tuple[str, Figure, Figure]], signs: Sequence[int]) -> str:
    """ "DLCE : BLCE CP@10 0.0826 : 0.0374 ▲, …"; the names at each metric only if they change."""
    owners = [f"{name(one.owner)} : {name(two.owner)}" for _, one, two in met]
    same = len(set(owners)) == 1
    words = [
        f"{'' if same else owner + ' '}{metric} {say(metric, one.mean)} : {say(metric, two.mean)} {SIGNS[sign]}"
        for owner, (metric, one, two), sign in zip(owners, met, signs, strict=True)
    ]
    return (f"{owners[0]}, " if same else "") + ", ".join(words)
