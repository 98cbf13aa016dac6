"""The rig: everything that is told by hooks, from the first backward of a step to the end of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture import hooks, terms
from gradiometer.capture.blocks import Model, find_blocks, modules_of, named_parameters
from gradiometer.capture.cadence import Cadence
from gradiometer.capture.distributed import num_replicas
from gradiometer.capture.gauge import Gauge
from gradiometer.capture.isolation import guarded
from gradiometer.capture.microbatches import MicroBatches
from gradiometer.capture.reading import Reading
from gradiometer.capture.rounds import Round, SeenClip
from gradiometer.capture.samples import Samples
from gradiometer.capture.settings import Settings
from gradiometer.errors import NonFiniteGradient
from gradiometer.maths import stats
from gradiometer.maths.histogram import log_histogram

__all__ = ["Owner", "Rig"]

LONG_VIEW_EVERY = (
    4  # measured steps from one sketch, mean and cosine with the update to the next; a sketch costs a clip
)
FIRST_TERMS = 5  # the first measured steps always split the loss: a dead term should show at once


class Owner(Protocol):
    """What the rig reports to."""

    def round_ended(self, current: Round) -> None: ...
    def rescanned(self) -> None: ...
    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None: ...
    def warn(self, message: str) -> None: ...


class Rig:
    """Holds the hooks and the open round; a round that ends goes to its owner."""

    def __init__(
        self, model: Model, optimizers: Sequence[Optimizer], settings: Settings, owner: Owner, first_step: int
    ) -> None:
        self._model, self._settings, self._owner = model, settings, owner
        self.optimizers = list(optimizers)
        self.cadence = Cadence(settings.every, settings.budget)
        self.cadence.restart(first_step)
        self.next_step = self.last_step = first_step
        self.paused = False
        self.open: Round | None = None
        self.seconds = 0.0
        self._counted_seconds = 0.0
        self.num_measured = 0
        self._terms_on = True
        self._dead_terms: set[str] = set()
        self._clipping: list[int] = []
        self._backward_marks: dict[int, tuple[int, int, int] | None] = {}
        self._remove: list[hooks.Remove] = []
        self._remove_gradients: list[hooks.Remove] = []
        self.scan()
        self._remove += [hooks.observe_optimizer(optimizer, self) for optimizer in self.optimizers]
        self._remove.append(hooks.observe_clips(self))

    # What the hooks call.

    @guarded
    def after_backward(self, reached: frozenset[int]) -> None:
        """A backward has ended: was the gradient before it dropped, and is this one of several micro-batches?"""
        if self.open is not None and self._was_dropped(reached):
            self._drop(self.open)
        current = self.current()
        for number in reached:
            self._backward_marks[number] = self._mark([self._sentinels[number]])
        if current.reading is not None and self._long_view_due():
            self._micro_batches.read(current, reached)

    @guarded
    def before_clip(self, call: hooks.ClipCall) -> None:
        """Raw gradients, before they are scaled."""
        ours = self.gauge.first_of(call.parameters)
        self._clipping = [] if ours is None else [ours]
        if ours is None:
            return
        if self.open is not None and self._backward_ran_again(self.open):
            self._drop(self.open)
        current = self.current()
        if current.reading is None and self._settings.on_nonfinite != "raise":
            return
        self._clipping = self.gauge.indices(call.parameters)
        self._stop_if_nonfinite(self._clipping)
        self._read_raw(current, self._clipping)

    @guarded
    def after_clip(self, call: hooks.ClipCall) -> None:
        """What the call did, for later."""
        current = self.open
        if current is None or not self._clipping:
            return
        current.mark = self._mark(self._clipping)
        for number in self._backward_marks:
            self._backward_marks[number] = self._mark([self._sentinels[number]])
        if current.reading is None:
            return
        clip = SeenClip(name=f"clip/{len(current.clips)}", call=call, indices=tuple(self._clipping))
        if call.total_norm is not None:
            current.reading.add_scalar(clip.name, call.total_norm)
            current.versions.update(self.gauge.versions(self._clipping))
        current.clipped.update(self._clipping)
        current.clips.append(clip)

    @guarded
    def before_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Gradients as the optimizer will see them, and the weights it starts from."""
        number = self.optimizers.index(optimizer)
        if self.open is not None and number in self.open.stepped:
            self.finish()
        current = self.current()
        current.in_step = closure is not None
        if closure is None:
            self._stop_if_nonfinite([i for i in self._owned[number] if i not in current.clipped])
        if current.reading is None:
            return
        current.learning_rates[number] = _learning_rate(optimizer)
        if closure is None:
            self._note_scale(current, current.reading, optimizer, self._owned[number])
            self._read_raw(current, self._owned[number])
            changed = [i for i, n in self.gauge.versions(current.clipped).items() if current.versions.get(i) != n]
            self.gauge.read_clipped(current.reading, [i for i in changed if i in self._owned_sets[number]])
        if self._settings.standard:
            self.gauge.keep_weights(self._stepping[number])

    @guarded
    def after_step(self, optimizer: Optimizer, closure: Any) -> None:
        """What the step did; the last optimizer of the round closes it."""
        number = self.optimizers.index(optimizer)
        current = self.current()
        self._backward_marks.clear()
        if current.reading is not None:
            if closure is not None:
                self._read_raw(current, self._owned[number])
            if self._settings.standard:
                again = (
                    self.cadence.interval == 1
                )  # then the next step is measured too, and compares itself with this one
                keep_as = current.step if again and self._settings.direction == "exact" else None
                dots = self._long_view_due()
                self.gauge.read_update(current.reading, self._stepping[number], dots=dots, keep_as=keep_as)
                if again and self._settings.direction == "sketch":
                    self._keep_gradients(number, current.step)
        elif self._settings.standard and not self.paused and self.cadence.due(current.step + 1):
            self._keep_gradients(number, current.step)
        current.in_step = False
        current.stepped.add(number)
        if len(current.stepped) == len(self.optimizers):
            self.finish()

    def give_up(self, problem: str) -> None:
        """A fault of ours: stop measuring, keep what was measured, let the training go on."""
        self._owner.event("fault", problem)
        self.unhook()
        self.open = None
        self.paused = True

    # The round.

    def current(self) -> Round:
        """The open round; opens the next one."""
        if self.open is None:
            due = not self.paused and self.cadence.due(self.next_step)
            if due and self._num_in_optimizers() != self._num_known:
                self.scan()
                self._owner.rescanned()
            self.open = Round(step=self.next_step, reading=self._new_reading() if due else None)
        return self.open

    def finish(self, *, skipped: bool = False) -> None:
        """Close the open round, if anything happened in it."""
        current = self.open
        self.open = None
        if current is None or not (current.stepped or current.captured or skipped):
            return
        current.skipped = skipped
        self.last_step, self.next_step = current.step, current.step + 1
        if current.reading is not None:
            self._micro_batches.finish(current, current.reading)
            current.reading.add("local", list(current.local_norms), list(current.local_norms.values()))
            self._owner.round_ended(current)
            self.num_measured += 1
            self.cadence.measured(current.step, self.seconds - self._counted_seconds)
            self._counted_seconds = self.seconds

    def move_to(self, step: int) -> None:
        """The next step has this number."""
        self.finish()
        self.next_step = self.last_step = step
        self.cadence.restart(step)

    def _drop(self, current: Round) -> None:
        """Gradients were made anew: a closure was evaluated again, or the step was skipped."""
        if current.in_step:
            current.forget(self._new_reading() if current.reading else None)
            return
        message = "gradients were made and then dropped without an optimizer step"
        self._owner.event("skipped-step", message, current.step)
        self.finish(skipped=True)

    def _read_raw(self, current: Round, indices: Sequence[int]) -> None:
        if current.reading is None:
            return
        fresh = self.gauge.with_grad(i for i in indices if i not in current.captured)
        current.captured.update(fresh)
        if not fresh:
            return
        if not self._settings.standard:
            self.gauge.read_light(current.reading, fresh)
            return
        if self._long_view_due():
            self._micro_batches.read_raw(current, current.reading, fresh)
        weights = () if current.in_step else self._trained
        samples = self.gauge.read_full(
            current.reading, fresh, step=current.step, keep_weights=weights, sums=self._long_view_due()
        )
        self._samples.read(current.reading, fresh, samples, step=current.step)
        if self._settings.tier == "deep":
            self._read_histograms(current.reading, fresh)

    def _read_histograms(self, reading: Reading, indices: Sequence[int]) -> None:
        named = list(zip(self.blocks.names, self.blocks.members[: self.blocks.num_named], strict=False))
        for i in indices:
            counts = log_histogram(self.gauge.grad(i))
            for name, members in named:
                if i in members:
                    reading.add_array(f"histogram/{name}", counts)

    def _long_view_due(self) -> bool:
        every = LONG_VIEW_EVERY if self._settings.direction == "exact" else 1
        return self._settings.standard and self.num_measured % every == 0

    def _keep_gradients(self, number: int, step: int) -> None:
        held = self.gauge.with_grad(self._owned[number])
        if self._settings.direction == "exact":
            self._samples.keep(held, self.gauge.keep_gradients(held, step=step), step=step)
        else:
            self._micro_batches.keep(held, step=step)

    def _note_scale(self, current: Round, reading: Reading, optimizer: Optimizer, indices: Sequence[int]) -> None:
        # GradScaler leaves unscaling to a fused optimizer: until its step, gradients are larger by grad_scale.
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        fresh = tuple(i for i in indices if i not in current.captured)
        if isinstance(scale, Tensor) and fresh:
            name = f"grad_scale/{len(current.scaled)}"
            reading.add_scalar(name, scale)
            current.scaled.append((fresh, name))
        if isinstance(found_inf, Tensor):
            reading.add_scalar("found_inf", found_inf)

    def _mark(self, indices: Sequence[int]) -> tuple[int, int, int] | None:
        for i in indices:
            if (grad := self.gauge.parameters[i].grad) is not None:
                return i, id(grad), grad._version
        return None

    def _backward_ran_again(self, current: Round) -> bool:
        return current.mark is not None and self._mark([current.mark[0]]) != current.mark

    def _was_dropped(self, reached: frozenset[int]) -> bool:
        """Accumulating adds one change to the same tensor; anything else means the gradient was set to zero or None."""
        for number in reached:
            before, now = self._backward_marks.get(number), self._mark([self._sentinels[number]])
            if before is not None and now is not None and (now[1] != before[1] or now[2] != before[2] + 1):
                return True
        return False

    def _stop_if_nonfinite(self, indices: Sequence[int]) -> None:
        if self._settings.on_nonfinite == "raise":
            self._raise_nonfinite(self.gauge.nonfinite(self.gauge.with_grad(indices)), "")

    @guarded
    def _note_local(self, i: int) -> None:
        """Inside the backward of a data-parallel model: the gradient is still this rank's own."""
        current = self.current()
        if current.reading is not None and self._long_view_due():
            with torch.no_grad():
                current.local_norms[i] = stats.norm(self.gauge.grad(i))

    def _stop_inside_backward(self, i: int) -> None:
        self._raise_nonfinite(self.gauge.nonfinite([i]), ", seen inside backward")

    def _raise_nonfinite(self, bad: list[int], where: str) -> None:
        if not bad:
            return
        current, names = self.current(), [self.names[i] for i in bad]
        guilty = terms.nonfinite_terms(current.reading, bad)
        message = f"step {current.step}: NaN or Inf in the gradient of {names[0]}"
        message += f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
        message += f", from the term {guilty[0]!r}" if guilty else ""
        message += f", in micro-batch {len(current.reaches)}{where}"
        self._owner.event("nonfinite", message, current.step, tensors=names[:20], terms=guilty)
        raise NonFiniteGradient(f"{message}. The weights are still those before the step.")

    # Terms.

    @guarded
    def measure_terms(self, given: Mapping[str, Tensor]) -> None:
        """Each term's own gradient, on measured steps when it is due."""
        if not self._terms_on or self.paused:
            return
        current = self.current()
        always = self.num_measured < FIRST_TERMS or self._settings.tier == "deep"
        if current.reading is None or not (always or self.num_measured % self._settings.terms_every == 0):
            return
        if terms.has_user_hooks(modules_of(self._model).values(), self.gauge.parameters):
            self._terms_off("you have backward hooks of your own, which a second backward would call twice")
            return
        try:
            reaches = terms.measure_terms(given, self.gauge.parameters, current.reading)
        except RuntimeError as problem:
            self._terms_off(f"the graph cannot be walked twice ({str(problem).splitlines()[0]})")
            return
        for reach in reaches:
            if not reach.reached and reach.term not in self._dead_terms:
                self._dead_terms.add(reach.term)
                message = f"the term {reach.term!r} has no gradient path to any watched parameter"
                self._owner.event("dead-term", message, current.step, term=reach.term)

    def _terms_off(self, why: str) -> None:
        self._terms_on = False
        self._owner.event("terms-unmeasurable", why)
        self._owner.warn(f"Gradiometer does not measure terms: {why}.")

    # Set-up.

    def scan(self) -> None:
        """Read the model anew: at the start, and when an optimizer got parameters."""
        named = named_parameters(self._model)
        self.names = list(named)
        self.gauge = Gauge(list(named.values()))
        self.blocks = find_blocks(named, self._settings.blocks)
        self._samples = Samples()
        self._micro_batches = MicroBatches(self.gauge, self.names, self.blocks, self._settings.sketch_size)
        self._stepping = [
            sorted(set(self.gauge.indices(p for group in optimizer.param_groups for p in group["params"])))
            for optimizer in self.optimizers
        ]
        self._num_known = self._num_in_optimizers()
        # A parameter in no optimizer is read with the first one: its gradient exists, and nobody uses it.
        orphans = set(range(len(self.names))) - {i for part in self._stepping for i in part}
        self._owned = [sorted({*self._stepping[0], *orphans}), *self._stepping[1:]]
        self._owned_sets = [frozenset(part) for part in self._owned]
        self._trained = frozenset(i for part in self._stepping for i in part)
        self._observe_backward()

    @property
    def atoms(self) -> list[list[int]]:
        """Which rows of a sketch make up each named block."""
        return self._micro_batches.atoms

    def _observe_backward(self) -> None:
        while self._remove_gradients:
            self._remove_gradients.pop()()
        self._backward_marks.clear()
        parameters = self.gauge.parameters
        firsts = [next((i for i in part if parameters[i].requires_grad), None) for part in self.blocks.members]
        self._sentinels = sorted({i for i in firsts[: self.blocks.num_named] if i is not None})
        sentinels = [parameters[i] for i in self._sentinels]
        self._remove_gradients.append(hooks.observe_backward(sentinels, self))
        self.num_replicas = num_replicas(modules_of(self._model).values())
        if self.num_replicas > 1 and self._settings.standard:
            self._remove_gradients.append(hooks.observe_gradients(parameters, self._note_local))
        if self._settings.tier == "deep" and self._settings.on_nonfinite == "raise":
            self._remove_gradients.append(hooks.observe_gradients(parameters, self._stop_inside_backward))

    def _num_in_optimizers(self) -> int:
        return sum(len(group["params"]) for optimizer in self.optimizers for group in optimizer.param_groups)

    def _new_reading(self) -> Reading:
        return Reading(len(self.gauge.parameters))

    def unhook(self) -> None:
        """Remove every hook."""
        for removers in (self._remove, self._remove_gradients):
            while removers:
                removers.pop()()


def _learning_rate(optimizer: Optimizer) -> float:
    rate = optimizer.param_groups[0].get("lr", float("nan"))
    # A capturable optimizer keeps it on the device: reading it would be a sync.
    return float("nan") if isinstance(rate, Tensor) else float(rate)
