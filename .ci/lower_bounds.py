"""Print the lowest versions that pyproject.toml allows, pinned, and the test tools as requirements.txt pins them.

``make bounds`` installs exactly these and runs a part of the tests, so that the bounds are known to hold.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("hypothesis", "polars", "pytest", "pytest-xdist")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {requirement for group in groups for requirement in group if not requirement.startswith("taurank[")}
    print(*sorted(requirement.replace(">=", "==") for requirement in wanted), sep="\n")
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    print("httpx")  # what the test client of the lowest Starlette needs; later ones need httpx2
    print(*(pin for pin in pins if re.split("==", pin)[0] in TOOLS), sep="\n")


if __name__ == "__main__":
    main()
