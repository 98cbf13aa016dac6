"""A warm Python that forks: `python("-m", "gradiometer", "show", run)` is a process of its own, with
streams and an exit code, and imports neither torch nor us again.

A process is forked from a state in which only imports have happened, so nothing leaks from one
script into the next, and one that hangs or crashes takes only itself along. Tests of what is
imported, and when, need a real `subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["Done", "ForkServer", "Job", "close", "python", "together"]

# A name after a colon is an attribute that is imported when somebody asks for it; with brackets it
# is called. Nothing that reads the environment when it is imported, as typer.rich_utils does.
PRELOAD = (
    "torch.distributed.fsdp",
    "torch._dynamo",
    "scipy.stats",
    "matplotlib.pyplot",
    "rich.console",
    "gradiometer:watch",
    "gradiometer:load",
    "gradiometer.cli.main",
    "gradiometer.cli.doctor",
    "gradiometer.cli.show",
    "gradiometer.cli.compare",
    "gradiometer.doctor.rule:rules()",
    "gradiometer.store.formats.console",
    "gradiometer.store.formats.csv_files",
    "gradiometer.store.formats.json_files",
    "gradiometer.store.formats.tensorboard",
    "pydantic.main",
    "pydantic.type_adapter",
    "rich.markdown",
)
PATIENCE = 120.0
"""Seconds that a process has; one that hangs is one failed test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process."""

    words: Sequence[object]
    """What stands behind `python`: `-W action` first, then `-c code`, `-m module` or a file."""
    env: Mapping[str, str] | None = None
    cwd: Path | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a process ended; a negative code is the signal that ended it."""

    returncode: int
    stdout: str
    stderr: str


class ForkServer:
    """The tests' end: starts the warm Python when it is first needed, and again if it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *jobs: Job, timeout: float = PATIENCE) -> list[Done]:
        """All jobs at once; one that takes too long is killed, and its code says so."""
        with tempfile.TemporaryDirectory() as folder:
            outputs = [(f"{folder}/{n}.out", f"{folder}/{n}.err") for n in range(len(jobs))]
            asked = [
                {
                    "words": [str(word) for word in job.words],
                    "env": dict(os.environ if job.env is None else job.env),
                    "cwd": str(job.cwd or os.getcwd()),
                    "outputs": files,
                }
                for job, files in zip(jobs, outputs, strict=True)
            ]
            codes = self._ask({"jobs": asked, "timeout": timeout}, timeout + PATIENCE)
            return [
                Done(returncode=code, stdout=_read(out), stderr=_read(err))
                for code, (out, err) in zip(codes, outputs, strict=True)
            ]

    def _ask(self, asked: dict[str, Any], timeout: float) -> list[int]:
        process = self._living()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], timeout)
        answer = process.stdout.readline() if ready else b""
        if not answer:
            self.close()
            raise AssertionError("the fork server has gone, or does not answer")
        codes: list[int] = json.loads(answer)
        return codes

    def _living(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", __file__],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    def close(self) -> None:
        """No more forks."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _read(file: str) -> str:
    if not os.path.exists(file):
        return ""
    return Path(file).read_text(encoding="utf-8")


SERVER = ForkServer()
close = SERVER.close


def together(*jobs: Job) -> list[Done]:
    """Several processes at once."""
    return SERVER.run(*jobs)


def python(
    *words: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float = PATIENCE,
) -> Done:
    """`python *words`, to its end."""
    (done,) = SERVER.run(Job(words=words, env=env, cwd=cwd), timeout=timeout)
    return done


# What follows runs in the warm Python.


def serve() -> dict[str, Any] | None:
    """Fork for each line on stdin. Returns in a forked process, with what it is to do."""
    while line := sys.stdin.readline():
        asked = json.loads(line)
        pids = []
        for job in asked["jobs"]:
            pid = os.fork()
            if pid == 0:
                return dict(job)
            pids.append(pid)
        print(json.dumps(codes_of(pids, time.monotonic() + asked["timeout"])), flush=True)
    return None


def codes_of(pids: list[int], deadline: float) -> list[int]:
    """How each process ended; those that are there at the deadline are killed."""
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(found[1])
            elif pid not in codes and time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def settle(job: dict[str, Any]) -> None:
    """The streams, the folder, the environment and the warnings of a fresh process."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in zip((1, 2), job["outputs"], strict=True):
        with open(file, "wb") as opened:
            os.dup2(opened.fileno(), number)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    random.seed()
    warnings.filters[:] = DEFAULT_WARNINGS  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]
    sys.warnoptions.clear()
    while job["words"][0] == "-W":
        _, action, *job["words"] = job["words"]
        sys.warnoptions.append(action)
        warnings._setoption(action)  # type: ignore[attr-defined]


def begin(words: list[str]) -> None:
    """As Python does with what is on its command line."""
    match words:
        case ["-c", code, *arguments]:
            sys.argv[:], sys.path[0] = ["-c", *arguments], ""
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            main.__dict__["__builtins__"] = __builtins__
            exec(compile(code, "<string>", "exec"), main.__dict__)
        case ["-m", module, *arguments]:
            sys.argv[:], sys.path[0] = [module, *arguments], os.getcwd()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [file, *arguments]:
            sys.argv[:], sys.path[0] = [file, *arguments], os.path.dirname(os.path.abspath(file))
            runpy.run_path(file, run_name="__main__")


def code_of(words: list[str]) -> int:
    """Run it to its end; the exit code Python would give it."""
    try:
        begin(words)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()  # as Python leaves them
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """What Python does at its end, but for taking down every module: that costs a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Those of `python` without options, which has an "error" before them here.
    DEFAULT_WARNINGS = [each for each in warnings.filters if each[0] != "error"]
    for preloaded in PRELOAD:
        imported, _, attribute = preloaded.partition(":")
        found = getattr(importlib.import_module(imported), attribute.strip("()") or "__name__")
        if attribute.endswith("()"):
            found()
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy every page
    if (to_do := serve()) is not None:
        settle(to_do)
        leave(code_of(to_do["words"]))
