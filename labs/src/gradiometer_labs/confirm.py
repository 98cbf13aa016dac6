"""A lab trained again, briefly, with one thing changed: the probe behind `gradiometer doctor RUN
--confirm`.

The facts of a run hold the config it was started with; its keys say which lab it is. The training
is rebuilt with its fault, because that is the training the user has, and followed by
torch's own hooks around every optimizer step: gradients are read there, updates are made longer or
shorter, and weights held still while fresh batches go on to be made. It runs in a folder of its own
that is gone afterwards, and stops after a few batches, so that schedules are those of the whole
training.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import gradiometer_labs as labs
from gradiometer import metrics
from gradiometer.probes.confirm import (
    BATCHES,
    CHECKSUM,
    PROJECTION,
    REPLICATES,
    WEIGHTS,
    Experiment,
)
from gradiometer.store.reader import Run, load
from gradiometer_labs import faults
from gradiometer_labs.config import TrainingProgress, configure, keys_of, overrides_of
from gradiometer_labs.control import MEASURED
from gradiometer_labs.lab import ExperimentSettings

__all__ = ["LabProbe", "probe_of"]

SECONDS = 6.0
"""Of one training; ten of them are a minute. A slower lab trains fewer batches, the same number in
each training."""
FEWEST = 2
"""Batches of a training, however slow it is."""
SKETCH = 1024
"""Numbers that stand for a gradient: cosines read ±0.03."""
SAME = 0.9
"""Of a lab's settings that a config must hold to be one of its own: an older version had fewer."""
KEPT = ("reward", "success_rate", "loss", "entropy", "grad/<block>/norm/raw")


def probe_of(facts: Mapping[str, Any], *, seconds: float = SECONDS) -> LabProbe | None:
    """The probe that trains the lab of these facts again; None when they are not those of a lab."""
    config = facts.get("config")
    if not isinstance(config, Mapping):
        return None
    saved = {key: value for key, value in _leaves(config) if key not in MEASURED}
    for name, lab in labs.LABS.items():
        known = keys_of(lab.config()())
        if lab.experiments and saved.keys() <= known.keys() and len(saved) >= SAME * len(known):
            return LabProbe(lab, _as_it_ran(saved, name), lab.experiments, seconds=seconds)
    return None


