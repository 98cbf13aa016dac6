"""Anatomy: what each loss term does to the weights, on which samples, and with how much certainty.

A batch of rollouts in groups is sorted by how much rewards vary inside each group, cut into buckets, and every loss term's
gradient is taken on every group by itself: one forward for each micro-batch, one backward for each term. All else is
arithmetic on inner products (`maths.gram`): norms of buckets and of their sum, cosines, shares, and, with whole groups as
independent units, the part of a norm that is signal and the part that is noise.

Reference: RAGEN's gradient analysis by reward-variance buckets (source 003), whose keys these are. It ran a forward and
a backward for each bucket and term and dropped what did not divide over the ranks; nothing is dropped here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist
from torch import Tensor

from gradiometer.capture.blocks import Blocks, Model, Selector, find_blocks, named_parameters
from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths import gram
from gradiometer.maths.groups import RolloutFilter
from gradiometer.maths.sketch import MAX_K
from gradiometer.maths.vectors import ExactVectors
from gradiometer.probes import plan as planning
from gradiometer.probes import report
from gradiometer.probes.plan import ALL, Plan
from gradiometer.probes.stillness import held_still
from gradiometer.probes.survey import NULL, LossTerms, Progress, Survey, Trim, gathered

if TYPE_CHECKING:
    from gradiometer.capture.meter import Meter

__all__ = ["Anatomy", "anatomy"]

MEMORY_LIMIT = 2**30
Null = bool | Callable[[Tensor], Mapping[str, Tensor]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The result: `metrics` by name, `tables` by name (groups of each bucket, and how it was measured)."""

    metrics: dict[str, float]
    tables: dict[str, Any] = field(repr=False)
    terms: tuple[str, ...]
    """Those with a gradient path."""
    dead: tuple[str, ...]
    """Terms of the loss that no parameter feels."""
    buckets: tuple[str, ...]
    """`all` first, then from the lowest reward variance to the highest."""


def anatomy(
    model: Model,
    batch: Mapping[str, Tensor],
    loss_terms: LossTerms,
    *,
    rewards: Any,
    groups: Any,
    mask: Tensor | None = None,
    aggregation: str = "token-mean",
    rollout_filter: RolloutFilter | None = None,
    bucket_mode: str = "quantile",
    num_buckets: int = 6,
    null: Null = False,
    cross_fit: bool = False,
    micro_batch_size: int | None = None,
    horizon: float | None = None,
    trim: Trim = None,
    blocks: Mapping[str, Selector] | None = None,
    memory_limit: int = MEMORY_LIMIT,
    sketch_size: int = 1024,
    seed: int = 0,
    meter: Meter | None = None,
    progress: Progress | None = None,
) -> Anatomy:
    """Take the gradient of `model` apart, by loss term and by reward-variance bucket; nothing of the training changes.

    `batch` holds tensors with a row for each of N samples, `rewards` [N] one number each, `groups` [N] which samples share
    a prompt. `loss_terms(rows)` gets some rows of the batch and gives, by name, the losses of each token [n, T] (or of each
    sample [n], without a `mask`), coefficients included and not reduced; the first term is the task's. `aggregation` is
    token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm, taken over a whole bucket.

    `rollout_filter` drops groups first. `bucket_mode` is quantile, quantile_source, fixed_rv or pass_rate. `null` also
    measures the task with rewards permuted inside groups: True permutes batch["advantages"] [N]; a function gets the order
    [N] (row i has the reward of row order[i]) and gives the entries of the batch that change. A loss_terms that returns a
    term `null` for an entry `null_advantages` saves the second forward. `cross_fit` sorts groups by half of their rollouts
    and takes gradients of the other half. `horizon` is the divisor of seq-mean-token-sum-norm, by default the mask's width.
    `trim` names an attention mask (and then the entries to cut, by default all of its width) whose padding at the right
    is cut off; rows of similar width then go together. Hooks of yours on the model fire in the probe too.

    Vectors are kept in full up to `memory_limit` bytes, otherwise as sketches of `sketch_size` numbers. With `meter` the
    result is kept in its run, at its step. Under torch.distributed every rank calls this with the same batch.
    """
    planning.whole("num_buckets", num_buckets, 1)
    rules = {"rollout_filter": rollout_filter, "bucket_mode": bucket_mode, "cross_fit": cross_fit}
    plan = planning.make_plan(rewards, groups, num_buckets=num_buckets, **rules)  # type: ignore[arg-type]
    planning.check_batch(batch, len(rewards))
    _check_sizes(micro_batch_size, memory_limit, sketch_size, seed)
    weights = planning.weights_of(mask, len(rewards), aggregation, horizon)
    _check_ranks(batch, plan, weights)
    trained = {name: p for name, p in named_parameters(model).items() if p.requires_grad}
    atoms = Atoms.of(find_blocks(trained, blocks), len(trained))
    parameters = list(trained.values())
    survey = Survey(parameters, atoms.members, plan, weights, memory_limit=memory_limit, k=sketch_size, seed=seed)
    with held_still(model):
        replaced = _replaced(null, batch, planning.permuted_inside(groups, seed))
        survey.run(batch, loss_terms, null=replaced, micro_batch_size=micro_batch_size, trim=trim, progress=progress)
        result = _result(survey, plan, weights, atoms, {"aggregation": aggregation, **rules}, seed=seed)
    if meter is not None:
        meter.record(result.metrics, tables=result.tables)
    return result


