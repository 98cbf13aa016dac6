"""`gradiometer.watch` makes a running meter; GRADIOMETER_DISABLED=1 makes it a null meter."""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture import hooks
from gradiometer.capture import terms as splitting
from gradiometer.capture.blocks import (
    Blocks,
    Model,
    Selector,
    find_blocks,
    named_parameters,
    select,
)
from gradiometer.capture.distributed import refuse_engines, writes_here
from gradiometer.capture.experts import Experts, find_experts
from gradiometer.capture.gradients import SKETCH_SEED
from gradiometer.capture.livedoctor import LiveFindings
from gradiometer.capture.meter import Meter
from gradiometer.capture.readout import FEATURES
from gradiometer.capture.rounds import Cadence, Coverage
from gradiometer.capture.settings import Direction, OnNonfinite, Pairs, Settings, TermSource, Tier
from gradiometer.capture.terms import Term
from gradiometer.errors import GradiometerWarning, UsageError
from gradiometer.maths.pairs import PairReading
from gradiometer.records import Finding, Flow, GradientHealth, StateChange
from gradiometer.store import facts
from gradiometer.store.sinks import Fanout, Sink, Start, chosen
from gradiometer.store.writer import Writer, keeps_nothing

__all__ = ["NullMeter", "is_disabled", "watch"]

_watched: weakref.WeakKeyDictionary[Meter, frozenset[int]] = weakref.WeakKeyDictionary()
"""The parameters of each meter, by id: an open meter keeps them alive."""

TERMS_EVERY: dict[Tier, int] = {"light": 40, "standard": 10, "deep": 10}
"""Measured steps from one split of the loss to the next: a split takes as long as four steps of
tier `light`."""

Optimizers = Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer]


def watch(
    model: Model,
    optimizer: Optimizers,
    *,
    run: str | os.PathLike[str] | None = "auto",
    every: int = 1,
    budget: float | None = 0.01,
    tier: Tier = "standard",
    blocks: Mapping[str, Selector] | None = None,
    pairs: Pairs | None = None,
    direction: Direction = "exact",
    sketch_size: int = 1024,
    on_nonfinite: OnNonfinite = "record",
    terms: TermSource = "auto",
    terms_every: int | None = None,
    terms_memory: int = 2**30,
    micro_batch_size: int | None = None,
    experts: Experts | bool | None = None,
    experts_every: int | None = 10,
    config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    resume: int | None = None,
    overwrite: bool = False,
    keep: int | None = 1000,
    sinks: Sequence[str | Sink] | str | Sink = (),
    dynamics_db: bool = False,
    system: bool = False,
    doctor: Literal["live"] | None = None,
    on_finding: Callable[[Finding], None] | None = None,
    on_state_change: Callable[[StateChange], None] | None = None,
    quiet: bool = False,
) -> Meter:
    """Measure the gradients of `model` at the steps of `optimizer`, and keep them in the folder
    `run`.

    `run="auto"` makes `runs/<script>-<time>`, `run=None` (or "none", as commands have it) keeps
    nothing; `sinks=["wandb"]` sends it to trackers too, `dynamics_db=True` writes its experts as
    Prismatic's dynamics.db beside it, `system=True` adds processor and memory. `resume=s` goes on
    after the checkpoint of step s and removes what lies beyond, `overwrite=True` starts afresh.
    Kept with the run: `config`, `seed`, the last `keep` sketches and histograms. Every `every`-th
    step is measured, within the share `budget` of wall time (None: no cap) once at least 100 are
    spread over the training. `tier`: `light` (norms, extremes, clips), `standard` or `deep`
    (histograms, terms at each measured step). `blocks` maps names to patterns, modules or
    parameters, `pairs` to two of them. `direction="sketch"` compares by sketches of `sketch_size`
    numbers; so are terms beyond `terms_memory` bytes. On steps that split the loss (the first five
    measured, then each `terms_every`-th: 10th, or 40th of tier `light`) its terms are read off the
    graph; `terms="manual"` leaves that to `meter.terms`. `on_nonfinite`: `record`, `warn`, `raise`.
    `micro_batch_size` puts the noise scale in samples. `experts={"moe": ([first, second], router)}`
    names experts, False omits them; looked at every `experts_every` steps. `doctor="live"` judges
    beside it: `on_finding` hears each finding, `on_state_change` what becomes of the run, and both
    may raise `gm.StopTraining`. At the end a line on stderr says what was measured, unless `quiet`.
    """
    if is_disabled():
        return NullMeter()
    settings = Settings(
        tier=tier,
        every=every,
        budget=budget,
        blocks=_blocks(blocks),
        pairs=_pairs(pairs),
        direction=direction,
        sketch_size=sketch_size,
        on_nonfinite=on_nonfinite,
        terms=terms,
        terms_every=TERMS_EVERY.get(tier, 10) if terms_every is None else terms_every,
        terms_memory=terms_memory,
        micro_batch_size=micro_batch_size,
        experts=experts,
        experts_every=experts_every,
        system=system,
        quiet=quiet,
    )
    run = None if keeps_nothing(run) else run
    _check_doctor(doctor, run)
    _check_model(model, optimizers := _listed(optimizer), settings)
    listed = [sinks] if isinstance(sinks, str | Sink) else list(sinks)
    writer = _writer(
        run,
        [*listed, "dynamics"] if dynamics_db and "dynamics" not in listed else listed,
        _facts(model, settings, config, seed),
        resume=resume,
        overwrite=overwrite,
        keep=keep,
    )
    live = None
    if doctor is not None and writer is not None:
        live = LiveFindings(writer, on_finding, on_state_change)
    meter = Meter(model, optimizers, settings, writer=writer, after=resume, doctor=live)
    _say_if_watched_twice(meter, model)
    return meter


