"""Features of The Complete Journey: the demographics of households and the hierarchy of products."""

from __future__ import annotations

from typing import Any

import pandas as pd

from taurank.data.features import Features
from taurank.errors import InputError, first_line
from taurank.worlds.complete_journey import Items, SourceFiles

_DEMOGRAPHICS = {"packaged Parquet files": "demographics.parquet", "original CSV files": "hh_demographic.csv"}
_NAMES = {
    "household_key": "user_id", "household_id": "user_id", "PRODUCT_ID": "product_id", "DEPARTMENT": "department",
    "BRAND": "brand", "COMMODITY_DESC": "product_category", "SUB_COMMODITY_DESC": "product_type",
}  # fmt: skip


def features(files: SourceFiles, items: Items) -> Features:
    """All columns of the demographics; department, category and brand of the items. Missing values are imputed."""
    households = _read(files, _DEMOGRAPHICS[files.layout.name])
    products = _read(files, files.layout.files["product"])
    table = _products(products) if items == "product" else _categories(products)
    return Features(users=households, items=table, impute=True)


def _products(products: pd.DataFrame) -> pd.DataFrame:
    columns = products[["product_id", "department", "brand", "product_category"]]
    return columns.rename(columns={"product_id": "item_id"})


def _categories(products: pd.DataFrame) -> pd.DataFrame:
    """Per category::type the category, the most frequent department, and the share of private brands."""
    known = products.dropna(subset=["product_category", "product_type"])
    label = known["product_category"].astype(str) + "::" + known["product_type"].astype(str)
    groups = known.assign(item_id=label, private=known["brand"] == "Private").groupby("item_id", sort=True)
    return pd.DataFrame(
        {
            "category": groups["product_category"].first(),
            "department": groups["department"].agg(_most_frequent),
            "private": groups["private"].mean(),
        }
    ).reset_index()


def _most_frequent(values: pd.Series[Any]) -> Any:
    return values.mode().iloc[0]  # the first in order where several are


def _read(files: SourceFiles, name: str) -> pd.DataFrame:
    path = files.folder / name
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {first_line(error)}.") from error
    return frame.rename(columns=_NAMES)
