"""The server as a process: it starts, says where, tells pages what changed, and stops at Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from forkserver import python

from gradiometer.dashboard import server
from gradiometer.dashboard.server import address, bind, is_loopback
from gradiometer.errors import MissingExtra, UsageError
from gradiometer.records import Row
from gradiometer.store.writer import Writer


def put(writer: Writer, *steps: int) -> None:
    for step in steps:
        writer.put(Row(step=step, wall_time=time.time(), values={"reward": float(step)}))
    writer.flush()


@contextmanager
def command(*arguments: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "gradiometer", "serve", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"no address in {line!r}: {started.stderr.read() if started.stderr else ''}"
        yield started, found[0]
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c_and_leaves_with_zero(tmp_path: Path) -> None:
    with Writer(tmp_path / "runs" / "a") as writer:
        put(writer, 0, 1)
    with command("-p", "0", cwd=tmp_path) as (process, where):  # ./runs unless told
        told = httpx.get(where + "runs.json").json()
        assert [card["id"] for card in told["runs"]] == ["a"]
        with httpx.stream(
            "GET", where + "live"
        ) as stream:  # an open stream does not keep it from stopping
            assert next(stream.iter_lines()).startswith("event: hello")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_a_host_that_others_can_reach_needs_a_token(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for host in ("0.0.0.0", "::", "192.0.2.7", "box.example"):
        with pytest.raises(UsageError, match="needs --token"):
            server.serve(tmp_path, host=host, port=0)
    done = python("-m", "gradiometer", "serve", "--host", "0.0.0.0", cwd=tmp_path)
    assert done.returncode == 2
    assert "needs --token" in done.stderr
    typed = ("serve", "--host", "0.0.0.0", "--token", "abc")
    short = python("-m", "gradiometer", *typed, cwd=tmp_path)
    assert short.returncode == 2
    assert "at least 8" in short.stderr


@pytest.mark.slow
def test_with_a_token_the_printed_address_opens_it_and_no_other_does(tmp_path: Path) -> None:
    with Writer(tmp_path / "runs" / "a") as writer:
        put(writer, 0)
    token = "a long secret"
    with command("--host", "0.0.0.0", "-p", "0", "--token", token, cwd=tmp_path) as (_, where):
        port = re.search(r":(\d+)", where.removeprefix("http://"))
        assert port is not None
        base = f"http://127.0.0.1:{port[1]}"
        assert httpx.get(base + "/runs.json").status_code == 401
        with httpx.Client(follow_redirects=True) as client:
            assert client.get(where.replace("0.0.0.0", "127.0.0.1")).status_code == 200
            assert client.get(base + "/runs.json").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no run at nowhere"),
        (["-p", "{taken}"], "is taken"),
        (["-p", "99999"], "65535"),
    ],
)
def test_wrong_input_is_one_line_and_two(tmp_path: Path, arguments: list[str], words: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        typed = [word.format(taken=port) for word in arguments]
        done = python("-m", "gradiometer", "serve", *typed, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_port_the_next_free_one_is_taken() -> None:
    first = bind("127.0.0.1", None)
    second = bind("127.0.0.1", None)
    assert first.getsockname()[1] != second.getsockname()[1]
    first.close()
    second.close()


def test_a_missing_package_is_named_with_its_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = server.importlib.util.find_spec
    monkeypatch.setattr(
        server.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    with pytest.raises(MissingExtra, match=r'pip install "gradiometer\[dashboard\]"'):
        server.serve(tmp_path)


def test_addresses() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9")] == [
        True
    ] * 4
    assert [
        is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "localhost.evil.example")
    ] == [False] * 4
    assert address("::1", 80) == "http://[::1]:80/"
    assert address("h", 1, "/overview?run=a", "x y") == "http://h:1/overview?run=a&token=x%20y"
    assert address("h", 1, "/", "t") == "http://h:1/?token=t"


class Listener:
    """Reads /live in a thread."""

    def __init__(self, where: str) -> None:
        self.events: list[tuple[str, Any]] = []
        self._where = where
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self.ready.wait(10)

    def _read(self) -> None:
        try:
            with httpx.stream("GET", self._where + "/live", timeout=30) as stream:
                event = ""
                for line in stream.iter_lines():
                    if line.startswith("event: "):
                        event = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        self.events.append((event, json.loads(line.removeprefix("data: "))))
                        self.ready.set()
        except httpx.HTTPError:
            pass

    def wait(self, kind: str, seconds: float = 15) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for event, data in self.events:
                if event == kind:
                    return data
            time.sleep(0.05)
        raise AssertionError(f"no {kind} in {self.events}")


@pytest.mark.slow
def test_every_listener_hears_of_a_change_and_of_a_new_run(tmp_path: Path, serving: Any) -> None:
    writer = Writer(tmp_path / "a")
    put(writer, 0)
    with serving(tmp_path, quick=True) as where:
        listeners = [Listener(where) for _ in range(5)]
        time.sleep(0.3)  # the watcher has looked once
        put(writer, 1, 2)
        for listener in listeners:
            assert listener.wait("changed") == {"run": "a", "step": 2, "state": "live"}
        with Writer(tmp_path / "b") as other:
            put(other, 0)
        for listener in listeners:
            assert listener.wait("runs") == {"count": 2}
    writer.close()


@pytest.mark.slow
def test_the_first_run_of_an_empty_folder_is_told(tmp_path: Path, serving: Any) -> None:
    with serving(tmp_path, quick=True) as where:
        listener = Listener(where)
        time.sleep(0.3)
        with Writer(tmp_path / "a") as writer:
            put(writer, 0)
        assert listener.wait("runs") == {"count": 1}


@pytest.mark.slow
def test_a_reader_never_locks_the_writer_out(tmp_path: Path, serving: Any) -> None:
    """Readers hammer a run while it is written: no row is lost, and no answer is an error."""
    writer = Writer(tmp_path / "a")
    put(writer, 0)
    answers: list[int] = []
    stop = threading.Event()

    def read(where: str) -> None:
        with httpx.Client(base_url=where, timeout=60) as client:
            while not stop.is_set():
                answers.append(client.get("/overview.json?run=a").status_code)

    with serving(tmp_path) as where:
        threads = [threading.Thread(target=read, args=(where,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        step = 0
        while len(answers) < 40 or step < 1000:
            step += 1
            time.sleep(0.001)  # a training computes, too
            writer.put(
                Row(step=step, wall_time=0.0, values={"reward": 1.0, "grad/all/norm/raw": 2.0})
            )
            if step % 200 == 0:
                writer.flush()
        stop.set()
        for thread in threads:
            thread.join()
        told = httpx.get(
            where + "/compare.json", params={"run": "a", "metric": "reward", "most": "5000"}
        ).json()
    writer.close()
    assert writer.dropped == 0
    assert set(answers) == {200}
    assert told["runs"] == ["a"]
    assert not [name for name in os.listdir(tmp_path / "a") if name.endswith("-wal")]
