"""Two trainings in one process, one with a meter and one without, that step in turns.

Whole trainings one after the other differ by more than a meter costs, for the speed of a machine
drifts. Here the two take turns of a step or a rollout, and a round is many turns. The meter's
budget is a share of wall time, and for half of that the other training runs; so the meter is given
the clock of its own training, which stands still meanwhile. What the writer has to write is written
at the end of the meter's own round, and counted there, though it would mostly run beside the
training.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import set_num_threads

from benchmarks.rows import Row, measured
from gradiometer.capture import rounds
from gradiometer.store import writer

__all__ = ["Runner", "alternate", "follow", "overhead_rows", "own_time", "race"]


class Runner:
    """One of the two: its own time, and what each of its rounds took."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.hooks: list[float] = []
        """Seconds inside the hooks, of each round."""
        self.settle: Callable[[], object] = lambda: None
        """What is to be finished before a round ends."""
        self.seconds_in_hooks: Callable[[], float] = lambda: 0.0
        self._own = self._at_last_round = self._hooks_before = 0.0
        self._since: float | None = None

    def now(self) -> float:
        """Seconds it has run, which pass only while it does."""
        return self._own + (0.0 if self._since is None else time.perf_counter() - self._since)

    def start(self) -> None:
        """Its turn begins."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Its turn is over."""
        self._own, self._since = self.now(), None

    def restart(self) -> None:
        """Setting up is over: the first round begins here, in its own turn."""
        self._at_last_round, self._hooks_before = self.now(), self.seconds_in_hooks()

    def end_round(self) -> None:
        """Called in its own turn."""
        self.settle()
        self.rounds.append(self.now() - self._at_last_round)
        self._at_last_round = self.now()
        self.hooks.append(self.seconds_in_hooks() - self._hooks_before)
        self._hooks_before += self.hooks[-1]


@contextmanager
def own_time(runner: Runner) -> Iterator[None]:
    """Meters made in here budget by the runner's clock, have no guaranteed steps, as late in a long
    training, and their writers wait for the end of a round."""
    with (
        patch.object(rounds, "time", SimpleNamespace(perf_counter=runner.now)),
        patch.object(rounds, "guaranteed_after", lambda place: place + 2**40),
        patch.object(writer, "COMMIT_SECONDS", 3600.0),
    ):
        yield


def alternate(
    plain: Callable[[], object],
    make_watched: Callable[[], tuple[Callable[[], object], Any]],
    rounds: int,
    steps: int,
) -> tuple[Runner, Runner]:
    """`rounds` rounds of `steps` steps each, a plain one before every watched one; `make_watched`
    gives step and meter."""
    ours, other = Runner(), Runner()
    with own_time(ours):
        watched, meter = make_watched()
        ours.settle = _flush(meter)
        ours.seconds_in_hooks = lambda: float(meter._observer.seconds)
        for _ in range(rounds):
            for _ in range(steps):
                for runner, step in ((other, plain), (ours, watched)):
                    runner.start()
                    step()
                    runner.stop()
            for runner in (other, ours):
                runner.start()
                runner.end_round()
                runner.stop()
        meter.close()
    return other, ours


class Baton:
    """Held by the one that runs. For trainings that cannot be stepped from outside: each has a
    thread, and hands over."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = list(runners)
        self._holder = self._runners[0]
        self._passed = threading.Condition()

    def pass_on(self, runner: Runner, *, end_round: bool = False, for_good: bool = False) -> None:
        """End the turn of the runner, and return when it has the next one."""
        if end_round:
            runner.end_round()
        runner.stop()
        with self._passed:
            others = [one for one in self._runners if one is not runner]
            if for_good:
                self._runners = others
            self._holder = others[0] if others else runner
            self._passed.notify_all()
        if not for_good:
            self.wait_for(runner)

    def wait_for(self, runner: Runner) -> None:
        """Begin a turn."""
        with self._passed:
            self._passed.wait_for(lambda: self._holder is runner)
        runner.start()


def race(train: Callable[[Runner, Callable[..., None], bool], None]) -> tuple[Runner, Runner]:
    """`train(runner, hand_over, watched)` twice, in two threads of which one runs at a time."""
    ours, other = Runner(), Runner()
    baton = Baton([other, ours])
    problems: list[BaseException] = []

    def run(runner: Runner, watched: bool) -> None:
        set_num_threads(1)  # a new thread has the number of the environment
        baton.wait_for(runner)
        try:
            train(runner, lambda **how: baton.pass_on(runner, **how), watched)
        except BaseException as problem:
            problems.append(problem)
        finally:
            baton.pass_on(runner, for_good=True)

    threads = [threading.Thread(target=run, args=given) for given in ((other, False), (ours, True))]
    with own_time(ours):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if problems:
        raise problems[0]
    return other, ours


def follow(runner: Runner, meter: Any, seconds: Callable[[], float]) -> None:
    """The meter of a trainer's callback, from its first round on."""
    runner.settle, runner.seconds_in_hooks = _flush(meter), seconds


def _flush(meter: Any) -> Callable[[], object]:
    writes = meter._writer  # one rank alone keeps the run
    return (lambda: None) if writes is None else writes.flush


def overhead_rows(
    name: str, plain: Runner, ours: Runner, *, at_most: float, warm_up: int = 1
) -> Iterator[Row]:
    """By the clock, round by round, and by the time counted inside the hooks.

    The budget spaces measured steps out, and a round may have none: what the hooks take is that of
    all rounds together.
    """
    count = min(len(plain.rounds), len(ours.rounds))
    bare, watched = np.array(plain.rounds[warm_up:count]), np.array(ours.rounds[warm_up:count])
    told = (
        f"a round {np.median(bare):.2f} s without; all rounds together"
        f" {watched.sum() / bare.sum():.3f} ×"
    )
    yield measured(
        f"{name}: with the meter / without, on the clock",
        watched / bare,
        at_most=1 + at_most,
        note=told,
    )
    in_hooks, whole = (
        np.array(ours.hooks[warm_up:count]),
        sum(ours.hooks[:count]) / sum(ours.rounds[:count]),
    )
    row = measured(
        f"{name}: inside the hooks, of all its time",
        100 * in_hooks / watched,
        unit="%",
        at_most=100 * at_most,
        note=f"{100 * whole:.2g} % with the first round, which sets up",
    )
    yield replace(row, value=float(100 * in_hooks.sum() / watched.sum()))
