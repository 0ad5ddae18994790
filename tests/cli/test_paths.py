"""An output that is an input, that is named twice, or that cannot be written is refused before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.command_line import COMMANDS, Command
from taurank.cli.options import READS, WRITES, check_paths, path_uses
from taurank.errors import InputError

needs_linux = pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder nobody can write to")


def paths_of(words: tuple[str, ...], use: object) -> list[str]:
    return [name for name, found in path_uses(COMMANDS[words]).items() if found is use]


def call(words: tuple[str, ...], folder: Path, chosen: dict[str, Path]) -> list[object]:
    """A command with all its paths: files of ``folder``, unless they are in ``chosen``."""
    uses, arguments = path_uses(COMMANDS[words]), list[object](words)
    if words in (("fit",), ("tune",)):
        arguments.append("popular")
    if words == ("propensity", "slates"):
        arguments += ["--size", 1]
    if words == ("spend",):
        arguments += ["--budget", 1]
    for name, use in uses.items():
        path = chosen.get(name, folder / f"{name}.csv")
        if use is READS:
            path.write_text("user_id,item_id\n1,2\n")
        arguments += (
            [path] if name in ("path", "model", "impressions", "outcomes") else [f"--{name.replace('_', '-')}", path]
        )
    return arguments


PAIRS = [
    (words, read, written)
    for words in COMMANDS
    for read in paths_of(words, READS)
    for written in paths_of(words, WRITES)
]


@pytest.mark.parametrize(
    ("words", "read", "written"), PAIRS, ids=lambda part: " ".join(part) if isinstance(part, tuple) else part
)
def test_an_output_that_is_an_input_is_refused(
    words: tuple[str, ...], read: str, written: str, taurank: Command, tmp_path: Path
) -> None:
    """For each command, each path it reads and each path it writes."""
    arguments = call(words, tmp_path, {read: tmp_path / "same.csv", written: tmp_path / "same.csv"})
    before = (tmp_path / "same.csv").read_bytes()
    assert taurank(*arguments).refused_with("is also an input and would be overwritten")
    assert (tmp_path / "same.csv").read_bytes() == before


def test_links_globs_and_folders_are_followed(tmp_path: Path) -> None:
    log, linked = tmp_path / "log.csv", tmp_path / "linked.csv"
    log.write_text("user_id\n1\n")
    linked.symlink_to(log)
    os.link(log, tmp_path / "hard.csv")
    for reads in (log, tmp_path, tmp_path / "*.csv", tmp_path / "x" / ".." / "log.csv"):
        for writes in (log, linked, tmp_path / "hard.csv"):
            if reads.parent.exists():
                with pytest.raises(InputError, match="also an input"):
                    check_paths([(reads, READS), (writes, WRITES)])
    check_paths([(tmp_path, READS), (tmp_path / "new.csv", WRITES)])


def test_two_outputs_need_two_files(taurank: Command, shop: Path, tmp_path: Path) -> None:
    same = tmp_path / "same"
    finished = taurank("fit", "bpr", shop / "train.parquet", "--out", same, "--checkpoint", same)
    assert finished.refused_with("is named for two outputs")


def test_a_folder_is_not_both_source_and_output(taurank: Command, tmp_path: Path) -> None:
    finished = taurank("data", "dunnhumby", "--source", tmp_path, "--out", tmp_path)
    assert finished.refused_with("is also an input")


@pytest.mark.parametrize("words", sorted({words for words, _, _ in PAIRS}), ids=" ".join)
def test_a_folder_that_cannot_be_written_to_is_refused(
    words: tuple[str, ...], taurank: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    finished = taurank(*call(words, tmp_path, {}))
    assert finished.refused_with("cannot be written")


@needs_linux
@pytest.mark.slow
def test_sysfs_is_refused_even_to_the_superuser(process: Command) -> None:
    """Folders in which nobody can create a file: the commands that write folders, and one that writes a file."""
    for arguments in (
        ("data", "synthetic", "--users", 9, "--items", 9, "--out", "/sys/kernel"),
        ("data", "synthetic", "--users", 9, "--items", 9, "--out", "/sys/kernel/new"),
        ("paper", "statistics", "--preset", "smoke", "--out", "/sys/kernel/new"),
    ):
        finished = process(*arguments)
        assert finished.code == 2
        assert finished.err.count("\n") == 1
        assert "/sys/kernel" in finished.err


def test_a_cluster_is_not_started_for_a_model_named_like_a_file(taurank: Command, shop: Path, tmp_path: Path) -> None:
    finished = taurank("fit", "dlce", shop / "train.parquet", "--cluster", "local", "--out", tmp_path / "one.npz")
    assert finished.refused_with("a cluster writes a folder; name it without an ending")
    assert not list(tmp_path.iterdir())
