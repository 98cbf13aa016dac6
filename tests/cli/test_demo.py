"""The demo as a newcomer sees it: real trainings, a wrong line that costs the return and is named,
and one that costs nothing and is named too."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from forkserver import python

from gradiometer.cli.demo import Stage
from gradiometer.demo import BROADCAST, NO_GRAD, script
from gradiometer.store.reader import load

pytestmark = pytest.mark.slow

PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "160"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("updates", [5, pytest.param(16, marks=pytest.mark.proof)])
def test_a_wrong_line_costs_the_return_is_named_at_step_0_and_repaired(updates: int) -> None:
    """After 16 updates the returns tell the trainings apart; the doctor does so from the start."""
    done = python("-m", "gradiometer", "demo", "--no-serve", "--updates", updates, env=PLAIN)
    assert done.returncode == 0, done.stderr
    ends = {name: float(end) for name, end in re.findall(r"(\w+) +-\d\S+ +(-\S+)\n", done.stdout)}
    assert set(ends) == {"healthy", "fixed", "broken", "dead_entropy"}
    if updates == 16:
        assert ends["healthy"] > -6
        assert ends["fixed"] > -6
        assert ends["broken"] < -30
        assert ends["dead_entropy"] > -6
    acts = re.split(r"^\d\. ", done.stdout, flags=re.MULTILINE)
    assert "CRITICAL shapes-broadcast · proved · since step 0" in acts[2]
    assert not re.search("CRITICAL|WARN", acts[3])
    assert "CRITICAL dead-term · proved · since step 1" in acts[4]
    assert (Path("runs/demo/healthy") / "train.py").read_text() == script()
    with load("runs/demo/broken") as run:
        assert [event.step for event in run.events("shapes-broadcast")] == [0]
    Stage(Path("runs/demo"), updates=5).clear()  # as the next demo does
    assert list(Path("runs/demo").iterdir()) == []


def test_only_runs_of_a_demo_are_replaced() -> None:
    thesis = Path("mine/healthy/thesis.tex")
    thesis.parent.mkdir(parents=True)
    thesis.write_text("")
    done = python("-m", "gradiometer", "demo", "--out", "mine", env=PLAIN)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds more than a run" in done.stderr
    assert thesis.exists()


def test_a_file_is_no_folder_for_a_demo() -> None:
    Path("notes.txt").write_text("")
    done = python("-m", "gradiometer", "demo", "--out", "notes.txt", env=PLAIN)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--out notes.txt is a file: name a folder" in done.stderr


@pytest.mark.parametrize("line", [BROADCAST, NO_GRAD], ids=["broadcast", "no_grad"])
def test_a_wrong_line_stands_where_the_right_one_stood(line: object) -> None:
    assert isinstance(line, type(BROADCAST))
    assert line.put_into(script()).replace(line.wrong, line.right) == script()
    with pytest.raises(ValueError, match="0 lines"):
        line.put_into("nothing")
