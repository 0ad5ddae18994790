"""How a claim is judged: each function here makes, from a few names, a function from the frames to a finding.

`evidence` says what a difference is; here stands what each kind of claim asks of the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from taurank.paper.verdicts.comparison import (
    LIMITS,
    SIGNS,
    Figure,
    Finding,
    Frames,
    SettingResult,
    aggregate,
    best,
    compare,
    compare_methods,
    lookup,
    majority,
    name,
    noise,
    of_dlce,
    say,
)
from taurank.paper.verdicts.paper_tables import ITEMS, METRICS, SETTINGS

Judge = Callable[[Frames], Finding]
Place = tuple[str, str]  # items, setting
Pair = tuple[str, str, str, str, str, str]  # items, setting, metric of one curve, then of another

ALL = tuple((items, setting) for setting in SETTINGS for items in ITEMS)
ORIGINAL, PERSONALIZED = ALL[:2], ALL[2:]
CATEGORY = (("category", "original"), ("category", "personalized"))
PRODUCT = (("product", "original"), ("product", "personalized"))

GOOD_ERROR, POOR_ERROR = 0.25, 0.5  # of an estimate, relative to what it estimates
PAPERS_SIZE = {"original": 200.0, "personalized": 400.0}  # d, where the paper says that it saturates
ALIKE = 0.05  # a difference of two losses, relative to the figure, that nobody would mind
AROUND = 10**0.5  # a cap is around another if it is at most half a decade away: one step of the grid
WIDE = 0.5  # ξ up to here is a wide range: the log-odds half way to their mean
GOES_WITH = 0.5  # two rankings of the methods go together from this rank correlation on


def over(winners: Sequence[str], losers: Sequence[str], places: Sequence[Place], experiment: str = "comparison",
         metrics: Sequence[str] = METRICS) -> Judge:  # fmt: skip
    """The best of the winners is over the best of the losers: clearly better in more metrics than clearly worse."""

    def judge(frames: Frames) -> Finding:
        frame = frames[experiment]
        return aggregate([
            compare_methods(frame, winners, losers, metrics, f"{items} {setting}", items=items, setting=setting)
            for items, setting in places
        ])  # fmt: skip

    return judge


def mostly_over(winner: str, losers: Sequence[str]) -> Judge:
    """Clearly better than the best of the losers in more than half of all settings and metrics."""

    def judge(frames: Frames) -> Finding:
        parts = [
            compare_methods(frames["comparison"], [winner], losers, [metric], f"{items} {setting}", items=items,
                    setting=setting)
            for items, setting in ALL for metric in METRICS
        ]  # fmt: skip
        known = [part for part in parts if part.sign is not None]
        wins, losses = (sum(part.sign == sign for part in known) for sign in (1, -1))
        count = f"clearly better in {wins}, clearly worse in {losses} of {len(known)} comparisons"
        lines = [count, *(f"  {part.place}: {part.words}" for part in known)]
        if len(known) < len(parts):
            return Finding(None, "\n".join(lines), f"Only {len(known)} of {len(parts)} comparisons were made.")
        holds = True if 2 * wins > len(parts) else False if 2 * losses >= len(parts) else None
        return Finding(holds, "\n".join(lines))

    return judge


def lead_larger_in_product(winner: str, losers: Sequence[str]) -> Judge:
    """The lead, our figure / the best of the others − 1, is larger in product; noise: the largest std / mean."""

    def judge(frames: Frames) -> Finding:
        return aggregate([_lead_part(frames["comparison"], winner, losers, setting) for setting in SETTINGS])

    return judge


def _lead_part(frame: pd.DataFrame, winner: str, losers: Sequence[str], setting: str) -> SettingResult:
    words, signs = [], []
    for metric in METRICS:
        leads = [_lead(frame, winner, losers, items=items, setting=setting, metric=metric) for items in ITEMS]
        small, large = leads
        if small is not None and large is not None:
            signs.append(compare(large, small, ""))
            words.append(f"{metric} product {large.mean:+.1%} : category {small.mean:+.1%} {SIGNS[signs[-1]]}")
    return SettingResult(setting, majority(signs) if signs else None, ", ".join(words))


def _lead(frame: pd.DataFrame, winner: str, losers: Sequence[str], **at: object) -> Figure | None:
    ours = lookup(frame, winner, method=winner, **at)
    theirs = best((lookup(frame, method, method=method, **at) for method in losers), str(at["metric"]))
    if ours is None or theirs is None or not theirs.mean > 0:
        return None
    return Figure(ours.mean / theirs.mean - 1, max(ours.std, theirs.std) / theirs.mean)


def cap_inside(metric: str, places: Sequence[Place]) -> Judge:
    """The best cap strictly inside the grid is clearly better than both ends; against it: an end clearly is."""

    def part(frame: pd.DataFrame, items: str, setting: str) -> SettingResult:
        curve = _curve(frame, items, setting, metric)
        if len(curve) < 3:
            return SettingResult(f"{items} {setting}", None)
        low, *_, high = curve
        inner = _best_cap({cap: figure for cap, figure in curve.items() if low < cap < high}, metric)
        signs = [compare(curve[inner], curve[end], metric) for end in (low, high)]
        shown = ", ".join(_at(curve, cap, metric) for cap in (low, inner, high))
        return SettingResult(
            f"{items} {setting}", min(signs), f"{metric} {shown}; best at {_best_cap(curve, metric):g}"
        )

    return lambda frames: aggregate([part(frames["capping"], *place) for place in places])


def caps_ordered(pairs: Sequence[Pair]) -> Judge:
    """The first curve's best cap is the larger; clearly so if one of them loses with the other's cap."""

    def part(frame: pd.DataFrame, pair: Pair) -> SettingResult:
        first, second = pair[:3], pair[3:]
        curves = [_curve(frame, items, setting, metric) for items, setting, metric in (first, second)]
        place = pair[0]
        if not all(curves):
            return SettingResult(place, None)
        caps = [_best_cap(curve, key[2]) for curve, key in zip(curves, (first, second), strict=True)]
        clear = any(
            caps[1 - side] in curves[side]
            and compare(curves[side][caps[side]], curves[side][caps[1 - side]], key[2]) > 0
            for side, key in enumerate((first, second))
        )
        order = (caps[0] > caps[1]) - (caps[0] < caps[1])
        words = ", ".join(
            f"{key[1]} {key[2]} best at {cap:g}" for key, cap in zip((first, second), caps, strict=True)
        )
        return SettingResult(place, order if clear else 0, words)

    return lambda frames: aggregate([part(frames["capping"], pair) for pair in pairs])


def cap_around(target: float, metric: str, place: Place) -> Judge:
    """The best cap is at most half a decade from the target; against it: all such caps are clearly worse."""

    def judge(frames: Frames) -> Finding:
        curve = _curve(frames["capping"], *place, metric)
        near = {cap: figure for cap, figure in curve.items() if target / AROUND <= cap <= target * AROUND}
        if not near:
            return aggregate([SettingResult(" ".join(place), None)])
        top = _best_cap(curve, metric)
        sign = 1 if top in near else compare(near[_best_cap(near, metric)], curve[top], metric)
        shown = ", ".join(_at(curve, cap, metric) for cap in curve)
        return aggregate([SettingResult(" ".join(place), sign, f"{metric} {shown}; best at {top:g}")])

    return judge


def _curve(frame: pd.DataFrame, items: str, setting: str, metric: str) -> dict[float, Figure]:
    """The figure at each cap, from the smallest cap to the largest."""
    rows = _place_rows(of_dlce(frame), (items, setting))
    rows = rows[(rows["metric"] == metric) & rows["mean"].notna()].sort_values("cap")
    return {
        float(cap): Figure(float(mean), 0.0 if pd.isna(std) else float(std))
        for cap, mean, std in zip(rows["cap"], rows["mean"], rows["std"], strict=True)
    }


def _best_cap(curve: dict[float, Figure], metric: str) -> float:
    winner = best(curve.values(), metric)
    return next(cap for cap, figure in curve.items() if figure is winner)


def _at(curve: dict[float, Figure], cap: float, metric: str) -> str:
    return f"{say(metric, curve[cap].mean)} at {cap:g}"


def estimator_error(setting: str, good: bool) -> Judge:
    """Median over methods and metrics of MAE / |truth| at the best cap: good up to 0.25, poor from 0.5 on."""

    def judge(frames: Frames) -> Finding:
        frame = frames["estimators"]
        rows = frame[(frame["setting"] == setting) & frame["metric"].isin(METRICS)]
        rows = rows.assign(error=rows["mae"] / rows["truth"].abs())
        places = ["category", *(items for items in ITEMS[1:] if items in set(rows["items"]))]
        return aggregate([_error_part(rows[rows["items"] == items], f"{items} {setting}", good) for items in places])

    return judge


def _error_part(rows: pd.DataFrame, place: str, good: bool) -> SettingResult:
    """The paper shows category alone; product counts where it was run."""
    lowest = rows.groupby(["metric", "method"])["error"].min().dropna()
    if lowest.empty:
        return SettingResult(place, None)
    middle = float(lowest.median())
    sign = 1 if middle <= GOOD_ERROR else -1 if middle >= POOR_ERROR else 0
    each = ", ".join(f"{metric} {value:.0%}" for metric, value in lowest.groupby("metric").median().items())
    return SettingResult(place, sign if good else -sign, f"median MAE {middle:.0%} of the true figure ({each})")


def cap_helps_estimate(metric: str, place: Place) -> Judge:
    """With the best cap the MAE is at most half of that without a cap; against it: no cap lowers it."""

    def judge(frames: Frames) -> Finding:
        frame = frames["estimators"]
        rows = frame[(frame["items"] == place[0]) & (frame["setting"] == place[1]) & (frame["metric"] == metric)]
        parts = [_help_part(own.set_index("cap")["mae"], str(method)) for method, own in rows.groupby("method")]
        return aggregate(parts or [SettingResult(" ".join(place), None)])

    return judge


def _help_part(errors: pd.Series[float], method: str) -> SettingResult:
    capped = errors[errors.index > 0].dropna()
    if 0 not in errors.index or capped.empty:
        return SettingResult(name(method), None)
    plain, lowest = float(errors[0]), float(capped.min())
    sign = 1 if lowest <= plain / 2 else 0 if lowest < plain else -1
    return SettingResult(name(method), sign, f"MAE {plain:.3f} without a cap, {lowest:.3f} at {capped.idxmin():g}")


def apart(one: str, two: str) -> Judge:
    """Over the methods, the rank correlation of two metrics is below 0.5."""

    def judge(frames: Frames) -> Finding:
        return aggregate([_apart_part(frames["comparison"], one, two, place) for place in ALL])

    return judge


def _apart_part(frame: pd.DataFrame, one: str, two: str, place: Place) -> SettingResult:
    value, count = rank_correlation(frame, one, two, place)
    if value is None:
        return SettingResult(" ".join(place), None)
    sign = 1 if value < GOES_WITH else -1
    return SettingResult(" ".join(place), sign, f"rank correlation {value:+.2f} over {count} methods")


def rank_correlation(frame: pd.DataFrame, one: str, two: str, place: Place) -> tuple[float | None, int]:
    """Spearman's correlation of two metrics over the methods (no limit rows), and over how many of them."""
    rows = frame[(frame["items"] == place[0]) & (frame["setting"] == place[1]) & ~frame["method"].isin(LIMITS)]
    wide = rows[rows["metric"].isin([one, two])].pivot_table(index="method", columns="metric", values="mean").dropna()
    if len(wide) < 3 or wide.shape[1] < 2:
        return None, len(wide)
    ranks = wide.rank()
    if ranks.nunique().min() < 2:
        return None, len(wide)  # a metric that is the same for all methods ranks nothing
    return float(ranks[one].corr(ranks[two])), len(wide)


