"""Follows the optimizers of a process as they appear, and keeps a meter on those that train.

An optimizer is known when it is made. Its parameters get a hook that lasts until the first backward
that reaches one of them: the meter is opened there, before the first clip and the first step, so
that the first step is measured whole.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import get_ident
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradiometer.capture import environment, generations, hooks
from gradiometer.capture.meter import Meter
from gradiometer.integrations.script.boundary import Boundary
from gradiometer.integrations.script.models import held_by, without_superseded
from gradiometer.integrations.script.running import EnoughSteps, RunOptions
from gradiometer.integrations.script.runs import ScriptRuns
from gradiometer.words import say

__all__ = ["Watcher"]


class Watcher:
    """One meter over all optimizers of a training; other parameters are another training."""

    def __init__(self, options: RunOptions, boundary: Boundary) -> None:
        self.runs = ScriptRuns(options, lambda: self.num_backwards)
        self.stepped_back = False
        self.own_meter = ""
        """Of the script, in words."""
        self._options = options
        self.num_made = 0
        self.num_backwards = 0
        self._boundary = boundary
        self._hooks = ExitStack()
        self._listeners: dict[int, _BackwardListener] = {}
        self._waiting: dict[int, Callable[[], None]] = {}
        """Optimizers by id that no backward has reached yet, with how to stop listening."""
        self._born: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """How many steps there had been in this process when an optimizer was made."""
        self._num_steps = 0
        self._last_step: dict[int, int] = {}
        self._clipped = False
        self._clips = _ClipListener(boundary(self._note_clip))
        self._opening = False

    def install(self) -> None:
        """Hooks of torch that serve all optimizers, and of our own meter, until `retire`."""
        harmless = self._boundary
        for remove in (
            register_optimizer_step_pre_hook(harmless(self._before_step)).remove,
            register_optimizer_step_post_hook(harmless(self._after_step)).remove,
            hooks.observe_clips(self._clips),
            hooks.observe_roots(self),
            environment.listen(),  # before there is a meter: the first rollout comes before it
            hooks.observe_shape_warnings(),  # the first forward comes before there is a meter
            _after_init(Optimizer, harmless(self._made)),
            _after_init(Meter, harmless(self._other_meter)),
        ):
            self._hooks.callback(remove)

    @property
    def wants_graph(self) -> bool:
        """Every backward is counted."""
        return True

    def graph_ready(self, call: hooks.BackwardCall) -> None:
        """A loss is about to go backward."""
        self.num_backwards += 1

    def look_for_environments(self) -> None:
        """The script has imported a library of environments."""
        environment.look_for_environments()

    def listen_to(self, trainer: type[Any]) -> None:
        """The script has imported a trainer that generates answers."""
        self._hooks.callback(generations.listen_to(trainer))

    def retire(self) -> None:
        """Watch no more: every hook is removed, and the run is closed."""
        for stop in self._waiting.values():
            stop()
        self._waiting.clear()
        self._hooks.close()
        self.runs.close()

    @property
    def has_optimizer(self) -> bool:
        """Whether the script has made one."""
        return self.num_made > 0

    def log(
        self, values: Mapping[str, Any], *, env_steps: int | None = None, epoch: int | None = None
    ) -> None:
        """The script's own scalars."""
        self.runs.log(values, env_steps=env_steps, epoch=epoch)

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
        # held here: the hooks themselves hold who listens weakly
        listener = self._listeners[id(optimizer)] = _BackwardListener(reached)
        self._waiting[id(optimizer)] = hooks.observe_backward(parameters, listener)
        weakref.finalize(optimizer, self._forget, id(optimizer)).atexit = False

    def _forget(self, key: int) -> None:
        self._listeners.pop(key, None)
        if (stop := self._waiting.pop(key, None)) is not None:
            stop()

    def _note_clip(self) -> None:
        self._clipped = True

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.runs.thread = get_ident()
        one = optimizer if optimizer in self.runs.optimizers else hooks.unwrap(optimizer)
        if one not in self.runs.optimizers:
            self._come(one)
            if self._clipped and self.runs.meter is not None:
                self.runs.meter.pause()  # the raw gradient of this step is gone

    def _after_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._num_steps += 1
        self._clipped = False
        self._last_step[id(optimizer)] = self._num_steps
        self.runs.stepped(hooks.unwrap(optimizer))

    def _other_meter(self, meter: Meter) -> None:
        """The script calls `gm.watch`, or has a callback of ours."""
        if self._opening:
            return
        where = "keeps no run" if meter.run is None else f"keeps {meter.run}"
        self.own_meter = f"the script has its own meter, which {where}"
        if not self.stepped_back and not self._options.quiet:
            say(f"{self.own_meter}: `gradiometer run` records nothing")
        self.stepped_back = True
        self.retire()
        if self._options.steps is not None:  # nobody would count them
            raise EnoughSteps

    def _come(self, optimizer: Optimizer) -> None:
        """An optimizer that is not watched has a gradient, or steps."""
        runs = self.runs
        waiting = [one for one in list(self._born) if id(one) in self._waiting]
        group = list(dict.fromkeys([*(hooks.unwrap(one) for one in waiting), optimizer]))
        self._opening = True
        try:
            if runs.meter is None:
                runs.open(without_superseded(group))
            elif runs.has_seen(optimizer):  # it was put aside too early
                runs.grow([*runs.optimizers, optimizer])
            elif self._belongs(optimizer):
                runs.grow(without_superseded([*runs.optimizers, optimizer]))
            else:
                runs.open(without_superseded(group))
        finally:
            self._opening = False
        for one in [
            one for one in waiting if hooks.unwrap(one) in runs.optimizers or runs.has_seen(one)
        ]:
            self._forget(id(one))
        self._forget(id(optimizer))

    def _belongs(self, optimizer: Optimizer) -> bool:
        """To the training in progress: it shares parameters, or was made while others stepped."""
        watched = self.runs.optimizers
        if held_by([optimizer]).keys() & held_by(watched).keys():
            return True
        newest = max(self._last_step.get(id(one), 0) for one in watched)
        return newest > self._born.get(optimizer, self._num_steps)


def _after_init(kind: type, note: Callable[[Any], None]) -> Callable[[], None]:
    """Tell `note` of each object of this class, and of those derived from it, once it is made."""
    original: Any = kind.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        note(self)

    kind.__init__ = observed  # type: ignore[misc]

    def remove() -> None:
        if kind.__init__ is observed:  # type: ignore[misc]
            kind.__init__ = original  # type: ignore[misc]

    return remove


class _BackwardListener:
    """A listener of backward passes."""

    def __init__(self, reached: Callable[[], None]) -> None:
        self._reached = reached

    def before_backward(self) -> None:
        pass

    def after_backward(self, reached: frozenset[int]) -> None:
        self._reached()


class _ClipListener:
    """A listener of clips."""

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note

    def before_clip(self, call: hooks.ClipCall) -> None:
        self._note()

    def after_clip(self, call: hooks.ClipCall) -> None:
        """The meter's business."""
