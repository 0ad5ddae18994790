"""The command line: ``taurank``."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line. The import is inside, so that an interrupt during it ends quietly, too."""
    from taurank.cli.terminal import run

    run()
