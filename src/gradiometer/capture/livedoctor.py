"""The doctor's process as the training sees it: started, heard, and asked at the end."""

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
from gradiometer.records import Event, Finding, StateChange
from gradiometer.store.cells import finding_of
from gradiometer.store.sinks import Fanout
from gradiometer.words import say

__all__ = ["LiveDoctor", "LiveFindings"]

START_SECONDS = 30.0
"""How long the end of a training waits for the last look: the process imports numpy first."""


class LiveDoctor:
    """Nothing here waits on the training thread but `finish`, which ends it."""

    def __init__(self, folder: Path) -> None:
        self._heard: queue.SimpleQueue[Finding | StateChange] = queue.SimpleQueue()
        self._looked = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gradiometer.doctor.live", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._listen, name="gradiometer-doctor", daemon=True).start()

    def heard(self) -> list[Finding | StateChange]:
        """What it has found since this was last asked, and what has become of the run."""
        found: list[Finding | StateChange] = []
        while not self._heard.empty():
            found.append(self._heard.get())
        return found

    @property
    def gone(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def finish(self) -> list[Finding | StateChange]:
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
                elif "state" in said:
                    self._heard.put(StateChange(**said["state"]))
                else:
                    self._looked.set()
        self._looked.set()


class LiveFindings:
    """What the live doctor says: kept in the run, said once, handed on. Findings go to
    `on_finding`, and what becomes of the run to `on_state_change`."""

    def __init__(
        self,
        writer: Fanout,
        on_finding: Callable[[Finding], None] | None,
        on_state_change: Callable[[StateChange], None] | None = None,
    ) -> None:
        self._writer, self._on_finding = writer, on_finding
        self._on_state_change = on_state_change
        self._doctor: LiveDoctor | None = None
        try:
            assert writer.folder is not None  # watch() refuses a live doctor without a run
            self._doctor = LiveDoctor(writer.folder)
        except OSError as problem:
            message = (
                f"no process for the live doctor could be started ({problem}); `gradiometer doctor`"
                " works afterwards"
            )
            writer.put(Event(step=0, kind="doctor-unavailable", message=message, detail={}))

    def boundary(self) -> None:
        """Between two steps, on the training thread: what is called may raise StopTraining here."""
        for heard in () if self._doctor is None else self._doctor.heard():
            self._tell(heard)

    def finish(self) -> None:
        """The training has ended: one last look, while the run can still be written."""
        if self._doctor is None:
            return
        self._writer.flush()
        for heard in self._doctor.finish():
            with suppress(StopTraining):  # it has stopped
                self._tell(heard)

    def _tell(self, heard: Finding | StateChange) -> None:
        if isinstance(heard, StateChange):
            self._tell_state(heard)
            return
        self._writer.put(heard)
        since = "" if heard.since_step is None else f" since step {heard.since_step}"
        say(f"{heard.severity} {heard.id}{since}: {heard.title}")
        if self._on_finding is not None:
            self._on_finding(heard)

    def _tell_state(self, change: StateChange) -> None:
        detail = {"state": change.state, "before": change.before}
        event = Event(step=change.step, kind="state", message=change.verdict, detail=detail)
        self._writer.put(event)
        say(change.verdict)
        if self._on_state_change is not None:
            self._on_state_change(change)
