"""Mutated files in a process of their own: it must survive, refuse with its own error, and stay small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "mutations.py"


@pytest.mark.parametrize(("kind", "count"), [("parquet", 1500), ("catalog", 500), ("ids", 20_000), ("world", 1000)])
def test_no_mutated_file_ends_the_process_or_escapes(kind: str, count: int) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, kind, "0", str(count)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
    result = json.loads(done.stdout)
    assert result["escaped"] == []
    assert result["refused"] > count / 2
    assert result["grown_bytes"] < 100e6  # files of a few KB
    if kind == "parquet":  # page checksums and the checksum of the catalog see every change of the content
        assert result.get("other", 0) == 0