def _result(
    survey: Survey, plan: Plan, weights: planning.Weights, atoms: Atoms, rules: dict[str, Any], *, seed: int
) -> Anatomy:
    """From vectors to products, from products to numbers."""
    products = report.measure(survey, plan)
    chosen: RolloutFilter | None = rules.pop("rollout_filter")
    about = {**rules, "filter": None if chosen is None else dataclasses.asdict(chosen), **_circumstances(survey, plan)}
    blocks = _block_norms(products, survey, plan, weights, atoms)
    return Anatomy(
        metrics=report.metrics_of(products, plan, weights, survey.losses, seed=seed),
        tables={**_group_tables(plan), "anatomy": {**about, "blocks": blocks}},
        terms=tuple(about["terms"]),
        dead=tuple(about["dead"]),
        buckets=tuple(plan.buckets),
    )


def _circumstances(survey: Survey, plan: Plan) -> dict[str, Any]:
    """How it was measured, for whoever reads the numbers later."""
    return {
        "unit": "group",
        "num_groups": plan.num_groups,
        "kept_groups": len(plan.parts),
        "terms": [term for term in survey.terms if term in survey.reached and term != NULL],
        "dead": [term for term in survey.terms if term not in survey.reached and term != NULL],
        "null": NULL in survey.terms,
        "buckets": list(plan.buckets),
        "vectors": "exact" if isinstance(survey.vectors, ExactVectors) else "sketch",
        "cosine_error": survey.sums.cosine_error,  # of norms, shares, cos and between
        "signal_error": survey.vectors.cosine_error,  # of signal, noise, SNR and cos_signal
    }


def _check_sizes(micro_batch_size: int | None, memory_limit: int, sketch_size: int, seed: int) -> None:
    if micro_batch_size is not None:
        planning.whole("micro_batch_size", micro_batch_size, 1)
    planning.whole("memory_limit", memory_limit, 0)
    planning.whole("sketch_size", sketch_size, 1)
    planning.whole("seed", seed, 0)
    if sketch_size > MAX_K:
        raise UsageError(f"sketch_size is at most {MAX_K}; found {sketch_size}")


def _check_ranks(batch: Mapping[str, Tensor], plan: Plan, weights: planning.Weights) -> None:
    """Ranks share one batch's micro-batches. With a batch each, as in training, the sums would be of nothing."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    parts = [(part.id, part.reward_std, part.rows.tolist()) for part in plan.parts]
    shapes = [(name, tuple(entry.shape)) for name, entry in batch.items()]
    mine = hashlib.blake2b(repr((parts, shapes, weights.row.tolist())).encode()).hexdigest()
    if len(set(gathered(mine))) > 1:
        raise UsageError(
            "under torch.distributed every rank calls gm.anatomy with the same batch, rewards and groups, and takes its turn "
            "of the micro-batches; here they differ. Gather the batch to all ranks first (all_gather)"
        )


def _replaced(null: Null, batch: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor] | None:
    """The entries of the batch under permuted rewards."""
    if null is None or null is False:
        return None
    if callable(null):
        entries = dict(null(order))
        planning.check_batch(entries, len(order))
        for name in entries:
            if name not in batch:
                raise UnknownName("entry of the batch, given by null=,", name, batch)
        return entries
    advantages = batch.get("advantages")
    if advantages is None or advantages.ndim != 1:
        found = "no such entry" if advantages is None else f"the shape {list(advantages.shape)}"
        raise UsageError(
            f'null=True permutes batch["advantages"] of shape [N]; found {found}. Give a function of the order instead: '
            'null=lambda order: {"advantages": advantages_from(rewards[order])}'
        )
    return {"advantages": advantages[order.to(advantages.device)]}


@dataclass(frozen=True, slots=True)
class Atoms:
    """The finest parts that the named blocks have in common, and which of them each block is made of."""

    members: list[list[int]]
    of_block: dict[str, list[int]]

    @classmethod
    def of(cls, blocks: Blocks, num_parameters: int) -> Self:
        """Parameters that lie in the same named blocks are one atom."""
        names, parts = blocks.names[: blocks.num_named], [frozenset(p) for p in blocks.members[: blocks.num_named]]
        atoms: dict[tuple[bool, ...], list[int]] = {}
        for index in range(num_parameters):
            atoms.setdefault(tuple(index in part for part in parts), []).append(index)
        inside = {name: [at for at, signature in enumerate(atoms) if signature[i]] for i, name in enumerate(names)}
        return cls(list(atoms.values()), inside)


def _block_norms(
    products: report.Products, survey: Survey, plan: Plan, weights: planning.Weights, atoms: Atoms
) -> dict[str, dict[str, dict[str, float]]]:
    """Norm of each term on each bucket, block by block; a term that has no path to a block is not in it."""
    norms: dict[str, dict[str, dict[str, float]]] = {block: {} for block in atoms.of_block}
    inside = {block: {i for at in parts for i in atoms.members[at]} for block, parts in atoms.of_block.items()}
    for bucket, per_atom in products.sums.items():
        weight = float(weights.row[plan.rows(bucket)].sum())
        for block, parts in atoms.of_block.items() if weight else ():
            lengths = gram.norms(per_atom[parts].sum(0)) / weight
            norms[block][bucket] = {
                term: float(lengths[at])
                for at, term in enumerate(products.terms)
                if term != NULL and survey.reached[term] & inside[block]
            }
    return norms


def _group_tables(plan: Plan) -> dict[str, Any]:
    columns = ["bucket", "group_id", "reward_std"]
    return {
        f"grad_norm/{bucket}/group_rv_table": {
            "columns": columns,
            "data": [[bucket, plan.parts[i].id, plan.parts[i].reward_std] for i in parts],
        }
        for bucket, parts in plan.buckets.items()
        if bucket != ALL or len(plan.buckets) > 1
    }
