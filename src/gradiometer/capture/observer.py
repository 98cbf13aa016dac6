"""The observer of a training: hooks tell it of every step, from the first backward to the end.

It reads the devices while the step goes on. When the step is over it fetches what was read (the one
sync), puts it together with the other ranks, and hands the measured step to its recorder, the
meter. Nothing comes back from there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture import hooks, terms
from gradiometer.capture.blocks import Model
from gradiometer.capture.credit import CreditReader
from gradiometer.capture.distributed import (
    is_spread,
    local,
    num_data_ranks,
    num_ranks,
    num_replicas,
    pieces_of,
    reduces,
)
from gradiometer.capture.expertreading import ExpertReader
from gradiometer.capture.gradients import (
    GradientReader,
    GradientSketches,
    SentinelGradients,
    StatisticColumns,
)
from gradiometer.capture.graph import LayerFinder
from gradiometer.capture.hooks import guarded
from gradiometer.capture.leaks import GraphTerm
from gradiometer.capture.lossparts import LossParts, is_plain
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.ranks import Mode, RankGroup, RankLost, RankSync, ShardMessage
from gradiometer.capture.roles import Role
from gradiometer.capture.rounds import (
    USUAL,
    Cadence,
    LocalParts,
    MeasuredStep,
    Recorder,
    Round,
    SeenClip,
    Turns,
    WatchedModel,
    micro_batch,
)
from gradiometer.capture.scalars import Scalars
from gradiometer.capture.schematic import Schematic
from gradiometer.capture.settings import Settings
from gradiometer.capture.shardedterms import reaches_shards
from gradiometer.capture.statistics import Fetched, Reading
from gradiometer.capture.structure import Structure
from gradiometer.capture.termgradients import TermGradients
from gradiometer.doctor.terms import role_of
from gradiometer.errors import NonFiniteGradient

__all__ = ["StepObserver"]

# measured steps from one sketch, mean and cosine with the update to the next; a sketch costs a clip
LONG_VIEW_EVERY = 4


T = TypeVar("T")


class StepObserver:
    """Holds the hooks and the open round."""

    def __init__(
        self,
        model: Model,
        optimizers: Sequence[Optimizer],
        settings: Settings,
        recorder: Recorder,
        scalars: Scalars,
        first_step: int,
    ) -> None:
        self._model, self._settings, self._recorder = model, settings, recorder
        self._scalars = scalars
        """The user's logged tensors, which travel with the numbers of the next measured step."""
        self._standard = settings.standard
        self.optimizers = list(optimizers)
        self.cadence = Cadence(settings.every, settings.budget)
        self.seconds = self.entered = self._counted_seconds = 0.0
        self.num_measured = 0
        self.next_step = self.last_step = first_step
        self._round_number = 0
        """Rounds since the start, whatever step numbers the user gives: the cadence goes by it."""
        self.paused = self.broken = False
        self.open: Round | None = None
        self._turns = Turns(len(self.optimizers))
        self._terms = TermGradients(settings, recorder, len(self.optimizers))
        self._parts = LossParts()
        self._parts_readable = True
        self.experts = ExpertReader(settings, recorder, measuring=self._measured_round)
        self.credit = CreditReader(recorder, measuring=self._credit_due)
        self._clipping: list[int] = []
        self._clip_due: list[int] = []
        """Those of them whose raw gradient is read at this clip."""
        self._clip_passes = [1] * len(self.optimizers)
        """How often a round clips what each steps, with a backward between."""
        self._compiled_clips: int | None = hooks.num_compiled_clips()
        """At the start; None once it has been said that there are more."""
        self._dropped = False
        """The backward in progress found nothing of the gradients before it."""
        self._thrown_away = False
        """Gradients were, since the last step."""
        self._num_thrown_away = 0
        """Steps in a row before which some were."""
        self._num_steps = 0
        self._steps_before: int | None = None
        """Steps until the backward in progress; None where its start is not heard (FSDP2)."""
        self._remove: list[hooks.Remove] = []
        self._remove_gradients: list[hooks.Remove] = []
        self._remove_roots: list[hooks.Remove] = []
        self.layers = LayerFinder()
        self.proofs = ProofLog(recorder)
        self.structure = Structure(recorder, self.proofs, self.optimizers)
        self._roles: dict[str, Role] = {}
        """Of parameters by name, once the terms have told; they stay for the run."""
        self._read_model()
        self.ranks = RankGroup(self._mode(), settings=self._common())
        self._rank_sync = RankSync(self.ranks, recorder, self.cadence, retire=self.retire)
        self._hook_gradients()
        self._remove += [hooks.observe_optimizer(optimizer, self) for optimizer in self.optimizers]
        self._remove += [
            hooks.observe_clips(self),
            hooks.observe_retained(),
            hooks.observe_shape_warnings(),
        ]
        self._terms.begin()

    # What the hooks call.

    @guarded
    def before_backward(self) -> None:
        """A backward is about to add to gradients. Are those of the last one still there?"""
        self._steps_before = self._num_steps
        if self.structure.follows_backwards:
            self.structure.before_backward()
        self._dropped = False
        if self.open is not None:
            fate = self._left.fate()
            self._dropped = fate == "gone"
            if fate == "changed":
                self.open.base_known = False

    @property
    def wants_graph(self) -> bool:
        """On measured steps; where all ranks vote, on those of a paused one too."""
        if self.paused:
            return self._votes()
        return self._measured_round() is not None

    @guarded
    def graph_ready(self, call: hooks.BackwardCall) -> None:
        """The graph is still whole: which layer feeds which, what is the loss made of, and what
        does it prove?"""
        number = self._measured_round()
        if self.ranks.sharded:
            self._measure_together(call)
        if number is None:
            return
        if self.open is None or not self.open.stepped:
            self.structure.round_begins(number, self.num_measured)
        if self.layers.wanted:
            self.layers.look(call.tensors)
        self.structure.graph_ready(call.tensors, self.num_measured)
        if self._splits_by_itself and not self.ranks.sharded:
            self._measure_parts(call)

    @guarded
    def after_backward(self, reached: frozenset[int]) -> None:
        """A backward has ended. Was the gradient before it dropped? Is it a micro-batch?"""
        steps_before, self._steps_before = self._steps_before, None
        if self.structure.follows_backwards:
            self.structure.after_backward(reached)
        if steps_before not in (None, self._num_steps):
            self._terms.backward_ended()
            return  # its gradients were stepped with inside it, by hooks
        self._begin_next_round(self.watched.sentinels_of, reached)
        if self._dropped and self.open is not None:
            self._drop_before(self.open)
        self._dropped = False
        current = self.current()
        current.num_backwards += 1
        if self._settings.on_nonfinite == "raise" and not self.paused:
            # a norm of each gradient, and no sync
            current.finite.append(self.reader.are_finite())
        if current.in_step and not self.paused:
            self._stop_if_nonfinite(range(len(self.reader.parameters)))
        self._left.note(reached)
        self._terms.backward_ended()
        self.credit.backward_ended(None if current.reading is None else current.number)
        self.experts.backward_ended()
        # Under data parallelism the gradients are being averaged at this moment; the ranks give the
        # noise there.
        if current.reading is not None and self._long_view_due() and not self.watched.data_parallel:
            self._sketches.read(current, reached)

    @guarded
    def before_clip(self, call: hooks.ClipCall) -> None:
        """Raw gradients, before they are scaled."""
        ours = self.reader.first_of(call.parameters)
        if ours is None:  # of another training, in this thread or another
            return
        self._clipping = [ours]
        if self.open is not None and self.open.stepped:
            self._begin_next_round(self.reader.indices, call.parameters)
        if self.open is not None and self._set_anew(self.open):
            # of gradients from before the last clip and after it: of no one step
            self._terms.forget()
            self._drop(self.open)
        current = self.current()
        current.clipped_after = current.num_backwards
        stands_by = self._stands_by(current)
        if current.reading is None and not stands_by and self._settings.on_nonfinite != "raise":
            return
        self._clipping = self.reader.indices(call.parameters)
        self._stop_if_nonfinite(self._clipping)
        self._clip_due = self._due_at_clip(current)
        self._read_raw(current, self._clip_due)

    @guarded
    def after_clip(self, call: hooks.ClipCall) -> None:
        """What the call did, for later."""
        current = self.open
        if current is None or self.reader.first_of(call.parameters) is None:
            return
        current.mark = self._left.of(self._clipping)
        self._left.note_again()
        if current.reading is None:
            return
        due = self._clip_due
        clip = SeenClip(name=f"clip/{len(current.clips)}", call=call, indices=tuple(due))
        self._sketches.clipped(current, self._clipping, clip)
        if not due:
            return
        if call.total_norm is not None:
            norm = local(call.total_norm)
            # Of a norm spread over ranks nobody has all; `SeenClip.settle` makes it up.
            norm = norm.new_full((), -1.0) if is_spread(call.total_norm) else norm
            current.reading.add_scalar(clip.name, norm)
            # torch's counters tell, before the step, whose norm is no longer raw × factor.
            current.versions.update(self.reader.versions(due))
        else:
            current.remeasure.update(due)
        current.clipped.update(due)
        current.clips.append(clip)

    @guarded
    def only_take(self) -> None:
        """An engine hands its gradients over: graphs and samples around are of parameters that are
        not these."""
        _remove_all(self._remove_roots)
        self.credit.unhook()
        self.structure.leave("an engine keeps the gradients to itself")

    @guarded
    def take(self, parameter: Tensor) -> None:
        """An engine shows this gradient now, and takes it away again."""
        self._read_raw(self.current(), self.reader.indices([parameter]))

    @guarded
    def note_clip(self, norm: Tensor, threshold: float) -> None:
        """An engine will clip what was taken, where nobody sees it."""
        current = self.current()
        if current.reading is not None:
            call = hooks.ClipCall(parameters=(), kind="norm", threshold=threshold, total_norm=norm)
            taken = tuple(sorted(current.captured))
            clip = SeenClip(name=f"clip/{len(current.clips)}", call=call, indices=taken)
            current.reading.add_scalar(clip.name, norm)
            current.clips.append(clip)
            current.clipped.update(taken)

    @guarded
    def before_step(self, optimizer: Optimizer, closure: Any) -> None:
        """Gradients as the optimizer will see them, and the weights it starts from."""
        number = self.optimizers.index(optimizer)
        self._turns.stepped(number)
        if self.open is not None and number in self.open.stepped:
            self._step_again(self.open)
        current = self.current()
        if closure is None:
            self.structure.stepping(number)
        current.in_step = closure is not None
        owned = self.watched.owned[number]
        self._say_compiled_clips()
        if 0 < len(current.clip_passes.get(number, ())) < self._clip_passes[number]:
            # fewer clips than the last time: nobody read the gradient before this one
            self._terms.forget()
            current.forget_raw(None)
        if closure is None and self._settings.on_nonfinite == "raise":
            self._stop_if_nonfinite([i for i in owned if i not in current.clipped])
        if current.reading is None:
            self._read_raw(current, () if closure is not None else owned)
            return
        current.note_learning_rates(number, optimizer)
        self.reader.note_gradients(owned if self._standard else ())
        if closure is None:  # otherwise the gradients are made inside the step, and read after it
            current.note_scale(optimizer, owned)
            self._read_raw(current, owned)
            changed = self.reader.changed_since(current.versions, current.clipped)
            self._read_clipped(current, current.reading, number, changed)
        if self._standard:
            self.reader.keep_weights(self.watched.stepping(number))

    @guarded
    def after_step(self, optimizer: Optimizer, closure: Any) -> None:
        """What the step did; the last optimizer of the round closes it."""
        number = self.optimizers.index(optimizer)
        if closure is not None:
            self.structure.stepping(number)
        self.structure.stepped(number)
        current = self.current()
        self._left.clear()
        self._num_steps += 1
        current.mark = None
        if number in current.clip_passes:
            self._clip_passes[number] = len(current.clip_passes[number])
        if closure is not None:
            self._read_raw(current, self.watched.owned[number])
        if current.reading is not None:
            if closure is not None:
                self._read_clipped(current, current.reading, number, set())
            if self._standard:
                self._read_update(current, current.reading, number)
        elif self._standard and not self.paused and self.cadence.due(current.number + 1):
            self._keep_gradients(number, current.number)
        current.in_step = False
        current.stepped.add(number)
        self._terms.stepped()
        if len(current.stepped) == len(self.optimizers):
            self.finish()
            self._recorder.boundary()

    def give_up(self, problem: str) -> None:
        """A fault of ours: stop measuring, keep what was measured, let the training go on."""
        # Whatever of this fails too, the rest is done.
        with contextlib.suppress(Exception):
            self._recorder.event("fault", problem)
        with contextlib.suppress(RankLost, Exception):
            self.ranks.say_failed()
        with contextlib.suppress(Exception):
            self.retire()
        self.paused = self.broken = True
        self.open = None

    def retire(self) -> None:
        """Measure no more."""
        self.unhook()
        self.open = None
        self._terms.forget()
        self.paused = self.broken = True
        self.ranks.leave()

    # The round.

    @property
    def num_rounds(self) -> int:
        """Rounds that are over."""
        return self._round_number

    @property
    def step(self) -> int:
        """The step in progress, or else the last one."""
        return self.last_step if self.open is None else self.open.step

    @property
    def coming_step(self) -> int:
        """The step in progress, or else the next one."""
        return self.next_step if self.open is None else self.open.step

    def current(self) -> Round:
        """The open round; opens the next one."""
        if self.open is None:
            due = not self.paused and self.cadence.due(self._round_number)
            if due and not self.watched.still_holds(self.optimizers):
                self.scan()
                self._recorder.rescanned()
            reading = self._new_reading() if due else None
            self.open = Round(step=self.next_step, number=self._round_number, reading=reading)
        return self.open

    def finish(self, *, skipped: bool = False, alone: bool = False) -> None:
        """Close the open round, if anything happened; `alone`: other ranks do not sync."""
        current = self.open
        self.open = None
        if current is None or not (current.stepped or current.captured or skipped):
            self._terms.forget()
            return
        self._turns.round_ended(current.stepped)
        if current.stepped:
            self._num_thrown_away = self._num_thrown_away + 1 if self._thrown_away else 0
            self._thrown_away = False
        self.last_step, self.next_step = current.step, current.step + 1
        self._round_number = current.number + 1
        if alone and self.ranks.several:
            self.ranks.leave()
            if self.reader.pieces:
                current.reading = None  # one rank's pieces are no numbers
                self._terms.forget()
        if current.reading is not None:
            self._finish_measured(current, current.reading)
            return
        self.experts.forget()
        if self.ranks.several and self.cadence.due(current.number):
            self.sync_ranks(current, None)  # the others wait for our word, though we read nothing

    def _finish_measured(self, current: Round, reading: Reading) -> None:
        self._sketches.finish(current, reading)
        local_gradients = StatisticColumns("local")
        for i, numbers in current.local_gradients.items():
            local_gradients.add(i, numbers)
        local_gradients.put_into(reading)
        self._terms.finish(current)
        current.experts = self.experts.finish(reading, current.number)
        several, first = self.ranks.several, self.num_measured == 0
        waiting = self._scalars.hand_over(reading)
        samples = self.credit.put_into(reading, current.number)
        own = reading.fetch()  # the step's one sync
        current.credit = self.credit.collect(samples, own)
        fetched = self.sync_ranks(current, own)
        if fetched is not None:
            self._terms.prove(current, fetched)
        if fetched is not None and current.experts:
            self.experts.learn(fetched, current.experts)
        logged = list(self._scalars.collect(waiting, own))
        self._recorder.step_measured(
            MeasuredStep(round=current, fetched=fetched, logged=logged, first=first)
        )
        if not several:
            self.num_measured += 1
            self._count_cost(current.number)
        elif first:  # to make a group takes its time, which is not what a measurement costs
            self._counted_seconds = self._spent()

    def sync_ranks(self, current: Round, own: Fetched | None) -> Fetched | None:
        """The numbers of the step as all ranks know them together; None when there are none."""
        if not self.ranks.several:
            return own
        if own is not None:
            self._count_cost(current.number)
        fetched, self.num_measured = self._rank_sync.sync(
            current, own, self.num_measured, self.atoms
        )
        if fetched is None:  # the next step is compared with nothing, on all ranks alike
            self.reader.forget_past()
            self._sketches.forget()
            return None
        for clip in current.clips:
            clip.settle(fetched)
        return fetched

    def _spent(self) -> float:
        return self.seconds + self.credit.seconds + time.perf_counter() - self.entered

    def _count_cost(self, number: int) -> None:
        spent = self._spent()
        self.cadence.measured(number, spent - self._counted_seconds)
        self._counted_seconds = spent

    def _measured_round(self) -> int | None:
        """The number of the round in progress, or else of the next one, if it is measured."""
        if self.paused:
            return None
        if self.open is not None and not self.open.stepped:
            return None if self.open.reading is None else self.open.number
        number = self._coming_round()
        if self.cadence.due(number):
            return number
        # the loss of an actor whose critic has stepped: `_settle` finds out whether it is of this
        # round
        current = self.open
        return None if current is None or current.reading is None else current.number

    def _coming_round(self) -> int:
        if self.open is None:
            return self._round_number
        return self.open.number + bool(self.open.stepped)

    def _credit_due(self) -> bool:
        """Whether a loss that is made now may be of a round that is measured."""
        if self.paused:
            return False
        current = self.open
        if current is None:
            return self.cadence.due(self._round_number)
        here = current.reading is not None
        return here or (bool(current.stepped) and self.cadence.due(current.number + 1))

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

    def _begin_next_round(self, which: Callable[[T], Iterable[int]], of: T) -> None:
        """What only concerns optimizers that have stepped is of the next round."""
        current = self.open
        if current is None or not current.stepped or current.in_step:
            self._turns.backward_began()
            return
        owners = self.watched.owners(which(of))
        if self._turns.begins_next(current.stepped, owners):
            for number in self._turns.missing(current.stepped, owners):
                message = (
                    f"optimizer {number} did not step, the others did; it did in all steps before"
                )
                self._recorder.event("skipped-step", message, current.step)
            self._terms.overtaken()
            self.finish()
        elif current.unclear_from is None:
            current.unclear_from = current.num_backwards

    def _step_again(self, current: Round) -> None:
        """The round was over before this step; what was read since is of both, or of neither."""
        self._terms.stepped_again()
        since = current.unclear_from
        clipped = since is not None and current.clipped_after > since
        if since is not None and current.num_backwards > since:
            current.parts_known = False
        if clipped:
            current.forget_raw(None)
        self.finish()
        if clipped:  # the raw gradient of this step was taken for one of the last
            self.current().reading = None

    def _drop_before(self, current: Round) -> None:
        """All but what the backward that has just ended made."""
        made = {
            i: current.local_gradients[i] for i in self.reader.with_grad(current.local_gradients)
        }
        current.local_gradients, current.local_parts = {}, {}
        self._drop(current)
        if made:
            parts = LocalParts().then(averages=self.watched.averages())
            self.current().local_gradients = made
            self.current().local_parts = dict.fromkeys(made, parts)

    def _drop(self, current: Round) -> None:
        """Gradients were made anew: a closure was evaluated again, or the step was skipped."""
        if current.in_step or self._is_part_of_step(current):
            current.forget(self._new_reading() if current.reading else None)
            self.experts.forget()
            self._terms.made_anew()
            return
        if not current.stepped:
            message = "gradients were made and then dropped without an optimizer step"
            self._recorder.event("skipped-step", message, current.step)
        self._terms.overtaken()
        self.finish(skipped=True)

    def _is_part_of_step(self, current: Round) -> bool:
        """A step that was left out leaves the weights alone, and is not left out every time."""
        if current.stepped:
            return False
        if self._left.weights_moved():
            return True
        self._thrown_away = True
        if self._num_thrown_away == USUAL:
            message = (
                "before each step the gradients of a backward are thrown away: from here on it is"
                " part of the step, and no step of its own that was left out"
            )
            self._recorder.event("backward-unused", message, current.step)
            self._num_thrown_away += 1
        return self._num_thrown_away > USUAL

    def _read_raw(self, current: Round, indices: Sequence[int]) -> None:
        if current.reading is None and not self._stands_by(current):
            return
        fresh = self.reader.with_grad(i for i in indices if i not in current.captured)
        current.captured.update(fresh)
        if not fresh:
            return
        if current.reading is not None and current.is_sum_of_backwards:
            self._terms.read_raw(current.reading, frozenset(fresh))
        self.experts.read(current.reading, current.number, current.captured, self._rank_sync)
        if current.reading is None or self.broken:
            return
        if not self._standard:
            self.reader.read_light(current.reading, fresh)
            return
        if self._long_view_due():
            self._sketches.read_raw(current, current.reading, fresh)
        weights = () if current.in_step else self.watched.trained
        self.reader.read_full(
            current.reading,
            fresh,
            step=current.number,
            keep_weights=weights,
            long_view=self._long_view_due(),
        )
        if self._settings.tier == "deep":
            self.reader.read_histograms(current.reading, fresh, self.watched.blocks)

    def _stands_by(self, current: Round) -> bool:
        """Whether nothing is read on this rank, but others vote on experts with us."""
        several = self.ranks.several and self.experts.by_vote and not self.broken
        return several and current.reading is None and self.cadence.due(current.number)

    def _read_clipped(
        self, current: Round, reading: Reading, number: int, changed: set[int]
    ) -> None:
        """Where the clip's factor does not tell what the optimizer sees."""
        again = changed | (current.remeasure & current.captured)
        self.reader.read_clipped(reading, sorted(again & self.watched.owned_sets[number]))

    def _read_update(self, current: Round, reading: Reading, number: int) -> None:
        # With an interval of 1 the next step is measured too, and compares itself with this one.
        again, exact = self.cadence.interval == 1, self._settings.direction == "exact"
        self.reader.read_update(
            reading,
            self.watched.stepping(number),
            dots=self._long_view_due(),
            keep_as=current.number if again and exact else None,
        )
        if again and not exact:
            self._keep_gradients(number, current.number)

    def _long_view_due(self) -> bool:
        every = LONG_VIEW_EVERY if self._settings.direction == "exact" else 1
        return self._standard and self.num_measured % every == 0

    def _keep_gradients(self, number: int, step: int) -> None:
        held = self.reader.with_grad(self.watched.owned[number])
        if self._settings.direction == "exact":
            self.reader.keep_gradients(held, step=step)
        else:
            self._sketches.keep(held, step=step)

    # Clips. The gradient of a step is the one before its last clip: where every micro-batch is
    # clipped, those before it are clips of parts, and not read.

    def _say_compiled_clips(self) -> None:
        if self._compiled_clips in (None, hooks.num_compiled_clips()):
            return
        self._compiled_clips = None
        message = (
            "a compiled function holds a clip, which the meter cannot hear: where it is of these"
            " gradients, norm/raw is the norm after it. Clip outside of torch.compile to have both"
        )
        self._recorder.event("clip-compiled", message)
        self._recorder.warn(f"Gradiometer: {message}.")

    def _set_anew(self, current: Round) -> bool:
        """Gradients that no backward made were set since the last clip: another tensor is there."""
        if current.mark is None or current.num_backwards:
            return False
        i, address, version = current.mark
        now = self._left.of([i])
        return now is None or now[0] != i or now[1] != address or now[2] < version

    def _due_at_clip(self, current: Round) -> list[int]:
        """Those whose step is expected after this clip, as it was the last time."""
        parts: dict[int, list[int]] = {}
        for i in self._clipping:
            parts.setdefault(self.watched.owner.get(i, 0), []).append(i)
        due = []
        for number in parts.keys() - current.stepped:  # of those that have stepped all is known
            passes = current.clip_passes.setdefault(number, [])
            if current.num_backwards not in passes:
                passes.append(current.num_backwards)
                if not current.captured.isdisjoint(parts[number]):
                    current.forget_raw(self._new_reading() if current.reading else None)
                    self.experts.forget()
            if len(passes) >= self._clip_passes[number]:
                due += parts[number]
        return sorted(due)

    def _stop_if_nonfinite(self, indices: Sequence[int]) -> None:
        if self._settings.on_nonfinite == "raise" and not self.paused:
            self._raise_if_nonfinite(indices)

    def _raise_if_nonfinite(self, indices: Sequence[int], *, inside: bool = False) -> None:
        """A NaN or an Inf stops the training before it reaches the weights, at a sync each time."""
        bad = self.reader.nonfinite(self.reader.with_grad(indices))
        if not bad:
            return
        current, names = self.current(), [self.watched.names[i] for i in bad]
        guilty = self._terms.nonfinite(bad)
        message = f"step {current.step}: NaN or Inf in the gradient of {names[0]}"
        message += f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
        message += f", from the term {guilty[0]!r}" if guilty else ""
        number = 1 if self._dropped else current.num_backwards + 1
        seen_inside = f"{micro_batch(number)}, seen inside backward"
        message += f", {seen_inside if inside else current.first_nonfinite()}"
        self._recorder.event("nonfinite", message, current.step, tensors=names[:20], terms=guilty)
        raise NonFiniteGradient(f"{message}. The weights are still those before the step.")

    @guarded
    def _note_local(self, i: int) -> None:
        """Inside the backward of a data-parallel model: the gradient is still this rank's own."""
        current = self.current()
        if current.reading is not None and self._long_view_due():
            with torch.no_grad():
                numbers = StatisticColumns("local").read(self.reader.grad(i))
            current.local_gradients[i] = numbers
            before = current.local_parts.get(i, LocalParts())
            current.local_parts[i] = before.then(averages=self.watched.averages())

    @guarded
    def _stop_inside_backward(self, i: int) -> None:
        self._raise_if_nonfinite([i], inside=True)

    # Terms.

    @guarded
    def measure_terms(self, split: terms.Split) -> None:
        """Each term's gradient when it is due; a term outside of any graph always."""
        self._terms.given_by_hand()
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
        if self.ranks.sharded:
            self._terms.ask(split)
            return
        self.structure.terms_ready(
            [
                GraphTerm(name=name, role=role_of(name), nodes=(term.grad_fn,))
                for name, term in split.terms.items()
                if isinstance(term, Tensor) and term.grad_fn is not None
            ]
        )
        if problem := self._terms.measure(split, current.step):
            self._say_unmeasurable(*problem)
        elif not self.num_measured and not current.captured:
            self._take_roles()

    @property
    def _splits_by_itself(self) -> bool:
        auto = self._settings.terms == "auto" and not self._terms.by_hand
        return auto and self._parts_readable

    def _measure_parts(self, call: hooks.BackwardCall) -> None:
        """The parts of a loss as its graph has them, where nobody has named them."""
        if not self._parts_due() or (found := self._read_parts(call)) is None:
            return
        loss, split = found
        self.structure.terms_ready(
            [
                GraphTerm(name=part.name, role=part.role, nodes=tuple(x.node for x in part.edges))
                for part in loss.parts
            ]
        )
        self._settle(split)
        current = self.current()
        if current.reading is None or not self._terms.due(self.num_measured):
            return
        done = frozenset(i for number in current.stepped for i in self.watched.owned[number])
        self._terms.note_dead(split, current.step)
        self._terms.note_parts(loss, set(self.reader.indices(split.leaves or ())) - done)
        if not self._parts.wanted(current.number):
            self._terms.leave_out()
            return
        whole = not current.is_sum_of_backwards
        if problem := self._terms.measure(split, current.step, done=done, whole=whole):
            self._recorder.event(f"{problem[0]}-unmeasurable", problem[1])
        elif not self.num_measured and not current.captured:
            self._take_roles()

    # Of a sharded model: all ranks split a loss at the same backward, or none does.

    def _votes(self) -> bool:
        """Whether ranks vote at the backwards of this round: the same on all, also on a paused
        one."""
        if self.broken or not self.cadence.due(self._coming_round()):
            return False
        ends = self.open is not None and bool(self.open.stepped)
        return self._terms.votes(self.num_measured) or (
            ends and self._terms.votes(self.num_measured + 1)
        )

    def _measure_together(self, call: hooks.BackwardCall) -> None:
        parameters = self.watched.parameters
        if not self._votes() or not is_plain(call):
            return
        if not reaches_shards(call, self._model, parameters):
            return
        if not reduces(self._model):
            self._terms.leave_out()
            return
        number, split, whole, done = self._coming_round(), None, False, frozenset[int]()
        if self._measured_round() is not None:
            loss = None
            if self._splits_by_itself and (found := self._read_parts(call)) is not None:
                loss, split = found
                self._settle(split)
            current = self.current()
            whole = not current.is_sum_of_backwards
            done = frozenset(i for each in current.stepped for i in self.watched.owned[each])
            if current.reading is None:
                split = None
            elif loss is not None and split is not None:
                self._terms.note_dead(split, current.step)
                self._terms.note_parts(loss, set(self.reader.indices(split.leaves or ())) - done)
                if not self._parts.wanted(current.number):
                    self._terms.leave_out()
                    split = None

        def vote(word: float) -> tuple[bool, bool]:
            return self._rank_sync.vote(number, word, "terms")

        by_hand = self._terms.by_hand
        problem = self._terms.measure_together(
            call, split, self.step, vote, done=done, whole=whole and not by_hand
        )
        if problem is not None and by_hand:
            self._say_unmeasurable(*problem)
        elif problem is not None:
            self._recorder.event(f"{problem[0]}-unmeasurable", problem[1])

    def _read_parts(self, call: hooks.BackwardCall) -> tuple[Schematic, terms.Split] | None:
        try:
            return self._parts.read(call)
        except Exception as problem:  # whatever a graph may hold, the rest is measured
            self._parts_readable = False
            why = f"the graph of the loss cannot be read ({type(problem).__name__}: {problem})"
            self._recorder.event("terms-unmeasurable", why)
            return None

    def _parts_due(self) -> bool:
        """Whether the loss is split; the round before may end with this very backward."""
        ends = self.open is not None and bool(self.open.stepped)
        return self._terms.due(self.num_measured) or (
            ends and self._terms.due(self.num_measured + 1)
        )

    def _take_roles(self) -> None:
        """Blocks by what the terms reach, before anything is read of the first measured step: from
        its first number on a block is of the same parameters."""
        known = self._roles or self._settings.blocks is not None or self.ranks.several
        watched = self.watched
        self._roles = self._roles if known else self._terms.roles(watched.names, watched.copies)
        if known or not self._roles:
            return
        before = watched.blocks
        self._read_model(self.reader)  # inside a closure it holds the weights of before the step
        if self.watched.blocks != before:
            self._hook_backward()
            self._recorder.reblocked()

    @guarded
    def terms_raised(self) -> None:
        """The body that had the loss of the last call raised."""
        self._terms.raised()

    def _say_unmeasurable(self, what: str, why: str) -> None:
        self._recorder.event(f"{what}-unmeasurable", why)
        self._recorder.warn(f"Gradiometer does not measure {what}: {why}.")

    def _settle(self, split: terms.Split) -> None:
        """Close the open round before terms that are of the next one."""
        if self.open is not None and self._left.fate() == "gone":
            self._drop(self.open)
            self._left.clear()
        current = self.open
        if (
            current is not None
            and current.stepped
            and (current.reading or self.cadence.due(current.number + 1))
        ):
            leaves = terms.leaves(split.given) if split.leaves is None else split.leaves
            self._begin_next_round(self.reader.indices, leaves)
            if self.open is None:
                waiting = [i for i in self.watched.sentinels if self._waits(i, current.stepped)]
                self.current().carried = bool(self.reader.with_grad(waiting))

    def _waits(self, i: int, stepped: set[int]) -> bool:
        return i in self.watched.owner and self.watched.owner[i] not in stepped

    # Set-up.

    def scan(self) -> None:
        """Read the model anew, when an optimizer holds other parameters."""
        self._read_model()
        self._hook_gradients()

    def _read_model(self, reader: GradientReader | None = None) -> None:
        self.watched = WatchedModel(self._model, self.optimizers, self._settings, self._roles)
        parameters = self.watched.parameters
        self.reader = reader or GradientReader(parameters, pieces_of(parameters, num_ranks()))
        self._left = SentinelGradients(self.reader, self.watched)
        self._sketches = GradientSketches(self.reader, self.watched, self._settings.sketch_size)
        self.num_replicas = num_replicas(self._model)
        self.num_data_ranks = num_data_ranks(self._model)

    def _hook_gradients(self) -> None:
        """Once it is known who trains with us."""
        self.ranks.lay_out(self._shard_message() if self.ranks.sharded else None)
        if self.ranks.sharded:
            self.ranks.copies = max(1, num_ranks() // self.num_data_ranks)
        parameters = self.watched.parameters
        self.layers.scan(self.watched.blocks, parameters)
        self._parts.scan(self._model, parameters)
        sharded = bool(self.reader.pieces)
        self.credit.reduces = lambda: not sharded or reduces(self._model)
        self.structure.scan(self.watched, sharded=sharded)
        if not self._remove_roots:
            self._remove_roots.append(hooks.observe_roots(self))
        self._terms.scan(self._model, parameters, self.ranks, self.reader.pieces)
        self.experts.scan(
            self._model, self.watched.named, self.watched.owner, self.ranks, self.reader.pieces
        )
        self._hook_backward()

    def _hook_backward(self) -> None:
        parameters = self.watched.parameters
        _remove_all(self._remove_gradients)
        self._remove_gradients.append(
            hooks.observe_backward([parameters[i] for i in self.watched.sentinels], self)
        )
        if self.num_replicas > 1 and self._standard:
            self._remove_gradients.append(hooks.observe_gradients(parameters, self._note_local))
        if self._settings.tier == "deep" and self._settings.on_nonfinite == "raise":
            self._remove_gradients.append(
                hooks.observe_gradients(parameters, self._stop_inside_backward)
            )

    def _mode(self) -> Mode:
        """Who trains this model with us."""
        if self.reader.pieces and num_ranks() > 1:
            return "shards"
        return "replicas" if self.num_replicas > 1 else "alone"

    def _common(self) -> list[object]:
        """What all ranks must have been given alike."""
        names = [(name, tuple(p.shape)) for name, p in self.watched.named.items()]
        return [names, self._settings.plain()]

    def _shard_message(self) -> ShardMessage:
        return ShardMessage(
            self.reader.pieces,
            num_atoms=self._sketches.num_atoms,
            sketch_size=self._settings.sketch_size,
            both_sketches=self._settings.direction == "sketch",
        )

    @property
    def atoms(self) -> list[list[int]]:
        """Which rows of a sketch make up each named block."""
        return self._sketches.atoms

    def _new_reading(self) -> Reading:
        return Reading(len(self.reader.parameters))

    @property
    def removers(self) -> list[list[hooks.Remove]]:
        """What undoes every hook of ours in torch, in lists that grow and shrink with them."""
        mine = [self._remove, self._remove_roots, self._remove_gradients]
        return [*mine, self.credit.removers]

    def unhook(self) -> None:
        """Remove every hook."""
        self.experts.unhook()
        self.credit.unhook()
        _remove_all(self._remove)
        _remove_all(self._remove_roots)
        _remove_all(self._remove_gradients)


def _remove_all(removers: list[hooks.Remove]) -> None:
    while removers:
        removers.pop()()
