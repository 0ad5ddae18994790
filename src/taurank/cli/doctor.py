"""``taurank doctor``: what this installation has, to be read before anything else if something is wrong."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from taurank import __version__
from taurank.cli.terminal import EXTRAS, say

PACKAGES = ("numpy", "numba", "llvmlite", "scipy", "pandas", "pyarrow", "duckdb", "narwhals", "safetensors", "typer")


def doctor() -> None:
    """Show versions, extras and the cache of compiled code."""
    from taurank._threads import worker_count

    rows = [("taurank", __version__), ("Python", f"{platform.python_version()} on {platform.platform()}")]
    rows += [(name, _version(name)) for name in PACKAGES]
    rows.append(("threads", str(worker_count(None))))
    for extra in dict.fromkeys(EXTRAS.values()):
        missing = [name for name, one in EXTRAS.items() if one == extra and find_spec(name) is None]
        state = "installed" if not missing else f'{", ".join(missing)} missing: pip install "taurank[{extra}]"'
        rows.append((f"extra {extra}", state))
    rows.append(("compiled code", _cache()))
    width = max(len(name) for name, _ in rows)
    say("\n".join(f"{name:<{width}}  {text}" for name, text in rows))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _cache() -> str:
    """Where Numba caches our kernels; without a folder they are compiled again in every process."""
    from numba.core.caching import FunctionCache

    from taurank.data.ids import Ids  # any module with a path of ours: its folder is where the cache goes first

    try:
        return f"cached in {FunctionCache(Ids.__len__).cache_path}"
    except RuntimeError:
        return "not cached: set NUMBA_CACHE_DIR to a writable folder, or every process compiles for about 20 s"
