"""Logs that somebody else made, on purpose."""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from gradiometer.cli.main import run as run_command
from gradiometer.cli.printing import visible
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.errors import NotARun, UsageError
from gradiometer.store import logs, opening
from gradiometer.store.import_log import import_log
from gradiometer.store.importers import open_log

pytestmark = pytest.mark.filterwarnings("ignore::gradiometer.errors.GradiometerWarning")
STORE = Path(opening.__file__).parent


def test_every_file_of_a_log_is_opened_at_one_place() -> None:
    """Else a link leads out of a served folder, and a pipe is waited for."""
    own = re.compile(r"\.open\(|\bopen\(|read_bytes\(|read_text\(|np\.load\(path|ZipFile\(path")
    sources = [*STORE.glob("formats/*.py"), STORE / "provenance.py", STORE / "importers.py"]
    found = [
        f"{source.name}: {line.strip()}"
        for source in sources
        for line in source.read_text().splitlines()
        if own.search(line) and "os.open" not in line
    ]
    assert found == []


@pytest.mark.parametrize("name", ["log.csv", "metrics.jsonl", "run.db", "dynamics.db", "a.wandb"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(NotARun, match="is a pipe and not a file"):
        open_log(tmp_path / name)
    with pytest.raises(UsageError):
        open_log(tmp_path)


def test_a_device_is_refused() -> None:
    with pytest.raises(NotARun, match="/dev/zero is a device and not a file"):
        open_log("/dev/zero")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", "[" + "{}," * 400_000 + "{}]"),
        ("long.jsonl", '{"step": 1, "x": [' + "[]," * 400_000 + "[]]}\n" * 2),
        ("history.json", '{"log_history": [' + '{"a": 1},' * 200_000 + "{}]}"),
        ("notebook.ipynb", '{"cells": [' + "[]," * 400_000 + "[]]}"),
    ],
)
def test_what_would_take_too_much_memory_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr(opening, "MEMORY", 20 << 20)
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="GB of memory"):
        open_log(tmp_path / name)


def test_a_log_has_no_more_names_than_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_SERIES", 1000)
    rows = ({"step": row, **{f"n{row}-{n}": 1.0 for n in range(50)}} for row in range(50))
    (tmp_path / "wide.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UsageError, match=r"more than 1,000 names"):
        open_log(tmp_path / "wide.jsonl")


def test_many_names_are_looked_at_in_few_rows(tmp_path: Path) -> None:
    """A thousand rows of a hundred names of their own: a list of a thousand cells for each name
    would be 800 MB."""
    rows = ({"step": row, **{f"n{row}-{n}": 1.0 for n in range(50)}} for row in range(1000))
    (tmp_path / "wide.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(open_log(tmp_path / "wide.jsonl").names()) == 50_000


def test_fifty_thousand_columns_of_one_name_are_read(tmp_path: Path) -> None:
    names, rest = ",".join(["step", *["loss"] * 50_000]), ",2" * 50_000
    (tmp_path / "twice.csv").write_text(f"{names}\n1{rest}\n2{rest}\n3{rest}\n")
    assert len(open_log(tmp_path / "twice.csv").names()) == 50_000


def test_a_line_of_more_cells_than_any_training_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text("step,loss\n1,2\n" + "1," * 300_000 + "\n")
    with pytest.raises(UsageError, match="cells"):
        open_log(tmp_path / "wide.csv")


HOSTILE = "loss\x1b]0;owned\x07\x1b[2J\u202eevil\ud800"


def test_names_cannot_move_the_cursor_or_break_the_terminal(tmp_path: Path) -> None:
    rows = [{"step": step, HOSTILE: step / 7, "reward": 1.0} for step in range(30)]
    log = tmp_path / "metrics.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)))
    for command in (["show", str(log)], ["doctor", str(log), "-v"], ["show", str(log), "--json"]):
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            assert run_command(command) == 0
        out.flush()
        said = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        assert not set("\x1b\x07\u202e") & set(said + err.getvalue())
        assert "Traceback" not in err.getvalue()


def test_an_error_shows_a_hostile_path_and_does_not_obey_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["show", "no\x1b[31mwhere"]) == 2
    assert "no\\x1b[31mwhere" in capsys.readouterr().err
    assert visible("line\n\ttab ümlaut 学习") == "line\n\ttab ümlaut 学习"


def test_half_a_character_in_a_name_is_spelled_and_goes_everywhere(tmp_path: Path) -> None:
    rows = [{"step": step, "r\ud800": 1.0, "config": {"k\udfff": "v\ud801"}} for step in range(30)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with open_log(tmp_path / "metrics.jsonl") as log:
        assert log.names() == ["r\\ud800"]
        assert diagnose(log).verdict
        json.dumps(log.facts, ensure_ascii=False).encode()
        import_log(log, tmp_path / "run")


def linked(tmp_path: Path) -> Path:
    """A served folder with links to a secret outside."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "args.json").write_text('{"stolen": 1}')
    (secret / "progress.csv").write_text("step,loss\n1,2\n2,3\n")
    run = tmp_path / "served" / "run"
    run.mkdir(parents=True)
    (run / "progress.csv").write_text("step,loss\n1,2\n2,3\n")
    (run / "args.json").symlink_to(secret / "args.json")
    other = tmp_path / "served" / "other"
    other.mkdir()
    (other / "progress.csv").symlink_to(secret / "progress.csv")
    return tmp_path / "served"


def test_no_link_leads_out_of_a_served_folder(tmp_path: Path) -> None:
    index = RunIndex(linked(tmp_path))
    with index.open("run") as log:
        assert log.names() == ["loss"]
        assert "config" not in log.facts
    assert [card.id for card in index.cards()] == ["run"]
    # Who opens the same log himself may have his links.
    assert open_log(tmp_path / "served" / "run").facts["config"] == {"stolen": 1}


def test_tables_of_wandb_do_not_lead_out_either(tmp_path: Path) -> None:
    from gradiometer.store.formats.wandb import _opened

    run = tmp_path / "served" / "run"
    run.mkdir(parents=True)
    outside = tmp_path / "files"
    outside.mkdir()
    (outside / "t.json").write_text('{"columns": ["a"], "data": [[1]]}')
    (run / "files").symlink_to(outside)
    note = {"_type": "table-file", "path": "t.json"}
    assert _opened(note, "t", run / "a.wandb") is not None
    with opening.within(tmp_path / "served"):
        assert _opened(note, "t", run / "a.wandb") is None
