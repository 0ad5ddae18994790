"""Models as folders: the arrays that grow with the users stay in the files that the workers wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taurank.data.shards import ShardedArray, link_shard, open_arrays, read_manifest, whole_folder, write_manifest
from taurank.data.shards import write_shard as write_one

KIND = "model"


def save(path: str | os.PathLike[str], metadata: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a model folder; files that exist already are linked or copied."""
    with whole_folder(path) as folder:
        shards = {}
        for name, array in arrays.items():
            if isinstance(array, ShardedArray):
                for file in array.files():
                    link_shard(file, folder / file.name)
                shards[name] = list(array.shards)
            else:
                shards[name] = [write_one(folder, name, 0, np.asarray(array))]
        on_disk = [name for name, array in arrays.items() if isinstance(array, ShardedArray)]
        write_manifest(folder, KIND, {**metadata, "on_disk": on_disk}, shards)


def load(path: str | os.PathLike[str], check: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and arrays of a model folder: those of users stay on disk, memory-mapped, the others are read."""
    folder = Path(path).resolve()
    metadata, shards = read_manifest(folder, KIND, check)
    on_disk = set(metadata.get("on_disk", ()))
    opened = open_arrays(folder, shards)
    return metadata, {name: array if name in on_disk else np.asarray(array) for name, array in opened.items()}
