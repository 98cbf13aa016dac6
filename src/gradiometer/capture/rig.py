"""The rig: everything that is told by hooks, from the first backward of a step to the end of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from gradiometer.capture import graphhooks, hooks, terms
from gradiometer.capture.alarm import Alarm
from gradiometer.capture.blocks import Model
from gradiometer.capture.closing import Closing
from gradiometer.capture.distributed import num_ranks, num_replicas
from gradiometer.capture.expertbook import ExpertBook
from gradiometer.capture.gauge import Gauge
from gradiometer.capture.isolation import guarded
from gradiometer.capture.marks import Marks
from gradiometer.capture.microbatches import MicroBatches
from gradiometer.capture.ranks import RankLost
from gradiometer.capture.reading import Reading
from gradiometer.capture.roster import Roster
from gradiometer.capture.rounds import Owner, Round, SeenClip
from gradiometer.capture.samples import Samples
from gradiometer.capture.settings import Settings
from gradiometer.capture.shards import is_spread, local, pieces_of
from gradiometer.capture.termbook import TermBook
from gradiometer.maths import stats

__all__ = ["Rig"]

LONG_VIEW_EVERY = (
    4  # measured steps from one sketch, mean and cosine with the update to the next; a sketch costs a clip
)


class Rig(Closing):
    """Holds the hooks and the open round; a round that ends goes to its owner."""

    def __init__(
        self, model: Model, optimizers: Sequence[Optimizer], settings: Settings, owner: Owner, first_step: int
    ) -> None:
        super().__init__(settings, owner)
        self._model = model
        self.optimizers = list(optimizers)
        self.next_step = self.last_step = first_step
        self._round_number = 0
        """Rounds since the start: what the cadence and the lag of one step go by, whatever numbers the user gives."""
        self.paused = self.broken = False
        self.open: Round | None = None
        self._terms = TermBook(settings, owner, len(self.optimizers))
        self.experts = ExpertBook(settings, owner, measuring=self._measured_round)
        self._clipping: list[int] = []
        self._remove: list[hooks.Remove] = []
        self._remove_gradients: list[hooks.Remove] = []
        self.scan()
        self._remove += [hooks.observe_optimizer(optimizer, self) for optimizer in self.optimizers]
        self._remove += [hooks.observe_clips(self), graphhooks.observe_retained()]
        self._terms.begin()

    # What the hooks call.

    @guarded
    def after_backward(self, reached: frozenset[int]) -> None:
        """A backward has ended: was the gradient before it dropped, and is this one of several micro-batches?"""
        self._begin_next_round([self.roster.sentinels[number] for number in reached])
        if self.open is not None and self._marks.dropped(reached):
            self._drop(self.open)
        current = self.current()
        if current.in_step and not self.paused:
            self._stop_if_nonfinite(range(len(self.gauge.parameters)))
        self._marks.note(reached)
        self._terms.backward_ended()
        self.experts.backward_ended()
        # Under data parallelism the gradients are being averaged at this moment; the ranks give the noise there.
        if current.reading is not None and self._long_view_due() and not self.roster.data_parallel:
            self._micro_batches.read(current, reached)

    @guarded
    def before_clip(self, call: hooks.ClipCall) -> None:
        """Raw gradients, before they are scaled."""
        ours = self.gauge.first_of(call.parameters)
        self._clipping = [] if ours is None else [ours]
        if ours is None:
            return
        if self.open is not None and self.open.stepped:
            self._begin_next_round(self.gauge.indices(call.parameters))
        if self.open is not None and self._backward_ran_again(self.open):
            self._terms.forget()  # of gradients from before the last clip and after it: of no one step
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
        current.mark = self._marks.of(self._clipping)
        self._marks.note_again()
        if current.reading is None:
            return
        clip = SeenClip(name=f"clip/{len(current.clips)}", call=call, indices=tuple(self._clipping))
        if call.total_norm is not None:
            norm = local(call.total_norm)
            current.reading.add_scalar(clip.name, norm.new_full((), -1.0) if is_spread(call.total_norm) else norm)
            current.versions.update(self.gauge.versions(self._clipping))
        else:
            current.remeasure.update(self._clipping)
        current.clipped.update(self._clipping)
        current.clips.append(clip)

    @guarded
    def before_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Gradients as the optimizer will see them, and the weights it starts from."""
        number = self.optimizers.index(optimizer)
        if self.open is not None and number in self.open.stepped:
            self._terms.stepped_again()
            self.finish()
        current = self.current()
        current.in_step = closure is not None
        if closure is None and self._settings.on_nonfinite == "raise":
            self._stop_if_nonfinite([i for i in self.roster.owned[number] if i not in current.clipped])
        if current.reading is None:
            return
        current.note_learning_rate(number, optimizer)
        if closure is None:
            current.note_scale(optimizer, self.roster.owned[number])
            self._read_raw(current, self.roster.owned[number])
            changed = {i for i, n in self.gauge.versions(current.clipped).items() if current.versions.get(i) != n}
            changed |= current.remeasure & current.captured
            self.gauge.read_clipped(current.reading, sorted(changed & self.roster.owned_sets[number]))
        if self._settings.standard:
            self.gauge.keep_weights(self.roster.stepping(number))
            self.gauge.note_gradients(self.roster.stepping(number))

    @guarded
    def after_step(self, optimizer: Optimizer, closure: Any) -> None:
        """What the step did; the last optimizer of the round closes it."""
        number = self.optimizers.index(optimizer)
        current = self.current()
        self._marks.clear()
        current.mark = None
        if current.reading is not None:
            if closure is not None:
                self._read_raw(current, self.roster.owned[number])
                clipped = current.remeasure & current.captured & self.roster.owned_sets[number]
                self.gauge.read_clipped(current.reading, sorted(clipped))
            if self._settings.standard:
                again = (
                    self.cadence.interval == 1
                )  # then the next step is measured too, and compares itself with this one
                keep_as = current.number if again and self._settings.direction == "exact" else None
                dots = self._long_view_due()
                self.gauge.read_update(
                    current.reading, self.roster.stepping(number), number=current.number, dots=dots, keep_as=keep_as
                )
                if again and self._settings.direction == "sketch":
                    self._keep_gradients(number, current.number)
        elif self._settings.standard and not self.paused and self.cadence.due(current.number + 1):
            self._keep_gradients(number, current.number)
        current.in_step = False
        current.stepped.add(number)
        self._terms.stepped()
        if len(current.stepped) == len(self.optimizers):
            self.finish()
            self._owner.boundary()

    def give_up(self, problem: str) -> None:
        """A fault of ours: stop measuring, keep what was measured, let the training go on."""
        self._owner.event("fault", problem)
        with contextlib.suppress(RankLost, RuntimeError):
            self.ranks.say_failed()
        self.retire()

    def retire(self) -> None:
        """Measure no more."""
        self.unhook()
        self.open = None
        self._terms.forget()
        self.paused = self.broken = True
        self.ranks.leave()

    # The round.

    def current(self) -> Round:
        """The open round; opens the next one."""
        if self.open is None:
            due = not self.paused and self.cadence.due(self._round_number)
            if due and not self.roster.still_holds(self.optimizers):
                self.scan()
                self._owner.rescanned()
            reading = self._new_reading() if due else None
            self.open = Round(step=self.next_step, number=self._round_number, reading=reading)
        return self.open

    def finish(self, *, skipped: bool = False, alone: bool = False) -> None:
        """Close the open round, if anything happened in it; `alone` when the other ranks do not come to a meeting."""
        current = self.open
        self.open = None
        if current is None or not (current.stepped or current.captured or skipped):
            self._terms.forget()
            return
        self.last_step, self.next_step = current.step, current.step + 1
        self._round_number = current.number + 1
        if alone and self.ranks.several:
            self.ranks.leave()
            if self.gauge.pieces:
                current.reading = None  # one rank's pieces are no numbers
                self._terms.forget()
        if current.reading is not None:
            self._finish_measured(current, current.reading)
            return
        self.experts.forget()
        if self.ranks.several and self.cadence.due(current.number):
            self.meet(current, None)

    def _measured_round(self) -> int | None:
        """The number of the round in progress, or else of the next one, if it is measured."""
        if self.paused:
            return None
        if self.open is not None and not self.open.stepped:
            return None if self.open.reading is None else self.open.number
        number = self._round_number if self.open is None else self.open.number + 1
        return number if self.cadence.due(number) else None

    @property
    def terms_due(self) -> bool:
        """Whether the round in progress, or else the next one, splits its loss."""
        return self._measured_round() is not None and self._terms.due(self.num_measured)

    def move_to(self, step: int) -> None:
        """The step in progress, or else the next one, has this number."""
        if self.open is not None and not self.open.stepped:
            self.open.step = self.last_step = self.next_step = step
            return
        self.finish()
        self.next_step = self.last_step = step

    def _begin_next_round(self, indices: Sequence[int]) -> None:
        """What concerns only optimizers that have stepped already is of the next round (a critic ahead of its actor)."""
        if self.open is not None and self.open.stepped and not self.open.in_step:
            owners = self.roster.owners(indices)
            if owners and owners <= self.open.stepped:
                self._terms.overtaken()
                self.finish()

    def _drop(self, current: Round) -> None:
        """Gradients were made anew: a closure was evaluated again, or the step was skipped."""
        if current.in_step:
            current.forget(self._new_reading() if current.reading else None)
            self.experts.made_anew()
            self._terms.made_anew()
            return
        if not current.stepped:
            message = "gradients were made and then dropped without an optimizer step"
            self._owner.event("skipped-step", message, current.step)
        self._terms.overtaken()
        self.finish(skipped=True)

    def _read_raw(self, current: Round, indices: Sequence[int]) -> None:
        if current.reading is None:
            return
        fresh = self.gauge.with_grad(i for i in indices if i not in current.captured)
        current.captured.update(fresh)
        if not fresh:
            return
        self._terms.read_raw(current.reading, frozenset(fresh))
        self.experts.read(current.reading, current.number, current.captured)
        if not self._settings.standard:
            self.gauge.read_light(current.reading, fresh)
            return
        if self._long_view_due():
            self._micro_batches.read_raw(current, current.reading, fresh)
        weights = () if current.in_step else self.roster.trained
        samples = self.gauge.read_full(
            current.reading, fresh, step=current.number, keep_weights=weights, sums=self._long_view_due()
        )
        self._samples.read(current.reading, fresh, samples, step=current.number)
        if self._settings.tier == "deep":
            self.gauge.read_histograms(current.reading, fresh, self.roster.blocks)

    def _long_view_due(self) -> bool:
        every = LONG_VIEW_EVERY if self._settings.direction == "exact" else 1
        return self._settings.standard and self.num_measured % every == 0

    def _keep_gradients(self, number: int, step: int) -> None:
        held = self.gauge.with_grad(self.roster.owned[number])
        if self._settings.direction == "exact":
            self._samples.keep(held, self.gauge.keep_gradients(held, step=step), step=step)
        else:
            self._micro_batches.keep(held, step=step)

    def _backward_ran_again(self, current: Round) -> bool:
        return current.mark is not None and self._marks.of([current.mark[0]]) != current.mark

    def _stop_if_nonfinite(self, indices: Sequence[int]) -> None:
        if self._settings.on_nonfinite == "raise" and not self.paused:
            self._alarm.check(indices)

    @guarded
    def _note_local(self, i: int) -> None:
        """Inside the backward of a data-parallel model: the gradient is still this rank's own."""
        current = self.current()
        if current.reading is not None and self._long_view_due():
            with torch.no_grad():
                current.local_norms[i] = stats.norm(self.gauge.grad(i))

    @guarded
    def _stop_inside_backward(self, i: int) -> None:
        self._alarm.check([i], ", seen inside backward")

    # Terms.

    @guarded
    def measure_terms(self, split: terms.Split) -> None:
        """Each term's own gradient, on measured steps when it is due; a term outside of any graph on every step."""
        if self.paused or self.broken:
            self._terms.forget()
            return
        if not torch.is_grad_enabled():
            return
        self._settle(split)
        current = self.current()
        self._terms.note_dead(split, current.step)
        if current.reading is None or not self._terms.due(self.num_measured):
            return
        if problem := self._terms.measure(split, current.step):
            self._say_unmeasurable(*problem)

    @guarded
    def terms_raised(self) -> None:
        """The body that had the loss of the last call raised."""
        self._terms.raised()

    def _say_unmeasurable(self, what: str, why: str) -> None:
        self._owner.event(f"{what}-unmeasurable", why)
        self._owner.warn(f"Gradiometer does not measure {what}: {why}.")

    def _settle(self, split: terms.Split) -> None:
        """Close the open round before terms that are of the next one."""
        if self.open is not None and self._marks.all_dropped():
            self._drop(self.open)
            self._marks.clear()
        current = self.open
        if current is not None and current.stepped and (current.reading or self.cadence.due(current.number + 1)):
            self._begin_next_round(self.gauge.indices(terms.leaves(split.terms.values())))

    # Set-up.

    def scan(self) -> None:
        """Read the model anew: at the start, and when an optimizer holds other parameters."""
        self.roster = Roster(self._model, self.optimizers, self._settings)
        parameters = self.roster.parameters
        self.gauge = Gauge(parameters, pieces_of(parameters, num_ranks()))
        self._marks = Marks(self.gauge, self.roster)
        self._samples = Samples()
        self._micro_batches = MicroBatches(self.gauge, self.roster, self._settings.sketch_size)
        while self._remove_gradients:
            self._remove_gradients.pop()()
        self._remove_gradients.append(hooks.observe_backward([parameters[i] for i in self.roster.sentinels], self))
        self.num_replicas = num_replicas(self._model)
        self._gather_ranks()
        self._terms.scan(self._model, parameters, self.ranks)
        self._alarm = Alarm(self.gauge, self.roster.names, self._terms, self._owner, self.current)
        self.experts.scan(self._model, self.roster.named, self.roster.owner)
        if self.num_replicas > 1 and self._settings.standard:
            self._remove_gradients.append(hooks.observe_gradients(parameters, self._note_local))
        if self._settings.tier == "deep" and self._settings.on_nonfinite == "raise":
            self._remove_gradients.append(hooks.observe_gradients(parameters, self._stop_inside_backward))

    def _new_reading(self) -> Reading:
        return Reading(len(self.gauge.parameters))

    def unhook(self) -> None:
        """Remove every hook."""
        self.experts.unhook()
        for removers in (self._remove, self._remove_gradients):
            while removers:
                removers.pop()()
