from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from gradiometer.store.facts import collect, redact, redact_argv
from gradiometer.store.strictjson import from_json, to_json

HIDDEN = "[redacted]"


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "hf_token",
        "HF_TOKEN",
        "authToken",
        "api_key",
        "apiKey",
        "API-KEY",
        "password",
        "db_passwd",
        "client_secret",
        "aws_secret_access_key",
        "private_key",
        "credentials",
        "Authorization",
        "wandb.api_key",
        "auth",
    ],
)
def test_a_value_whose_name_says_secret_is_redacted_at_any_depth(key: str) -> None:
    assert redact({"a": [{key: "abc"}]}) == {"a": [{key: HIDDEN}]}


@pytest.mark.parametrize(
    "key",
    [
        "max_tokens",
        "tokenizer",
        "pad_token",
        "eos_token",
        "token_level_loss",
        "token_ids",
        "keys",
        "key",
        "author",
        "kl_per_token",
        "passes",
        "monkey",
    ],
)
def test_the_words_of_language_models_are_no_secrets(key: str) -> None:
    assert redact({key: "value"}) == {key: "value"}


def test_absent_and_boolean_settings_are_no_secrets() -> None:
    config = {"password": None, "use_api_key": True, "loss_per_token": 0.5, "n_token": 3}
    assert redact(config) == config


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hf_abcdefghijklmnopqrst", HIDDEN),
        ("use sk-proj-abc123def456ghi now", f"use {HIDDEN} now"),
        ("https://me:pass@example.com/x", f"https://{HIDDEN}@example.com/x"),
        ("postgresql://me:p:w@db/x?y=1", f"postgresql://{HIDDEN}@db/x?y=1"),
        ("task-abcdefghijklmnop", "task-abcdefghijklmnop"),
        ("someone@example.com", "someone@example.com"),
    ],
)
def test_a_text_that_looks_like_a_secret_is_redacted_wherever_it_stands(
    text: str, shown: str
) -> None:
    assert redact({"note": text}) == {"note": shown}
    assert redact_argv(["train.py", text]) == ["train.py", shown]


def test_a_command_line_loses_its_secrets_and_nothing_else() -> None:
    argv = [
        "train.py",
        "--lr",
        "0.1",
        "--token",
        "X",
        "--hub-token=Y",
        "--push",
        "wandb.api_key=Z",
        "--password",
        "--seed=3",
    ]
    shown = [
        "train.py",
        "--lr",
        "0.1",
        "--token",
        HIDDEN,
        f"--hub-token={HIDDEN}",
        "--push",
        f"wandb.api_key={HIDDEN}",
    ]
    assert redact_argv(argv) == [*shown, "--password", "--seed=3"]


def test_secrets_in_nested_objects_are_redacted_too() -> None:
    assert redact({"args": Namespace(token="X", lr=0.1)}) == {"args": {"token": HIDDEN, "lr": 0.1}}


def test_the_facts_say_what_ran_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--token", "X"])
    facts = collect({"lr": np.float32(0.5), "secret": "X"}, 7)
    assert facts["argv"] == ["train.py", "--token", HIDDEN]
    assert (facts["script"], facts["seed"], facts["config"]) == (
        "train.py",
        7,
        {"lr": 0.5, "secret": HIDDEN},
    )
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["hardware"]["cores"] >= 1
    assert facts["hardware"]["memory_bytes"] > 2**20
    assert {"python", "platform", "started", "cwd"} <= facts.keys()
    assert from_json(to_json(facts)) == facts


def test_what_nobody_said_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert not {"seed", "config", "git"} & collect(None, None).keys()


def test_git_says_commit_branch_and_whether_files_are_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        [*identity, "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", *command], check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert collect(None, None)["git"] == {"commit": head, "branch": "main", "dirty": False}
    (tmp_path / "train.py").write_text("2")
    assert collect(None, None)["git"]["dirty"] is True


def test_a_machine_without_git_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "git" not in collect(None, None)
