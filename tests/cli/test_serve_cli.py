"""The commands around the service, on a store of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from typer.testing import CliRunner

from support.shop import fitted
from taurank.cli.serve import group
from taurank.errors import InputError

RUNNER = CliRunner()


def call(*words: str) -> str:
    """What a command printed; its errors are raised."""
    answer = RUNNER.invoke(group, list(words), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_from_nothing_to_a_model(tmp_path: Path) -> None:
    store, model = f"--store={tmp_path / 'state'}", tmp_path / "popular"
    fitted("popular").save(model)
    assert "5 slots per week" in call("surface", "mail", "--k=5", "--period=week", store)
    version = call("upload", str(model), store).strip()
    assert "is the incumbent of mail" in call("promote", version, "--surface=mail", store)
    assert "mail is off" in call("switch", "off", "--surface=mail", store)
    assert call("keep", store).startswith("mail: 0 settled")
    with pytest.raises(InputError, match="no settled period"):
        call("export", f"--out={tmp_path / 'out'}", "--surface=mail", store)
    with pytest.raises(InputError, match="no settled period"):
        call("retrain", "popular", "--surface=mail", store)
    with pytest.raises(InputError, match="no earlier incumbent"):
        call("rollback", "--surface=mail", store)
    assert "again" in call("settle", "2026-01-07", "--surface=mail", store)
    with pytest.raises(InputError, match="not ended yet"):
        call("settle", "2999-01-07", "--surface=mail", store)
    with pytest.raises(InputError, match="not a date"):
        call("settle", "tomorrow", "--surface=mail", store)
    with pytest.raises(InputError, match="on or off"):
        call("switch", "maybe", "--surface=mail", store)
    with pytest.raises(InputError, match="does not exist"):
        call("upload", str(tmp_path / "missing"), store)


def test_tokens(tmp_path: Path) -> None:
    store = f"--store={tmp_path / 'state'}"
    key, token = call("token", "create", "app", "--label=shop", store).strip().split("\t")
    listed = call("token", "list", store)
    assert key in listed
    assert "valid" in listed
    assert token not in listed
    call("token", "revoke", key, store)
    assert "revoked" in call("token", "list", store)
    with pytest.raises(InputError, match="role"):
        call("token", "create", "king", store)


def test_a_database_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not answer"):
        call("token", "list", "--store=postgresql://nobody@127.0.0.1:9/none")
