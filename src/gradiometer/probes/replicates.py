"""Replicates: the same policy gradient taken again and again with fresh samples, to see how much of it is chance.

Two passes. The first is the source's (000): replicate r seeds everything with seed + r and walks all instances; norm,
one projection and the concentration of the weights are kept. The second, `extended`, draws from spawned streams (seed + r
of run 1234 is seed + r − 1 of run 1235) and walks the instances in units, so that variance can be laid at samples and at
instances, with intervals that resample units. Nothing of the model changes.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradiometer.capture.blocks import Model, Selector, find_blocks
from gradiometer.errors import UsageError
from gradiometer.maths import estimators
from gradiometer.maths import weights as weighing
from gradiometer.maths.sketch import Sketcher, key_of
from gradiometer.probes import spread
from gradiometer.probes.engine import run_tasks
from gradiometer.probes.spread import Spread, UnitNumbers
from gradiometer.probes.stillness import held_still
from gradiometer.probes.subject import Recipe, Rollout, Subject, gradient_of, seed_everything

__all__ = ["Load", "Replicates", "label_of", "replicates", "study"]

Load: TypeAlias = Callable[[], Subject]

PROJECTION_OFFSET = 999  # the source draws its vector from seed + 999
SOURCE_SERIES = ("grad_norm", "grad_proj", "ess_mean", "weights_abs_max_mean")
MAX_UNITS = 64
CHUNKS = 8  # tasks of the extended pass, whatever the number of workers
SKETCH_SIZE = 1024
SCHEMA_VERSION = 1
MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """The record of one algorithm, and what comparisons need of it."""

    record: dict[str, Any]
    """The source's schema: schema_version, config, metrics, per_replicate; ours under `extended`."""
    spread: Spread | None
    """None when the extended pass was not asked for."""
    seconds: float

    @property
    def label(self) -> str:
        """The algorithm with its options, as a comparison names it."""
        return str(self.record["config"]["label"])


