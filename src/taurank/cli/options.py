"""What the commands share: options with one meaning each, and the check of every path before a command runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from taurank.errors import InputError


class Use(Enum):
    """What a command does with a path; every path of every command is marked with one of these."""

    READS = "reads"
    WRITES = "writes"
    FOLDER = "writes into this folder"
    CHECKPOINT = "resumes from it: a file, or a folder on a cluster"


READS, WRITES, FOLDER, CHECKPOINT = Use

# the keys of taurank.learners.LEARNERS, here too so that completion need not import them
LEARNERS = (
    "random", "popular", "bpr", "ulbpr", "ulrmf", "cause", "blce", "dlto", "dlce", "countingbayes", "empiricalbayes",
    "cubn",
)  # fmt: skip


METAVARS = {Path: "FILE", int: "N", float: "NUMBER", str: "TEXT", list[str]: "TEXT"}


class Group(typer.Typer):
    """A group of commands. Every command's paths are checked before it runs."""

    def __init__(self, text: str, **options: Any) -> None:
        super().__init__(
            help=text, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
            **{"add_completion": False, **options},
        )  # fmt: skip

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        register = super().command(name, **options)

        def decorate(function: Callable[..., None]) -> Callable[..., None]:
            function.__annotations__ = get_type_hints(function, include_extras=True)  # one object for each option
            for hint in function.__annotations__.values():
                for part in getattr(hint, "__metadata__", ()):
                    if isinstance(part, OptionInfo) and part.metavar is None:  # else Typer's <list[str]>, <int range>
                        kinds = (hint.__origin__, *get_args(hint.__origin__))
                        part.metavar = next((METAVARS[kind] for kind in kinds if kind in METAVARS), None)

            @functools.wraps(function)
            def checked(**arguments: Any) -> None:
                given = {name: use for name, use in path_uses(function).items() if arguments.get(name) is not None}
                check_paths([(Path(arguments[name]), use) for name, use in given.items()])
                function(**arguments)

            register(checked)
            return function

        return decorate


def path_uses(function: Callable[..., None]) -> dict[str, Use]:
    """The parameters of a command that are paths, and their use."""
    hints = get_type_hints(function, include_extras=True)
    annotations = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: part for name, parts in annotations.items() for part in parts if isinstance(part, Use)}


def check_paths(paths: Sequence[tuple[Path, Use]]) -> None:
    """Refuse, before any work, an output that is an input, that is named twice, or that cannot be written."""
    from taurank.data.files import check_target, find_files

    targets: list[Path] = []
    reads = [path for path, use in paths if use is READS]
    for path, use in paths:
        if use is FOLDER:
            if any(source.is_dir() and path.is_dir() and source.samefile(path) for source in reads):
                raise InputError(f"the output folder '{path}' is also an input; name another folder.")
        elif use is WRITES or (use is CHECKPOINT and not path.is_dir()):
            target = check_target(path)
            if target in targets:
                raise InputError(f"'{path}' is named for two outputs; name two files.")
            inputs: list[Path] = []
            for source in reads if target.exists() else ():
                with suppress(InputError):  # the command words it better
                    inputs += find_files(source)
            if any(file.samefile(target) for file in inputs):
                raise InputError(f"the output '{path}' is also an input and would be overwritten; name another file.")
            if not os.access(target.parent, os.W_OK):
                raise InputError(f"'{path}' cannot be written: the folder '{target.parent}' is read-only.")
            targets.append(target)


def _complete_learner(incomplete: str) -> list[str]:
    return [name for name in LEARNERS if name.startswith(incomplete.lower())]


def estimator_option(default: str) -> Any:
    help = f"How to estimate effects (default: truth with --truth, capped-ips with --cap, else {default})."
    return typer.Option(help=help)


Estimator = Literal["truth", "outcome", "naive", "ips", "capped-ips", "snips", "doubly-robust"]
ClusterAddress = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="Ray cluster to run on: auto, local, or ray://host:port."),
]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0)]
Threads = Annotated[int | None, typer.Option(help="Number of threads; does not change the result.", min=1)]
OutFolder = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Output folder."), FOLDER]
OutFile = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Output file, .parquet or .csv."), WRITES]
OutModel = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Model file to write."), WRITES]
Html = Annotated[Path | None, typer.Option(help="Also write a page with charts."), WRITES]
LogPath = Annotated[
    Path, typer.Argument(metavar="LOG", help="The log: a Parquet or CSV file, a glob or a folder."), READS
]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file that fit or update wrote."), READS]
Source = Annotated[
    Path | None,
    typer.Option(help="Folder with the original Dunnhumby CSV files (default: the installed package)."),
    READS,
]
LearnerName = Annotated[
    str,
    typer.Argument(
        metavar="LEARNER",
        help="empiricalbayes, dlce, bpr, …, or a class of your own as module:Class.",
        autocompletion=_complete_learner,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a hyper-parameter, such as cap=0.01. Repeatable."),
]
TruthPath = Annotated[
    Path | None, typer.Option("--truth", help="True effects: user_id, item_id[, time], value."), READS
]
ValidationLog = Annotated[Path | None, typer.Option("--validation", help="Validation log."), READS]
Checkpoint = Annotated[Path | None, typer.Option(help="Checkpoint, from which a killed run resumes."), CHECKPOINT]
EstimatorName = Annotated[Estimator | None, estimator_option("ips")]
CheckpointMinutes = Annotated[float, typer.Option(help="Minutes between checkpoints.", min=0)]
Columns = Annotated[list[str] | None, typer.Option(help="Your column names: user_id=customer,item_id=sku,…")]
TimeZone = Annotated[str | None, typer.Option(help="Time zone used to cut periods, such as Europe/Berlin.")]
Cap = Annotated[float | None, typer.Option(help="Cap of the capped IPS estimator.", min=0.0, max=1.0)]
Trust = Annotated[
    list[str] | None,
    typer.Option(help="Module that a model's class may be imported from; importing runs its code. Repeatable."),
]
