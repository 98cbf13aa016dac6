"""Threads for work on files that may never end: one that is stuck is left behind and replaced."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from gradiometer.errors import UsageError

__all__ = ["ReplaceableThreads", "TookTooLong"]

P = ParamSpec("P")
T = TypeVar("T")
MOST_LOST = 32
"""Threads that may be left behind; each keeps the memory of what it is stuck in."""
LOOK_SECONDS = 1.0


class TookTooLong(UsageError):
    """Work that was given up."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """A thread, and since when it is at what."""

    since: float = 0.0
    task: Future[Any] | None = None
    thread: threading.Thread | None = field(default=None, repr=False)


class ReplaceableThreads:
    """So many threads, which end with the process whatever they do. Work that takes longer than
    `seconds` gets `TookTooLong`, and its thread is replaced."""

    def __init__(self, number: int, *, seconds: float, name: str) -> None:
        self._number, self._seconds, self._name = number, seconds, name
        self._work = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._workers: list[_Worker] = []
        self._watch: threading.Thread | None = None
        self._closed = False
        self.num_lost = 0

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do this when a thread is free."""
        future: Future[T] = Future()
        with self._work:
            if self._closed:
                future.cancel()
                return future
            self._waiting.append((future, lambda: work(*args, **kwargs)))
            self._fill()
            self._work.notify_all()
        return future

    def close(self, seconds: float = 5.0) -> None:
        """Begin nothing more, and wait a moment for what is being done."""
        with self._work:
            self._closed = True
            for future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._work.notify_all()
            threads = [each.thread for each in self._workers if each.thread]
        until = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _fill(self) -> None:
        while len(self._workers) < self._number and self.num_lost <= MOST_LOST:
            worker = _Worker()
            worker.thread = threading.Thread(
                target=self._serve, args=(worker,), name=self._name, daemon=True
            )
            self._workers.append(worker)
            worker.thread.start()
        if self._watch is None or not self._watch.is_alive():
            self._watch = threading.Thread(
                target=self._look_after, name=f"{self._name}-watch", daemon=True
            )
            self._watch.start()

    def _serve(self, worker: _Worker) -> None:
        while True:
            with self._work:
                # One that was given up is lost, whatever became of its work.
                while not self._waiting and not self._closed and worker in self._workers:
                    self._work.wait()
                if self._closed or worker not in self._workers:
                    return
                future, work = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                worker.task, worker.since = future, time.monotonic()
            try:
                made, problem = work(), None
            except BaseException as error:
                made, problem = None, error
            with suppress(InvalidStateError):  # given up meanwhile
                if problem is None:
                    future.set_result(made)
                else:
                    future.set_exception(problem)
            del future, work, made, problem  # nothing of it is kept while waiting
            with self._work:
                worker.task = None

    def _look_after(self) -> None:
        while not self._closed:
            time.sleep(min(LOOK_SECONDS, self._seconds / 4))
            with self._work:
                late = [each for each in self._workers if self._is_late(each)]
                given_up = [each.task for each in late]
                for worker in late:
                    self.num_lost += 1
                    self._workers.remove(worker)
                if late:
                    self._fill()
            for task in given_up:
                if task is not None:
                    with suppress(InvalidStateError):
                        task.set_exception(
                            TookTooLong(f"it was not read within {self._seconds:.0f} seconds")
                        )

    def _is_late(self, worker: _Worker) -> bool:
        return worker.task is not None and time.monotonic() - worker.since > self._seconds
