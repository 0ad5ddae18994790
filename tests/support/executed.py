"""A pytest plugin that records which functions of taurank each test executes: ``-p support.executed``.

It writes JSON to the file named by TAURANK_EXECUTED: for each test, without its parameters, the list of
"file:first line" of all Python functions that ran, in any thread. Compiled functions are invisible to it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import taurank

PACKAGE = str(Path(taurank.__file__).parent)
executed: dict[str, set[str]] = defaultdict(set)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Fixtures belong to a test: what they execute counts."""
    seen = executed[item.nodeid.split("[")[0]]

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            seen.add(f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}")

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def pytest_sessionfinish() -> None:
    Path(os.environ["TAURANK_EXECUTED"]).write_text(
        json.dumps({name: sorted(seen) for name, seen in executed.items()})
    )
