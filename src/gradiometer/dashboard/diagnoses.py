"""What the doctor says of runs: read again when a run has changed, but not too often."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass, replace
from pathlib import Path

from gradiometer.dashboard.replaceable_threads import ReplaceableThreads, TookTooLong
from gradiometer.dashboard.run_index import RunIndex, Signature
from gradiometer.doctor.diagnosis import Diagnosis, diagnose

__all__ = ["READING", "Diagnoses", "RunDiagnosis"]

REST_SECONDS = 5.0
REST_PER_SECOND = 20.0
"""After a diagnosis that took a second, none of this run for so many."""
MOST = 256
"""Runs: more than one request can ask for, or they would push each other out at every tick."""
MOST_BYTES = 64 << 20
"""Of curves and words in them."""
WORD_BYTES = 2_000
"""Of a finding, or of a rule that was skipped."""
GIVEN_UP_SECONDS = 300.0
MOST_POINTS = 20_000
"""Of a series: longer ones are thinned evenly; `gradiometer doctor` reads them whole."""
READING = "The doctor is still reading this run."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiagnosis:
    """A diagnosis, and up to which step it has read."""

    diagnosis: Diagnosis
    step: int | None
    signature: Signature = ()
    until: float = 0.0
    """When a changed run may be looked at again, on the monotonic clock."""


class Diagnoses:
    """Diagnoses by run. Every method may be called from any thread; two who ask about one run wait
    for one diagnosis.

    Who asks waits `patience` seconds at most for all he asks. What takes longer is told later:
    `late()` names the runs.
    """

    def __init__(self, index: RunIndex, patience: float = 60.0) -> None:
        self._index = index
        self.patience = patience
        self._guard = threading.Lock()
        self._known: dict[str, RunDiagnosis] = {}
        self._asked: dict[str, Future[RunDiagnosis]] = {}
        self._waited_for: set[str] = set()
        self._late: set[str] = set()
        self._workers = ReplaceableThreads(2, seconds=GIVEN_UP_SECONDS, name="gradiometer-doctor")

    def latest(self, id: str, patience: float | None = None) -> RunDiagnosis:
        """The newest diagnosis of a run, some seconds old; `READING` when it takes too long."""
        signature = self._index.signature(id)
        with self._guard:
            known = self._known.get(id)
            if known is not None and (
                known.signature == signature or time.monotonic() < known.until
            ):
                return known
            asked = self._asked.get(id)
            if asked is None:
                asked = self._asked[id] = self._workers.submit(self._look, id, signature)
        try:
            return asked.result(self.patience if patience is None else max(patience, 0.0))
        except TookTooLong as problem:
            with self._guard:
                if self._asked.get(id) is asked:
                    del self._asked[id]
                given_up = _not_yet(f"{id}: {problem}")
                self._known[id] = replace(given_up, signature=signature)
            return self._known[id]
        except TooLate:
            with self._guard:
                if self._asked.get(id) is asked:
                    self._waited_for.add(id)
                else:  # it came between the end of our patience and here
                    known = self._known.get(id, known)
            return known or _not_yet()

    def _bound(self) -> None:
        """Let the oldest go, but never the one that came last."""
        held = sum(_weight(each.diagnosis) for each in self._known.values())
        while len(self._known) > MOST or (held > MOST_BYTES and len(self._known) > 1):
            held -= _weight(self._known.pop(next(iter(self._known))).diagnosis)

    def late(self) -> set[str]:
        """Runs whose diagnosis came after somebody stopped waiting for it; each is named once."""
        with self._guard:
            late, self._late = self._late, set()
            return late

    def close(self) -> None:
        """Finish what is being looked at, and look at nothing more."""
        self._workers.close()

    def _look(self, id: str, signature: Signature) -> RunDiagnosis:
        try:
            began = time.monotonic()
            with self._index.open(id) as run, run.still():
                step, diagnosis = run.newest_step, diagnose(run, max_points=MOST_POINTS)
            now = time.monotonic()
            until = now + max(REST_SECONDS, REST_PER_SECOND * (now - began))
            read = RunDiagnosis(diagnosis=diagnosis, step=step, signature=signature, until=until)
            with self._guard:
                self._known.pop(id, None)
                self._known[id] = read
                self._bound()
            return read
        finally:
            with self._guard:
                self._asked.pop(id, None)
                if id in self._waited_for:
                    self._waited_for.discard(id)
                    self._late.add(id)


def _weight(diagnosis: Diagnosis) -> int:
    """Bytes, about."""
    words = len(diagnosis.findings) + len(diagnosis.folded) + len(diagnosis.skipped)
    arrays = (
        array
        for curve in diagnosis.curves.values()
        for array in (curve.steps, curve.mean, curve.low, curve.high, curve.broken)
    )
    return WORD_BYTES * (1 + words) + sum(array.nbytes for array in arrays)


def _not_yet(verdict: str = READING) -> RunDiagnosis:
    nothing = Diagnosis(
        run=Path(),
        state="unknown",
        verdict=verdict,
        findings=(),
        folded=(),
        skipped=(),
        unknown_keys=(),
        looked=(),
        curves={},
    )
    return RunDiagnosis(diagnosis=nothing, step=None)