def losses_alike(one: str, two: str) -> Judge:
    """At the paper's d, each metric differs by no more than noise or 5 %; against it: most differ by more."""

    def judge(frames: Frames) -> Finding:
        frame = of_dlce(frames["losses"])
        return aggregate([_alike_part(_place_rows(frame, place), one, two, place) for place in _places(frame)])

    return judge


def _alike_part(rows: pd.DataFrame, one: str, two: str, place: Place) -> SettingResult:
    common = set(rows.loc[rows["loss"] == one, "factors"]) & set(rows.loc[rows["loss"] == two, "factors"])
    if not common:
        return SettingResult(" ".join(place), None)
    size, words, far = _papers_size(common, place[1]), [], []
    for metric in METRICS:
        first, second = (lookup(rows, loss=loss, factors=size, metric=metric) for loss in (one, two))
        if first is not None and second is not None:
            gap = abs(first.mean - second.mean)
            far.append(gap > max(noise(first, second), ALIKE * abs(first.mean)))
            words.append(f"{metric} {one} {say(metric, first.mean)} : {two} {say(metric, second.mean)}")
    sign = None if not far else 1 if not any(far) else -1 if 2 * sum(far) > len(far) else 0
    return SettingResult(" ".join(place), sign, f"d = {size:g}: {', '.join(words)}")