def is_disabled() -> bool:
    """Whether the environment turns measuring off."""
    return os.environ.get("GRADIOMETER_DISABLED", "").lower() in ("1", "true", "yes")


class NullMeter(Meter):
    """The meter that does nothing: what `watch` returns when GRADIOMETER_DISABLED is set."""

    def __init__(self) -> None:
        self.run, self.closed = None, False

    @property
    def blocks(self) -> Blocks:
        """There are none."""
        return Blocks(names=(), members=(), num_named=0)

    @property
    def states(self) -> dict[str, str]:
        """Nothing is known."""
        return {}

    @property
    def coverage(self) -> Coverage:
        """Nothing is measured."""
        return Cadence(1, None).coverage(measured=0, steps=0)

    @property
    def terms_due(self) -> bool:
        """Nothing is measured."""
        return False

    def log(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        step: float | None = None,
        **scalars: Any,
    ) -> None:
        """Nothing is kept."""

    def log_samples(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        rewards: Any = None,
        *,
        credit: Any = None,
        step: int | None = None,
    ) -> None:
        """Nothing is kept."""

    def at(
        self, *, env_steps: int | None = None, rollout: int | None = None, epoch: int | None = None
    ) -> None:
        """Nothing is kept."""

    def step(self, number: int) -> None:
        """Nothing is counted."""

    def pause(self) -> None:
        """Nothing runs."""

    def resume(self) -> None:
        """Nothing runs."""

    @contextmanager
    def terms(
        self, *, advantages: Mapping[str, Tensor] | None = None, **given: Term
    ) -> Iterator[Tensor]:
        """The same sum as the real meter's."""
        yield splitting.total(splitting.resolve(given, advantages).given)

    def record(
        self,
        values: Mapping[str, float],
        *,
        tables: Mapping[str, Any] | None = None,
        step: int | None = None,
    ) -> None:
        """Nothing is kept."""

    def boundary(self) -> None:
        """Nothing is said."""

    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        """Nothing is kept."""

    def only_take(self) -> None:
        """Nothing is measured."""

    def take_gradient(self, parameter: Tensor) -> None:
        """Nothing is measured."""

    def note_clip(self, norm: Tensor, threshold: float) -> None:
        """Nothing is measured."""

    def log_gradient_dynamics(self, step: int | None = None) -> dict[str, Any] | None:
        """Nothing is measured."""
        return None

    def watch_experts(self, every: int | None = 10) -> None:
        """Nothing is measured."""

    def gradient_health(self, block: str = "all") -> GradientHealth:
        """Nothing was measured."""
        nothing = dict.fromkeys(GradientHealth.__dataclass_fields__)
        return GradientHealth(**{**nothing, "block": block, "state": "missing"})  # type: ignore[arg-type]

    def flow(self) -> Flow:
        """Nothing was measured."""
        return Flow(
            step=None,
            layers=(),
            lost_at=None,
            reason="nothing measured: GRADIOMETER_DISABLED is set",
        )

    def features(self, block: str = "all") -> NDArray[np.float32]:
        """Zeros."""
        return np.zeros(len(FEATURES), dtype=np.float32)

    def pair(self, name: str) -> PairReading:
        """Nothing was measured."""
        reason = "GRADIOMETER_DISABLED is set."
        return PairReading(
            ratio=None,
            verdict="not-measured",
            reason=reason,
            seed_intensity=None,
            host_intensity=None,
        )

    def state_dict(self) -> dict[str, Any]:
        """There is no past."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to go on with."""

    def close(self) -> None:
        """Nothing is open."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""


def _kept(selector: Selector) -> Selector:
    """Generators become lists: blocks are looked up again when the model grows."""
    return selector if isinstance(selector, (str, nn.Module)) else list(selector)


def _blocks(given: Mapping[str, Selector] | None) -> Mapping[str, Selector] | None:
    return None if given is None else {name: _kept(part) for name, part in given.items()}


def _pairs(given: Pairs | None) -> Pairs:
    return {name: tuple(_kept(part) for part in pair) for name, pair in (given or {}).items()}  # type: ignore[misc]


def _check_model(model: Model, optimizers: Sequence[Optimizer], settings: Settings) -> None:
    """Everything that can be wrong is said before a folder is made."""
    refuse_engines(model, ())
    parameters = named_parameters(model)
    find_blocks(parameters, settings.blocks)
    find_experts(model, parameters, settings.experts)
    for name, parts in settings.pairs.items():
        for part in parts:
            select(name, part, parameters)
    _check_optimizers(list(parameters.values()), optimizers)


def _check_optimizers(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    """Another model was meant, or the optimizer was made from a copy of this one: then the training
    is at fault, not the call, and what it does is measured."""
    held = [p for one in optimizers for group in one.param_groups for p in group["params"]]
    mine = {id(p) for p in parameters}
    if any(id(p) in mine for p in held):
        return
    shapes = Counter(p.shape for p in parameters)
    if not held or Counter(p.shape for p in held) - shapes:
        raise UsageError(
            "the optimizer holds none of the model's parameters; pass the model it was made from"
        )
    warnings.warn(
        GradiometerWarning(
            "the optimizer holds none of the model's parameters, but others of the same shapes: it"
            " was made from a copy of the model, so no step changes this one"
        ),
        stacklevel=4,
    )


def _say_if_watched_twice(meter: Meter, model: Model) -> None:
    """A notebook's cell run again leaves the first meter open: both would measure and cost."""
    trained = frozenset(id(p) for p in named_parameters(model).values() if p.requires_grad)
    first = next(
        (one for one, held in list(_watched.items()) if not one.closed and trained <= held), None
    )
    _watched[meter] = trained
    if first is not None:
        where = "keeps no run" if first.run is None else f"keeps {first.run}"
        warnings.warn(
            f"this model is watched already, by a meter that {where}: both measure now, and both"
            " take their time; close the first one with its .close()",
            GradiometerWarning,
            stacklevel=3,
        )


