"""The paper's experiments, an application of the library: every table and figure of section 5, from TOML to a report.

``plan`` reads the experiments' files, ``runs`` fits, measures and searches, ``verdicts`` compares with the paper's
figures, ``report`` writes the pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["run"]

if TYPE_CHECKING:
    from taurank_paper.runs.runner import run


def __getattr__(name: str) -> Any:
    """``run`` is loaded when it is first used: the parts of this package do not need each other's imports."""
    if name == "run":
        from taurank_paper.runs.runner import run

        return run
    raise AttributeError(f"module 'taurank_paper' has no attribute '{name}'")
