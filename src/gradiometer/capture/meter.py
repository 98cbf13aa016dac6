"""What `watch` returns: the instrument in the training loop."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture import readout, terms, termstates
from gradiometer.capture.analyst import Analyst
from gradiometer.capture.blocks import Blocks, Model, named_parameters
from gradiometer.capture.expertdesk import ExpertDesk
from gradiometer.capture.expertsheet import dynamics
from gradiometer.capture.firstlook import first_look
from gradiometer.capture.isolation import guarded
from gradiometer.capture.livedoctor import Consultation
from gradiometer.capture.reading import Fetched, Reading
from gradiometer.capture.rig import Rig
from gradiometer.capture.rounds import Round
from gradiometer.capture.scalars import Scalars, Waiting, Where
from gradiometer.capture.settings import Settings
from gradiometer.capture.states import States
from gradiometer.capture.termdesk import TermDesk
from gradiometer.capture.terms import Term
from gradiometer.errors import GradiometerWarning, UnknownName, UsageError
from gradiometer.maths.pairs import PairReading
from gradiometer.records import Event, Flow, GradientHealth, Row, Table, Vector
from gradiometer.store.sinks import Fanout

__all__ = ["Meter"]

RATIO_LIMIT = 10.0  # π/π_old of a sample; PPO's clip stops paying at 1.2
PENDING_LIMIT = 10_000  # logged tensors that may wait for a sync when no step is measured for long


class Meter:
    """Measures the gradients of a model while it trains; made by `gradiometer.watch`, closed by `with` or `close()`."""

    def __init__(
        self,
        model: Model,
        optimizers: Sequence[Optimizer],
        settings: Settings,
        *,
        writer: Fanout | None,
        after: int | None = None,
        doctor: Consultation | None = None,
    ) -> None:
        self.run = None if writer is None else writer.folder
        self.settings = settings
        self.seconds = self.entered = 0.0
        self._model, self._writer, self._doctor = model, writer, doctor
        self.closed = self._audited = False
        self._coordinates: dict[str, int | None] = {"env_steps": None, "rollout": None, "epoch": None}
        self._scalars = Scalars()
        self._states = States()
        self._term_desk = TermDesk(self, self._put, settings, writer)
        self._expert_desk = ExpertDesk(self, self._put)
        self._asked: dict[str, Any] | None = None
        self._values: dict[str, float] = {}
        self._last_two: deque[tuple[int, dict[str, float]]] = deque(maxlen=2)
        self._latest: dict[str, float] = {}
        """The last known value of every series: some are taken at every fourth measured step only."""
        self._norms: NDArray[np.float64] = np.empty(0)
        self._measured_step: int | None = None
        self._rig = Rig(model, optimizers, settings, self, first_step=0 if after is None else after + 1)
        self._analyst = self._new_analyst()

    # What the user calls.

    @property
    def blocks(self) -> Blocks:
        """The blocks, and which parameters they hold."""
        return self._rig.roster.blocks

    @property
    def states(self) -> dict[str, str]:
        """Each parameter's state at the last measured step: finite, nonfinite, missing or frozen."""
        return dict(self._states.current)

    @property
    def terms_due(self) -> bool:
        """Whether `terms` would split the coming loss: for those whose terms cost something to make."""
        return not self.closed and self._rig.terms_due

    @guarded
    def log(self, values: Mapping[str, Any] | None = None, /, **scalars: Any) -> None:
        """Your own scalars, on the step axis of the gradients. Tensors wait for the next measured step's sync.

        `ratio` (π/π_old), `advantages`, `returns` and `observation` may be whole tensors: mean, spread and extremes are kept.
        """
        if self.closed:
            return
        step = self._rig.last_step if self._rig.open is None else self._rig.open.step
        where = Where(step=step, wall_time=time.time(), **self._coordinates)
        ready = self._scalars.take(where, {**(values or {}), **scalars})
        if ready:
            self._keep_logged(where, ready)
        if self._scalars.num_waiting > PENDING_LIMIT:
            self._flush_scalars()

    def at(self, *, env_steps: int | None = None, rollout: int | None = None, epoch: int | None = None) -> None:
        """Say where in the training the coming steps lie; what is not given stays as it was."""
        given = {"env_steps": env_steps, "rollout": rollout, "epoch": epoch}
        self._coordinates.update({key: int(value) for key, value in given.items() if value is not None})

    def step(self, number: int) -> None:
        """Say which number the coming optimizer step has; counting goes on from there."""
        if number < 0:
            raise UsageError(f"meter.step() takes a step number of 0 or more; found {number}")
        self._rig.move_to(int(number))

    def pause(self) -> None:
        """Measure nothing until `resume`; steps are still counted and `log` still works."""
        self._rig.paused = True

    def resume(self) -> None:
        """Measure again."""
        self._rig.paused = self._rig.broken

    @guarded
    def record(
        self, values: Mapping[str, float], *, tables: Mapping[str, Any] | None = None, step: int | None = None
    ) -> None:
        """The result of a probe, on the step axis: numbers by name, and tables (JSON) by name.

        A probe looks at the weights from which a step starts: without `step` it belongs to the step in progress, or else
        to the coming one. A NaN is kept as a NaN.
        """
        if self.closed:
            return
        at = self._rig.open.step if self._rig.open is not None else self._rig.next_step
        where = Where(step=at if step is None else int(step), wall_time=time.time(), **self._coordinates)
        ready = self._scalars.take(where, values)
        if ready:
            self._put(Row(values=ready, **where.as_row()))
        for name, content in (tables or {}).items():
            self._put(Table(step=where.step, name=name, content=content))
            self._audited = self._audited or name == "audit"  # a whole one: the first look would take its place

    @contextmanager
    def terms(self, *, advantages: Mapping[str, Tensor] | None = None, **given: Term) -> Iterator[Tensor]:
        """The sum of the loss terms, after taking each one's gradient by itself on measured steps.

        `with meter.terms(policy=pg, value=0.5 * vf, entropy=-0.01 * ent) as loss: loss.backward()`

        Several calls before a step add up, like the gradients, and so do the losses that are kept. With
        `advantages={"correct": a1, "format": a2}` the policy gradient is split by reward too. Then either
        `policy=lambda advantages: ...` is a function of their sum, called once more on measured steps, or each of the
        advantages requires a gradient and lies in the graph of the loss. Exact for a loss that is piecewise linear in them.

        Each term is a backward of its own through your graph, which leaves random numbers, buffers and retained gradients
        as they were. A step has no terms where they would mislead or disturb: the event `terms-unused` says that a sum never
        went backward, `terms-hooked` that you hooked an activation.
        """
        split = terms.resolve(given, advantages)
        if not self.closed:
            self._rig.measure_terms(split)
        try:
            yield terms.total(split.terms.values())
        except BaseException:
            self._rig.terms_raised()
            raise

    def log_gradient_dynamics(self, step: int | None = None) -> dict[str, Any] | None:
        """The experts' gradients as they are now, kept at `step` (unless told, the step in progress) and returned.

        For loops of your own: after `backward()`, before `optimizer.step()`. Returns `expert_gradients` and
        `divergence_scores` under the source's names, over layers; empty ones, and an event with a hint, when there is no
        gradient; None when the model has no experts.
        """
        self._asked = None
        if not self.closed:
            self._look_at_experts(step)
        return self._asked

    def watch_experts(self, every: int | None = 10) -> None:
        """Look at the experts at every `every`-th step from here on; None stops it."""
        if every is not None and (not isinstance(every, int) or every < 1):
            raise UsageError(f"watch_experts() takes a whole number of 1 or more, or None to stop; found {every!r}")
        self._rig.experts.every = every

    def gradient_health(self, block: str = "all") -> GradientHealth:
        """A block at its last measured step, under the names of earlier collectors; None where nothing was measured."""
        states = self._states.in_order(self._rig.roster.names)
        return readout.gradient_health(block, self.blocks, self._values, self._measured_step, states, self._norms)

    def flow(self) -> Flow:
        """The gradient layer by layer, and the layer where it is lost."""
        states = self._states.in_order(self._rig.roster.names)
        return readout.flow(self.blocks, self._values, self._measured_step, states, self._analyst.sheet.sizes)

    def features(self, block: str = "all") -> NDArray[np.float32]:
        """Ten numbers in [0, 1] for a policy that reads telemetry; `gradiometer.capture.readout.FEATURES` names them."""
        return readout.features(block, self.blocks, self._latest)

    def pair(self, name: str) -> PairReading:
        """How the two modules of a pair stand to each other, and what a low ratio means."""
        if name not in self._analyst.pair_names:
            raise UnknownName(
                "pair", name, self._analyst.pair_names, hint="Pairs are given with watch(..., pairs=...)."
            )
        return self._analyst.pair_reading(name)

    def state_dict(self) -> dict[str, Any]:
        """The step and the past, in plain numbers and lists: put it into your checkpoint."""
        if not self._rig.ranks.several:  # one rank that saves a checkpoint must not close a round the others have open
            self._finish()
        return {
            "next_step": self._rig.next_step,
            "num_measured": self._rig.num_measured,
            "analyst": self._analyst.state_dict(),
            "cadence": self._rig.cadence.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the step and the past of a checkpoint; an empty one, of a disabled meter, changes nothing."""
        if not state:
            return
        self._rig.move_to(int(state["next_step"]))
        self._rig.num_measured = int(state["num_measured"])
        self._rig.cadence.load_state_dict(state["cadence"])
        self._analyst.load_state_dict(state["analyst"])

    def close(self) -> None:
        """Remove every hook and finish the file. Closing twice is fine."""
        if self.closed:
            return
        self.closed = True
        try:
            self._finish()
        finally:
            self._rig.unhook()
            self._rig.ranks.leave()
            if self._doctor is not None:
                self._doctor.finish()
            if self._writer is not None:
                self._writer.close()

    @guarded
    def _finish(self) -> None:
        self._rig.finish(alone=True)
        self._flush_scalars()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.event("exception", f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):  # Ctrl-C strikes anywhere, also in the middle of a reading of ours
                self._rig.open = None
        self.close()

    # What the rig reports.

    def round_ended(self, current: Round) -> None:
        """A measured step is over: one sync, then arithmetic."""
        assert current.reading is not None
        waiting = self._scalars.hand_over(current.reading)
        own, first = current.reading.fetch(), self._rig.num_measured == 0
        fetched = self._rig.meet(current, own)
        if fetched is None:
            self._keep_waiting(waiting, own)
            return
        values, vectors = self._analyst.analyse(
            current, fetched, epoch=self._coordinates["epoch"], replicas=self._rig.num_replicas
        )
        values["meter/interval"] = float(self._rig.cadence.interval)
        values["meter/share"] = self._rig.cadence.share()
        self._values, self._measured_step = values, current.step
        self._last_two.append((current.step, values))
        if "raw" in fetched.values:
            self._norms = np.where(fetched.present["raw"], fetched.values["raw"], np.nan)
        self._latest.update(values)
        self._put_row(current.step, values)
        self._keep_waiting(waiting, own)
        for name, vector in vectors.items():
            self._put(Vector(step=current.step, name=name, values=vector))
        guilty = termstates.guilty(current.terms, fetched)
        self._note_states(current, self._analyst.sheet.nonfinite(fetched), guilty)
        if current.terms is not None:
            self._term_desk.note(current.step, current.terms, fetched, self.blocks)
        if first and current.stepped and not self._audited:
            self._put(Table(step=current.step, name="audit", content=first_look(self._rig.roster, current)))
        if current.experts:
            self._expert_desk.note(self._rig.experts, current.step)
            self._rig.experts.learn(fetched, current.experts)
        if any(x > 0 for name, x in fetched.scalars.items() if name.startswith("found_inf/")):
            self.event("skipped-step", "the fused optimizer found Inf or NaN and left the weights alone", current.step)

    @guarded
    def _look_at_experts(self, step: int | None) -> None:
        current = self._rig.open
        at = (self._rig.last_step if current is None else current.step) if step is None else int(step)
        values = self._expert_desk.look(self._rig.experts, self._analyst.experts, current, at)
        if values is not None:
            self._asked = dynamics(values, self._rig.experts.largest)
            self._latest.update(values)
        if values:
            self._put_row(at, values)

    def boundary(self) -> None:
        """A step is over, measured or not."""
        if self._doctor is not None:
            self._doctor.boundary()

    def rescanned(self) -> None:
        """An optimizer got new parameters: the past of the others does not fit them any more."""
        self._analyst = self._new_analyst()
        self.event("rescanned", f"{len(self._rig.roster.names)} parameters are watched now; history starts anew")

    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        """Something happened."""
        at = self._rig.last_step if self._rig.open is None else self._rig.open.step
        self._put(Event(step=at if step is None else step, kind=kind, message=message, detail=detail))

    def warn(self, message: str) -> None:
        """Say it once, on the user's line."""
        warnings.warn(message, GradiometerWarning, stacklevel=7)

    def give_up(self, problem: str) -> None:
        """A fault of ours: stop measuring, keep what was measured, let the training go on."""
        self._rig.give_up(problem)

    # Keeping.

    def _note_states(self, current: Round, nonfinite: list[int], guilty: list[str]) -> None:
        parameters = self._rig.gauge.parameters
        roster = self._rig.roster
        waiting = (
            {i for i, number in roster.owner.items() if number not in current.stepped} if current.stepped else set()
        )
        change = self._states.update(
            roster.names, parameters, captured=current.captured, nonfinite=nonfinite, waiting=waiting
        )
        if change.changed:
            self._put(Table(step=current.step, name="states", content=self.states))
            if members := self._analyst.pair_members:
                named = {
                    name: {part: [roster.names[i] for i in which] for part, which in pair.items()}
                    for name, pair in members.items()
                }
                self._put(Table(step=current.step, name="pairs", content=named))
        if change.newly_missing and current.stepped:
            first = ", ".join(change.newly_missing[:3])
            self.event("missing", f"{len(change.newly_missing)} parameters got no gradient: {first}", current.step)
        if change.newly_nonfinite:
            message = f"non-finite gradient, first in {change.newly_nonfinite[0]}"
            message += f", from the term {guilty[0]!r}" if guilty else ""
            detail = {"tensors": list(change.newly_nonfinite[:20]), "terms": guilty}
            self.event("nonfinite", message, current.step, **detail)
            if self.settings.on_nonfinite == "warn":
                self.warn(f"step {current.step}: {message}")

    def _keep_logged(self, where: Where, values: Mapping[str, float]) -> None:
        self._put(Row(values=values, **where.as_row()), logged=True)
        if "advantages/std" in values:
            self._analyst.note_advantages(where.step, values["advantages/std"])
        largest = values.get("ratio/max", values.get("ratio", 0.0))
        if largest > RATIO_LIMIT:
            at, values_then = min(self._last_two, key=lambda pair: abs(pair[0] - where.step), default=(None, {}))
            norms = {name: x for name, x in values_then.items() if name.endswith("norm/raw") and "/layer." not in name}
            message = f"a policy ratio of {largest:.4g}; gradients as measured at step {at}"
            self.event("ratio-explosion", message, where.step, ratio=largest, gradient=norms, gradient_step=at)

    def _flush_scalars(self) -> None:
        reading = Reading(0)
        waiting = self._scalars.hand_over(reading)
        if waiting:
            self._keep_waiting(waiting, reading.fetch())

    def _keep_waiting(self, waiting: Waiting, fetched: Fetched) -> None:
        for where, logged in self._scalars.collect(waiting, fetched):
            self._keep_logged(where, logged)

    def _put_row(self, step: int, values: Mapping[str, float]) -> None:
        self._put(Row(step=step, wall_time=time.time(), values=values, **self._coordinates))

    def _put(self, record: Row | Event | Table | Vector, *, logged: bool = False) -> None:
        if self._writer is not None:
            self._writer.put(record, logged=logged)

    def _new_analyst(self) -> Analyst:
        named, roster = named_parameters(self._model), self._rig.roster
        return Analyst(self.settings, named, roster.blocks, self._rig.atoms, roster.owner, self._rig.experts.layers)
