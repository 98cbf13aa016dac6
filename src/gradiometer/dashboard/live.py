"""Tell every page that a run has changed: one watcher looks at file times once a second."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from typing import Any

from gradiometer.dashboard.answer import encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.run_index import RunIndex, Signature
from gradiometer.errors import UnknownName

__all__ = ["Broadcast"]

EVERY_SECONDS = 1.0
READ_SECONDS = 0.5
"""Of each look, for cards of logs that were too many to be read at once."""
WAITING = 1_000
"""Messages kept for a page that does not read; then it is let go, and comes back by itself."""

Message = dict[str, str]


class Broadcast:
    """Changes of the runs of the index, as server-sent events to any number of listeners."""

    def __init__(self, index: RunIndex, diagnoses: Diagnoses, every: float = EVERY_SECONDS) -> None:
        self._index, self._diagnoses = index, diagnoses
        self._every = every
        self._listeners: set[asyncio.Queue[Message | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[str, Signature] | None = None

    async def listen(self) -> AsyncIterator[Message]:
        """Every change from now on; the watcher works only while somebody listens."""
        queue: asyncio.Queue[Message | None] = asyncio.Queue(WAITING)
        self._listeners.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            yield _message("hello", {"every": self._every})
            while (message := await queue.get()) is not None:
                yield message
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """End every stream."""
        for queue in self._listeners:
            _put(queue, None)
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        self._seen = None
        trouble = ""
        while self._listeners:
            try:
                messages, trouble = await asyncio.to_thread(self._changes), ""
            except Exception as error:  # a folder may come back; whatever it is, listeners stay
                if not isinstance(error, OSError) and trouble != repr(error):
                    traceback.print_exception(error)
                messages, trouble = [], repr(error)
            for queue in list(self._listeners):
                for message in messages:
                    if not _put(queue, message):
                        self._listeners.discard(queue)
                        break
            await asyncio.sleep(self._every)

    def _changes(self) -> list[Message]:
        now = self._index.signatures()
        before, self._seen = now if self._seen is None else self._seen, now
        late = self._diagnoses.late()
        messages = []
        for id, signature in now.items():
            if id in late or before.get(id, signature) != signature:
                try:
                    card = self._index.card(id)
                except UnknownName:  # gone since; the next look says so
                    continue
                what = {"run": id, "step": card.newest_step, "state": card.state}
                messages.append(_message("changed", what))
        if self._index.read_on(READ_SECONDS) or now.keys() != before.keys():
            messages.append(_message("runs", {"count": len(now)}))
        return messages


def _message(event: str, data: Any) -> Message:
    return {"event": event, "data": encode(data).decode()}


def _put(queue: asyncio.Queue[Message | None], message: Message | None) -> bool:
    try:
        queue.put_nowait(message)
    except asyncio.QueueFull:
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)
        return False
    return True
