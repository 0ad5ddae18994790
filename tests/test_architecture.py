"""The layout: docs/architecture.md draws the imports there are, and rooms respect each other's privacy."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "taurank"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def import_graph() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_graph", ROOT / "docs" / "import_graph.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawing_is_current() -> None:
    graph = import_graph()
    drawn = graph.BLOCK.search(PAGE)
    assert drawn is not None
    assert drawn.group() == graph.drawing(graph.rooms()), "run: python docs/import_graph.py"


def test_arrows_that_follow_from_others_are_left_out() -> None:
    graph = import_graph()
    assert graph.direct("a", {"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"b"}


def test_every_room_has_its_row() -> None:
    described = re.findall(r"^\| \*\*(\w+)\*\* \|", PAGE, flags=re.MULTILINE)
    assert set(described) == set(import_graph().rooms())


def test_every_file_named_in_the_table_exists() -> None:
    named = re.findall(r"^\| [^|]+ \| `([\w/.]+)`", PAGE.split("## Question")[1], flags=re.MULTILINE)
    assert len(named) > 10
    assert [name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []


def test_the_top_of_the_package_is_short() -> None:
    """At most fourteen modules beside the rooms: who opens the package sees the rooms."""
    assert len(list(PACKAGE.glob("*.py"))) <= 14


def test_no_room_uses_private_names_of_another() -> None:
    room_of = import_graph().room_of
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(["taurank", *path.relative_to(PACKAGE).with_suffix("").parts])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taurank."):
                is_private = any(
                    alias.name.startswith("_") and not alias.name.startswith("__") for alias in node.names
                )
                if is_private and path.parent != PACKAGE and room_of(module) != room_of(str(node.module)):
                    wrong.append(f"{module} from {node.module}")
    assert wrong == []
