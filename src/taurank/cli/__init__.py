"""The command line: ``taurank``."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line. The imports are inside, so that an interrupt during them ends quietly, too."""
    from taurank.cli.terminal import run

    run(_start)


def _start() -> None:
    from taurank.cli.app import app

    app(prog_name="taurank")
