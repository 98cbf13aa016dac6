"""The doctor's process as the training sees it: started, listened to, and asked once more at the end."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gradiometer.errors import StopTraining
from gradiometer.records import Event, Finding
from gradiometer.store.reader import finding_of
from gradiometer.store.sinks import Fanout

__all__ = ["Consultation", "LiveDoctor"]

START_SECONDS = 30.0
"""How long the end of a training waits for the last look: a process that has just started imports numpy first."""


class LiveDoctor:
    """Nothing here waits on the training thread but `finish`, which ends it."""

    def __init__(self, folder: Path) -> None:
        self._heard: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._looked = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gradiometer.doctor.live", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._listen, name="gradiometer-doctor", daemon=True).start()

    def heard(self) -> list[Finding]:
        """What it has found since this was last asked."""
        found: list[Finding] = []
        while not self._heard.empty():
            found.append(self._heard.get())
        return found

    @property
    def gone(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def finish(self) -> list[Finding]:
        """One last look, and what it found; then the process ends."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write("last\n")
            self._process.stdin.flush()
            self._looked.wait(START_SECONDS)
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self.heard()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    said = json.loads(line)
                except ValueError:  # half a line: the process was killed
                    break
                if "finding" in said:
                    self._heard.put(finding_of(said["finding"]))
                else:
                    self._looked.set()
        self._looked.set()


class Consultation:
    """What becomes of the live doctor's findings: kept in the run, said once, handed to `on_finding`."""

    def __init__(self, writer: Fanout, on_finding: Callable[[Finding], None] | None) -> None:
        self._writer, self._on_finding = writer, on_finding
        self._doctor: LiveDoctor | None = None
        try:
            assert writer.folder is not None  # watch() refuses a live doctor without a run
            self._doctor = LiveDoctor(writer.folder)
        except OSError as problem:
            message = (
                f"no process for the live doctor could be started ({problem}); `gradiometer doctor` works afterwards"
            )
            writer.put(Event(step=0, kind="doctor-unavailable", message=message, detail={}))

    def boundary(self) -> None:
        """Between two steps, on the training thread: `on_finding` may raise StopTraining here."""
        for finding in () if self._doctor is None else self._doctor.heard():
            self._tell(finding)

    def finish(self) -> None:
        """The training has ended: one last look, while the run can still be written."""
        if self._doctor is None:
            return
        self._writer.flush()
        for finding in self._doctor.finish():
            with suppress(StopTraining):  # it has stopped
                self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        self._writer.put(finding)
        since = "" if finding.since_step is None else f" since step {finding.since_step}"
        print(f"gradiometer: {finding.severity} {finding.id}{since}: {finding.title}", file=sys.stderr, flush=True)
        if self._on_finding is not None:
            self._on_finding(finding)
