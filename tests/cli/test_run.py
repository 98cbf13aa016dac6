"""`gradiometer run` leaves a script what it is: its arguments, its output, its exit code, its
weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from forkserver import Done, python

import gradiometer as gm
from gradiometer.cli.main import run

pytestmark = pytest.mark.slow

PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}

TRAIN = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

def train(steps):
    for step in range(steps):
        loss = (net(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()

"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """A script keeps the process to its end; the tests go on in it."""
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    yield
    sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ran:
    """In this process, where torch is there already: code, stdout, stderr."""

    def go(
        script: str, *arguments: str, options: tuple[str, ...] = ("--no-doctor",)
    ) -> tuple[int, str, str]:
        (tmp_path / "train.py").write_text(script)
        code = run(["run", "--run", "kept", "--budget", "none", *options, "train.py", *arguments])
        return code, *capsys.readouterr()

    return go


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A real Python, where nothing is imported yet."""
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=PLAIN,
        cwd=folder,
        timeout=120,
        check=False,
    )


def forked(folder: Path, *words: str) -> Done:
    """A process of its own, where torch is there already."""
    return python(*words, env=PLAIN, cwd=folder)


ABOUT = """
import json, os, sys
from pathlib import Path
import helper
main = sys.modules["__main__"]
spec = main.__spec__
print(json.dumps([
    sys.argv, sys.path[0], os.getcwd(), __name__, __file__, __package__, getattr(spec, "name", None),
    main.__dict__ is globals(), sorted(name for name in globals() if name.startswith("__")), helper.WORD,
    type(__loader__).__name__, __doc__, sys.flags.optimize,
]))
if __name__ == "__main__":
    sys.exit(int(sys.argv[1]))
"""


def test_a_script_sees_what_it_sees_under_python(tmp_path: Path) -> None:
    inside = tmp_path / "code"
    inside.mkdir()
    (inside / "train.py").write_text(
        '"""A docstring."""\nfrom __future__ import annotations\n' + ABOUT
    )
    (inside / "helper.py").write_text("WORD = 'sibling'")
    bare = typed(tmp_path, "code/train.py", "7", "--lr", "3", "--", "-m", "--help", "--json")
    ours = typed(
        tmp_path,
        "-m",
        "gradiometer",
        "run",
        "code/train.py",
        "7",
        "--lr",
        "3",
        "--",
        "-m",
        "--help",
        "--json",
    )
    assert (bare.returncode, bare.stderr) == (7, "")
    assert (ours.returncode, ours.stdout) == (7, bare.stdout)
    assert "the script did not import torch" in ours.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["package.train", "package"])
