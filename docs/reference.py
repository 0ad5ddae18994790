"""The reference pages: public names by docstrings, commands by their help, the service by its OpenAPI document."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
from fastapi import FastAPI
from typer.core import TyperGroup

import taurank
from taurank.cli.app import app
from taurank.serve.api import ROUTERS

CLASSES = {  # a page of the API reference: its introduction, its classes, its functions and modules
    "logs": ("Who was shown what, and what happened.", ["Log", "Features", "Channels"], []),
    "gains": (
        "What a log says about effects, and about its own propensities.",
        ["Gains", "report.diagnosis.Diagnosis", "propensity.Model", "propensity.PairCalibration"],
        ["diagnose", "gains.*", "propensity.*"],
    ),
    "learners": (
        "Hyper-parameters in the constructor, `fit` makes it a model. `Learner` has what all of them share.",
        ["Learner", "EmpiricalBayes", "DLCE", "DLTO", "BLCE", "BPR", "ULBPR", "ULRMF", "CausE", "CountingBayes",
         "CUBN", "Popular", "Random", "BestChannel", "learners.FactorLearner", "learners.GainsPass"],
        ["load", "learners.scorer", "testing.check_learner"],
    ),
    "evaluation": (
        "What a ranking is worth, and whether to rely on it.",
        ["Metric", "evaluation.results.Result", "evaluation.results.MetricResult", "evaluation.results.Comparison",
         "evaluation.results.Difference", "evaluation.curves.Curve"],
        ["evaluate", "compare", "effect_curve", "spend"],
    ),
    "tuning": ("Which hyper-parameters.", ["tuning.Tuning"], ["tune"]),
    "worlds": (
        "Where the truth is known, and how far an estimate can be from it.", ["World"], ["bounds.*", "dunnhumby.*"]
    ),
    "applications": (
        "From tables to a decision, several machines, and errors.",
        ["pilot.Pilot", "pilot.ExperimentDesign", "cluster.Cluster", "InputError", "errors.DivergedError",
         "errors.TooLittleData"],
        ["pilot.run", "pilot.power", "cluster.connect"],
    ),
}  # fmt: skip


def write(docs: Path) -> None:
    """Write all reference pages into docs/generated."""
    folder = docs / "generated"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, (introduction, classes, functions) in CLASSES.items():
        (folder / f"api_{name}.md").write_text(api_page(name, introduction, classes, functions), encoding="utf-8")
    (folder / "commands.md").write_text("\n".join(commands()), encoding="utf-8")
    (folder / "http.md").write_text("\n".join(http(_openapi())), encoding="utf-8")


# ---- Python --------------------------------------------------------------------------------------


def api_page(name: str, introduction: str, classes: list[str], functions: list[str]) -> str:
    lines = [f"# {name.capitalize()}", "", introduction, "", "```{eval-rst}"]
    for function in _expanded(functions):
        lines += [f".. autofunction:: taurank.{function}", ""]
    for one in classes:
        lines += [f".. autoclass:: taurank.{one}", "   :members:", "   :show-inheritance:", ""]
    return "\n".join([*lines, "```", ""])


def _expanded(names: list[str]) -> Iterator[str]:
    """``gains.*`` is every public function of that module: of its ``__all__``, or of its own in their order."""
    for name in names:
        if not name.endswith(".*"):
            yield name
            continue
        module = getattr(taurank, name[:-2])
        for part in getattr(module, "__all__", vars(module)):
            value = getattr(module, part)
            is_own = callable(value) and getattr(value, "__module__", "").startswith(module.__name__)
            if is_own and not part.startswith("_") and not isinstance(value, type):
                yield f"{name[:-2]}.{part}"


# ---- the command line ----------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield from ("# Commands", "", "`taurank COMMAND --help` prints the same.", "")
    yield from _command("taurank", typer.main.get_command(app), 1)


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for part, inner in command.commands.items():
            yield from _command(f"{name} {part}", inner, level + 1)
        return
    rows = [row for parameter in command.params if (row := _parameter(parameter))]
    usage = " ".join([name, *(_metavar(each) for each in command.params if each.param_type_name == "argument")])
    yield from (f"## {name}", "", "```", f"{usage} [OPTIONS]", "```", "", _plain(command.help), "")
    if rows:
        yield from ("| | |", "|---|---|", *rows, "")


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _parameter(parameter: Any) -> str | None:
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return None
    if parameter.param_type_name == "argument":
        name = f"`{_metavar(parameter)}`"
    else:
        name = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    has_default = (
        getattr(parameter, "show_default", False) and default not in (None, "", [], ()) and default is not ...
    )
    known = (
        f" Default: `{default}`." if has_default and not isinstance(default, bool) and not callable(default) else ""
    )
    required = " Required." if parameter.required and parameter.param_type_name == "option" else ""
    return f"| {name} | {_cell(parameter.help or '')}{required}{known} |"


def _plain(text: str | None) -> str:
    """Help as Markdown: options in code, nothing taken for HTML."""
    return re.sub(r"(?<![\w`])(--?[a-z][\w-]*)", r"`\1`", (text or "").replace("<", "&lt;").replace("*", "\\*"))


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|").replace("[", "\\[")


# ---- HTTP ----------------------------------------------------------------------------------------


def _openapi() -> dict[str, Any]:
    service = FastAPI(title="taurank", version=taurank.__version__)
    for router in ROUTERS:
        service.include_router(router)
    return service.openapi()


def http(document: Mapping[str, Any]) -> Iterator[str]:
    """Every route with its parameters, its body and its answers."""
    yield from ("# HTTP interface", "", "A running server has the same as `/openapi.json`.", "")
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            yield from (f"## {method.upper()} {path}", "", _cell(route.get("description") or route["summary"]), "")
            rows = [
                f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {_cell(one.get('description', ''))} |"
                for one in route.get("parameters", [])
            ]
            body = route.get("requestBody", {}).get("content", {})
            for kind, content in body.items():
                name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
                fields = document.get("components", {}).get("schemas", {}).get(name, {}).get("properties", {})
                rows += [
                    f"| `{field}` | body | {_type(schema)} | {_cell(schema.get('description', ''))} |"
                    for field, schema in fields.items()
                ] or [f"| | body | {kind} | |"]
            if rows:
                yield from ("| name | in | type | |", "|---|---|---|---|", *rows, "")
            yield from (f"Answers: {', '.join(route['responses'])}.", "")


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(each) for each in options))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    inner = f" of {_type(schema['items'])}" if "items" in schema else ""
    return f"{schema.get('type', 'any')}{inner}"