def _papers_size(sizes: Iterable[float], setting: str) -> float:
    """The d that the paper uses in a setting; in a smaller grid the last but one."""
    found = sorted(sizes)
    return PAPERS_SIZE[setting] if PAPERS_SIZE.get(setting) in found else found[max(0, len(found) - 2)]


def saturates(loss: str) -> Judge:
    """No d beyond the paper's brings a clear gain in any metric; against it: one does in most of them."""

    def judge(frames: Frames) -> Finding:
        frame = of_dlce(frames["losses"])
        frame = frame[frame["loss"] == loss]
        return aggregate([_saturated_part(_place_rows(frame, place), place) for place in _places(frame)])

    return judge


def _saturated_part(rows: pd.DataFrame, place: Place) -> SettingResult:
    sizes = sorted(set(rows["factors"]))
    claimed = _papers_size(sizes, place[1]) if sizes else 0.0
    larger = [size for size in sizes if size > claimed]
    if not larger:
        return SettingResult(" ".join(place), None)
    words: list[str] = []
    gains: dict[float, list[bool]] = {size: [] for size in larger}
    for metric in METRICS:
        known = {size: figure for size in (claimed, *larger) if (figure := lookup(rows, factors=size, metric=metric))}
        if claimed in known:
            for size in larger:
                gains[size].append(size in known and compare(known[size], known[claimed], metric) > 0)
            words.append(f"{metric} {' → '.join(say(metric, figure.mean) for figure in known.values())}")
    sign = 1 if not any(map(any, gains.values())) else -1 if any(2 * sum(g) > len(g) for g in gains.values()) else 0
    steps = " → ".join(f"{size:g}" for size in (claimed, *larger))
    return SettingResult(" ".join(place), sign if words else None, f"d = {steps}: {', '.join(words)}")


