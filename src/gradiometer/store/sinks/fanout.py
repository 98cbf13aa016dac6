"""One place to put a run's records, whoever keeps them: the writer first, then every sink on its own thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gradiometer.records import Event, Finding, Row, Table, Vector
from gradiometer.store.sinks.lane import PATIENCE_SECONDS, Lane
from gradiometer.store.sinks.sink import Sink, Start
from gradiometer.store.writer import Writer

__all__ = ["Fanout"]


class Fanout:
    """A writer with sinks beside it; to the meter it looks like a writer."""

    def __init__(self, writer: Writer | None, sinks: Sequence[Sink], start: Start) -> None:
        self._writer = writer
        self._newest_step = 0
        self._closed = False
        self._lanes = tuple(Lane(sink, start) for sink in sinks)

    @property
    def folder(self) -> Path | None:
        """The run's folder; None when no run is kept."""
        return None if self._writer is None else self._writer.folder

    @property
    def dropped(self) -> dict[str, int]:
        """How many records each sink did not get; the second of a kind is called `wandb#2`."""
        counts: dict[str, int] = {}
        for place, lane in enumerate(self._lanes):
            before = sum(other.sink.name == lane.sink.name for other in self._lanes[:place])
            counts[lane.sink.name + (f"#{before + 1}" if before else "")] = lane.dropped
        return counts

    def put(self, item: Row | Event | Table | Vector | Finding, *, logged: bool = False) -> None:
        """Hand a record to everybody, the run's own file first.

        `logged` says that it is what `meter.log` was given: a tracker that the user's loop feeds has it already.
        """
        if isinstance(item, Row):
            self._newest_step = max(self._newest_step, item.step)
        if self._writer is not None:
            self._writer.put(item)
        for lane in self._lanes:
            lane.put(item, logged=logged)

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into the run; sinks were told theirs at the start."""
        if self._writer is not None:
            self._writer.set_facts(facts)

    def flush(self) -> None:
        """Return when the run is on disk and the sinks have what was put, or have had their time."""
        if self._writer is not None:
            self._writer.flush()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for lane, mark in [(lane, lane.ask_to_flush()) for lane in self._lanes]:
            if mark is not None:
                lane.await_flush(mark, deadline)

    def close(self) -> None:
        """Close the sinks, all together within ten seconds, then the run; twice is fine."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with ExitStack() as last_first:  # whatever one of them says, the others are closed too
            if self._writer is not None:
                last_first.callback(self._writer.close)
            last_first.callback(self._count)
            for lane in self._lanes:
                lane.ask_to_close()
                last_first.callback(lane.close, deadline)

    def _count(self) -> None:
        """What did not arrive is an event of the run."""
        if self._closed:
            return
        self._closed = True
        for name, count in self.dropped.items():
            if count and self._writer is not None:
                message = f"{count} records did not arrive at {name}; they are all here"
                detail = {"sink": name, "records": count}
                self._writer.put(Event(step=self._newest_step, kind="sink-dropped", message=message, detail=detail))
