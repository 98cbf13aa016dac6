"""The runs of a script: opened when a training begins, grown with it, closed however it ends."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture.distributed import num_ranks, writes_here
from gradiometer.capture.meter import Meter
from gradiometer.capture.rounds import Coverage
from gradiometer.capture.watch import watch
from gradiometer.integrations.script.models import held_by, models_of
from gradiometer.integrations.script.running import EnoughSteps, RunOptions, is_first_rank
from gradiometer.store.console_lines import is_counter
from gradiometer.store.database import DATABASE_NAME, remove
from gradiometer.words import say

__all__ = ["ScriptRuns"]

BACKWARDS = 8
"""Backwards without any step, after which there will be none."""


class ScriptRuns:
    """The meter in progress, and the folders that were kept."""

    def __init__(self, options: RunOptions, num_backwards: Callable[[], int] = lambda: 0) -> None:
        self.num_backwards = num_backwards
        """Losses that went backward in this process."""
        self.meter: Meter | None = None
        self.optimizers: list[Optimizer] = []
        self.kept: list[tuple[Path, int, str]] = []
        """Folders with the number of optimizer steps in them, and how many were measured."""
        self.thread: int | None = None
        """Which one trains: the meter is told things in that one only."""
        self._options = options
        self._seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._early: dict[str, Any] = {}
        """What was logged before there was a meter, the last value of each, and where."""
        self._early_at: dict[str, int] = {}
        self._elsewhere: deque[tuple[Mapping[str, Any], dict[str, int | None]]] = deque(
            maxlen=10_000
        )
        """What other threads logged since the last step."""
        self._num_runs = self._num_steps = 0
        self._heard: dict[str, tuple[int, float, int]] = {}
        """Of each name that was logged: the step, the sum of its values there and their number."""
        self._num_heard: Counter[str] = Counter()
        """Values of names that came several times within one step."""
        self._new_folders: list[Path] = []
        self._earlier: Coverage | None = None
        """Of the same run, before another optimizer came."""

    def has_seen(self, optimizer: Optimizer) -> bool:
        """Whether it was watched at some time."""
        return optimizer in self._seen

    def open(self, optimizers: list[Optimizer]) -> None:
        """A training begins, and the one before it is over."""
        self.close()
        self._num_runs += 1
        folder = self._options.run_folder(self._num_runs)
        self._new_folders = [made for made in (folder, *folder.parents) if not made.exists()]
        self._num_steps, self._earlier = 0, None
        self._heard.clear()
        self._num_heard.clear()
        self._watch(optimizers, folder)
        early, where = self._early, self._early_at
        self._early, self._early_at = {}, {}
        self.log(early, **where)

    def grow(self, optimizers: list[Optimizer]) -> None:
        """Another optimizer belongs to the training: the run goes on with it."""
        assert self.meter is not None
        folder = self.meter.run or self._options.folder
        next_step = int(self.meter.state_dict()["next_step"])
        self.meter.close()
        self._earlier = self._coverage(self.meter)
        after = {"resume": next_step - 1} if next_step else {"overwrite": True}
        self._watch(optimizers, folder, **after)

    def _watch(self, optimizers: list[Optimizer], folder: Path, **after: Any) -> None:
        options, found = self._options, models_of(optimizers)
        # Processes that a launcher started and that form no group would all write to one folder.
        keeps = writes_here() and (num_ranks() > 1 or is_first_rank())
        self.meter = watch(
            found.model,
            optimizers,
            run=folder if keeps else None,
            blocks=found.blocks,
            every=options.every,
            budget=options.budget,
            tier=options.tier,
            system=options.system,
            doctor="live" if options.doctor and keeps else None,
            quiet=True,  # the command says it, with the verdict
            **after,
        )
        self.optimizers = optimizers
        self._seen.update(optimizers)
        if keeps and not options.quiet:
            steppers = ", ".join(type(one).__name__ for one in optimizers)
            say(f"watching {found.words} ({steppers}); the run is {options.shown(folder)}")

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        if self.meter is None:
            return
        self._num_steps += 1
        self.meter.resume()
        while self._elsewhere:
            values, where = self._elsewhere.popleft()
            self.log(values, **where)
        self.meter.boundary()  # with an optimizer that never steps no round would end by itself
        wanted = self._options.steps
        if wanted is not None and self._coverage(self.meter).measured >= wanted:
            raise EnoughSteps

    def log(
        self, values: Mapping[str, Any], *, env_steps: int | None = None, epoch: int | None = None
    ) -> None:
        """Scalars of the script, at the step in progress or else the last one."""
        if self.meter is None:
            self._early.update(
                (name, x.clone() if isinstance(x, Tensor) else x) for name, x in values.items()
            )
            given = {"env_steps": env_steps, "epoch": epoch}
            self._early_at |= {axis: place for axis, place in given.items() if place is not None}
        elif self.thread not in (None, get_ident()):
            self._elsewhere.append((values, {"env_steps": env_steps, "epoch": epoch}))
        elif values:
            self.meter.at(env_steps=env_steps, epoch=epoch)
            step = self.meter.coverage.steps
            self.meter.log({name: self._mean(name, x, step) for name, x in values.items()})

    def _mean(self, name: str, value: Any, step: int) -> Any:
        """Of all that was logged under a name within one step, for only one value is kept a step: a
        script prints many episodes between two updates. Of a counter the last one counts."""
        if not isinstance(value, int | float) or is_counter(name) or name.startswith("time/"):
            return value
        at, total, number = self._heard.get(name, (step, 0.0, 0))
        total, number = (total, number) if at == step else (0.0, 0)
        self._heard[name] = step, total + value, number + 1
        if number:
            self._num_heard[name] += 2 if number == 1 else 1
        return (total + value) / (number + 1)

    def close(self, error: BaseException | None = None) -> None:
        """The training is over, by `error` if there is one. A run without a step is removed."""
        meter, self.meter, optimizers = self.meter, None, self.optimizers
        self.optimizers = []
        if meter is None:
            return
        if self._num_heard:
            meter.record({}, tables={"overheard": dict(self._num_heard)})
        never = [] if error is not None else self._never_stepped(optimizers)
        if never:
            meter.event("never-trained", " and ".join(never), 0, optimizers=len(never))
        meter.__exit__(None if error is None else type(error), error, None)
        if meter.run is None:
            return
        if self._num_steps or never:
            self.kept.append((meter.run, self._num_steps, self._coverage(meter).words()))
            return
        remove(meter.run / DATABASE_NAME)
        for made in self._new_folders:
            with suppress(OSError):  # somebody else has put something there
                made.rmdir()
        self._num_runs -= 1

    def _never_stepped(self, optimizers: list[Optimizer]) -> list[str]:
        """Of a script that never steps: optimizers whose parameters have a gradient, in words. Of
        one that steps another the meter tells."""
        if self._num_steps or self.num_backwards() < BACKWARDS:
            return []
        words = []
        for number, one in enumerate(optimizers):
            parameters = held_by([one])
            waiting = any(p.grad is not None for p in parameters.values())
            if waiting:
                words.append(
                    f"optimizer {number} ({type(one).__name__}, {len(parameters)} tensors) never"
                    " stepped, though its parameters have gradients"
                )
        return words

    def _coverage(self, meter: Meter) -> Coverage:
        now, before = meter.coverage, self._earlier
        if before is None:
            return now
        measured, steps = before.measured + now.measured, before.steps + now.steps
        beyond = before.beyond_budget + now.beyond_budget
        return replace(now, measured=measured, steps=steps, beyond_budget=beyond)
