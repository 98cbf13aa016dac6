"""What `watch` returns: the instrument in the training loop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self

from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture import hooks, terms
from gradiometer.capture.blocks import Blocks, Model, Selector, find_blocks, modules_of, named_parameters
from gradiometer.capture.gauge import Gauge
from gradiometer.capture.isolation import guarded
from gradiometer.capture.reading import Reading
from gradiometer.capture.rounds import Round, SeenClip
from gradiometer.capture.scalars import Scalars
from gradiometer.capture.sheet import Sheet
from gradiometer.capture.states import States
from gradiometer.errors import GradiometerWarning, NonFiniteGradient, UsageError
from gradiometer.records import Event, Row, Table
from gradiometer.store.writer import Writer

__all__ = ["Meter", "OnNonfinite", "Tier"]

Tier = Literal["light", "standard"]
OnNonfinite = Literal["record", "warn", "raise"]

FIRST_TERMS = 5  # the first measured steps always split the loss: a dead term should show at once


class Meter:
    """Measures the gradients of a model while it trains; made by `gradiometer.watch`, closed by `with` or `close()`."""

    def __init__(
        self,
        model: Model,
        optimizers: Sequence[Optimizer],
        *,
        writer: Writer | None,
        every: int,
        tier: Tier,
        blocks: Mapping[str, Selector] | None,
        on_nonfinite: OnNonfinite,
        terms_every: int,
        first_step: int,
    ) -> None:
        self.run = None if writer is None else writer.folder
        self.tier, self.every, self.terms_every = tier, every, terms_every
        self._model, self._given, self._writer = model, blocks, writer
        self._on_nonfinite = on_nonfinite
        self._optimizers = list(optimizers)
        self._next_step, self._last_step = first_step, first_step
        self._num_measured = 0
        self._paused, self._closed, self._terms_on = False, False, True
        self._coordinates: dict[str, int | None] = {"env_steps": None, "rollout": None, "epoch": None}
        self._open: Round | None = None
        self._clipping: list[int] = []
        self._scalars = Scalars()
        self._states = States()
        self._dead_terms: set[str] = set()
        self._scan()
        self._remove = [hooks.observe_optimizer(optimizer, self) for optimizer in self._optimizers]
        self._remove.append(hooks.observe_clips(self))

    # What the user calls.

    @property
    def blocks(self) -> Blocks:
        """The blocks, and which parameters they hold."""
        return self._sheet.blocks

    @property
    def states(self) -> dict[str, str]:
        """Each parameter's state at the last measured step: finite, nonfinite, missing or frozen."""
        return dict(self._states.current)

    @guarded
    def log(self, values: Mapping[str, Any] | None = None, /, **scalars: Any) -> None:
        """Your own scalars, on the step axis of the gradients. Tensors wait for the next measured step's sync."""
        if self._closed:
            return
        step = self._last_step if self._open is None else self._open.step
        ready = self._scalars.take(step, {**(values or {}), **scalars})
        if ready:
            self._put_row(step, ready)

    def at(self, *, env_steps: int | None = None, rollout: int | None = None, epoch: int | None = None) -> None:
        """Say where in the training the coming steps lie; what is not given stays as it was."""
        given = {"env_steps": env_steps, "rollout": rollout, "epoch": epoch}
        self._coordinates.update({key: int(value) for key, value in given.items() if value is not None})

    def step(self, number: int) -> None:
        """Say which number the coming optimizer step has; counting goes on from there."""
        if number < 0:
            raise UsageError(f"meter.step() takes a step number of 0 or more; found {number}")
        self._finish()
        self._next_step = self._last_step = int(number)

    def pause(self) -> None:
        """Measure nothing until `resume`; steps are still counted and `log` still works."""
        self._paused = True

    def resume(self) -> None:
        """Measure again."""
        self._paused = False

    @contextmanager
    def terms(self, **given: Tensor) -> Iterator[Tensor]:
        """The sum of the loss terms, after taking each one's gradient by itself on measured steps.

        `with meter.terms(policy=pg, value=0.5 * vf, entropy=-0.01 * ent) as loss: loss.backward()`
        """
        terms.check_terms(given)
        self._measure_terms(given)
        yield terms.total(given.values())

    def close(self) -> None:
        """Remove every hook and finish the file. Closing twice is fine."""
        if self._closed:
            return
        self._finish()
        self._unhook()
        self._flush_scalars()
        self._closed = True
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._event("exception", f"{type(error).__name__}: {error}")
        self.close()

    # What the hooks call.

    @guarded
    def before_clip(self, call: hooks.ClipCall) -> None:
        """Raw gradients, before they are scaled."""
        self._clipping = self._gauge.indices(call.parameters)
        if not self._clipping:
            return
        if self._open is not None and self._backward_ran_again(self._open):
            if self._open.in_step:
                self._open.forget(self._new_reading() if self._open.reading else None)
            else:
                self._skip()
        current = self._current()
        self._stop_if_nonfinite(self._clipping)
        self._read_raw(current, self._clipping)

    @guarded
    def after_clip(self, call: hooks.ClipCall) -> None:
        """What the call did, for later."""
        current = self._open
        if current is None or not self._clipping:
            return
        current.mark = self._mark(self._clipping)
        if current.reading is None:
            return
        clip = SeenClip(name=f"clip/{len(current.clips)}", call=call, indices=tuple(self._clipping))
        if call.total_norm is not None:
            current.reading.add_scalar(clip.name, call.total_norm)
            current.versions.update(self._gauge.versions(self._clipping))
        current.clipped.update(self._clipping)
        current.clips.append(clip)

    @guarded
    def before_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Gradients as the optimizer will see them, and the weights it starts from."""
        number = self._optimizers.index(optimizer)
        if self._open is not None and number in self._open.stepped:
            self._finish()
        current = self._current()
        current.in_step = closure is not None
        owned = self._owned[number]
        if closure is None:
            self._stop_if_nonfinite([i for i in owned if i not in current.clipped])
        if current.reading is None:
            return
        if closure is None:
            self._read_raw(current, owned)
            changed = [i for i, n in self._gauge.versions(current.clipped).items() if current.versions.get(i) != n]
            self._gauge.read_clipped(current.reading, [i for i in changed if i in self._owned_sets[number]])
        if self.tier != "light":
            self._gauge.keep_weights(self._stepping[number])

    @guarded
    def after_step(self, optimizer: Optimizer, closure: Any) -> None:
        """What the step did; the last optimizer of the round closes it."""
        number = self._optimizers.index(optimizer)
        current = self._current()
        if current.reading is not None:
            if closure is not None:
                self._read_raw(current, self._owned[number])
            if self.tier != "light":
                self._gauge.read_update(current.reading, self._stepping[number])
        current.in_step = False
        current.stepped.add(number)
        if len(current.stepped) == len(self._optimizers):
            self._finish()

    def give_up(self, problem: str) -> None:
        """A fault of ours: stop measuring, keep what was measured, let the training go on."""
        self._event("fault", problem)
        self._unhook()
        self._open = None
        self._paused = True

    # The round.

    def _current(self) -> Round:
        if self._open is None:
            due = not self._paused and self._next_step % self.every == 0
            if due and self._num_in_optimizers() != self._num_known:
                self._scan()
            self._open = Round(step=self._next_step, reading=self._new_reading() if due else None)
        return self._open

    def _finish(self, *, skipped: bool = False) -> None:
        current = self._open
        if current is None or not (current.stepped or current.captured or skipped):
            self._open = None
            return
        self._open = None
        self._last_step, self._next_step = current.step, current.step + 1
        if current.reading is not None:
            self._keep(current, current.reading)

    def _keep(self, current: Round, reading: Reading) -> None:
        waiting = self._scalars.hand_over(reading)
        fetched = reading.fetch()
        self._num_measured += 1
        for step, logged in self._scalars.collect(waiting, fetched):
            self._put_row(step, logged)
        factors, clipped = current.clip_factors(fetched, len(self._gauge.parameters))
        values = self._sheet.light(fetched, factors, clipped)
        self._sheet.update(values, fetched)
        self._sheet.terms(values, fetched)
        named = {
            name: frozenset(members) & current.captured
            for name, members in zip(self.blocks.names, self.blocks.members[: self.blocks.num_named], strict=False)
        }
        current.clip_values(fetched, values, named)
        if values:
            self._put_row(current.step, values)
        self._note_states(current, self._sheet.nonfinite(fetched))

    def _note_states(self, current: Round, nonfinite: list[int]) -> None:
        change = self._states.update(
            self._names, self._gauge.parameters, captured=current.captured, nonfinite=nonfinite
        )
        if change.changed and self._writer is not None:
            self._writer.put(Table(step=current.step, name="states", content=self.states))
        if change.newly_missing and current.stepped:
            first = ", ".join(change.newly_missing[:3])
            self._event("missing", f"{len(change.newly_missing)} parameters got no gradient: {first}", current.step)
        if change.newly_nonfinite:
            message = f"non-finite gradient, first in {change.newly_nonfinite[0]}"
            self._event("nonfinite", message, current.step, tensors=list(change.newly_nonfinite[:20]))
            if self._on_nonfinite == "warn":
                warnings.warn(f"step {current.step}: {message}", GradiometerWarning, stacklevel=5)

    def _skip(self) -> None:
        assert self._open is not None
        self._event(
            "skipped-step", "gradients were clipped and then dropped without an optimizer step", self._open.step
        )
        self._finish(skipped=True)

    def _read_raw(self, current: Round, indices: Sequence[int]) -> None:
        if current.reading is None:
            return
        fresh = self._gauge.with_grad(i for i in indices if i not in current.captured)
        self._gauge.read_raw(current.reading, fresh)
        current.captured.update(fresh)

    def _mark(self, indices: Sequence[int]) -> tuple[int, int, int] | None:
        for i in indices:
            if (grad := self._gauge.parameters[i].grad) is not None:
                return i, id(grad), grad._version
        return None

    def _backward_ran_again(self, current: Round) -> bool:
        return current.mark is not None and self._mark([current.mark[0]]) != current.mark

    def _stop_if_nonfinite(self, indices: Sequence[int]) -> None:
        if self._on_nonfinite != "raise":
            return
        bad = self._gauge.nonfinite(self._gauge.with_grad(indices))
        if bad:
            names = [self._names[i] for i in bad]
            message = f"step {self._current().step}: NaN or Inf in the gradient of {names[0]}"
            message += f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
            self._event("nonfinite", message, self._current().step, tensors=names[:20])
            raise NonFiniteGradient(f"{message}. The weights are still those before the step.")

    # Terms, scalars, rows.

    @guarded
    def _measure_terms(self, given: Mapping[str, Tensor]) -> None:
        if self._closed or not self._terms_on:
            return
        current = self._current()
        due = self._num_measured < FIRST_TERMS or self._num_measured % self.terms_every == 0
        if current.reading is None or not due:
            return
        if terms.has_user_hooks(modules_of(self._model).values(), self._gauge.parameters):
            self._terms_off("you have backward hooks of your own, which a second backward would call twice")
            return
        try:
            reaches = terms.measure_terms(given, self._gauge.parameters, current.reading)
        except RuntimeError as problem:
            self._terms_off(f"the graph cannot be walked twice ({str(problem).splitlines()[0]})")
            return
        for reach in reaches:
            if not reach.reached and reach.term not in self._dead_terms:
                self._dead_terms.add(reach.term)
                self._event("dead-term", f"the term {reach.term!r} has no gradient path to any watched parameter")

    def _terms_off(self, why: str) -> None:
        self._terms_on = False
        self._event("terms-unmeasurable", why)
        warnings.warn(f"Gradiometer does not measure terms: {why}.", GradiometerWarning, stacklevel=6)

    def _flush_scalars(self) -> None:
        reading = Reading(0)
        waiting = self._scalars.hand_over(reading)
        if waiting:
            for step, logged in self._scalars.collect(waiting, reading.fetch()):
                self._put_row(step, logged)

    def _put_row(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is not None:
            self._writer.put(Row(step=step, wall_time=time.time(), values=values, **self._coordinates))

    def _event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        if self._writer is not None:
            at = self._last_step if self._open is None else self._open.step
            self._writer.put(Event(step=at if step is None else step, kind=kind, message=message, detail=detail))

    # Set-up.

    def _scan(self) -> None:
        named = named_parameters(self._model)
        self._names = list(named)
        self._gauge = Gauge(list(named.values()))
        self._sheet = Sheet(find_blocks(named, self._given))
        self._stepping = [
            sorted(set(self._gauge.indices(p for group in optimizer.param_groups for p in group["params"])))
            for optimizer in self._optimizers
        ]
        self._num_known = self._num_in_optimizers()
        # A parameter in no optimizer is read with the first one: its gradient exists, and nobody uses it.
        orphans = set(range(len(self._names))) - {i for part in self._stepping for i in part}
        self._owned = [sorted({*self._stepping[0], *orphans}), *self._stepping[1:]] if self._stepping else []
        self._owned_sets = [frozenset(part) for part in self._owned]

    def _num_in_optimizers(self) -> int:
        return sum(len(group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups)

    def _new_reading(self) -> Reading:
        return Reading(len(self._gauge.parameters))

    def _unhook(self) -> None:
        while self._remove:
            self._remove.pop()()
