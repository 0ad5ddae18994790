"""How many small errors in the source do the tests notice? Mutants are drawn at random and each runs the tests.

    python benchmarks/mutants.py --count 100 --seed 1 [--rooms estimation evaluation] [--jobs 2] [--out mutants.jsonl]

A mutant changes one expression or statement of one file. It runs the test file that mirrors its module, then the
folder that mirrors its room, with ``-x``; the first failure kills it. The score is the share of mutants killed;
read the survivors, since some cannot be told from the original by any test. A run that is stopped goes on with the
same command.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("data", "estimation", "evaluation", "sgd", "learners", "serve", "pilot")
SECONDS = 600.0  # for the tests of one mutant

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: these characters of a file are replaced by others."""

    file: str  # relative to src/taurank
    line: int
    start: int  # of the source as bytes
    end: int
    before: str
    after: str
    compiled: bool  # the change is in machine code that other modules may have cached

    @property
    def room(self) -> str:
        return self.file.split("/")[0]

    def __str__(self) -> str:
        before, after = (" ".join(text.split())[:60] for text in (self.before, self.after))
        return f"{self.file}:{self.line}  {before}  →  {after}"


class Finder(ast.NodeVisitor):
    """All mutants of a file."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source.encode()
        lines = self.source.splitlines(keepends=True)
        self.offsets = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
        self.mutants: list[Mutant] = []
        self.compiled = True  # the constants of a module are part of compiled code
        self.visit(ast.parse(source))

    def add(self, node: ast.expr | ast.stmt, after: ast.AST | str) -> None:
        start = self.offsets[node.lineno - 1] + node.col_offset
        end = self.offsets[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        text = after if isinstance(after, str) else ast.unparse(after)
        text = f"({text})" if isinstance(node, ast.expr) else text
        before = self.source[start:end].decode()
        self.mutants.append(Mutant(self.file, node.lineno, start, end, before, text, self.compiled))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self.compiled
        self.compiled = any("jit" in (name := ast.unparse(one)) or name in ("compiled", "inlined", "vectorized")
                            for one in node.decorator_list)  # fmt: skip
        for statement in node.body[1:] if ast.get_docstring(node) else node.body:
            self.visit(statement)
        self.compiled = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None: ...
    def visit_Assert(self, node: ast.Assert) -> None: ...
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...
    def visit_Import(self, node: ast.Import) -> None: ...
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
            self.add(node, ast.Compare(node.left, [COMPARED[type(node.ops[0])]()], node.comparators))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = isinstance(node.left, (ast.Constant, ast.JoinedStr)) and not _is_number(node.left)
        if type(node.op) in COMPUTED and not text:
            self.add(node, ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.add(node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.Invert)):
            self.add(node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self.add(node, repr(value + 1 if isinstance(value, int) else 2 * value if value else 1.0))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and isinstance(node.value, (ast.BinOp, ast.Compare, ast.BoolOp)):
            zero = (
                "False" if isinstance(node.value, (ast.Compare, ast.BoolOp)) else f"0 * ({ast.unparse(node.value)})"
            )
            self.add(node, f"return {zero}")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], (ast.Subscript, ast.Attribute)):
            self.add(node, "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if node.keywords and node.keywords[-1].arg is not None and "field(" not in ast.unparse(node.func) + "(":
            self.add(node, ast.Call(node.func, node.args, node.keywords[:-1]))
        self.generic_visit(node)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def all_mutants(rooms: list[str]) -> Iterator[Mutant]:
    source = ROOT / "src" / "taurank"
    for room in rooms:
        for path in sorted((source / room).rglob("*.py")):
            yield from Finder(path.relative_to(source).as_posix(), path.read_text()).mutants


def run(mutant: Mutant, seconds: float) -> dict[str, object]:
    """Run the tests on a copy of the package with this change."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        package = Path(folder, "src", "taurank")
        shutil.copytree(ROOT / "src" / "taurank", package)  # with the times of files: cached kernels stay valid
        target = package / mutant.file
        source = target.read_bytes()
        target.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
        if mutant.compiled:
            _forget_kernels(package, mutant.file)
        began, result, by = time.monotonic(), "survived", ""
        for tests in _tests_of(mutant):
            left = seconds - (time.monotonic() - began)
            command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-rfE", *map(str, tests)]
            environment = {**os.environ, "PYTHONPATH": str(package.parent), "OPENBLAS_NUM_THREADS": "1"}
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=environment, timeout=max(left, 1.0), capture_output=True, text=True
                )
            except subprocess.TimeoutExpired:
                result = "timeout"
                break
            if done.returncode not in (0, 5):
                result = "killed"
                by = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "?")
                break
        return {**asdict(mutant), "result": result, "by": by, "seconds": round(time.monotonic() - began, 1)}


def _tests_of(mutant: Mutant) -> list[list[Path]]:
    """The file that mirrors the module, then the rest of the room's folder."""
    folder = ROOT / "tests" / mutant.room
    mirrored = folder / f"test_{Path(mutant.file).stem}.py"
    rest = sorted(path for path in folder.rglob("test_*.py") if path != mirrored)
    return [[mirrored], rest] if mirrored.exists() else [rest]


def _forget_kernels(package: Path, file: str) -> None:
    """Machine code of the changed file, and of modules that import it and may have inlined it."""
    changed = "taurank." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    for module in {changed, *grimp.build_graph("taurank").find_downstream_modules(changed)}:
        path = package.parent / module.replace(".", "/")
        for cached in (path.parent / "__pycache__").glob(f"{path.name}.*.nb[ic]"):
            cached.unlink()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument(
        "--rooms", nargs="+", default=[room for room in ROOMS if (ROOT / "src/taurank" / room).exists()]
    )
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--seconds", type=float, default=SECONDS)
    options.add_argument("--out", type=Path, default=ROOT / "out" / "mutants.jsonl")
    chosen = options.parse_args()
    drawn = random.Random(chosen.seed).sample(list(all_mutants(chosen.rooms)), chosen.count)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    done = {(row["file"], row["start"], row["after"]) for row in known}
    waiting = [one for one in drawn if (one.file, one.start, one.after) not in done]
    with ThreadPoolExecutor(chosen.jobs) as pool, chosen.out.open("a") as out:
        running = {pool.submit(run, mutant, chosen.seconds): mutant for mutant in waiting}
        for finished in as_completed(running):
            row = finished.result()
            known.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{row['result']:9}{row['seconds']:6.0f} s  {running[finished]}", flush=True)
    killed = sum(row["result"] != "survived" for row in known)
    print(f"{killed} of {len(known)} killed ({100 * killed / max(1, len(known)):.0f} %)")


if __name__ == "__main__":
    main()
