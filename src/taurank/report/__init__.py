"""Words and pages: what a diagnosis says, and one self-contained HTML file with charts as SVG.

Importing a module that makes pages raises `MissingExtra` unless the extra ``report`` is installed.
"""

from importlib.util import find_spec

from taurank.errors import missing_extra


def require() -> None:
    """Raise `MissingExtra`, with the command to run, unless everything that pages need is installed."""
    for module in ("jinja2", "altair", "vl_convert"):
        if find_spec(module) is None:
            raise missing_extra(module, "report")
