"""What every callback shares: a meter from the start of a training to its end, however it ends."""

from __future__ import annotations

import atexit
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, Self

from gradiometer.capture.blocks import Model, named_parameters
from gradiometer.capture.hooks import guarded
from gradiometer.capture.meter import Meter
from gradiometer.capture.watch import Optimizers, watch
from gradiometer.errors import UnknownName

__all__ = ["Session", "SessionContext", "Unfinished"]

Config = Mapping[str, Any]
OPTIONS = tuple(inspect.signature(watch).parameters)[2:]
_OPEN: dict[Meter, tuple[int, ExitStack]] = {}
"""Meters whose training has not ended: the thread it runs in, and what to undo when it ends."""


class Unfinished(BaseException):  # like an interrupt: nobody knows in the middle of what
    """The training ended and its trainer has no hook to say why."""


class Session:
    """One run of one model. Starting again with the same model goes on with the run, after its last
    step.

    A trainer without a hook for exceptions gets `with callback:` around it; or the run is closed
    when the callback is collected, when the same thread starts a training on the same folder, or
    when the process ends.
    """

    def __init__(self, run: str | os.PathLike[str] | None = "auto", **options: Any) -> None:
        for name in options.keys() - set(OPTIONS):
            raise UnknownName("option of watch", name, OPTIONS)
        self.options: dict[str, Any] = {"run": run, **options}
        self.meter: Meter | None = None
        """Of the training in progress, or else of the last one."""
        self.seconds = self.entered = 0.0
        self._watched: list[int] = []

    @property
    def open(self) -> Meter | None:
        """The meter of the training in progress."""
        return self.meter if self.meter in _OPEN and not self.meter.closed else None

    def start(
        self, model: Model, optimizers: Optimizers, *, config: Config | None = None, **defaults: Any
    ) -> Meter:
        """Watch, unless that is so already; the user's options win over `config` and `defaults`."""
        if self.open is not None:
            return self.open
        settings = {**(config or {}), **(self.options.get("config") or {})}
        given = {**defaults, **self.options, "config": settings}
        watched, state = [id(p) for p in named_parameters(model).values() if p.requires_grad], {}
        last = self.meter if watched == self._watched else None
        if last is not None and (state := last.state_dict()):
            step = max(state["next_step"] - 1, 0)
            given |= {"run": last.run, "resume": step, "overwrite": False}
        here = [one for one, (thread, _) in _OPEN.items() if thread == get_ident()]
        for other in [one for one in here if _in(one, given["run"])]:
            _end(other, _last_words())  # a training blocks its thread, so that one is over
        self.meter, self._watched = watch(model, optimizers, **given), watched
        self.meter.load_state_dict(state)
        _OPEN[self.meter] = get_ident(), ExitStack()
        atexit.unregister(_end_all)
        atexit.register(_end_all)  # the last registered runs first: before the writer's own
        return self.meter

    @guarded
    def tell(self, report: Callable[[Meter], object]) -> None:
        """Call `report` with the open meter; trouble in it is ours, not the training's."""
        if self.open is not None:
            report(self.open)

    def log(self, values: Mapping[str, Any]) -> None:
        """The trainer's own scalars, under its names."""
        self.tell(lambda meter: meter.log(values))

    def at(self, **where: int | None) -> None:
        """Where the coming steps lie: `env_steps`, `rollout`, `epoch`."""
        self.tell(lambda meter: meter.at(**where))

    def at_end(self, undo: Callable[[], object]) -> None:
        """Call `undo` when the training in progress ends, however it ends."""
        if self.open is not None:
            _OPEN[self.open][1].callback(undo)

    def close(self, error: BaseException | None = None) -> None:
        """The training has ended, by `error` if there is one. Closing twice is fine."""
        if self.meter in _OPEN:
            _end(self.meter, error)

    def give_up(self, problem: str) -> None:
        """A fault of ours: measure no more."""
        if self.open is not None:
            self.open.give_up(problem)

    def __reduce__(self) -> tuple[Any, ...]:
        """The options only: a meter holds threads and hooks."""
        return partial(Session, **self.options), ()

    def __del__(self) -> None:
        # Not in another thread: the collector may run in the writer's own, which cannot wait for
        # itself.
        meter = getattr(self, "meter", None)
        if meter is not None and _OPEN is not None and _OPEN.get(meter, (0,))[0] == get_ident():
            _end(meter, _last_words())


class SessionContext:
    """What callbacks of trainers without a hook for exceptions share: `with callback:`."""

    session: Session

    @property
    def meter(self) -> Meter | None:
        """Of the training in progress, or else of the last one."""
        return self.session.meter

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.session.close(error)


def _end(meter: Meter, error: BaseException | None) -> None:
    with _OPEN.pop(meter)[1]:
        error = None if meter.closed else error  # the user has closed it
        meter.__exit__(None if error is None else type(error), error, None)


def _last_words() -> BaseException:
    told, message = getattr(sys, "last_value", None), "the training stopped without a word"
    more = "" if told is None else f"; the last uncaught exception was {told!r}"
    return Unfinished(message + more)


def _in(meter: Meter, run: str | os.PathLike[str] | None) -> bool:
    return meter.run is not None and run is not None and meter.run.resolve() == Path(run).resolve()


def _end_all() -> None:
    for meter in list(_OPEN):
        _end(meter, _last_words())