def over_at_each_beta(winner: str, losers: Sequence[str]) -> Judge:
    """Over the best of the losers at more than half of the β; against it: under at more than a quarter of them."""

    def part(frame: pd.DataFrame, items: str) -> SettingResult:
        betas = sorted(set(frame.loc[frame["items"] == items, "beta"]))
        found = [compare_methods(frame, [winner], losers, METRICS, f"β = {b:g}", items=items, beta=b) for b in betas]
        known = [one for one in found if one.sign is not None]
        if not known:
            return SettingResult(items, None)
        wins, defeats = (sum(one.sign == sign for one in known) for sign in (1, -1))
        sign = -1 if 4 * defeats > len(known) else 1 if 2 * wins > len(known) and not defeats else 0
        lines = [f"over at {wins}, under at {defeats} of {len(known)} β"]
        return SettingResult(items, sign, "\n  ".join([*lines, *(f"{one.place}: {one.words}" for one in known)]))

    return lambda frames: aggregate([part(frames["unevenness"], items) for items in ITEMS])


def over_up_to_xi(winner: str, losers: Sequence[str]) -> Judge:
    """Over the best of the losers, which see no propensity, at every ξ up to 0.5; against it: under at one."""

    def part(frame: pd.DataFrame, place: Place) -> SettingResult:
        rows = _place_rows(frame, place)
        seen = rows[(rows["propensity"] == "misspecified") & (rows["method"] == winner)]
        grid = sorted(set(seen["xi"].dropna()))
        found = {xi: _against_blind(rows, seen[seen["xi"] == xi], losers, f"ξ = {xi:g}") for xi in grid}
        signs = [one.sign for xi, one in found.items() if one.sign is not None and xi <= WIDE]
        if not signs:
            return SettingResult(" ".join(place), None)
        lines = [f"{one.place}: {one.words}" for one in found.values() if one.sign is not None]
        count = f"over at {signs.count(1)}, under at {signs.count(-1)} of {len(signs)} ξ up to {WIDE:g}"
        return SettingResult(" ".join(place), min(signs), "\n  ".join([count, *lines]))

    return lambda frames: _everywhere(frames["misspecification"], part)


def over_with_estimated(winner: str, losers: Sequence[str]) -> Judge:
    """With propensities estimated from the log: over the best of the losers, which see none."""

    def part(frame: pd.DataFrame, place: Place) -> SettingResult:
        rows = _place_rows(frame, place)
        seen = rows[(rows["propensity"] == "estimated") & (rows["method"] == winner)]
        return _against_blind(rows, seen, losers, " ".join(place))

    return lambda frames: _everywhere(frames["misspecification"], part)


def _everywhere(frame: pd.DataFrame, part: Callable[[pd.DataFrame, Place], SettingResult]) -> Finding:
    return aggregate([part(frame, place) for place in _places(frame)])


def _against_blind(rows: pd.DataFrame, seen: pd.DataFrame, losers: Sequence[str], place: str) -> SettingResult:
    """Rows of a method that sees propensities against methods that see none."""
    blind = rows[rows["propensity"] == "none"]
    return compare_methods(pd.concat([seen, blind]), list(seen["method"].unique()), losers, METRICS, place)


def _place_rows(frame: pd.DataFrame, place: Place) -> pd.DataFrame:
    return frame[(frame["items"] == place[0]) & (frame["setting"] == place[1])]


def _places(frame: pd.DataFrame) -> list[Place]:
    """The settings that were run; those of the paper's pictures are not all four."""
    run = set(zip(frame["items"], frame["setting"], strict=True))
    return [place for place in ALL if place in run] or [ALL[0]]
