from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import taurank as tr
from taurank.worlds import shop_visits as shops
from taurank.worlds.shop import Shop, first_of_each
from taurank.worlds.shop_tables import ZONE, write_tables
from taurank.worlds.shop_visits import Violations

MINUTE = pd.Timedelta(seconds=60)  # after its purchase something is sent back


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop.draw(users=700, items=150, weeks=4, seed=3)


@pytest.fixture(scope="module")
def clean(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    write_tables(shop, folder, messy=False, threads=1)
    return folder


@pytest.fixture(scope="module")
def messy(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messy")
    write_tables(shop, folder, messy=True, threads=2)
    return folder


def test_slates_are_drawn_with_these_chances() -> None:
    weights = np.exp(np.random.default_rng(1).normal(0, 1, 40))
    items, slate = np.arange(40, dtype=np.int32), np.empty(10, np.int64)
    count, draws = np.zeros(40), 20_000
    for key in range(draws):
        shops.draw_slate(np.uint64(shops.week_key(1, key, 0, 0)), items, weights, slate)
        count[slate] += 1
    chance = tr.propensity.slate_weighted(weights, 10)
    z = (count - draws * chance) / np.sqrt(draws * chance * (1 - chance))
    assert np.abs(z).max() < 4.0


def test_clean_tables_make_a_log_whose_propensities_are_true(shop: Shop, clean: Path) -> None:
    log = tr.Log.from_events(clean / "impressions.parquet", _with_propensity(clean), period="week")
    truth = pq.read_table(clean / "truth.parquet").to_pandas()
    assert len(log) == len(truth)
    assert log.summary is not None
    assert log.summary.later_lists == 0.0  # a second visit in a week shows the same slate
    frame = log.to_frame()
    frame["week"] = (pd.to_datetime(frame["time"]) - pd.Timestamp("2026-01-05")).dt.days // 7
    both = frame.merge(truth, on=["user_id", "item_id", "week"], suffixes=("", "_true"))
    assert len(both) == len(truth)
    np.testing.assert_allclose(both["propensity"], both["propensity_true"], rtol=1e-12)
    expected = sum(len(shops.candidates(shop.parameters, u)) * n for u, n in enumerate(shop.visited.sum(1)))
    spread = np.sqrt(((1 - both["propensity"]) / both["propensity"] ** 2)[both["treated"] == 1].sum())
    assert abs((both["treated"] / both["propensity"]).sum() - expected) < 4 * spread


def test_ips_with_true_propensities_finds_what_a_visit_is_worth(shop: Shop, clean: Path) -> None:
    """k · CP@k of IPS is the shop's own value, without a correction for who stays away."""
    visits = clean / "visits.parquet"
    log = tr.Log.from_events(
        clean / "impressions.parquet", _with_propensity(clean), period="week", visits=visits, incomplete="keep"
    )
    today = shop.today()
    metric = tr.evaluate(today, tr.gains.ips(log), ["CP@10"])["CP@10"]
    error = metric.estimate.contributions.std() / np.sqrt(len(metric.estimate.contributions))
    assert abs(10 * metric.mean - shop.value(today)) < 4 * 10 * error


def _with_propensity(folder: Path) -> Any:
    """Purchases with the propensity of cells in which the item was not shown."""
    purchases = pq.read_table(folder / "purchases.parquet").to_pandas()
    truth = pq.read_table(folder / "truth.parquet").to_pandas()
    purchases["week"] = (purchases["timestamp"] - pd.Timestamp("2026-01-05")).dt.days // 7
    return purchases.merge(truth, on=["user_id", "item_id", "week"])[
        ["user_id", "item_id", "timestamp", "propensity"]
    ]


def test_its_log_is_that_of_its_tables(shop: Shop, clean: Path) -> None:
    truth = pq.read_table(clean / "truth.parquet").to_pandas().rename(columns={"week": "time"})
    cells = ["user_id", "item_id", "time"]
    frame = shop.log().to_frame().merge(truth, on=cells, suffixes=("", "_true"), how="outer")
    np.testing.assert_allclose(frame["propensity"], frame["propensity_true"], rtol=1e-12)
    purchases = pq.read_table(clean / "purchases.parquet").to_pandas()
    purchases["time"] = (purchases["timestamp"] - pd.Timestamp("2026-01-05")).dt.days // 7
    assert set(map(tuple, purchases[cells].to_numpy())) == set(
        map(tuple, frame.loc[frame["outcome"] == 1, cells].to_numpy())
    )
    assert shop.log().eligibility.has_visits
    twice = Shop.draw(users=400, items=120, weeks=3, seed=1, violations=Violations(every_visit=True))
    log, sizes = twice.log(), [len(shops.candidates(twice.parameters, user)) for user in range(400)]
    n_cells = np.array(sizes) @ log.eligibility.visits(np.ones(400, np.bool_))[0]
    assert (log.treated / log.recorded_propensity("")).sum() == pytest.approx(n_cells, rel=0.1)


def test_value_sums_effects_over_lists_and_visits(shop: Shop) -> None:
    today = shop.today()
    total = 0.0
    visits = shop.visited.sum(1)
    for user, part in first_of_each(today, 3).groupby("user_id"):
        effect = shop.effect(part["user_id"].array, part["item_id"].array)
        assert len(part) == 3
        assert (part["score"].to_numpy() == np.sort(part["score"])[::-1]).all()
        total += effect.sum() * visits[int(str(user)[1:])]
    assert shop.value(today, 3) == pytest.approx(total / visits.sum())


def test_messy_tables_contain_the_clean_ones(shop: Shop, clean: Path, messy: Path) -> None:
    plain = pq.read_table(clean / "impressions.parquet").to_pandas()
    table = pq.read_table(messy / "impressions.parquet").to_pandas()
    assert {"customer", "sku", "shown_at", "chance"} <= set(table.columns)
    assert str(table["shown_at"].dt.tz) == "UTC"
    assert table.duplicated().sum() > 100
    assert table["customer"].isna().any()
    assert table["chance"].isna().any()
    table["shown_at"] = table["shown_at"].dt.tz_convert(ZONE).dt.tz_localize(None)
    kept = table.drop_duplicates().dropna(subset=["customer", "sku"])
    inside = kept[kept["shown_at"] < plain["timestamp"].max().normalize() + pd.Timedelta(days=1)]
    both = inside.merge(plain, left_on=["customer", "sku", "shown_at"], right_on=["user_id", "item_id", "timestamp"])
    assert len(both) == len(inside)
    assert len(both) > 0.99 * len(plain)
    assert (kept["shown_at"] > plain["timestamp"].max()).any()  # a week that is cut short


def test_messy_purchases_have_unknown_items_and_orders_without_a_visit(shop: Shop, messy: Path) -> None:
    bought = pq.read_table(messy / "purchases.parquet").to_pandas()
    items = set(pq.read_table(messy / "items.parquet").to_pandas()["sku"])
    assert str(bought["bought_at"].dt.tz) == ZONE
    assert 0 < (~bought["sku"].dropna().isin(items)).sum() < 0.03 * len(bought)
    known = bought.dropna(subset=["customer"])
    week = ((known["bought_at"].dt.tz_localize(None) - pd.Timestamp("2026-01-05")).dt.days // 7).to_numpy()
    user = known["customer"].str[1:].astype(int).to_numpy()
    inside = week < shop.weeks
    assert 0 < (~shop.visited[user[inside], week[inside]]).sum() < 0.03 * len(bought)


def test_impressions_without_propensities(tmp_path: Path) -> None:
    write_tables(Shop.draw(50, 120, 2, 1), tmp_path, messy=False, recorded="nothing", threads=1)
    assert "propensity" not in pq.read_table(tmp_path / "impressions.parquet").column_names


def test_threads_and_a_round_trip_change_nothing(shop: Shop, clean: Path, tmp_path: Path) -> None:
    shop.save(tmp_path / "shop.json")
    write_tables(Shop.load(tmp_path / "shop.json"), tmp_path, messy=False, threads=2)
    for name in ("impressions", "purchases", "visits", "truth", "today", "users", "tastes", "items"):
        assert pq.read_table(tmp_path / f"{name}.parquet").equals(pq.read_table(clean / f"{name}.parquet")), name


def test_what_users_like_is_what_they_buy_anyway(shop: Shop) -> None:
    """The premise: a list by purchase rate looks best by purchases and is worse than one by effect."""
    rows = []
    for user in range(100):
        own = shops.candidates(shop.parameters, user)
        rows.append(pd.DataFrame({"user_id": f"c{user:07d}", "item_id": [f"p{item:07d}" for item in own]}))
    pairs = pd.concat(rows, ignore_index=True)
    users, items = (pairs[name].str[1:].astype(int).to_numpy() for name in ("user_id", "item_id"))
    control, treated = shops.rates_of_pairs(shop.parameters, users, items)
    liked, moved = (first_of_each(pairs.assign(score=score), 10) for score in (control, treated - control))
    assert shop.value(moved) > 2 * shop.value(liked) > 0
    assert np.corrcoef(np.log(shop.inclusion(users.astype(np.int32), items.astype(np.int32))), control)[0, 1] > 0.3


def test_bad_arguments_and_files(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(tr.InputError, match="items must be an integer between 120"):
        Shop.draw(items=20)
    with pytest.raises(tr.InputError, match="columns user_id, item_id and rank or score"):
        shop.value(pd.DataFrame({"user_id": []}))
    with pytest.raises(tr.InputError, match="item_id is not in the catalog"):
        shop.effect(["c0000001"], ["gift"])
    tr.World.synthetic(3, 3, 0).save(tmp_path / "world")
    with pytest.raises(tr.InputError, match="is not a made-up shop"):
        Shop.load(tmp_path / "world")


@pytest.mark.parametrize(
    ("violation", "share"),
    [({"delay": 0.5}, 1.0), ({"position": 1.0}, 0.1), ({"saturation": 1.0}, None), ({"every_visit": True}, 1.3),
     ({"replacement": 0.5}, 0.5), ({"returns": 1.0}, None), ({"intent": 1.0}, 1.0)],
)  # fmt: skip
def test_what_a_list_is_worth_with_a_violation(violation: dict[str, Any], share: float | None) -> None:
    """The truth of a switch, as a share of the value without it; lists of one effect each."""
    plain = Shop.draw(users=600, items=120, weeks=5, seed=2)
    lists = plain.today(top=10)
    changed = Shop.draw(600, 120, 5, 2, Violations(**violation)).value(lists)
    if share is None:
        assert changed < 0.9 * plain.value(lists)
    else:
        assert changed == pytest.approx(share * plain.value(lists), rel=0.2 if share < 1 else 0.05)


def test_switches_change_the_tables_and_survive_a_round_trip(tmp_path: Path) -> None:
    made = Shop.draw(400, 120, 3, 1, Violations(every_visit=True, intent=1.0, returns=0.5))
    write_tables(made, tmp_path, messy=False, threads=1)
    assert Shop.load(tmp_path / "shop.json").violations == made.violations
    truth, impressions, purchases = (
        pq.read_table(tmp_path / f"{name}.parquet").to_pandas() for name in ("truth", "impressions", "purchases")
    )
    cells = ["user_id", "item_id", "timestamp"]
    back = purchases.loc[purchases["quantity"] < 0, cells].assign(timestamp=lambda rows: rows["timestamp"] - MINUTE)
    kept = purchases[purchases["quantity"] > 0].merge(back, on=cells, how="left", indicator=True)
    assert 20 < len(back) < len(kept)
    kept["week"] = kept["timestamp"].dt.isocalendar().week
    tables = (tmp_path / "impressions.parquet", tmp_path / "purchases.parquet")
    log = tr.Log.from_events(*tables, period="week", incomplete="keep")
    assert log.summary is not None
    assert log.summary.later_lists == pytest.approx(0.3, abs=0.06)
    assert "Users are shown further items later" in str(log.summary.caution)
    assert log.value is None  # returns are netted by the quantity, and no outcome is worth it
    assert log.outcome.sum() == len(kept[kept["_merge"] == "left_only"].drop_duplicates([*cells[:2], "week"]))
    assert not impressions["propensity"].isin(truth["propensity"]).all()  # the shop does not record the intent
    slates = impressions.groupby(["user_id", "timestamp"])["item_id"].apply(frozenset).reset_index()
    slates["week"] = slates["timestamp"].dt.isocalendar().week
    assert slates.groupby(["user_id", "week"])["item_id"].nunique().max() == 2  # a slate of its own for each visit
    with pytest.raises(tr.InputError, match="delay must be"):
        Shop.draw(violations=Violations(delay=2.0))
