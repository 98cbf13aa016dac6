"""Replicates: the same policy gradient taken again and again, to see how much of it is chance.

Two passes. The first is that of the max@K study: replicate r seeds everything with seed + r and
walks all instances; norm, one projection and the concentration of the weights are kept. The second,
`extended`, draws from spawned streams (seed + r of run 1234 is seed + r − 1 of run 1235) and walks
the instances in units, so that variance can be laid at samples and at instances, with intervals
that resample units. Nothing of the model changes.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradiometer.capture.blocks import Model, Selector, find_blocks, named_parameters
from gradiometer.errors import UsageError
from gradiometer.maths import estimators
from gradiometer.maths import weights as weighing
from gradiometer.maths.sketch import Sketcher, key_of
from gradiometer.metrics import key
from gradiometer.probes import spread
from gradiometer.probes.engine import run_tasks
from gradiometer.probes.spread import Replicates, Spread, UnitNumbers
from gradiometer.probes.stillness import held_still, seed_everything
from gradiometer.records import Row, Table
from gradiometer.store import facts
from gradiometer.store.writer import Writer

__all__ = [
    "REDUCTIONS",
    "Gradient",
    "Load",
    "OpenedPolicy",
    "Recipe",
    "Replicates",
    "Rollout",
    "Subject",
    "gradient_of",
    "keep_replicates",
    "label_of",
    "replicates",
    "study",
]

Rollout: TypeAlias = Callable[[Any], tuple[Tensor, Tensor]]
"""Instances of a batch in; rewards [b, n] and log-likelihoods [b, n] of n rollouts each out."""

REDUCTIONS = ("mean", "sum", "source")
PROJECTION_OFFSET = 999  # the study draws its vector from seed + 999
SOURCE_SERIES = ("grad_norm", "grad_proj", "ess_mean", "weights_abs_max_mean")
NUMBERS = ("signal_norm", "mean_cosine", "instance_trace")
INTERVALS = ("trace", "snr")
CONCENTRATION = ("ess_abs", "cancellation", "top_share")
MAX_UNITS = 64
CHUNKS = 8  # tasks of the extended pass, whatever the number of workers
SKETCH_SIZE = 1024
SCHEMA_VERSION = 1
MAIN = "main"


@dataclass(frozen=True, slots=True)
class Subject:
    """A policy held still: the modules that are differentiated, and how they roll out."""

    model: Model
    rollout: Rollout

    def parameters(self) -> dict[str, nn.Parameter]:
        """Those that are trained, by name."""
        return {name: p for name, p in named_parameters(self.model).items() if p.requires_grad}


Load: TypeAlias = Callable[[], Subject]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPolicy:
    """A checkpoint's policy, as loaders that a worker can be sent: each reads the file again."""

    load: Load
    load_random: Load
    """The same architecture with fresh weights, the same ones each time."""
    instances: Callable[[int, int], Any]
    """Number and seed in, instances on the CPU out."""
    config: dict[str, Any]
    iid: bool = False
    """Whether rollouts are drawn alike; POMO forces each to start at a node of its own."""
    library: str
    """What trained it: gradiometer or rl4co."""
    rollouts: int
    """Of each instance."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the estimator it was trained with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """From rollouts to a loss."""

    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reduction: str = "mean"
    """Over the rollouts of an instance: mean, sum, or what the study takes for this algorithm."""
    batch_size: int = 64
    shuffled: bool = False
    """Rewards permuted among the rollouts of each instance: the control."""

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            known = ", ".join(REDUCTIONS)
            raise UsageError(f"reduction is one of {known}; found {self.reduction!r}")
        size = self.batch_size
        if size < 1:
            raise UsageError(f"batch_size is a number of instances, 1 or more; found {size}")
        estimators.find(self.algorithm).check_options(self.options)

    def weights(self, rewards: Tensor) -> Tensor:
        """What each rollout's log-likelihood is multiplied by, [b, n]."""
        return estimators.find(self.algorithm)(rewards, **self.options)

    def loss(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """−Σ_i w_i log π(τ_i), reduced over rollouts, mean over the instances of the batch."""
        terms = -(weights * log_likelihood)
        own = estimators.find(self.algorithm).reduction
        reduction = own if self.reduction == "source" else self.reduction
        return (terms.sum(-1) if reduction == "sum" else terms.mean(-1)).mean()


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of the mean loss over some instances."""

    flat: Tensor
    """[P] in float32."""
    weights: Tensor
    """Of the rollouts, [N, n]."""


def gradient_of(subject: Subject, instances: Any, recipe: Recipe) -> Gradient:
    """Batch by batch with weight b/N: memory does not grow, and a short last batch counts less."""
    parameters = list(subject.parameters().values())
    flat = torch.zeros(sum(p.numel() for p in parameters), device=parameters[0].device)
    # One tensor for all batches: small ones that stay, between large ones that go, tear the heap.
    kept: Tensor | None = None
    done, total = 0, len(instances)
    for batch in batches(instances, recipe.batch_size):
        with torch.enable_grad():
            rewards, log_likelihood = _checked(subject.rollout(batch), len(batch))
            weights = recipe.weights(_shuffled(rewards) if recipe.shuffled else rewards)
            loss = recipe.loss(weights.to(log_likelihood.dtype), log_likelihood)
            loss = loss * (len(batch) / total)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat += _flat(gradients, parameters)
        if kept is None:
            kept = weights.new_empty(total, weights.shape[1])
        kept[done : done + len(batch)] = weights.detach()
        done += len(batch)
    if not bool(torch.isfinite(flat).all()):
        raise UsageError(
            "the gradient holds a NaN or an Inf: the policy's weights or log-likelihoods are not"
            " finite, or an option is not"
        )
    assert kept is not None
    return Gradient(flat, kept)


def batches(instances: Any, size: int) -> Iterator[Any]:
    """Slices of at most `size` instances."""
    for start in range(0, len(instances), size):
        yield instances[start : start + size]


def _flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    parts = [
        torch.zeros(p.numel(), device=p.device) if g is None else g.reshape(-1).float()
        for g, p in zip(gradients, parameters, strict=True)
    ]
    return torch.cat(parts)


def _shuffled(rewards: Tensor) -> Tensor:
    return rewards.gather(-1, torch.rand(rewards.shape, device=rewards.device).argsort(-1))


def _checked(found: Any, size: int) -> tuple[Tensor, Tensor]:
    two = isinstance(found, tuple | list) and len(found) == 2
    if not two or not all(isinstance(each, Tensor) for each in found):
        raise UsageError(
            "the policy must return two tensors for a batch of instances: rewards and"
            " log-likelihoods"
        )
    rewards, log_likelihood = found
    if rewards.ndim != 2 or rewards.shape != log_likelihood.shape or len(rewards) != size:
        raise UsageError(
            f"rewards and log-likelihoods are [instances, rollouts], here [{size}, n]; found"
            f" {list(rewards.shape)} and {list(log_likelihood.shape)}"
        )
    if not log_likelihood.requires_grad:
        raise UsageError(
            "the log-likelihoods have no gradient: compute them outside torch.no_grad()"
        )
    return rewards.detach(), log_likelihood


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
    """How much the policy gradient of `algorithm` varies over fresh samples on `instances`.

    `policy(batch)` rolls out n times on each instance of a slice of `instances` and gives rewards
    [b, n] and log-likelihoods [b, n] with a gradient; it is a module, or any function together with
    its `model`. `algorithm` is an estimator of `gradiometer.maths.estimators` (pomo, leader_reward,
    maxk, rloo, grpo, ...), `options` its options.

    `controls` also measures shuffled rewards and, given `random_policy`, an untrained policy.
    `iid=False` says that the rollouts have forced starts. Beyond engine="serial" the policy must be
    picklable.
    """
    other = None if random_policy is None else partial(_same, _subject(random_policy, model))
    return study(
        partial(_same, _subject(policy, model)),
        instances,
        Recipe(
            algorithm=algorithm,
            options=dict(options or {}),
            reduction=reduction,
            batch_size=batch_size,
        ),
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
    """`replicates` of whatever `load` gives: a worker in another process loads its own."""
    if not isinstance(num_replicates, int) or num_replicates < 1 or len(instances) < 1:
        raise UsageError(
            f"there must be replicates and instances; found {num_replicates} and {len(instances)}"
        )
    if not isinstance(seed, int) or not 0 <= seed < 2**62:
        raise UsageError(f"seed is a whole number from 0 to 2**62; found {seed}")
    started = time.perf_counter()
    plan = _Plan(instances, recipe, num_replicates, seed)
    tasks = plan.tasks(extended=extended, controls=controls, other=load_random)
    gather = _Gather(tasks, seed)
    run_tasks(
        tasks.all,
        load,
        engine=engine,
        workers=workers,
        threads=threads,
        progress=progress,
        receive=gather.receive,
    )
    series = {name: [result[name] for result in gather.replicates] for name in SOURCE_SERIES}
    label = label or label_of(recipe.algorithm, recipe.options)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "config": {**(config or {}), "label": label, "threads": threads, **plan.config()},
        "metrics": summary_of(series),
        "per_replicate": series,
    }
    spreads = gather.spreads
    rollouts = spreads[MAIN].rows[0].rollouts if extended else (config or {}).get("num_starts")
    if rollouts is not None:
        record["config"]["gradient_scale"] = spread.gradient_scale(
            recipe.algorithm, recipe.reduction, rollouts
        )
    if extended:
        named = spread.block_atoms(find_blocks(load().parameters(), blocks))
        record["extended"] = _extended(spreads, recipe, named, iid=iid)
    return Replicates(
        record=record, spread=spreads.get(MAIN), seconds=time.perf_counter() - started
    )


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
    name = estimators.find(algorithm).name
    return f"{name}({inside})" if inside else name


def summary_of(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean and standard deviation (ddof 0, the study's) of each series over replicates."""
    found: dict[str, float] = {}
    for name, values in series.items():
        found[f"{name}_mean"], found[f"{name}_std"] = float(np.mean(values)), float(np.std(values))
    return found


def _same(subject: Subject) -> Subject:
    return subject


def _subject(policy: nn.Module | Rollout, model: Model | None) -> Subject:
    if model is None and not isinstance(policy, nn.Module):
        raise UsageError(
            "the policy is a function: give the modules it differentiates, replicates(...,"
            " model=model)"
        )
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
    """The study's replicates first, then the chunks of each spread."""

    replicates: list[Any]
    spreads: dict[str, list[Any]]

    @property
    def all(self) -> list[Any]:
        """In the order they are done."""
        return [*self.replicates, *(task for tasks in self.spreads.values() for task in tasks)]


class _Gather:
    """Takes results in the order of the tasks; holds the sums [R, P] of one spread at a time."""

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
        number = len(self.instances)
        cuts = np.linspace(0, number, min(MAX_UNITS, number) + 1).round().astype(int).tolist()
        return list(itertools.pairwise(cuts))

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
        """One for each of the study's replicates, a few for each spread."""
        projection = self.seed + PROJECTION_OFFSET
        each = [
            _Replicate(self.instances, self.recipe, self.seed + r, projection)
            for r in range(self.num_replicates)
        ]
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
        bounds = self.bounds
        source = np.random.SeedSequence([self.seed, key_of(salt) if salt else 0])
        streams = source.generate_state(len(bounds) * self.num_replicates, np.uint64)
        seeds = (streams % 2**63).reshape(len(bounds), self.num_replicates).tolist()
        tasks = []
        for places in np.array_split(np.arange(len(bounds)), min(CHUNKS, len(bounds))):
            slices = [_own(self.instances[slice(*bounds[u])]) for u in places]
            tasks.append(_Units(slices, recipe, [seeds[u] for u in places]))
        return tasks


@dataclass(frozen=True, slots=True)
class _Replicate:
    """One of the study's replicates."""

    instances: Any
    recipe: Recipe
    seed: int
    projection_seed: int

    def __call__(self, subject: Subject) -> dict[str, float]:
        with held_still(subject.model):
            seed_everything(self.seed)
            found = gradient_of(subject, self.instances, self.recipe)
        # Drawn on the CPU, so that devices that agree on the gradient agree on its projection.
        generator = torch.Generator().manual_seed(self.projection_seed)
        direction = torch.randn(found.flat.numel(), generator=generator)
        flat = found.flat.cpu().double()
        return {
            "grad_norm": float(flat.norm()),
            "grad_proj": float(flat @ direction.double()),
            "ess_mean": float(weighing.ess_signed(found.weights).mean()),
            "weights_abs_max_mean": float(weighing.abs_max(found.weights).mean()),
        }


@cache
def _sketcher() -> Sketcher:
    """One for all tasks of a process: its tables take longer to make, and more memory, than a
    sketch of a small policy."""
    return Sketcher(seed=0, k=SKETCH_SIZE)


@dataclass(frozen=True, slots=True)
class _Units:
    """All replicates of some units."""

    units: list[Any]
    recipe: Recipe
    seeds: list[list[int]]

    def __call__(self, subject: Subject) -> UnitNumbers:
        sizes = [p.numel() for p in subject.parameters().values()]
        sketcher = _sketcher()
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
                every = torch.cat(weights)
                rows.append(spread.unit_row(stacked, sizes, len(unit), every, sketcher))
                weighted = len(unit) * stacked.double().cpu().numpy()
                sums = weighted if sums is None else sums + weighted
        assert sums is not None
        return UnitNumbers(rows=rows, sums=sums, sizes=sizes)


def keep_replicates(folder: Path, studies: Sequence[Replicates], extra: dict[str, Any]) -> None:
    """Replicate r stands at step r; what is of all replicates together at step 0."""
    kept = facts.collect(studies[0].record["config"], studies[0].record["config"]["seed"])
    with Writer(folder, facts={**kept, "kind": "replicates"}) as writer:
        for study in studies:
            series = study.record["per_replicate"]
            for step in range(len(series["grad_norm"])):
                values = {name: series[name][step] for name in SOURCE_SERIES}
                if step == 0:
                    values |= _extended_values(study)
                named = {
                    key(f"variance/<algorithm>/{name}", algorithm=study.label): value
                    for name, value in values.items()
                }
                writer.put(Row(step=step, wall_time=time.time(), values=named))
        writer.put(Table(step=0, name="replicates", content=[study.record for study in studies]))
        for name, content in extra.items():
            writer.put(Table(step=0, name=name, content=content))


def _extended_values(study: Replicates) -> dict[str, float]:
    """The numbers of the extended pass by name; what is undefined is left out."""
    extended = study.record.get("extended")
    if extended is None:
        return {}
    found: dict[str, float | None] = {name: extended[name] for name in NUMBERS}
    for name in INTERVALS:
        for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
            found[name + suffix] = extended[name] and extended[name][end]
    found |= {name: extended["concentration"][name] for name in CONCENTRATION}
    return {name: value for name, value in found.items() if value is not None}
