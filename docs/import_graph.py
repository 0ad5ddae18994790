"""Draw which room imports which, into docs/architecture.md: ``python docs/import_graph.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import grimp

PAGE = Path(__file__).parent / "architecture.md"
BLOCK = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)
HELPERS = "helpers"

Rooms = dict[str, set[str]]


def main() -> None:
    PAGE.write_text(BLOCK.sub(lambda _: drawing(rooms()), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def rooms() -> Rooms:
    """Every room and the rooms it imports, imports inside functions and for type checkers included."""
    graph = grimp.build_graph("taurank", cache_dir=None)
    result: Rooms = {}
    for module in sorted(graph.modules - {"taurank"}):
        room = room_of(module)
        imported = {room_of(other) for other in graph.find_modules_directly_imported_by(module) if other != "taurank"}
        result.setdefault(room, set()).update(imported - {room})
    return result


def room_of(module: str) -> str:
    """ "taurank.data.log" is in the room data; helpers are errors, toml and modules whose names begin with "_"."""
    name = module.split(".")[1]
    if name == "__main__":
        return "cli"
    return HELPERS if name.startswith("_") or name in ("errors", "toml") else name


def drawing(imports: Rooms) -> str:
    """A Mermaid graph, without the arrows that follow from others."""
    lines = [f"    {room} --> {other}" for room in imports for other in sorted(direct(room, imports))]
    return "\n".join(["graph TD", *lines, ""])


def direct(room: str, imports: Rooms) -> set[str]:
    """The rooms a room imports that it would not reach through another one it imports."""
    return {other for other in imports[room] if not any(other in reach(via, imports) for via in imports[room])}


def reach(room: str, imports: Rooms) -> set[str]:
    return set(_walk(room, imports))


def _walk(room: str, imports: Rooms) -> Iterator[str]:
    for other in imports[room]:
        yield other
        yield from _walk(other, imports)


if __name__ == "__main__":
    main()
