"""Words alone do not pass through typer: they must come to the same."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gradiometer.cli import app, main

WORDS = [["one"], ["one", "two"]]


@pytest.mark.parametrize("words", WORDS, ids=["a word", "two words"])
@pytest.mark.parametrize("verb", sorted(app.PLAIN))
def test_a_verb_with_words_alone_gets_what_typer_gives_it(
    verb: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = app.plain_call([verb, *words])
    if call is None:
        return
    got: list[Any] = []
    name = "import_" if verb == "import" else verb
    room = import_module(f"{app.PLAIN[verb].__module__.rpartition('.')[0]}.{name}")
    monkeypatch.setattr(room, name, got.append)
    call()
    with pytest.raises(SystemExit):
        main.verbs()(args=[verb, *words], prog_name="gradiometer")
    assert got[0] == got[1]


def test_the_doctor_of_a_file_is_such_a_call_and_options_are_not() -> None:
    assert app.plain_call(["doctor", "progress.csv"]) is not None
    for other in (
        ["doctor"],
        ["doctor", "progress.csv", "--json"],
        ["doctor", "-"],
        [],
        ["--help"],
    ):
        assert app.plain_call(other) is None
    assert app.plain_call(["serve", "runs"]) is None, "its token may come from the environment"


def test_a_reader_that_closes_the_pipe_is_no_fault(tmp_path: Path) -> None:
    log = tmp_path / "progress.csv"
    log.write_text("step,reward\n" + "".join(f"{i},{i}\n" for i in range(60)), "utf-8")
    command = [sys.executable, "-m", "gradiometer", "doctor", str(log)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
    assert "Traceback" not in said
    assert "fault of Gradiometer" not in said
