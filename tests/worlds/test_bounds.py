"""Bias and deviation: the formulas against slow twins, and against what repeated draws of a world do.

One *time* of a sample is one replicate: times are drawn independently, so ``per_time`` of a metric holds as
many independent estimates as the sample has times.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taurank import Log, Metric, World, bounds, gains
from taurank.errors import InputError, OverlapWarning
from taurank.estimation.gains import Gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.intervals import Estimate
from taurank.evaluation.metrics import position_weights
from taurank.worlds.world import Sample

Floats = npt.NDArray[np.float64]

METRICS = ("CP@5", "CDCG", "CAR", "CAUC")
WORLD = World.synthetic(60, 40, random_state=0)
SCORES = np.round(WORLD.control_rate, 2)  # what sells anyway, with ties: the confounded ranking
CAPS: tuple[dict[str, Any], ...] = (
    {"cap": 0.5},
    {"cap": 0.7},
    {"cap_treated": 0.4, "cap_control": 0.8},
    {"cap": 0.2, "cap_control": 0.9},
)


@pytest.fixture(scope="module")
def sample() -> Sample:
    return WORLD.sample(times=3000, random_state=1)


def estimates(values: Gains, scores: Any = SCORES) -> dict[str, Floats]:
    """Independent estimates of each metric, one per time."""
    result = evaluate(scores, values, METRICS)
    return {name: result[name].per_time for name in METRICS}


def errors_off(values: Floats, target: float) -> float:
    """How many standard errors the mean of the replicates is from the target."""
    return float(abs(values.mean() - target) / (values.std(ddof=1) / np.sqrt(len(values))))


@pytest.mark.statistical
class TestUnbiasedness:
    def test_ips_is_unbiased_for_every_metric(self, sample: Sample) -> None:
        """And the naive estimate, on the same draws, is far off: the world is confounded."""
        ips, naive = estimates(gains.ips(sample.log)), estimates(gains.naive(sample.log))
        for metric in METRICS:
            truth = bounds.expected(WORLD, SCORES, metric)
            assert errors_off(ips[metric], truth) < 4
            assert errors_off(naive[metric], truth) > 10

    def test_the_mean_of_the_truth_is_the_expected_metric(self, sample: Sample) -> None:
        for metric, values in estimates(sample.truth).items():
            assert errors_off(values, bounds.expected(WORLD, SCORES, metric)) < 4

    def test_ips_is_unbiased_given_the_potential_outcomes(self) -> None:
        """Y^T and Y^C fixed at 0 or 1, only Z is drawn: Eq. (e_delta_u_IPS) as the paper reads it."""
        world = fixed_outcomes(WORLD)
        for metric, values in estimates(gains.ips(world.sample(1000, random_state=2).log)).items():
            assert errors_off(values, bounds.expected(world, SCORES, metric)) < 4


def fixed_outcomes(world: World) -> World:
    rng = np.random.default_rng(3)
    treated, control = (
        (rng.random(rates.shape) < rates).astype(float) for rates in (world.treated_rate, world.control_rate)
    )
    return World(treated, control, world.propensity, world.users, world.items)


ROOTS = np.sqrt(WORLD.propensity.astype(np.float64))
BIASED: tuple[dict[str, Any], ...] = (
    *CAPS, {"propensity": ROOTS}, {"propensity": ROOTS, "cap": 0.4},
    {"propensity": float(WORLD.propensity.mean(dtype=np.float64))},
)  # fmt: skip


@pytest.mark.statistical
@pytest.mark.parametrize("options", [*BIASED, {"xi": 0.5}, {"xi": 0.5, "cap": 0.6}])
def test_the_bias_is_the_formula(sample: Sample, options: dict[str, Any]) -> None:
    """Replicates agree with it, and not with the formula as it is printed; naive is IPS with the mean propensity."""
    world, log, caps = WORLD, sample.log, {name: value for name, value in options.items() if "cap" in name}
    wrong = options.get("propensity")
    if "xi" in options:
        world = WORLD.misspecified(options["xi"])
        log, options = world.sample(2000, random_state=4).log, caps
    elif isinstance(wrong, np.ndarray):
        log = log.with_propensity(wrong[log.user, log.item])
    values = estimates(gains.naive(log) if isinstance(wrong, float) else gains.capped_ips(log, **caps or {"cap": 0}))
    for metric in METRICS:
        truth, bias = bounds.expected(world, SCORES, metric), bounds.bias(world, SCORES, metric, **options)
        assert errors_off(values[metric], truth + bias) < 4
        assert errors_off(values[metric], truth - bias) > 10


def test_there_is_no_bias_without_a_reason_and_a_misspecified_world_has_its_own() -> None:
    for metric in METRICS:
        assert bounds.bias(WORLD, SCORES, metric, propensity=WORLD.propensity) == 0.0
        assert bounds.bias(WORLD, SCORES, metric, cap=0.05) == 0.0
    world = WORLD.misspecified(0.3)
    assert world.recorded is not None
    given_ = bounds.bias(WORLD, SCORES, "CDCG", propensity=world.recorded)
    assert bounds.bias(world, SCORES, "CDCG") == given_ != 0.0


def test_no_cap_helps_where_an_arm_is_never_seen() -> None:
    """Personalized propensities of 1 − 1e-6 on top: every estimate takes the control arm for 0."""
    world = WORLD.personalized(beta=2.0)
    log = world.sample(500, random_state=18).log
    truth = bounds.expected(world, SCORES, "CP@5")
    for cap in (0.0, 0.01, 0.1, 0.5):
        with pytest.warns(OverlapWarning):
            values = evaluate(SCORES, gains.capped_ips(log, cap), "CP@5")["CP@5"].per_time
        assert errors_off(values, truth) > 50
        assert errors_off(values, truth + bounds.bias(world, SCORES, "CP@5", cap=max(cap, 0.01))) < 4


def slow_weight(scores: npt.NDArray[Any], item: int, metric: str) -> float:
    """λ / I for scores without ties, from the printed formulas."""
    n, rank = len(scores), 1 + sum(bool(other > scores[item]) for other in scores)
    if metric == "CP@5":
        return (n / 5) / n if rank <= 5 else 0.0
    if metric == "CDCG":
        return float(n / np.log2(1 + rank) / n)
    return rank / n if metric == "CAR" else (n - rank) / (n - 1) / n


def slow_sums(world: World, scores: Any, metric: str, chi_t: float, chi_c: float) -> tuple[float, float]:
    """The bias and Σ d² / (UI)² cell by cell, the cap with its indicator as in the paper, sign put right."""
    bias = squares = 0.0
    for u, i in product(range(world.n_users), range(world.n_items)):
        weight = slow_weight(scores[u], i, metric) / world.n_users
        p, treated, control = (
            float(rates[u, i]) for rates in (world.propensity, world.treated_rate, world.control_rate)
        )
        if p < chi_t:
            bias += weight * (p / chi_t - 1) * treated
        if p > 1 - chi_c:
            bias -= weight * ((1 - p) / chi_c - 1) * control
        squares += (weight * (1 / max(p, chi_t) + 1 / max(1 - p, chi_c))) ** 2
    return bias, squares


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("caps", [(0.0, 0.0), (0.3, 0.8), (0.6, 0.6)])
def test_slow_twin(metric: str, caps: tuple[float, float]) -> None:
    world = World.synthetic(7, 9, random_state=5)
    scores = np.random.default_rng(6).permutation(63).reshape(7, 9)
    bias, squares = slow_sums(world, scores, metric, *caps)
    options: dict[str, Any] = {"cap_treated": caps[0], "cap_control": caps[1]}
    assert bounds.bias(world, scores, metric, **options) == pytest.approx(bias, rel=1e-9, abs=1e-15)
    bound = abs(bias) + np.sqrt(np.log(2 / 0.1) / 2) * np.sqrt(squares / 3)
    assert bounds.deviation(world, scores, metric, 0.9, times=3, **options) == pytest.approx(bound, rel=1e-9)


def test_many_blocks_of_users_and_ties_agree_with_evaluate() -> None:
    """The expected effect of every cell, given to ``evaluate`` as gains, has the expected metric."""
    world = World.synthetic(600, 12, random_state=7)
    scores = np.round(world.treated_rate, 1)
    user, item = (codes.ravel().astype(np.int32) for codes in np.indices(scores.shape))
    effect = world.treated_rate.astype(np.float64) - world.control_rate
    cells = Gains(world.sample(1, 0).log.catalog, user, item, np.zeros(len(user), np.int32), effect.ravel())
    for metric in METRICS:
        measured = evaluate(scores, cells, metric)[metric].mean
        assert bounds.expected(world, scores, metric) == pytest.approx(measured, rel=1e-12)


def within(values: Floats, target: Floats | float, bound: float) -> float:
    """How often the deviation stays under the bound."""
    return float(np.mean(np.abs(values - target) <= bound))


def coins(n_users: int = 20, n_items: int = 12) -> tuple[World, Any]:
    """All buy in any case and a fair coin shows: no cell can be noisier, so Hoeffding is nearly tight."""
    ones = np.ones((n_users, n_items))
    world = World(ones, ones, ones / 2, np.arange(n_users), np.arange(n_items))
    return world, np.random.default_rng(8).random(ones.shape)


@pytest.mark.statistical
class TestDeviation:
    @pytest.mark.parametrize(
        ("confidence", "caps"), [(0.5, {}), (0.9, {}), (0.99, {}), *((0.95, caps) for caps in CAPS)]
    )
    def test_stays_under_the_bound_as_often_as_promised(
        self, sample: Sample, confidence: float, caps: dict[str, Any]
    ) -> None:
        """From the expected metric, and from the realized one of the same draw."""
        truth, values = estimates(sample.truth), estimates(gains.capped_ips(sample.log, **caps or {"cap": 0}))
        for metric in METRICS:
            bound = bounds.deviation(WORLD, SCORES, metric, confidence, **caps)
            assert within(values[metric], bounds.expected(WORLD, SCORES, metric), bound) >= confidence
            assert within(values[metric], truth[metric], bound) >= confidence

    @pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
    def test_half_the_bound_would_not_do(self, confidence: float) -> None:
        world, scores = coins()
        ips = estimates(gains.ips(world.sample(4000, random_state=9).log), scores)
        for metric in METRICS:
            bound = bounds.deviation(world, scores, metric, confidence)
            assert within(ips[metric], 0.0, bound) >= confidence
            assert within(ips[metric], 0.0, bound / 2) < confidence

    def test_the_capped_bound_needs_its_bias(self) -> None:
        world, scores = coins(60, 20)
        capped = gains.capped_ips(world.sample(500, random_state=10).log, cap_treated=0.9)
        for metric, values in estimates(capped, scores).items():
            bound = bounds.deviation(world, scores, metric, cap_treated=0.9)
            without = bound - abs(bounds.bias(world, scores, metric, cap_treated=0.9))
            assert within(values, 0.0, bound) >= 0.95
            assert within(values, 0.0, without) < 0.95

    def test_independent_times_shrink_it_by_their_root(self) -> None:
        world, scores = coins()
        ips = estimates(gains.ips(world.sample(8000, random_state=11).log), scores)
        for metric in METRICS:
            means = ips[metric].reshape(-1, 4).mean(axis=1)
            bound = bounds.deviation(world, scores, metric, times=4)
            assert bound == pytest.approx(bounds.deviation(world, scores, metric) / 2, rel=1e-12)
            assert within(means, 0.0, bound) >= 0.95
            assert within(means, 0.0, bound / 2) < 0.95

    def test_wrong_propensities_add_their_bias(self) -> None:
        world = WORLD.misspecified(1.0)
        ips = estimates(gains.ips(world.sample(500, random_state=12).log))
        for metric in METRICS:
            bound = bounds.deviation(world, SCORES, metric, times=100)
            means = ips[metric].reshape(-1, 100).mean(axis=1)
            truth = bounds.expected(world, SCORES, metric)
            assert within(means, truth, bound) == 1.0
            assert bound > abs(bounds.bias(world, SCORES, metric))

    @given(st.floats(1e-6, 1 - 1e-6), st.floats(0, 1), st.floats(0, 1))
    @settings(max_examples=50, deadline=None)
    def test_a_cell_never_leaves_the_interval_of_the_bound(self, p: float, chi_t: float, chi_c: float) -> None:
        """A cell's estimate, and its estimate minus the realized τ, range over no more than the bound's d.

        One user per (Z, Y^T, Y^C); the estimates alone range over exactly d.
        """
        cases = np.array(list(product((0, 1), repeat=3)))
        z, treated, control = cases.T
        frame = {"user_id": range(8), "item_id": 0, "treated": z, "outcome": np.where(z, treated, control)}
        log = Log.from_frame(pd.DataFrame(frame).assign(propensity=p))
        caps: dict[str, Any] = {"cap_treated": chi_t, "cap_control": chi_c}
        made = gains.capped_ips(log, **caps)
        estimate = np.bincount(made.user, made.value, 8)
        length = interval_length(p, caps)
        assert np.ptp(estimate) == pytest.approx(length, rel=1e-9)
        assert np.ptp(estimate - (treated - control)) <= length * (1 + 1e-9)


def interval_length(p: float, caps: dict[str, Any]) -> float:
    """d of a world of a single cell, read off its bound."""
    cell = np.array([[0.5]])
    world = World(cell, cell, cell, [0], [0])
    options = {"propensity": p, **caps}
    without_bias = bounds.deviation(world, cell, "CP@1", **options) - abs(bounds.bias(world, cell, "CP@1", **options))
    return float(without_bias / np.sqrt(np.log(2 / 0.05) / 2))


@pytest.mark.statistical
def test_the_interval_covers_the_expected_metric_as_often_as_it_says() -> None:
    """95 % wanted, in 2,000 replicates; users must be what varies.

    Each replicate draws its own 200 users from a population of 10,000 and a fresh time of theirs, and the target is
    the population's expected metric: at each of 40 times the population is dealt out into 50 groups. With the same
    users in each replicate the differences between them would widen the interval but not the error.
    """
    users, times = 10_000, 40
    world = World.synthetic(users, 30, random_state=13)
    log = world.sample(times, random_state=14).log

    def covered(values: Gains, metric: str, groups: int) -> float:
        """The share of replicates, some groups of each time, whose interval contains the target."""
        worth = position_weights(world.control_rate, metric)[values.user, values.item] * values.value
        table = np.bincount(values.user.astype(np.int64) * times + values.time, worth, users * times)
        table, rng, hits = table.reshape(users, times), np.random.default_rng(15), []
        target, visits = bounds.expected(world, world.control_rate, metric), (np.ones(200, int), np.array([200]))
        for time in range(times):
            for group in np.split(rng.permutation(users), users // 200)[:groups]:
                own = table[group, time]
                low, high = Estimate(own, own.mean(keepdims=True), visits).interval()
                hits.append(low <= target <= high)
        return float(np.mean(hits))

    assert 0.93 <= covered(gains.ips(log), "CP@10", 50) <= 0.97
    assert 0.93 <= covered(gains.ips(log), "CDCG", 50) <= 0.97
    assert covered(gains.naive(log), "CP@10", 5) < 0.5


@pytest.mark.parametrize("metric", METRICS)
def test_a_table_of_scores_is_the_array(metric: str) -> None:
    """In an order of its own, without a user and an item of the world; pairs without a score come last."""
    world, rng = World.synthetic(4, 5, random_state=16), np.random.default_rng(17)
    array = rng.random((4, 5))
    table = pd.DataFrame([(u, i, array[u, i]) for u in (3, 0, 1) for i in (4, 0, 2, 1)])
    table.columns = pd.Index(["user_id", "item_id", "score"])
    array[2], array[:, 3] = -1.0, -1.0
    for function, options in ((bounds.expected, {}), (bounds.bias, {"cap": 0.7})):
        by_table = function(world, table, metric, **options)  # type: ignore[operator]
        assert by_table == pytest.approx(function(world, array, metric, **options))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "has no bias; give propensity"),
        ({"cap": 1.5}, "cap must be a number between 0 and 1, got 1.5"),
        ({"cap_control": float("nan")}, "cap_control must be a number between 0 and 1"),
        ({"propensity": np.full((60, 40), 1.0)}, "2,400 rows are not, for example 1.0"),
        ({"propensity": 0.0}, "1 row is not, for example 0.0"),
        ({"propensity": np.full((40, 60), 0.5)}, r"users × items \(60, 40\), got shape \(40, 60\)"),
        ({"propensity": "half"}, "one number or an array"),
        ({"propensity": [[0.5], [0.5, 0.5]]}, "not an array users × items"),
        ({"propensity": np.full((60, 40), 1e-310)}, "too small to be inverted; give a cap"),
    ],
)
def test_bad_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        bounds.bias(WORLD, SCORES, "CDCG", **options)


def test_bad_rankings_and_promises() -> None:
    with pytest.raises(InputError, match="shape"):
        bounds.deviation(WORLD, SCORES[:, 1:], "CDCG")
    spoilt = SCORES.copy()
    spoilt[2, 3] = np.nan
    with pytest.raises(InputError, match="user 2 and item 3 is nan"):
        bounds.expected(WORLD, spoilt, "CDCG")
    with pytest.raises(InputError, match="unknown metric"):
        bounds.expected(WORLD, SCORES, "recall")
    for confidence in (0.0, 1.0, float("nan"), "95 %", None, True):
        with pytest.raises(InputError, match="confidence must be a number between 0 and 1"):
            bounds.deviation(WORLD, SCORES, "CDCG", confidence)  # type: ignore[arg-type]
    for times in (0, 1.5, None):
        with pytest.raises(InputError, match="times must be an integer ≥ 1"):
            bounds.deviation(WORLD, SCORES, "CDCG", times=times)  # type: ignore[arg-type]
    functions: list[Any] = [bounds.expected, bounds.bias, bounds.deviation]
    for function in functions:
        with pytest.raises(InputError, match="world must be a World, got a ndarray"):
            function(SCORES, SCORES, "CDCG")
        with pytest.raises(InputError, match="AUC is not a weighted sum of gains; CAUC is"):
            function(WORLD, SCORES, "AUC", **({"cap": 0.1} if function is bounds.bias else {}))


def test_a_tiny_recorded_propensity_makes_the_bound_infinite_and_a_cap_finite() -> None:
    assert bounds.deviation(WORLD, SCORES, "CDCG", propensity=1e-200) == np.inf
    assert np.isfinite(bounds.deviation(WORLD, SCORES, "CDCG", propensity=1e-200, cap=0.1))


def test_a_formula_of_ones_own_has_bounds_too() -> None:
    same = Metric("mine", lambda ranks, n_items: 1.0 / np.log2(1.0 + ranks))
    assert bounds.expected(WORLD, SCORES, same) == bounds.expected(WORLD, SCORES, "CDCG")
    assert bounds.deviation(WORLD, SCORES, same) == bounds.deviation(WORLD, SCORES, "CDCG")
