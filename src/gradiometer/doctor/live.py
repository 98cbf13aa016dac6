"""The doctor beside a training: `python -m gradiometer.doctor.live RUN`, a process of its own.

It reads the run's file now and then (SQLite lets it, while another process writes), judges at most
512 points of each series, and says each finding once, and each state that the run comes to, a line
of JSON each. `last` on its standard input asks for a final look; the end of it is the end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from gradiometer.doctor.arbitration import SEVERITY
from gradiometer.doctor.diagnosis import judged
from gradiometer.doctor.rule import Rule, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.state import State
from gradiometer.errors import GradiometerError
from gradiometer.records import Finding, StateChange
from gradiometer.store.reader import load
from gradiometer.store.strictjson import to_json

__all__ = ["MAX_POINTS", "Watch", "main"]

MAX_POINTS = 512
PATIENCE = 3
"""Looks in a row that must agree before a finding that is not proved is said."""
PAUSE_SECONDS = 2.0
SHARE = 0.05
"""Of a core that it may take: a look that cost much is followed by a long pause."""
NICE = 10
NOT_YET: tuple[State, ...] = ("too-early", "unknown", "not-a-run")
"""States of every training at its beginning, which nobody has to be told."""


class Watch:
    """Looks at a run again and again, and remembers what it has said."""

    def __init__(self, folder: Path, chosen: tuple[Rule, ...] | None = None) -> None:
        self.folder = folder
        self._rules = rules() if chosen is None else chosen
        self._said: dict[tuple[str, str | None], str] = {}
        self._streaks: Counter[tuple[str, str | None]] = Counter()
        self._seen_step: int | None = None
        self._state: State | None = None
        self._told_state: State | None = None
        self._verdict, self._looks = "", 0

    def look(self) -> list[Finding]:
        """The findings that are new since the last look, or have become more severe."""
        with load(self.folder) as run, run.still():
            if run.newest_step is None or run.newest_step == self._seen_step:
                return []
            self._seen_step = run.newest_step
            found = judged(RunData(run, max_points=MAX_POINTS), self._rules)
        self._looks = self._looks + 1 if found.state == self._state else 1
        self._state, self._verdict = found.state, found.verdict
        there = {(finding.id, finding.block): finding for finding in found.findings}
        self._streaks = Counter({key: self._streaks[key] + 1 for key in there})
        new = [finding for key, finding in there.items() if self._is_new(key, finding)]
        self._said.update({(finding.id, finding.block): finding.severity for finding in new})
        return new

    def state_change(self, *, last: bool = False) -> StateChange | None:
        """The state, where it is new and three looks agree on it (or this is the last)."""
        settled = last or self._looks >= PATIENCE
        if not settled or self._state in (None, self._told_state, *NOT_YET):
            return None
        before, self._told_state = self._told_state, self._state
        return StateChange(
            state=str(self._state), before=before, verdict=self._verdict, step=self._seen_step or 0
        )

    def _is_new(self, key: tuple[str, str | None], finding: Finding) -> bool:
        sure = finding.basis == "proved" or self._streaks[key] >= PATIENCE
        said = self._said.get(key)
        return sure and (said is None or SEVERITY[finding.severity] < SEVERITY[said])


def main() -> None:
    """Look until nobody listens any more."""
    folder = Path(sys.argv[1])
    with suppress(OSError):
        os.nice(NICE)
    asked, ended = threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(asked, ended), daemon=True).start()
    watch = Watch(folder)
    pause = PAUSE_SECONDS
    while True:
        wanted = asked.wait(pause)
        if ended.is_set():
            return
        asked.clear()
        started = time.process_time()
        _say(watch, last=wanted)
        if wanted:
            print(json.dumps({"looked": True}), flush=True)
        pause = max(PAUSE_SECONDS, (time.process_time() - started) / SHARE)


def _say(watch: Watch, *, last: bool) -> None:
    try:
        for finding in watch.look():
            print(to_json({"finding": finding}), flush=True)
        if change := watch.state_change(last=last):
            print(to_json({"state": change}), flush=True)
    except GradiometerError:  # not there yet, or busy: the next look will do
        return


def _listen(asked: threading.Event, ended: threading.Event) -> None:
    for _ in sys.stdin:
        asked.set()
    ended.set()
    asked.set()


if __name__ == "__main__":
    main()
