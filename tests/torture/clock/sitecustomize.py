"""Python imports this at its start if the folder is in PYTHONPATH: its clock is wrong by the seconds in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

_true = time.time
_file = Path(os.environ["TORTURE_CLOCK"])
time.time = lambda: _true() + float(_file.read_text())
