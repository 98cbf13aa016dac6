from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradiometer.records import Row
from gradiometer.store.writer import Writer

PREAMBLE = """
import os, signal, sys, time, warnings
import numpy as np
from pathlib import Path
from gradiometer.errors import *
from gradiometer.records import *
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer
folder = Path(sys.argv[1])
def row(step, **values):
    return Row(step=step, wall_time=float(step), values=values or {"loss": float(step)})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def written(folder: Path) -> Path:
    """A finished run of ten steps."""
    with Writer(folder, facts={"seed": 7}) as writer:
        for step in range(10):
            writer.put(
                Row(
                    step=step,
                    wall_time=float(step),
                    values={"loss": step / 2, "reward": float(-step)},
                )
            )
    return folder


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a real process that runs a script against a run folder; it is ended with the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str, folder: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), str(folder)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def execute(
    start: Callable[..., subprocess.Popen[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script against a run folder in a real process, to its end."""

    def execute(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
        process = start(script, folder)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return execute
