"""The runs of a script: opened when a training begins, grown when it gets another optimizer, closed however it ends."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture.distributed import num_ranks, writes_here
from gradiometer.capture.meter import Meter
from gradiometer.capture.watch import watch
from gradiometer.integrations.script.boundary import say
from gradiometer.integrations.script.finding import models_of
from gradiometer.integrations.script.wishes import Wishes, is_first_rank
from gradiometer.store.database import DATABASE_NAME, remove

__all__ = ["Logbook"]


class Logbook:
    """The meter in progress, and the folders that were kept."""

    def __init__(self, wishes: Wishes) -> None:
        self.meter: Meter | None = None
        self.optimizers: list[Optimizer] = []
        self.kept: list[tuple[Path, int]] = []
        """Folders with the number of optimizer steps in them."""
        self.thread: int | None = None
        """Which one trains: the meter is told things in that one only."""
        self._wishes = wishes
        self._seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._early: dict[str, Any] = {}
        """What was logged before there was a meter, the last value of each, and where."""
        self._early_at: dict[str, int] = {}
        self._elsewhere: deque[tuple[Mapping[str, Any], dict[str, int | None]]] = deque(maxlen=10_000)
        """What other threads logged since the last step."""
        self._num_runs = self._num_steps = 0
        self._new_folders: list[Path] = []

    def has_seen(self, optimizer: Optimizer) -> bool:
        """Whether it was watched at some time."""
        return optimizer in self._seen

    def open(self, optimizers: list[Optimizer]) -> None:
        """A training begins, and the one before it is over."""
        self.close()
        self._num_runs += 1
        folder = self._wishes.run_folder(self._num_runs)
        self._new_folders = [made for made in (folder, *folder.parents) if not made.exists()]
        self._num_steps = 0
        self._watch(optimizers, folder)
        early, where = self._early, self._early_at
        self._early, self._early_at = {}, {}
        self.log(early, **where)

    def grow(self, optimizers: list[Optimizer]) -> None:
        """Another optimizer belongs to the training: the run goes on with it."""
        assert self.meter is not None
        folder = self.meter.run or self._wishes.folder
        next_step = int(self.meter.state_dict()["next_step"])
        self.meter.close()
        after = {"resume": next_step - 1} if next_step else {"overwrite": True}
        self._watch(optimizers, folder, **after)

    def _watch(self, optimizers: list[Optimizer], folder: Path, **after: Any) -> None:
        wishes, found = self._wishes, models_of(optimizers)
        # Processes that a launcher started and that form no group would all write to one folder.
        keeps = writes_here() and (num_ranks() > 1 or is_first_rank())
        self.meter = watch(
            found.model,
            optimizers,
            run=folder if keeps else None,
            blocks=found.blocks,
            every=wishes.every,
            budget=wishes.budget,
            tier=wishes.tier,
            doctor="live" if wishes.doctor and keeps else None,
            **after,
        )
        self.optimizers = optimizers
        self._seen.update(optimizers)
        if keeps:
            steppers = ", ".join(type(one).__name__ for one in optimizers)
            say(f"watching {found.words} ({steppers}); the run is {wishes.shown(folder)}")

    def stepped(self) -> None:
        """An optimizer has stepped."""
        if self.meter is None:
            return
        self._num_steps += 1
        self.meter.resume()
        while self._elsewhere:
            values, where = self._elsewhere.popleft()
            self.log(values, **where)
        self.meter.boundary()  # with an optimizer that never steps no round would end by itself

    def log(self, values: Mapping[str, Any], *, env_steps: int | None = None, epoch: int | None = None) -> None:
        """Scalars of the script, at the step in progress or else the last one."""
        if self.meter is None:
            self._early.update((name, x.clone() if isinstance(x, Tensor) else x) for name, x in values.items())
            given = {"env_steps": env_steps, "epoch": epoch}
            self._early_at |= {axis: place for axis, place in given.items() if place is not None}
        elif self.thread not in (None, get_ident()):
            self._elsewhere.append((values, {"env_steps": env_steps, "epoch": epoch}))
        elif values:
            self.meter.at(env_steps=env_steps, epoch=epoch)
            self.meter.log(values)

    def close(self, error: BaseException | None = None) -> None:
        """The training is over, by `error` if there is one. A run without a step is removed."""
        meter, self.meter, self.optimizers = self.meter, None, []
        if meter is None:
            return
        meter.__exit__(None if error is None else type(error), error, None)
        if meter.run is None:
            return
        if self._num_steps:
            self.kept.append((meter.run, self._num_steps))
            return
        remove(meter.run / DATABASE_NAME)
        for made in self._new_folders:
            with suppress(OSError):  # somebody else has put something there
                made.rmdir()
        self._num_runs -= 1