def replicates(
    policy: nn.Module | Rollout,
    instances: Any,
    *,
    model: Model | None = None,
    algorithm: str = "pomo",
    options: Mapping[str, Any] | None = None,
    num_replicates: int = 8,
    batch_size: int = 64,
    seed: int = 1234,
    reduction: str = "mean",
    extended: bool = True,
    controls: bool = True,
    random_policy: nn.Module | Rollout | None = None,
    iid: bool = True,
    blocks: Mapping[str, Selector] | None = None,
    engine: str = "serial",
    workers: int = 1,
    threads: int = 1,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Replicates:
    """How much the policy gradient of `algorithm` varies over fresh samples on the same `instances`.

    `policy(batch)` rolls out n times on each instance of a slice of `instances` and gives rewards [b, n] and
    log-likelihoods [b, n] with a gradient; it is a module, or any function together with its `model`. `algorithm` is an
    estimator of `gradiometer.maths.estimators` (pomo, leader_reward, maxk, rloo, grpo, ...), `options` its options.

    `controls` also measures shuffled rewards and, given `random_policy`, an untrained policy. `iid=False` says that the
    rollouts have forced starts. Beyond engine="serial" the policy must be picklable.
    """
    other = None if random_policy is None else partial(_same, _subject(random_policy, model))
    return study(
        partial(_same, _subject(policy, model)),
        instances,
        Recipe(algorithm=algorithm, options=dict(options or {}), reduction=reduction, batch_size=batch_size),
        num_replicates=num_replicates,
        seed=seed,
        extended=extended,
        controls=controls,
        load_random=other,
        iid=iid,
        blocks=blocks,
        engine=engine,
        workers=workers,
        threads=threads,
        config=config,
        progress=progress,
    )


def study(
    load: Load,
    instances: Any,
    recipe: Recipe,
    *,
    num_replicates: int = 8,
    seed: int = 1234,
    extended: bool = True,
    controls: bool = True,
    load_random: Load | None = None,
    iid: bool = True,
    blocks: Mapping[str, Selector] | None = None,
    engine: str = "serial",
    workers: int = 1,
    threads: int = 1,
    label: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Replicates:
    """`replicates` of whatever `load` gives, in this process or in others: what a worker needs is loaded there."""
    if not isinstance(num_replicates, int) or num_replicates < 1 or len(instances) < 1:
        raise UsageError(f"there must be replicates and instances; found {num_replicates} and {len(instances)}")
    if not isinstance(seed, int) or not 0 <= seed < 2**62:
        raise UsageError(f"seed is a whole number from 0 to 2**62; found {seed}")
    started = time.perf_counter()
    plan = _Plan(instances, recipe, num_replicates, seed)
    tasks = plan.tasks(extended=extended, controls=controls, other=load_random)
    gather = _Gather(tasks, seed)
    run_tasks(
        tasks.all, load, engine=engine, workers=workers, threads=threads, progress=progress, receive=gather.receive
    )
    series = {name: [result[name] for result in gather.replicates] for name in SOURCE_SERIES}
    told = {"label": label or label_of(recipe.algorithm, recipe.options), "threads": threads, **plan.config()}
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "config": {**(config or {}), **told},
        "metrics": summary_of(series),
        "per_replicate": series,
    }
    spreads = gather.spreads
    if extended:
        named = spread.block_atoms(find_blocks(load().parameters(), blocks))
        record["extended"] = _extended(spreads, recipe, named, iid=iid)
    return Replicates(record=record, spread=spreads.get(MAIN), seconds=time.perf_counter() - started)


def _extended(
    spreads: Mapping[str, Spread], recipe: Recipe, named: Mapping[str, Sequence[int]], *, iid: bool
) -> dict[str, Any]:
    controls = {name: one for name, one in spreads.items() if name != MAIN}
    return {
        "reduction": recipe.reduction,
        "objective": estimators.find(recipe.algorithm).objective,
        "bias": list(estimators.bias_sources(recipe.algorithm, iid=iid, **recipe.options)),
        **spread.described(spreads[MAIN], named),
        "controls": {name: spread.described(one, {}, brief=True) for name, one in controls.items()},
    }


def label_of(algorithm: str, options: Mapping[str, Any]) -> str:
    """maxk at K=8 with the baseline subloo is `maxk(k=8, baseline=subloo)`."""
    inside = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"{estimators.find(algorithm).name}({inside})" if inside else estimators.find(algorithm).name


def summary_of(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean and standard deviation (ddof 0, the source's) of each series over replicates."""
    found: dict[str, float] = {}
    for name, values in series.items():
        found[f"{name}_mean"], found[f"{name}_std"] = float(np.mean(values)), float(np.std(values))
    return found


def _same(subject: Subject) -> Subject:
    return subject


def _subject(policy: nn.Module | Rollout, model: Model | None) -> Subject:
    if model is None and not isinstance(policy, nn.Module):
        raise UsageError("the policy is a function: give the modules it differentiates, replicates(..., model=model)")
    chosen = policy if model is None else model
    return Subject(chosen, policy)  # type: ignore[arg-type]


def _own(part: Any) -> Any:
    """A slice of a tensor is pickled with the whole of it; its copy is not."""
    return part.clone() if hasattr(part, "clone") else part


@dataclass(frozen=True, slots=True)
class _On:
    """A task on another subject than the one the worker holds."""

    load: Load
    task: Any

    def __call__(self, _: Subject) -> Any:
        return self.task(self.load())


@dataclass(frozen=True, slots=True)
class _Tasks:
    """The source's replicates first, then the chunks of each spread."""

    replicates: list[Any]
    spreads: dict[str, list[Any]]

    @property
    def all(self) -> list[Any]:
        """In the order they are done."""
        return [*self.replicates, *(task for tasks in self.spreads.values() for task in tasks)]


class _Gather:
    """Takes results in the order of the tasks; of the sums [R, P] only those of one spread are there at a time."""

    def __init__(self, tasks: _Tasks, seed: int) -> None:
        self.replicates: list[dict[str, float]] = []
        self.spreads: dict[str, Spread] = {}
        self._num_replicates, self._seed = len(tasks.replicates), seed
        self._whose = [name for name, chunks in tasks.spreads.items() for _ in chunks]
        self._rows: list[spread.UnitRow] = []
        self._sums: NDArray[np.float64] | None = None

    def receive(self, place: int, result: Any) -> None:
        """The next result."""
        if place < self._num_replicates:
            self.replicates.append(result)
            return
        chunk = place - self._num_replicates
        self._rows += result.rows
        self._sums = result.sums if self._sums is None else self._sums + result.sums
        name = self._whose[chunk]
        if chunk + 1 == len(self._whose) or self._whose[chunk + 1] != name:
            seed = self._seed if name == MAIN else None
            self.spreads[name] = spread.combined(self._rows, self._sums, result.sizes, seed)
            self._rows, self._sums = [], None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which tasks there are: they depend on the call alone, never on who does them."""

    instances: Any
    recipe: Recipe
    num_replicates: int
    seed: int

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The units, as slices of the instances."""
        cuts = np.linspace(0, len(self.instances), min(MAX_UNITS, len(self.instances)) + 1).round().astype(int)
        return [(int(a), int(b)) for a, b in itertools.pairwise(cuts)]

    def config(self) -> dict[str, Any]:
        """What was asked for."""
        return {
            "algorithm": self.recipe.algorithm,
            **estimators.find(self.recipe.algorithm).options,
            **self.recipe.options,
            "reduction": self.recipe.reduction,
            "num_instances": len(self.instances),
            "batch_size": self.recipe.batch_size,
            "num_replicates": self.num_replicates,
            "seed": self.seed,
        }

    def tasks(self, *, extended: bool, controls: bool, other: Load | None) -> _Tasks:
        """One for each of the source's replicates, a few for each spread."""
        projection = self.seed + PROJECTION_OFFSET
        each = [_Replicate(self.instances, self.recipe, self.seed + r, projection) for r in range(self.num_replicates)]
        spreads: dict[str, list[Any]] = {MAIN: self.unit_tasks(self.recipe)} if extended else {}
        if extended and controls:
            shuffled = dataclasses.replace(self.recipe, shuffled=True)
            spreads["shuffled_rewards"] = self.unit_tasks(shuffled, salt="shuffled_rewards")
            if other is not None:
                untrained = self.unit_tasks(self.recipe, salt="random_policy")
                spreads["random_policy"] = [_On(other, task) for task in untrained]
        return _Tasks(each, spreads)

    def unit_tasks(self, recipe: Recipe, salt: str = "") -> list[_Units]:
        """One for each chunk of units; algorithms that are compared draw the same streams."""
        streams = np.random.SeedSequence([self.seed, key_of(salt) if salt else 0]).generate_state(
            len(self.bounds) * self.num_replicates, np.uint64
        )
        seeds = streams.reshape(len(self.bounds), self.num_replicates)
        tasks = []
        for places in np.array_split(np.arange(len(self.bounds)), min(CHUNKS, len(self.bounds))):
            slices = [_own(self.instances[slice(*self.bounds[u])]) for u in places]
            tasks.append(_Units(slices, recipe, [[int(s % 2**63) for s in seeds[u]] for u in places]))
        return tasks


@dataclass(frozen=True, slots=True)
class _Replicate:
    """One of the source's replicates."""

    instances: Any
    recipe: Recipe
    seed: int
    projection_seed: int

    def __call__(self, subject: Subject) -> dict[str, float]:
        with held_still(subject.model):
            seed_everything(self.seed)
            found = gradient_of(subject, self.instances, self.recipe)
        # Drawn on the CPU, so that devices that agree on the gradient agree on its projection.
        direction = torch.randn(found.flat.numel(), generator=torch.Generator().manual_seed(self.projection_seed))
        flat = found.flat.cpu().double()
        return {
            "grad_norm": float(flat.norm()),
            "grad_proj": float(flat @ direction.double()),
            "ess_mean": float(weighing.ess_signed(found.weights).mean()),
            "weights_abs_max_mean": float(weighing.abs_max(found.weights).mean()),
        }


@dataclass(frozen=True, slots=True)
class _Units:
    """All replicates of some units."""

    units: list[Any]
    recipe: Recipe
    seeds: list[list[int]]

    def __call__(self, subject: Subject) -> UnitNumbers:
        sizes = [p.numel() for p in subject.parameters().values()]
        sketcher = Sketcher(seed=0, k=SKETCH_SIZE)
        sums: NDArray[np.float64] | None = None
        rows: list[spread.UnitRow] = []
        with held_still(subject.model):
            for unit, seeds in zip(self.units, self.seeds, strict=True):
                gradients, weights = [], []
                for seed in seeds:
                    seed_everything(seed)
                    found = gradient_of(subject, unit, self.recipe)
                    gradients.append(found.flat)
                    weights.append(found.weights)
                stacked = torch.stack(gradients)
                rows.append(spread.unit_row(stacked, sizes, len(unit), torch.cat(weights), sketcher))
                weighted = len(unit) * stacked.double().cpu().numpy()
                sums = weighted if sums is None else sums + weighted
        assert sums is not None
        return UnitNumbers(rows=rows, sums=sums, sizes=sizes)
