"""Follows the optimizers of a process as they appear, and keeps a meter on those that train.

An optimizer is known when it is made. Its parameters get a hook that lasts until the first backward that reaches one of
them: the meter is opened there, before the first clip and the first step, so that the first step is measured whole.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import get_ident
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradiometer.capture import hooks
from gradiometer.capture.meter import Meter
from gradiometer.integrations.script.boundary import Boundary, say
from gradiometer.integrations.script.finding import held_by, without_superseded
from gradiometer.integrations.script.listening import Backward, Clips, after_init
from gradiometer.integrations.script.logbook import Logbook
from gradiometer.integrations.script.wishes import Wishes

__all__ = ["Watcher"]


class Watcher:
    """One meter over all optimizers of a training; another training, of other parameters, gets another run."""

    def __init__(self, wishes: Wishes, boundary: Boundary) -> None:
        self.book = Logbook(wishes)
        self.stepped_back = False
        self.num_made = 0
        self._boundary = boundary
        self._hooks = ExitStack()
        self._waiting: dict[int, Callable[[], None]] = {}
        """Optimizers, by id, that no backward has reached yet, and how to stop listening for one."""
        self._born: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """How many steps there had been in this process when an optimizer was made."""
        self._num_steps = 0
        self._last_step: dict[int, int] = {}
        self._clipped = False
        self._opening = False

    def install(self) -> None:
        """Hooks of torch that serve all optimizers, and of our own meter, until `retire`."""
        harmless = self._boundary
        for remove in (
            register_optimizer_step_pre_hook(harmless(self._before_step)).remove,
            register_optimizer_step_post_hook(harmless(self._after_step)).remove,
            hooks.observe_clips(Clips(harmless(self._note_clip))),
            after_init(Optimizer, harmless(self._made)),
            after_init(Meter, harmless(self._other_meter)),
        ):
            self._hooks.callback(remove)

    def retire(self) -> None:
        """Watch no more: every hook is removed, and the run is closed."""
        for stop in self._waiting.values():
            stop()
        self._waiting.clear()
        self._hooks.close()
        self.book.close()

    @property
    def has_optimizer(self) -> bool:
        """Whether the script has made one."""
        return self.num_made > 0

    def log(self, values: Mapping[str, Any], *, env_steps: int | None = None, epoch: int | None = None) -> None:
        """The script's own scalars."""
        self.book.log(values, env_steps=env_steps, epoch=epoch)

    def _made(self, optimizer: Optimizer) -> None:
        """At the end of `Optimizer.__init__`."""
        self.num_made += 1
        self._born[optimizer] = self._num_steps
        mine = weakref.ref(optimizer)

        @self._boundary
        def reached() -> None:
            if (one := mine()) is not None and id(one) in self._waiting:
                self._come(hooks.unwrap(one))

        parameters = list(held_by([optimizer]).values())
        self._waiting[id(optimizer)] = hooks.observe_backward(parameters, Backward(reached))
        weakref.finalize(optimizer, self._forget, id(optimizer)).atexit = False

    def _forget(self, key: int) -> None:
        if (stop := self._waiting.pop(key, None)) is not None:
            stop()

    def _note_clip(self) -> None:
        self._clipped = True

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.book.thread = get_ident()
        one = optimizer if optimizer in self.book.optimizers else hooks.unwrap(optimizer)
        if one not in self.book.optimizers:
            self._come(one)
            if self._clipped and self.book.meter is not None:
                self.book.meter.pause()  # the raw gradient of this step is gone

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._num_steps += 1
        self._clipped = False
        self._last_step[id(optimizer)] = self._num_steps
        self.book.stepped()

    def _other_meter(self, meter: Meter) -> None:
        """The script calls `gm.watch`, or has a callback of ours."""
        if self._opening:
            return
        where = "keeps no run" if meter.run is None else f"keeps {meter.run}"
        if not self.stepped_back:
            say(f"the script has a meter of its own, which {where}: `gradiometer run` steps back")
        self.stepped_back = True
        self.retire()

    def _come(self, optimizer: Optimizer) -> None:
        """An optimizer that is not watched has a gradient, or steps."""
        book = self.book
        waiting = [one for one in list(self._born) if id(one) in self._waiting]
        group = list(dict.fromkeys([*(hooks.unwrap(one) for one in waiting), optimizer]))
        self._opening = True
        try:
            if book.meter is None:
                book.open(without_superseded(group))
            elif book.has_seen(optimizer):  # it was put aside too early
                book.grow([*book.optimizers, optimizer])
            elif self._belongs(optimizer):
                book.grow(without_superseded([*book.optimizers, optimizer]))
            else:
                book.open(without_superseded(group))
        finally:
            self._opening = False
        for one in [one for one in waiting if hooks.unwrap(one) in book.optimizers or book.has_seen(one)]:
            self._forget(id(one))
        self._forget(id(optimizer))

    def _belongs(self, optimizer: Optimizer) -> bool:
        """To the training in progress: it shares parameters, or the others went on after it was made."""
        watched = self.book.optimizers
        if held_by([optimizer]).keys() & held_by(watched).keys():
            return True
        return max(self._last_step.get(id(one), 0) for one in watched) > self._born.get(optimizer, self._num_steps)
