"""The commands that administer the service, on a store of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the service needs the extra 'serve'")

from typer.testing import CliRunner

import taurank as tr
from support.shop import SetClock, fitted, small_world, visit
from taurank import DLCE
from taurank.cli.server import group
from taurank.data.storage import ShardedArray, write_shard
from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.retrain import RetrainConfig
from taurank.serve.schemas import ChallengerBody
from taurank.serve.store import Store, secret_for
from taurank.serve.surfaces import DEFAULT_SHARE

RUNNER = CliRunner()


@pytest.fixture
def store(tmp_path: Path) -> str:
    option = f"--store={tmp_path / 'state'}"
    assert "admin token, shown once: taurank_" in call(option, "init")
    return option


def call(*words: str) -> str:
    """What a command printed; its errors are raised."""
    answer = RUNNER.invoke(group, list(words), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_from_nothing_to_a_model(store: str, tmp_path: Path) -> None:
    fitted("popular").save(tmp_path / "popular")
    assert "5 slots per week" in call(store, "surface", "set", "mail", "-k", "5", "--period=week")
    version = call(store, "model", "upload", str(tmp_path / "popular"), "--note=first").strip()
    assert version in call(store, "model", "list")
    assert "is the incumbent of mail" in call(store, "model", "promote", version, "--surface=mail")
    assert "mail is off" in call(store, "surface", "switch", "off", "--surface=mail")
    assert "mail: 0 settled" in call(store, "jobs")
    assert "promoted" in call(store, "history")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "--out=somewhere"], "no settled period"),
        (["retrain", "popular"], "no incumbent"),
        (["model", "rollback"], "no earlier incumbent"),
        (["model", "demote"], "no challenger"),
        (["model", "challenge", "0123456789abcdef"], "no model '0123456789abcdef'"),
        (["settle", "2999-01-07"], "not ended yet"),
        (["settle", "2026-01-07"], "no decision of the period"),
        (["surface", "delete", "home"], "switch it off first"),
        (["model", "delete", "0123456789abcdef"], "no model"),
        (["forget", "ann"], "nothing about this user"),
        (["decision", "0" * 32], "no such decision"),
        (["model", "upload", "missing"], "missing"),
        (["token", "create", "king"], "king"),
        (["init"], "already"),
    ],
)
def test_refusals(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        call(store, *words)


def test_an_exported_folder_can_be_fitted(store: str, tmp_path: Path) -> None:
    fitted("popular").save(tmp_path / "popular")
    version = call(store, "model", "upload", str(tmp_path / "popular")).strip()
    call(store, "model", "promote", version)
    address = store.partition("=")[2]
    opened, clock = Store(address), SetClock()
    with opened.write() as connection:
        connection.execute(tables.measures.update().values(since=0))
    made = Decider(opened, secret_for(address), clock)
    visit(made, clock, np.random.default_rng(0))
    opened.close()
    call(store, "jobs")
    call(store, "export", "--out", str(tmp_path / "shop"))
    learner = tr.Popular().fit(tr.Log.read(tmp_path / "shop"))
    assert len(learner.users) > 20


def test_a_challenger_by_hand(store: str, tmp_path: Path) -> None:
    versions = []
    for name in ("popular", "counting"):
        fitted(name).save(tmp_path / name)
        versions.append(call(store, "model", "upload", str(tmp_path / name)).strip())
    call(store, "model", "promote", versions[0])
    assert "is the challenger of home" in call(store, "model", "challenge", versions[1], "--share=0.3")
    assert json.loads(call(store, "surface", "list"))[0]["share"] == 0.3
    assert "no challenger now" in call(store, "model", "demote", "--reason=enough")
    call(store, "model", "challenge", versions[1])
    shares = {ChallengerBody(model="0" * 16).share, RetrainConfig().share, DEFAULT_SHARE}
    assert {json.loads(call(store, "surface", "list"))[0]["share"]} == shares


def test_a_model_in_a_folder_is_served(store: str, tmp_path: Path) -> None:
    """What a cluster fit saves: arrays of users in several files."""
    learner = DLCE(factors=4, epochs=2, random_state=0).fit(small_world().sample(3, random_state=5).log)
    parts = np.array_split(learner.user_factors_, 2)
    learner.save(tmp_path / "whole")
    shards = [write_shard(tmp_path, "user_factors", part) for part in parts]
    learner.user_factors_ = ShardedArray(shards)  # type: ignore[assignment]
    learner.save(tmp_path / "folder")
    assert (tmp_path / "folder").is_dir()
    version = call(store, "model", "upload", str(tmp_path / "folder")).strip()
    assert version == call(store, "model", "upload", str(tmp_path / "whole")).strip()
    assert "is the incumbent of home" in call(store, "model", "promote", version)


def test_a_change_leaves_the_other_settings_alone(store: str) -> None:
    call(store, "surface", "set", "home", "--holdout=0.3", "--outcome=value", "--max-value=50", "--temperature=0.7")
    call(store, "surface", "set", "home", "-k", "5")
    surface = json.loads(call(store, "surface", "list"))[0]
    assert (surface["holdout"], surface["outcome"], surface["max_value"]) == (0.3, "value", 50.0)
    assert (surface["policy"]["temperature"], surface["policy"]["k"]) == (0.7, 5)


def test_tokens(store: str) -> None:
    key, token = call(store, "token", "create", "app", "--label=shop").strip().split("\t")
    listed = call(store, "token", "list")
    assert key in listed
    assert "valid" in listed
    assert token not in listed
    call(store, "token", "revoke", key)
    assert "revoked" in call(store, "token", "list")


def test_only_init_creates_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="create it with `taurank server --store typo init`"):
        call("--store=typo", "token", "list")
    assert not list(tmp_path.iterdir())


def test_every_command_obeys_the_store_of_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call("--store=prod", "init")
    key = call("--store=prod", "token", "create", "app").split("\t")[0]
    assert key in call("--store=prod", "token", "list")
    assert [path.name for path in tmp_path.iterdir()] == ["prod"]


def test_a_database_that_does_not_answer() -> None:
    with pytest.raises(InputError, match="does not answer"):
        call("--store=postgresql://nobody@127.0.0.1:9/none", "token", "list")


def test_items_features_and_outcomes_come_from_files(store: str, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id,available,category\na,false,tea\nb,true,\n")
    assert "Changed 2 items" in call(store, "item", "upload", str(tmp_path / "items.csv"))
    assert "a\tsold out\t\ttea" in call(store, "item", "list")
    (tmp_path / "users.csv").write_text("user_id,age\nu,3\n")
    assert "Stored features of 1 users" in call(store, "features", "users", str(tmp_path / "users.csv"))
    (tmp_path / "outcomes.csv").write_text("event_id,user_id,item_id,time\no1,u,a,2026-01-05 12:00:00\n")
    assert "1 new outcomes, 0 known already." in call(store, "import", str(tmp_path / "outcomes.csv"))
    call(store, "surface", "set", "home", "--block=a", "--block=b", "--pin=c", "--per-category=2")
    call(store, "surface", "set", "home", "--block=")
    policy = json.loads(call(store, "surface", "list"))[0]["policy"]
    assert (policy["blocked"], policy["pins"], policy["per_category"]) == ([], ["c"], 2)
    with pytest.raises(InputError, match="the first argument"):
        call(store, "features", "shops", str(tmp_path / "users.csv"))