def test_a_module_sees_what_it_sees_under_python(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "package"
    inside.mkdir()
    (inside / "__init__.py").write_text("")
    (inside / "helper.py").write_text("WORD = 'relative'")
    code = ABOUT.replace("import helper", "from . import helper")
    for file in ("train.py", "__main__.py"):
        (inside / file).write_text(code)
    bare = typed(tmp_path, "-m", name, "0", "-m", "x")
    ours = typed(tmp_path, "-m", "gradiometer", "run", "-m", name, "0", "-m", "x")
    assert bare.returncode == 0, bare.stderr
    assert (ours.returncode, ours.stdout) == (0, bare.stdout)


ENDINGS = {
    "sys.exit()": 0,
    "sys.exit(3)": 3,
    "sys.exit('no data')": 1,
    "raise KeyError('oh')": 1,
    "import asyncio; raise asyncio.CancelledError": 1,
    "torch.optim.Adam(net.parameters(), lr=-1.0)": 1,
    "sys.excepthook = lambda *told: print('mine', told[1], file=sys.stderr); 1 / 0": 1,
    "def broken(:": 1,
    "try:\n    1 / 0\nexcept ZeroDivisionError as problem:\n    raise ValueError('then') from problem": (
        1
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_under_python(tmp_path: Path, ending: str) -> None:
    torch_in_it = "torch" in ending
    (tmp_path / "train.py").write_text((TRAIN if torch_in_it else "import sys\n") + ending)
    bare = typed(tmp_path, "train.py")
    start = forked if torch_in_it else typed
    ours = start(tmp_path, "-m", "gradiometer", "run", "--no-doctor", "train.py")
    assert bare.returncode == ours.returncode == ENDINGS[ending]
    said = [line for line in ours.stderr.splitlines() if not line.startswith("gradiometer: ")]
    assert said == bare.stderr.splitlines()


def test_the_run_is_kept_however_the_script_ends(ran: Ran) -> None:
    code, out, err = ran(TRAIN + "train(5)\nprint('done')\nraise KeyError('oh')")
    assert (code, out) == (1, "done\n")
    assert err.index("KeyError") < err.index("gradiometer: 5 optimizer steps in kept.")
    assert err.endswith("next: gradiometer doctor kept\n")
    kept = gm.load("kept")
    assert kept.series("grad/all/norm/raw")[0].tolist() == [0, 1, 2, 3, 4]
    (event,) = kept.events("exception")
    assert event.message == "KeyError: 'oh'"
    assert kept.facts["script"] == "train.py"


def test_the_verdict_comes_last(ran: Ran) -> None:
    code, _, err = ran(
        TRAIN + "net[3].weight.register_hook(lambda g: g * float('nan'))\ntrain(5)", options=()
    )
    assert code == 0
    assert "gradiometer: critical nonfinite-gradient" in err
    last = err.splitlines()[-1]
    assert last.startswith("gradiometer: 5 optimizer steps in kept. ")
    assert last.endswith(" next: gradiometer doctor kept")
    assert gm.load("kept").findings()[0].id == "nonfinite-gradient"


def test_weights_and_output_are_the_same_bits(tmp_path: Path) -> None:
    script = (
        TRAIN + "train(30)\nprint('loss: 0.5', end='')\ntorch.save(net.state_dict(), sys.argv[1])"
    )
    (tmp_path / "train.py").write_text(script)
    bare = forked(tmp_path, "train.py", "bare.pt")
    watched = typed(
        tmp_path, "-m", "gradiometer", "run", "--budget", "none", "train.py", "watched.pt"
    )
    assert watched.returncode == bare.returncode == 0, watched.stderr
    assert watched.stdout == bare.stdout
    one, other = torch.load(tmp_path / "bare.pt"), torch.load(tmp_path / "watched.pt")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    (kept,) = (tmp_path / "runs").iterdir()
    assert kept.name.startswith("train-")
    assert len(gm.load(kept).series("grad/all/norm/clipped")[0]) == 30


def test_the_script_sets_the_threads_of_torch_before_it_imports_it(tmp_path: Path) -> None:
    script = "import os, sys\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    script += "os.environ['OMP_NUM_THREADS'] = '2'\nimport torch\nprint(torch.get_num_threads())"
    (tmp_path / "train.py").write_text(script)
    done = typed(tmp_path, "-m", "gradiometer", "run", "train.py")
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_a_script_that_moves_away_finds_its_run_where_it_started(ran: Ran, tmp_path: Path) -> None:
    code, _, err = ran(TRAIN + "import os\nos.mkdir('work')\nos.chdir('work')\ntrain(3)")
    assert code == 0
    assert "3 optimizer steps in kept." in err
    assert gm.load(tmp_path / "kept").newest_step == 2
    assert not (tmp_path / "work" / "kept").exists()


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("", "no optimizer stepped in this process (1 made)"),
        (
            "(net(torch.randn(2, 4)).sum()).backward()",
            "no optimizer stepped in this process (1 made)",
        ),
        (
            "(net(torch.randn(2, 4)).sum()).backward(); sys.exit(4)",
            "no optimizer stepped in this process (1 made)",
        ),
    ],
)
def test_without_a_step_there_is_no_folder(
    ran: Ran, tmp_path: Path, ending: str, words: str
) -> None:
    code, _, err = ran(TRAIN + ending)
    assert code == (4 if "exit" in ending else 0)
    assert words in err
    assert "Processes that the script starts" in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere.py",), "no script at nowhere.py"),
        (("-m", "nowhere.at_all"), "no module nowhere.at_all"),
        (("--tier", "high", "train.py"), "unknown tier 'high'"),
        (("--budget", "2", "train.py"), "--budget is a share of the wall time"),
        (("--evry", "2", "train.py"), "No such option: --evry"),
        (("--run", "full", "train.py"), "full holds steps already, up to step 0"),
        (("--run", "train.py", "train.py"), "is a file, and a run is a folder"),
    ],
)
def test_a_mistake_is_told_before_the_script_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "train.py").write_text("print('started')")
    if "full" in words:
        assert run(["run", "--run", "full", "--no-doctor", str(_training(tmp_path))]) == 0
    capsys.readouterr()
    assert run(["run", *words]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert "started" not in told.out


def _training(folder: Path) -> Path:
    path = folder / "one.py"
    path.write_text(TRAIN + "train(1)")
    return path


ENDLESS = TRAIN + "import os\nopen('pid', 'w').write(str(os.getpid()))\ntrain(100_000_000)\n"


def test_an_interrupt_is_130_and_the_run_is_closed(tmp_path: Path) -> None:
    done = endless(tmp_path, signal.SIGINT)
    assert done.returncode == 130, done.stderr
    err = done.stderr
    assert err.index("KeyboardInterrupt") < err.index("next: gradiometer doctor kept")
    assert gm.load(tmp_path / "kept").events("exception")


def test_a_signal_kills_it_as_it_kills_python_and_the_run_opens(tmp_path: Path) -> None:
    assert endless(tmp_path, signal.SIGTERM).returncode == -signal.SIGTERM
    assert gm.load(tmp_path / "kept").series("grad/all/norm/raw")[0][0] == 0


def endless(folder: Path, sent: signal.Signals) -> Done:
    """A training that got a signal from outside when it had kept steps already."""
    (folder / "train.py").write_text(ENDLESS)
    words = ("-m", "gradiometer", "run", "--run", "kept", "train.py")
    with ThreadPoolExecutor(1) as beside:
        ending = beside.submit(forked, folder, *words)
        while not _has_steps(folder / "kept"):
            assert not ending.done(), ending.result()
            time.sleep(0.1)
        os.kill(int((folder / "pid").read_text()), sent)
        return ending.result()


def _has_steps(folder: Path) -> bool:
    try:
        with gm.load(folder) as kept:
            return bool(kept.newest_step)
    except gm.GradiometerError:  # it is being made
        return False


def test_disabled_means_disabled(ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    code, _, err = ran(TRAIN + "train(2)\nsys.exit(5)")
    assert (code, err) == (
        5,
        "gradiometer: GRADIOMETER_DISABLED is set: the script runs unwatched\n",
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.py"]


def test_a_rank_other_than_the_first_writes_nothing(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    code, _, err = ran(TRAIN + "train(2)")
    assert (code, err) == (0, "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.py"]


def test_a_run_of_none_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--run", "none", "train.py"]) == 2
    assert "keeps nothing" in capsys.readouterr().err