def _listed(optimizer: Any) -> list[Optimizer]:
    if isinstance(optimizer, Mapping):
        optimizer = list(optimizer.values())
    given = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    refuse_engines({}, given)
    if not given:
        raise UsageError("watch() needs at least one optimizer; found an empty list")
    try:
        return [hooks.unwrap(one) for one in given]
    except TypeError as problem:
        raise UsageError(f"watch() takes torch optimizers; {problem}") from problem


def _facts(
    model: Model, settings: Settings, config: Mapping[str, Any] | None, seed: int | None
) -> dict[str, Any]:
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in named_parameters(model).values()})
    meter = {**settings.plain(), "sketch_seed": SKETCH_SEED}
    return {**facts.collect(config, seed), "parameter_dtype": ", ".join(dtypes), "meter": meter}


def _writer(
    run: str | os.PathLike[str] | None,
    sinks: Sequence[str | Sink] | str | Sink,
    known: dict[str, Any],
    *,
    resume: int | None,
    overwrite: bool,
    keep: int | None,
) -> Fanout | None:
    """Who keeps the run and sends it on; nobody on a rank that does not write."""
    if not writes_here() or (run is None and not sinks):
        return None
    folder = None if run is None else Path("runs") / _run_name() if run == "auto" else Path(run)
    start = Start(run=folder, resume=resume, overwrite=overwrite, keep=keep, facts=known)
    listed = chosen(sinks, start)
    if folder is None:
        return Fanout(None, listed, start)
    writer = Writer(folder, facts=known, resume=resume, overwrite=overwrite, keep=keep)
    return Fanout(writer, listed, start)


def _check_doctor(doctor: str | None, run: str | os.PathLike[str] | None) -> None:
    if doctor not in (None, "live"):
        raise UsageError(f"doctor is 'live' or None; found {doctor!r}")
    if doctor is not None and run is None:
        raise UsageError(
            "doctor='live' reads the run while it is written, and run=None keeps nothing: give it a"
            " folder"
        )


def _run_name() -> str:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
    return f"{script if script not in ('', '-c') else 'python'}-{time.strftime('%Y%m%d-%H%M%S')}"
