"""What `watch` returns: the instrument in the training loop."""

from __future__ import annotations

import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture import readout, terms
from gradiometer.capture.actingchoices import ActingChoices
from gradiometer.capture.actorsign import ActorSign
from gradiometer.capture.analysis import StepAnalysis
from gradiometer.capture.blocks import Blocks, Model, modules_of, named_parameters
from gradiometer.capture.creditfacts import CreditNotices
from gradiometer.capture.distributed import local
from gradiometer.capture.environment import EnvironmentView
from gradiometer.capture.expertvalues import ExpertNotices, dynamics
from gradiometer.capture.groupcredit import GroupCreditKeeper
from gradiometer.capture.hooks import Remove, answered, guarded, report_fault, tolerated
from gradiometer.capture.livedoctor import LiveFindings
from gradiometer.capture.lossform import LossForm
from gradiometer.capture.nextanswers import NextAnswers
from gradiometer.capture.observer import StepObserver
from gradiometer.capture.readout import GradientStates, first_look, waiting_blocks
from gradiometer.capture.rollouts import CriticListener, RolloutKeeper
from gradiometer.capture.rounds import Coverage, MeasuredStep, Round
from gradiometer.capture.samples import SampleLog
from gradiometer.capture.scalars import Scalars, Where
from gradiometer.capture.settings import Settings
from gradiometer.capture.statistics import RAW, Reading
from gradiometer.capture.system import SystemReader
from gradiometer.capture.targetbatches import TargetBatches
from gradiometer.capture.tdtargets import TargetReader
from gradiometer.capture.temperature import TemperatureSign
from gradiometer.capture.termgradients import TermNotices, nonfinite_terms
from gradiometer.capture.terms import Term
from gradiometer.capture.toldreturns import ToldReturns
from gradiometer.capture.untrained import IdlePolicy, UntrainedValues
from gradiometer.capture.wiring import WiringNotices
from gradiometer.errors import GradiometerError, GradiometerWarning, UnknownName, UsageError
from gradiometer.maths.pairs import PairReading
from gradiometer.records import Event, Flow, GradientHealth, Row, Table, Vector
from gradiometer.store.layers import LayerGraph
from gradiometer.store.sinks import Fanout
from gradiometer.words import say

__all__ = ["Meter"]

RATIO_LIMIT = 10.0  # π/π_old of a sample; PPO's clip stops paying at 1.2
EXAMPLE = 'meter.log(reward=0.5) or meter.log({"reward": 0.5})'
FIRST, LAST = -(2**63), 2**63 - 1  # what the file keeps
LAST_NUMBER = 2**62  # of a step: from there on counting has room
PENDING_LIMIT = 10_000  # logged tensors that may wait for a sync when no step is measured for long


def _no_state() -> dict[str, Any]:
    return {}


def _undo(removers: list[list[Remove]], writer: Fanout | None) -> None:
    for some in removers:
        while some:
            with suppress(Exception):
                some.pop()()
    if writer is not None:
        with suppress(Exception):
            writer.close()


