"""The command line: ``taurank``."""

from taurank.cli.app import main

__all__ = ["main"]