class LabProbe:
    """Carries out experiments on a lab; all that is random comes from the seed it is asked for."""

    def __init__(
        self,
        lab: labs.Lab,
        saved: Mapping[str, Any],
        experiments: ExperimentSettings,
        *,
        seconds: float = SECONDS,
    ) -> None:
        self.lab, self.saved, self._experiments, self._seconds = (
            lab,
            dict(saved),
            experiments,
            seconds,
        )
        self.seed = int(saved.get("seed", 0))
        self._batches: int | None = None
        self._searched: int | None = None
        self._replicates: Iterator[dict[str, float]] | None = None

    def __call__(self, experiment: Experiment) -> dict[str, float]:
        """The numbers of an experiment; NotImplementedError for what this lab has no setting
        for."""
        if experiment.kind == "line-search":
            return self._search(experiment.seed, experiment.scale)
        if experiment.kind == "replicate":
            if self._replicates is None:
                self._replicates = self._replicate()
            return next(self._replicates)
        if experiment.kind == "resample":
            raise NotImplementedError(
                "the labs have no sampler of their own to ask; gm.audit(..., policy=...) checks it"
            )
        change = [] if experiment.kind == "baseline" else [self._switched_off(experiment)]
        return self._train(experiment, change)

    def _switched_off(self, experiment: Experiment) -> str:
        """The override that takes a term out of the loss; a critic without its loss is frozen."""
        key = self._experiments.terms.get(experiment.term or "")
        if key is None or key not in self.saved:
            known = ", ".join(self._experiments.terms) or "none"
            what = f"term {experiment.term!r}" if experiment.term else f"block {experiment.block!r}"
            raise NotImplementedError(
                f"{self.lab.name} has no coefficient for the {what} (it has: {known})"
            )
        if not self.saved[key]:
            raise NotImplementedError(f"{key} is 0 already")
        return f"{key}=0"

    def _train(self, experiment: Experiment, change: Sequence[str]) -> dict[str, float]:
        """The last third of a brief training, and what became of the weights."""
        hooks = _StepHooks(
            self._batches or self._experiments.batches,
            limit=None if self._batches else self._seconds,
        )
        with self._run(hooks, experiment.seed, change) as run:
            self._batches = hooks.done
            numbers = _means(run, hooks)
            numbers |= _without_gradient(run, experiment.block, numbers)
        return numbers | _weights(hooks.weights()) | {BATCHES: float(hooks.done)}

    def _search(self, seed: int, scale: float) -> dict[str, float]:
        """The last third of a brief training in which every update is that much longer."""
        if not self._experiments.searched:
            raise NotImplementedError(
                f"so many trainings of {self.lab.name} take longer than a minute or two"
            )
        hooks = _StepHooks(
            self._searched or self._experiments.searched,
            scale=scale,
            limit=None if self._searched else self._seconds,
        )
        with self._run(hooks, seed, ()) as run:
            self._searched = hooks.done
            return _means(run, hooks) | _weights(hooks.weights())

    def _replicate(self) -> Iterator[dict[str, float]]:
        """Gradients of fresh batches at the weights of one training that is held still."""
        hooks = _StepHooks(
            max(FEWEST, self._experiments.batches // 2), held=REPLICATES, limit=self._seconds
        )
        with self._run(hooks, self.seed, ()):
            pass  # the gradients are what it was run for
        for gradient in hooks.gradients:
            yield {f"{PROJECTION}{place}": value for place, value in enumerate(gradient)}

    @contextmanager
    def _run(self, hooks: _StepHooks, seed: int, change: Sequence[str]) -> Iterator[Run]:
        """Train in a folder of its own, and open what was measured."""
        from gradiometer.capture.randomness import RandomState

        with tempfile.TemporaryDirectory(prefix="gradiometer-confirm-") as folder:
            place = Path(folder) / "run"
            own = [
                *self._experiments.brief,
                "every=1",
                "tier=light",
                f"seed={seed}",
                f"run={place}",
            ]
            config = configure(self.lab.config(), [*_written(self.saved), *own, *change])
            state = RandomState.now()
            try:
                with hooks.around_steps():
                    self.lab.train(config, hooks.progress)
            except _Enough:
                pass
            else:
                raise NotImplementedError(
                    f"the training ends after {len(hooks.ends) - 1} batches, before it is over"
                )
            finally:
                state.restore()
            run = load(place)
            try:
                yield run
            finally:
                run.close()


class _Enough(Exception):
    """A brief training has seen what it was started for."""


class _StepHooks:
    """Around a training's optimizer steps: counts batches, scales updates, holds it still, ends."""

    def __init__(
        self, batches: int, *, scale: float = 1.0, held: int = 0, limit: float | None = None
    ) -> None:
        self._batches, self._scale, self._limit, self._to_hold = batches, scale, limit, held
        self.done = 0
        """Batches that were trained on."""
        self.ends: list[float] = [time.time()]
        """When each batch was over, as the run's clock has it; the first entry is the start."""
        self.gradients: list[list[float]] = []
        """Of each batch while held still: that of the first optimizer step, as a sketch."""
        self._started = time.perf_counter()
        self._optimizer: Any = None
        self._before: list[Any] = []
        self._holding = False
        self._read: dict[int, list[float]] = {}

    @contextmanager
    def around_steps(self) -> Iterator[None]:
        """Around every optimizer step of this process, also of optimizers that are not made yet."""
        from torch.optim import optimizer as hooks

        before = hooks.register_optimizer_step_pre_hook(self._about_to_step)
        after = hooks.register_optimizer_step_post_hook(self._has_stepped)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def weights(self) -> list[Any]:
        """Those of the optimizer that steps last in each batch: the policy's."""
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"]]

    def progress(self, now: TrainingProgress) -> None:
        """The training says that a batch is over; imitation before the training proper is none of
        ours."""
        if now.unit != "steps":
            return
        self.ends.append(time.time())
        if self._holding:
            self.gradients += (
                [self._read[id(self._optimizer)]] if id(self._optimizer) in self._read else []
            )
            self._read.clear()
        else:
            self.done += 1
            self._holding = self.done >= self._batches or self._late() or now.done >= now.total
        if self._holding and len(self.gradients) >= self._to_hold:
            raise _Enough

    def _late(self) -> bool:
        if self.done == 1:
            self._started = time.perf_counter()  # the first batch pays for imports and warm-up
        return (
            self._limit is not None
            and self.done >= FEWEST
            and time.perf_counter() - self._started > self._limit
        )

    def _about_to_step(
        self, optimizer: Any, arguments: tuple[Any, ...], options: dict[Any, Any]
    ) -> None:
        self._optimizer = optimizer
        if self._holding and id(optimizer) not in self._read:
            self._read[id(optimizer)] = _sketch(
                [p.grad for p in self.weights() if p.grad is not None]
            )
        if self._factor != 1.0:
            self._before = [weight.detach().clone() for weight in self.weights()]

    def _has_stepped(
        self, optimizer: Any, arguments: tuple[Any, ...], options: dict[Any, Any]
    ) -> None:
        """w + scale · Δw: under any optimizer what a learning rate of that multiple would do."""
        for weight, before in zip(
            self.weights() if self._before else (), self._before, strict=True
        ):
            weight.data.copy_(
                before + self._factor * (weight.data - before) if self._factor else before
            )
        self._before = []

    @property
    def _factor(self) -> float:
        return 0.0 if self._holding else self._scale


def _sketch(tensors: Sequence[Any]) -> list[float]:
    from gradiometer.maths.sketch import Sketcher

    numbers: list[float] = Sketcher(k=SKETCH).sketch(tensors, range(len(tensors))).tolist()
    return numbers


def _weights(tensors: Sequence[Any]) -> dict[str, float]:
    """A checksum of every bit (48 bits of it are a float exactly), and a sketch that says how far
    apart two are."""
    import torch

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    sketch = _sketch([tensor.detach() for tensor in tensors])
    return {
        CHECKSUM: float(int.from_bytes(digest.digest()[:6], "little")),
        **{f"{WEIGHTS}{place}": value for place, value in enumerate(sketch)},
    }


def _means(run: Run, hooks: _StepHooks) -> dict[str, float]:
    """The mean of each number over the last third of the batches."""
    columns, since = run.steps(), hooks.ends[-1 - max(1, hooks.done // 3)]
    inside = columns["step"][columns["wall_time"] > since]
    found: dict[str, float] = {}
    for name in run.names():
        if not any(metrics.parse(kept, name) is not None for kept in KEPT) or "/layer." in name:
            continue
        steps, values = run.series(name)
        chosen = values[np.isin(steps, inside)]
        if len(chosen):
            found[name] = float(chosen.mean())
    return found


def _without_gradient(
    run: Run, block: str | None, numbers: Mapping[str, float]
) -> dict[str, float]:
    """A gradient of 0 for a block whose every parameter was seen to have none."""
    name = f"grad/{block}/norm/raw"
    if block is None or name in numbers or "states" not in run.table_names():
        return {}
    states = {
        state for owner, state in run.table("states").content.items() if block in owner.split(".")
    }
    return {name: 0.0} if states == {"missing"} else {}


def _as_it_ran(saved: dict[str, Any], lab: str) -> dict[str, Any]:
    """A fault that is a wrong setting is in the saved settings already: broken twice would be
    another training."""
    kept = [
        f"{each.name}:{dose}" if each.doses else each.name
        for each, dose in faults.chosen(str(saved.get("fault", "none")), lab)
        if each.piece != "config"
    ]
    return saved | {"fault": "+".join(kept) or "none"}


def _written(saved: Mapping[str, Any]) -> list[str]:
    """Dotted settings as overrides; a preset is in them already, and its own would come on top."""
    return overrides_of({key: value for key, value in saved.items() if key != "preset"})


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