class Meter:
    """Measures a model's gradients while it trains; made by `gradiometer.watch`."""

    def __init__(
        self,
        model: Model,
        optimizers: Sequence[Optimizer],
        settings: Settings,
        *,
        writer: Fanout | None,
        after: int | None = None,
        doctor: LiveFindings | None = None,
    ) -> None:
        self.run = None if writer is None else writer.folder
        self.settings = settings
        self.seconds = self.entered = 0.0
        self._model, self._writer, self._doctor = model, writer, doctor
        self.closed = self._audited = False
        self._said: set[str] = set()
        self._coordinates: dict[str, int | None] = dict.fromkeys(("env_steps", "rollout", "epoch"))
        self._scalars = Scalars()
        self._samples = SampleLog(self._put, partial(self.event, "samples-full"))
        self._states = GradientStates()
        self._layers: LayerGraph | None = None
        self._stepped: set[int] = set()
        self._waiting: list[str] = []
        """Blocks whose optimizers have not stepped yet."""
        self._term_notices = TermNotices(self, self._put, settings, writer)
        self._wiring_notices = WiringNotices(self._put)
        self._expert_notices = ExpertNotices(self, self._put)
        self._asked: dict[str, Any] | None = None
        self._values: dict[str, float] = {}
        self._last_two: deque[tuple[int, dict[str, float]]] = deque(maxlen=2)
        self._latest: dict[str, float] = {}
        """The last known value of every series; some are taken at every fourth measured step."""
        self._norms: NDArray[np.float64] = np.empty(0)
        self._measured_step: int | None = None
        self._num_measured = 0
        self._observer = StepObserver(
            model,
            optimizers,
            settings,
            self,
            self._scalars,
            first_step=0 if after is None else after + 1,
        )
        self._analysis = self._new_analysis()
        self._environment = EnvironmentView()
        self._system = SystemReader() if settings.system else None
        ours = [[self._environment.close, *self._read_graphs(model)], self._choices.removers]
        # Who lets go of meter, model and optimizer without closing gets torch, memory and the
        # folder back.
        self._undo = weakref.finalize(self, _undo, [*self._observer.removers, *ours], writer)
        self._undo.atexit = False

    def _read_graphs(self, model: Model) -> list[Remove]:
        """Let everybody who reads something off the graph of a loss be told of it; how their hooks
        are removed again."""
        proofs, credit = self._observer.proofs, self._observer.credit
        environment = self._environment
        critic = CriticListener(lambda: modules_of(model).values())
        self._rollouts = RolloutKeeper(self._put, critic, self._environment)
        critic.expect(lambda: environment.width)
        held = weakref.ref(credit)  # a module's hooks must not keep the meter
        answers = NextAnswers(lambda: (reader := held()) is not None and reader.listening)
        batches = TargetBatches(self._put_targets, answers)
        if not self._observer.ranks.several:
            self._observer.cadence.wishes = self._rollouts.wants_first_update
        self._choices = ActingChoices(proofs, self._environment, answers)
        self._told_returns = ToldReturns(proofs, self._environment)
        self._targets = TargetReader(proofs, self._environment, batches, self._choices)
        self._groups = GroupCreditKeeper(self._put, proofs)
        pieces, steppers = bool(self._observer.reader.pieces), self._observer.optimizers
        values = UntrainedValues(proofs, sharded=pieces, optimizers=steppers)
        policy = IdlePolicy(proofs, sharded=pieces, optimizers=steppers)
        forms = (ActorSign(proofs), LossForm(proofs), values, policy)
        readers = (self._rollouts, self._targets, *forms, self._groups)
        credit.on_graph += [each.graph_seen for each in readers]
        credit.on_graph.append(TemperatureSign(proofs, answers).graph_seen)
        credit.on_graph.append(self._choices.graph_seen)
        self._credit_notices = CreditNotices(self._put, proofs, self._environment, self._rollouts)
        return [critic.stop, answers.stop]

    # What the user calls.

    @property
    def blocks(self) -> Blocks:
        """The blocks, and which parameters they hold."""
        return self._observer.watched.blocks

    @property
    def states(self) -> dict[str, str]:
        """Each parameter's last measured state: finite, nonfinite, missing or frozen."""
        return dict(self._states.current)

    @property
    def coverage(self) -> Coverage:
        """How many of the steps so far were measured, at what cost; kept as the fact `measured`."""
        steps, cadence = self._observer.num_rounds, self._observer.cadence
        return cadence.coverage(measured=self._num_measured, steps=steps)

    @property
    @answered(lambda: False)
    def terms_due(self) -> bool:
        """Whether `terms` would split the coming loss; ask if your terms cost something."""
        return not self.closed and self._observer.terms_due

    @tolerated
    def log(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        step: float | None = None,
        **scalars: Any,
    ) -> None:
        """Your own scalars, on the step axis of the gradients. Tensors wait for the next measured
        step's sync.

        Without `step` they belong to the step in progress, or else to the last one; `step` names an
        earlier optimizer step. `ratio` (π/π_old), `advantages`, `returns` and `observation` may be
        whole tensors: mean, spread and extremes are kept.
        """
        if self._is_over("log"):
            return
        named: Any = {} if values is None else values
        if not isinstance(named, Mapping):
            found = f"found {repr(values)[:80]}, which is not kept"
            self._say_once("log", f"meter.log takes names with numbers: {EXAMPLE}; {found}")
            named = {}
        where = self._where(step)
        ready = self._scalars.take(where, {**named, **scalars})
        if ready:
            self._keep_logged(where, ready)
        if self._scalars.num_waiting > PENDING_LIMIT:
            self._flush_scalars()

    @tolerated
    def log_samples(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        rewards: Any = None,
        *,
        credit: Any = None,
        step: int | None = None,
    ) -> None:
        """Texts to read on the page, with their rewards and, as `credit`, how strongly the update
        pushes each (its advantage). At most 32 a call are kept, of 2,000 characters each.
        """
        if self._is_over("log_samples"):
            return
        at = self._observer.coming_step if step is None else int(step)
        self._samples.take(at, prompts, completions, rewards, credit)

    @tolerated
    def at(
        self, *, env_steps: int | None = None, rollout: int | None = None, epoch: int | None = None
    ) -> None:
        """Say where in the training the coming steps lie; what is not given stays as it was."""
        given = {"env_steps": env_steps, "rollout": rollout, "epoch": epoch}
        for key, value in given.items():
            number = None if value is None else int(value)
            if number is not None and not FIRST <= number <= LAST:
                self._say_once("at", f"meter.at({key}={str(value)[:40]}) does not fit into 64 bits")
            elif number is not None:
                self._coordinates[key] = number

    def step(self, number: int) -> None:
        """Say which number the coming optimizer step has; counting goes on from there."""
        if not 0 <= number <= LAST_NUMBER:
            raise UsageError(
                f"meter.step() takes a step number of 0 to 2**62; found {str(number)[:40]}"
            )
        self._move_to(int(number))

    @guarded
    def _move_to(self, number: int) -> None:
        self._observer.move_to(number)

    def pause(self) -> None:
        """Measure nothing until `resume`; steps are still counted and `log` still works."""
        self._observer.paused = True

    def resume(self) -> None:
        """Measure again."""
        self._observer.paused = self._observer.broken

    @tolerated
    def record(
        self,
        values: Mapping[str, float],
        *,
        tables: Mapping[str, Any] | None = None,
        step: int | None = None,
    ) -> None:
        """The result of a probe, on the step axis: numbers by name, and tables (JSON) by name.

        A probe looks at the weights from which a step starts: without `step` it belongs to the step
        in progress, or else to the coming one. A NaN is kept as a NaN.
        """
        if self._is_over("record"):
            return
        at = self._observer.coming_step if step is None else int(step)
        where = Where(step=at, wall_time=time.time(), **self._coordinates)
        ready = self._scalars.take(where, values)
        if ready:
            self._put(Row(values=ready, **where.as_row()))
        for name, content in (tables or {}).items():
            self._put(Table(step=where.step, name=name, content=content))
            # A whole audit is there: the first look would take its place.
            self._audited = self._audited or name == "audit"

    @contextmanager
    def terms(
        self, *, advantages: Mapping[str, Tensor] | None = None, **given: Term
    ) -> Iterator[Tensor]:
        """The sum of the loss terms, after taking each one's gradient by itself on measured steps.

        `with meter.terms(policy=pg, value=0.5 * vf, entropy=-0.01 * ent) as loss: loss.backward()`

        Several calls before a step add up, like the gradients, and so do the losses that are kept.
        With `advantages={"correct": a1, "format": a2}` the policy gradient is split by reward too.
        Then either `policy=lambda advantages: ...` is a function of their sum, called once more on
        measured steps, or each of the advantages requires a gradient and lies in the graph of the
        loss. Exact for a loss that is piecewise linear in them.

        Each term is a backward of its own through your graph, which leaves random numbers, buffers
        and retained gradients as they were. A step has no terms where they would mislead or
        disturb: the event `terms-unused` says that a sum never went backward, `terms-hooked` that
        you hooked an activation.
        """
        try:
            split = terms.resolve(given, advantages)
            if not self.closed:
                self._observer.measure_terms(split)
            loss = terms.total(split.given)
        except (GradiometerError, GradiometerWarning):
            raise
        except Exception:
            if advantages is not None or not all(isinstance(x, Tensor) for x in given.values()):
                raise  # only their function knows what the loss is
            report_fault(self)
            loss = cast(Tensor, sum(given.values()))
        try:
            yield loss
        except BaseException:
            with suppress(Exception):
                self._observer.terms_raised()
            raise

    def only_take(self) -> None:
        """From here on measure nothing but what `take_gradient` is given."""
        if not self.closed:
            self._observer.only_take()

    def take_gradient(self, parameter: Tensor) -> None:
        """Read the gradient that a parameter holds now: for engines that show one at a time.

        `optimizer.step()` ends the step; what was taken is not read again.
        """
        if not self.closed:
            self._observer.take(parameter)

    def note_clip(self, norm: Tensor, threshold: float) -> None:
        """Such an engine clips, by its own code, the gradients that were taken, which have this
        norm."""
        if not self.closed:
            self._observer.note_clip(norm, threshold)

    def log_gradient_dynamics(self, step: int | None = None) -> dict[str, Any] | None:
        """The experts' gradients now, kept at `step` (or the step in progress).

        For loops of your own: after `backward()`, before `optimizer.step()`. Returns
        `expert_gradients` and `divergence_scores` under Prismatic's names, over layers; empty
        ones, and an event with a hint, when there is no gradient; None when the model has no
        experts.
        """
        self._asked = None
        if not self.closed:
            self._look_at_experts(step)
        return self._asked

    def watch_experts(self, every: int | None = 10) -> None:
        """Look at the experts at every `every`-th step from here on; None stops it."""
        if every is not None and (not isinstance(every, int) or every < 1):
            raise UsageError(
                "watch_experts() takes a whole number of 1 or more, or None to stop; found"
                f" {every!r}"
            )
        self._observer.experts.every = every

    def gradient_health(self, block: str = "all") -> GradientHealth:
        """A block at its last measured step; None where nothing was measured."""
        states = self._states.in_order(self._observer.watched.names)
        return readout.gradient_health(
            block, self.blocks, self._values, self._measured_step, states, self._norms
        )

    def flow(self) -> Flow:
        """The gradient layer by layer, along the graph, and the layer where it is lost."""
        states = self._states.in_order(self._observer.watched.names)
        return readout.flow(
            self.blocks,
            self._values,
            self._measured_step,
            states,
            self._analysis.block_values.reducer.sizes,
            graph=self._observer.layers.graph,
            trained=self._observer.watched.trained,
        )

    def features(self, block: str = "all") -> NDArray[np.float32]:
        """Ten numbers in [0, 1]; `gradiometer.capture.readout.FEATURES` names them."""
        return readout.features(block, self.blocks, self._latest)

    def pair(self, name: str) -> PairReading:
        """How the two modules of a pair stand to each other, and what a low ratio means."""
        if name not in self._analysis.pair_names:
            raise UnknownName(
                "pair",
                name,
                self._analysis.pair_names,
                hint="Pairs are given with watch(..., pairs=...).",
            )
        return self._analysis.pair_reading(name)

    @answered(_no_state)
    def state_dict(self) -> dict[str, Any]:
        """The step and the past, in plain numbers and lists: put it into your checkpoint."""
        # One rank that saves a checkpoint must not close a round the others have open.
        if not self._observer.ranks.several:
            self._finish()
        return {
            "next_step": self._observer.next_step,
            "num_measured": self._observer.num_measured,
            "analyst": self._analysis.state_dict(),  # the name in checkpoints of earlier versions
            "cadence": self._observer.cadence.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; that of a disabled meter is empty and changes nothing."""
        if not state:
            return
        self._observer.move_to(int(state["next_step"]))
        self._observer.num_measured = int(state["num_measured"])
        self._observer.cadence.load_state_dict(state["cadence"])
        self._analysis.load_state_dict(state["analyst"])

    def close(self) -> None:
        """Remove every hook and finish the file. Closing twice is fine."""
        if self.closed:
            return
        self.closed = True
        self._undo.detach()
        asked: BaseException | None = None
        ends = (self._finish, self._observer.unhook, self._end_environment)
        rest = (self._observer.ranks.leave, self._end_doctor, self._end_writer, self._say_next)
        for end in (*ends, *rest):
            try:
                end()
            except Exception as problem:
                if not isinstance(problem, GradiometerError | GradiometerWarning):
                    report_fault()
                asked = asked or problem
            except BaseException as problem:  # Ctrl-C: the file is finished all the same
                asked = problem
        if isinstance(
            asked, GradiometerError | GradiometerWarning | KeyboardInterrupt | SystemExit
        ):
            raise asked

    def _end_doctor(self) -> None:
        if self._doctor is not None:
            self._doctor.finish()

    def _end_writer(self) -> None:
        if self._writer is None:
            return
        try:
            self._writer.set_facts({"measured": asdict(self.coverage)})
        finally:
            self._writer.close()

    def _end_environment(self) -> None:
        self._environment.close()
        self._rollouts.close()
        self._targets.close()

    def _say_next(self) -> None:
        if self.run is not None and not self.settings.quiet and self.coverage.steps:
            say(f"{self.coverage.words()}. next: gradiometer doctor {self.run}")

    @guarded
    def _finish(self) -> None:
        self._observer.finish(alone=True)
        if self.closed:
            self._observer.structure.finish(self._observer.num_rounds)
        self._note_proofs(self._observer.step)
        self._note_environment()
        self._flush_scalars()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            with suppress(Exception):
                self.event("exception", f"{type(error).__name__}: {error}")
                self._note_weights()
                self._note_observation()
            # Ctrl-C strikes anywhere, also in the middle of a reading of ours.
            if not isinstance(error, Exception):
                self._observer.open = None
        self.close()

    # What the observer reports.

    def step_measured(self, step: MeasuredStep) -> None:
        """A measured step is over and on the host: arithmetic, and everything is written."""
        current, fetched = step.round, step.fetched
        if fetched is None:
            self._keep_all_logged(step.logged)
            return
        self._num_measured += 1
        values, vectors = self._analysis.analyse(
            current,
            fetched,
            epoch=self._coordinates["epoch"],
            data_ranks=self._observer.num_data_ranks,
        )
        values["meter/interval"] = float(self._observer.cadence.interval)
        values["meter/share"] = self._observer.cadence.share()
        self._environment.round_ended(self._observer.num_rounds)
        values |= self._targets.take_inputs() | self._credit_notices.note(current)
        values |= self._choices.take_rate()
        self._groups.note(current.credit, current.step)
        self._values, self._measured_step = values, current.step
        self._last_two.append((current.step, values))
        if RAW in fetched.values:
            self._norms = np.where(fetched.present[RAW], fetched.values[RAW], np.nan)
        self._latest.update(values)
        self._put_row(current.step, values)
        self._keep_all_logged(step.logged)
        for name, vector in vectors.items():
            self._put(Vector(step=current.step, name=name, values=vector))
        guilty = nonfinite_terms(current.terms, fetched)
        nonfinite = np.flatnonzero(fetched.nonfinite).tolist() if RAW in fetched.values else []
        self._note_states(current, nonfinite, guilty)
        self._note_layers(current.step)
        self._note_waiting(current)
        if current.terms is not None:
            self._term_notices.note(current.step, current.terms, fetched, self.blocks)
        self._wiring_notices.note(current, fetched, self.blocks)
        if step.first and current.stepped and not self._audited:
            checks = first_look(self._observer.watched)
            self._put(Table(step=current.step, name="audit", content=checks))
        self._observer.structure.measured(self._observer.watched, current.captured)
        self._note_proofs(current.step)
        if current.experts:
            self._expert_notices.note(self._observer.experts, current.step)
        if any(x > 0 for name, x in fetched.scalars.items() if name.startswith("found_inf/")):
            message = "the fused optimizer found Inf or NaN and left the weights alone"
            self.event("skipped-step", message, current.step)

    @guarded
    def _look_at_experts(self, step: int | None) -> None:
        at = self._observer.step if step is None else int(step)
        experts = self._observer.experts
        values = self._expert_notices.look(experts, self._analysis.experts, self._observer.open, at)
        if values is not None:
            self._asked = dynamics(values, experts.largest)
            self._latest.update(values)
        if values:
            self._put_row(at, values)

    def boundary(self) -> None:
        """A step is over, measured or not."""
        self._note_environment()
        if self._system is not None and (values := self._system.values()) is not None:
            self._put_row(self._observer.step, values)
        if self._doctor is not None:
            self._doctor.boundary()

    def rescanned(self) -> None:
        """An optimizer got new parameters: the past of the others does not fit them any more."""
        self._analysis = self._new_analysis()
        number = len(self._observer.watched.names)
        self.event("rescanned", f"{number} parameters are watched now; history starts anew")

    def reblocked(self) -> None:
        """The blocks are others, and nothing was measured yet."""
        self._analysis = self._new_analysis()

    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        """Something happened."""
        at = self._observer.step if step is None else step
        self._put(Event(step=at, kind=kind, message=message, detail=detail))

    def warn(self, message: str) -> None:
        """Say it once, on the user's line."""
        warnings.warn(message, GradiometerWarning, stacklevel=7)

    def give_up(self, problem: str) -> None:
        """A fault of ours: stop measuring, keep what was measured, let the training go on."""
        self._observer.give_up(problem)

    def _refuse(self, call: str, problem: Exception) -> None:
        """What the user gave to a call cannot be kept; everything else is."""
        found = f"{type(problem).__name__}: {problem!s:.200}"
        message = f"meter.{call}() was given something that cannot be kept ({found})"
        self.event("refused", message)
        self._say_once(f"refused {call}", f"{message}; everything else is kept", depth=2)

    def _is_over(self, call: str) -> bool:
        if self.closed:
            self._say_once("closed", f"meter.{call}() after meter.close(): it is not kept", depth=2)
        return self.closed

    def _say_once(self, topic: str, message: str, *, depth: int = 1) -> None:
        """On the user's line, `depth` calls above the guarded method that the user called."""
        if topic not in self._said:
            self._said.add(topic)
            warnings.warn(message, GradiometerWarning, stacklevel=3 + depth)

    # Keeping.

    def _where(self, step: Any) -> Where:
        """Now, or at an earlier step. No value lies ahead of the gradients it belongs to."""
        now = Where(step=self._observer.step, wall_time=time.time(), **self._coordinates)
        if step is None:
            return now
        try:
            given = int(step)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            given = -1
        if 0 <= given <= self._observer.coming_step:
            elsewhere = replace(now, step=given, env_steps=None, rollout=None, epoch=None)
            return now if given == now.step else elsewhere
        self._say_once(
            "step",
            f"meter.log(step={step!r}) is no step of this training so far; its values are kept at"
            f" the last optimizer step, {now.step}. Steps are optimizer steps: say"
            " meter.at(env_steps=...) for environment steps, meter.step(...) to number the"
            " optimizer steps otherwise",
            depth=2,
        )
        return now

    def _note_layers(self, step: int) -> None:
        """Which layer feeds which, when it is first seen and when more of it is."""
        graph = self._observer.layers.graph
        if graph.known and graph != self._layers:
            self._layers = graph
            self._put(Table(step=step, name="layers", content=graph.table()))

    def _note_waiting(self, current: Round) -> None:
        """Which blocks wait for the first step of their optimizer, when that has changed."""
        if current.stepped <= self._stepped:
            return
        self._stepped |= current.stepped
        waiting = waiting_blocks(self._observer.watched, self._stepped)
        if waiting != self._waiting:
            self._waiting = waiting
            self._put(Table(step=current.step, name="waiting", content=waiting))

    def _note_environment(self) -> None:
        """Episodes that ended since the last step, each of them counted."""
        self._environment.round_ended(self._observer.num_rounds)
        self._rollouts.round_ended(self._observer.step)
        if (episodes := self._environment.episodes()) is not None:
            self._told_returns.look(self._observer.step)
            steps = {"env/steps": float(self._environment.steps)}
            self._put_row(self._observer.step, episodes.values() | steps)

    def _note_proofs(self, step: int) -> None:
        """Which structural facts were checked, when that has changed."""
        if (states := self._observer.proofs.news()) is not None:
            self._put(Table(step=step, name="proofs", content=states))

    def _note_weights(self) -> None:
        """An exception ended the training: are all weights numbers? No gradient may have told."""
        watched = self._observer.watched
        pairs = zip(watched.names, watched.parameters, strict=True)
        bad = [name for name, p in pairs if not bool(torch.isfinite(local(p).detach()).all())]
        if bad:
            message = f"{len(bad)} tensors of weights are not finite, the first {bad[0]}"
            self.event("nonfinite", message, tensors=bad[:20], weights=True)

    def _note_observation(self) -> None:
        """The same of what the environment showed last: many an operation refuses a NaN before any
        gradient has one."""
        if not self._environment.shows_numbers:
            message = (
                f"the newest observation, after {self._environment.steps} steps of the environment,"
                " is not finite"
            )
            self.event("nonfinite", message, observation=True)

    def _note_states(self, current: Round, nonfinite: list[int], guilty: list[str]) -> None:
        watched = self._observer.watched
        change = self._states.update(watched, current, nonfinite=nonfinite)
        if change.changed:
            self._put(Table(step=current.step, name="states", content=self.states))
            if members := self._analysis.pair_members:
                named = {
                    name: {part: [watched.names[i] for i in which] for part, which in pair.items()}
                    for name, pair in members.items()
                }
                self._put(Table(step=current.step, name="pairs", content=named))
        if change.newly_missing and current.stepped:
            first = ", ".join(change.newly_missing[:3])
            message = f"{len(change.newly_missing)} parameters got no gradient: {first}"
            self.event("missing", message, current.step)
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
            self._analysis.note_advantages(where.step, values["advantages/std"])
        largest = values.get("ratio/max", values.get("ratio", 0.0))
        if largest > RATIO_LIMIT:
            at, values_then = min(
                self._last_two, key=lambda pair: abs(pair[0] - where.step), default=(None, {})
            )
            norms = {
                name: x
                for name, x in values_then.items()
                if name.endswith("norm/raw") and "/layer." not in name
            }
            message = f"a policy ratio of {largest:.4g}; gradients as measured at step {at}"
            detail = {"ratio": largest, "gradient": norms, "gradient_step": at}
            self.event("ratio-explosion", message, where.step, **detail)

    def _flush_scalars(self) -> None:
        reading = Reading(0)
        waiting = self._scalars.hand_over(reading)
        if waiting:
            self._keep_all_logged(self._scalars.collect(waiting, reading.fetch()))

    def _keep_all_logged(self, logged: Iterable[tuple[Where, dict[str, float]]]) -> None:
        for where, values in logged:
            self._keep_logged(where, values)

    def _put_row(self, step: int, values: Mapping[str, float]) -> None:
        self._put(Row(step=step, wall_time=time.time(), values=values, **self._coordinates))

    def _put_targets(self, content: dict[str, Any]) -> None:
        self._put(Table(step=self._observer.step, name="target-replay", content=content))

    def _put(self, record: Row | Event | Table | Vector, *, logged: bool = False) -> None:
        if self._writer is not None:
            self._writer.put(record, logged=logged)

    def _new_analysis(self) -> StepAnalysis:
        named, watched = named_parameters(self._model), self._observer.watched
        return StepAnalysis(
            self.settings,
            named,
            watched.blocks,
            self._observer.atoms,
            watched.groups,
            self._observer.experts.layers,
        )
