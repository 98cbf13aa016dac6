"""A forked process is a process like any other: it ends as under Python, and leaves nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from forkserver import Job, python, together


@pytest.mark.parametrize(
    ("code", "ends", "prints", "says"),
    [
        ("print('done')", 0, "done\n", ""),
        ("raise SystemExit(3)", 3, "", ""),
        ("import sys; sys.exit('no such run')", 1, "", "no such run"),
        ("1 / 0", 1, "", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(4)", 4, "", ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, "", ""),
        ("import atexit; atexit.register(print, 'bye'); raise SystemExit(2)", 2, "bye\n", ""),
    ],
)
def test_it_ends_as_under_python(code: str, ends: int, prints: str, says: str) -> None:
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (ends, prints)
    assert done.stderr.rstrip().endswith(says) if says else done.stderr == ""


def test_one_that_hangs_is_killed_and_the_next_one_runs() -> None:
    assert python("-c", "import time; time.sleep(60)", timeout=0.5).returncode == -signal.SIGKILL
    assert python("-c", "print(1)").stdout == "1\n"


def test_nothing_leaks_from_one_into_the_next() -> None:
    ask = "import builtins, os, torch; print(hasattr(builtins, 'leak'), torch.initial_seed())\n"
    before = python("-c", ask).stdout
    assert before.startswith("False ")
    leak = "builtins.leak = 1; torch.manual_seed(7); os.environ['LEAK'] = '1'\n"
    assert python("-c", ask + leak).returncode == 0
    assert python("-c", ask + "assert 'LEAK' not in os.environ").stdout == before


def test_words_are_those_of_pythons_command_line(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import sys\nprint(sys.argv, __name__)\n")
    file = tmp_path / "beside.py"
    assert python(file, "a", "-c").stdout == f"[{str(file)!r}, 'a', '-c'] __main__\n"
    shown = python("-c", "import sys, beside; print(sys.argv)", "x", cwd=tmp_path).stdout
    assert shown == "['-c', 'x'] beside\n['-c', 'x']\n"
    warn = "import warnings; warnings.warn('careful')"
    assert python("-c", warn).returncode == 0
    assert python("-W", "error", "-c", warn).returncode == 1
    assert python("-W", "ignore", "-c", warn).stderr == ""


def test_several_run_at_once() -> None:
    wait = """
import sys, time
from pathlib import Path
Path(sys.argv[1]).touch()
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
"""
    done = together(Job(words=("-c", wait, "a", "b")), Job(words=("-c", wait, "b", "a")))
    assert [each.returncode for each in done] == [0, 0]
