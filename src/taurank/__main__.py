"""``python -m taurank`` is the command ``taurank``."""

from taurank.cli import main

main()
