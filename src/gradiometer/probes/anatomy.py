"""Anatomy: what each loss term does to the weights, on which samples, and with how much certainty.

A batch of rollouts in groups is sorted by how much rewards vary inside each group, cut into
buckets, and every loss term's gradient is taken on every group by itself: one forward for each
micro-batch, one backward for each term. All else is arithmetic on inner products (`maths.gram`):
norms of buckets and of their sum, cosines, shares, and, with whole groups as independent units, the
part of a norm that is signal and the part that is noise.

Reference: RAGEN's gradient analysis by reward-variance buckets, whose keys these are.
It ran a forward and a backward for each bucket and term and dropped what did not divide over the
ranks; nothing is dropped here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.blocks import Blocks, Model, Selector, find_blocks, named_parameters
from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths import gram
from gradiometer.maths.gram import signed_root
from gradiometer.maths.groups import RolloutFilter
from gradiometer.maths.sketch import MAX_K
from gradiometer.maths.vectors import ExactVectors, Vectors, products_of
from gradiometer.metrics import key
from gradiometer.probes.stillness import check_whole, held_still, need_gradients
from gradiometer.probes.survey import (
    ALL,
    NULL,
    Asked,
    LossTerms,
    Plan,
    Progress,
    Survey,
    Trim,
    Weights,
    check_batch,
    gathered,
    make_plan,
    part_name,
    permuted_inside,
    weights_of,
)
from gradiometer.probes.together import Walked, walk_together

if TYPE_CHECKING:
    from gradiometer.capture.meter import Meter

__all__ = ["Anatomy", "Products", "anatomy", "relations"]

Floats = NDArray[np.float64]

MEMORY_LIMIT = 2**30
LOSS_NAMES = {"task": "policy"}
"""What RAGEN calls the loss of a term whose gradient it calls otherwise."""
MANY = 12  # buckets; their pairs grow with the square
SMALL = 1e-25  # a squared norm below which float32 products have lost digits
Null = bool | Callable[[Tensor], Mapping[str, Tensor]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The result: `metrics` and `tables` by name (groups of each bucket, how it was measured)."""

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
    together: bool = True,
    memory_limit: int = MEMORY_LIMIT,
    sketch_size: int = 1024,
    seed: int = 0,
    meter: Meter | None = None,
    progress: Progress | None = None,
) -> Anatomy:
    """Take the gradient of `model` apart, by loss term and by reward-variance bucket.

    Nothing of the training changes.

    `batch` holds tensors with a row for each of N samples, `rewards` [N] one number each, `groups`
    [N] which samples share a prompt. `loss_terms(rows)` gets some rows of the batch and gives, by
    name, the losses of each token [n, T] (or of each sample [n], without a `mask`), coefficients
    included and not reduced; the first term is the task's. `aggregation` is token-mean,
    seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm, taken over a whole bucket.

    `rollout_filter` drops groups first. `bucket_mode` is quantile, quantile_source, fixed_rv or
    pass_rate. `null` also measures the task with rewards permuted inside groups: True permutes
    batch["advantages"] [N]; a function gets the order [N] (row i has the reward of row order[i])
    and gives the entries of the batch that change. A loss_terms that returns a term `null` for an
    entry `null_advantages` saves the second forward. `cross_fit` sorts groups by half of their
    rollouts and takes gradients of the other half. `horizon` is the divisor of
    seq-mean-token-sum-norm, by default the mask's width. `trim` names an attention mask (and then
    the entries to cut, by default all of its width) whose padding at the right is cut off; rows of
    similar width then go together. Your own hooks on the model fire in the probe too.

    Rows of several groups share a forward, without the padding at their right, if one group tried
    both ways has the same losses and gradients; otherwise, and with `together=False`, each group
    has its own. `tables["anatomy"]["walk"]` says which it was, and why.

    Vectors are kept in full up to `memory_limit` bytes, otherwise as sketches of `sketch_size`
    numbers. With `meter` the result is kept in its run, at its step. Under torch.distributed every
    rank calls this with the same batch.
    """
    rules = {"rollout_filter": rollout_filter, "bucket_mode": bucket_mode, "cross_fit": cross_fit}
    _check_sizes(num_buckets, micro_batch_size, memory_limit, sketch_size, seed)
    plan = make_plan(rewards, groups, num_buckets=num_buckets, **rules)  # type: ignore[arg-type]
    check_batch(batch, len(rewards))
    weights = weights_of(mask, len(rewards), aggregation, horizon)
    _check_ranks(batch, plan, weights)
    trained = {name: p for name, p in named_parameters(model).items() if p.requires_grad}
    atoms = Atoms.of(find_blocks(trained, blocks), len(trained))
    survey = Survey(
        list(trained.values()),
        atoms.members,
        plan,
        weights,
        memory_limit=memory_limit,
        k=sketch_size,
        seed=seed,
    )
    need_gradients()
    asked = Asked(
        batch=batch,
        loss_terms=loss_terms,
        null=_replaced(null, batch, permuted_inside(groups, seed)),
        weights=weights.token,
    )
    options: Any = {"micro_batch_size": micro_batch_size, "trim": trim, "progress": progress}
    walk = Walked(together=False, trimmed=trim is not None, why="not wanted")
    if together:
        walk = walk_together(model, list(trained), survey, asked, **options)
    with held_still(model):
        if not walk.together:
            survey.run(asked, **options)
        result = _result(survey, plan, weights, atoms, aggregation, rules, walk, seed=seed)
    if meter is not None:
        meter.record(result.metrics, tables=result.tables)
    return result


def _result(
    survey: Survey,
    plan: Plan,
    weights: Weights,
    atoms: Atoms,
    aggregation: str,
    rules: Mapping[str, Any],
    walk: Walked,
    *,
    seed: int,
) -> Anatomy:
    """From vectors to products, from products to numbers."""
    products = measure(survey, plan)
    chosen: RolloutFilter | None = rules["rollout_filter"]
    about = {
        "aggregation": aggregation,
        "bucket_mode": rules["bucket_mode"],
        "cross_fit": rules["cross_fit"],
        "filter": None if chosen is None else dataclasses.asdict(chosen),
        **_circumstances(survey, plan),
        "walk": dataclasses.asdict(walk),
        "blocks": _block_norms(products, survey, plan, weights, atoms),
    }
    return Anatomy(
        metrics=metrics_of(products, plan, weights, survey.losses, seed=seed),
        tables={**_group_tables(plan), "anatomy": about},
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


def _check_sizes(
    num_buckets: int, micro_batch_size: int | None, memory_limit: int, sketch_size: int, seed: int
) -> None:
    check_whole("num_buckets", num_buckets, 1)
    if micro_batch_size is not None:
        check_whole("micro_batch_size", micro_batch_size, 1)
    check_whole("memory_limit", memory_limit, 0)
    check_whole("sketch_size", sketch_size, 1)
    check_whole("seed", seed, 0)
    if sketch_size > MAX_K:
        raise UsageError(f"sketch_size is at most {MAX_K}; found {sketch_size}")


def _check_ranks(batch: Mapping[str, Tensor], plan: Plan, weights: Weights) -> None:
    """Ranks share one batch's micro-batches; with a batch each, sums would be of nothing."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    parts = [(part.id, part.reward_std, part.rows.tolist()) for part in plan.parts]
    shapes = [(name, tuple(entry.shape)) for name, entry in batch.items()]
    mine = hashlib.blake2b(repr((parts, shapes, weights.row.tolist())).encode()).hexdigest()
    if len(set(gathered(mine))) > 1:
        raise UsageError(
            "under torch.distributed every rank calls gm.anatomy with the same batch, rewards and"
            " groups, and takes its turn of the micro-batches; here they differ. Gather the batch"
            " to all ranks first (all_gather)"
        )


def _replaced(null: Null, batch: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor] | None:
    """The entries of the batch under permuted rewards."""
    if null is None or null is False:
        return None
    if callable(null):
        entries = dict(null(order))
        check_batch(entries, len(order))
        for name in entries:
            if name not in batch:
                raise UnknownName("entry of the batch, given by null=,", name, batch)
        return entries
    advantages = batch.get("advantages")
    if advantages is None or advantages.ndim != 1:
        found = "no such entry" if advantages is None else f"the shape {list(advantages.shape)}"
        raise UsageError(
            f'null=True permutes batch["advantages"] of shape [N]; found {found}. Give a function'
            ' of the order instead: null=lambda order: {"advantages":'
            " advantages_from(rewards[order])}"
        )
    return {"advantages": advantages[order.to(advantages.device)]}


@dataclass(frozen=True, slots=True)
class Atoms:
    """The finest parts that the named blocks have in common."""

    members: list[list[int]]
    of_block: dict[str, list[int]]
    """Which of them each block is made of."""

    @classmethod
    def of(cls, blocks: Blocks, num_parameters: int) -> Self:
        """Parameters that lie in the same named blocks are one atom."""
        names = blocks.names[: blocks.num_named]
        parts = [frozenset(members) for members in blocks.members[: blocks.num_named]]
        atoms: dict[tuple[bool, ...], list[int]] = {}
        for index in range(num_parameters):
            atoms.setdefault(tuple(index in part for part in parts), []).append(index)
        inside = {
            name: [at for at, signature in enumerate(atoms) if signature[i]]
            for i, name in enumerate(names)
        }
        return cls(list(atoms.values()), inside)


def _block_norms(
    products: Products, survey: Survey, plan: Plan, weights: Weights, atoms: Atoms
) -> dict[str, dict[str, dict[str, float]]]:
    """By block and bucket, the norm of each term that has a path to the block."""
    norms: dict[str, dict[str, dict[str, float]]] = {block: {} for block in atoms.of_block}
    inside = {
        block: {i for at in parts for i in atoms.members[at]}
        for block, parts in atoms.of_block.items()
    }
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """All that is left of the vectors."""

    units: Mapping[str, Floats]
    """By term, <x_i, x_j> of the parts, [parts, parts]."""
    own: Floats
    """<a_i, b_i> of two terms on one part, [parts, terms, terms]."""
    sums: Mapping[str, Floats]
    """By bucket, the products of the terms' gradients, for each atom [atoms, terms, terms]."""
    across: Mapping[str, Floats]
    """By term, the products of the buckets' gradients, `all` left out [buckets, buckets]."""
    terms: tuple[str, ...]
    """Those with a gradient path, in the order of the loss; the null last, if there is one."""

    @property
    def real(self) -> list[int]:
        """The terms that are in the loss: all but the null."""
        return [i for i, term in enumerate(self.terms) if term != NULL]


def measure(survey: Survey, plan: Plan) -> Products:
    """Take every product that is wanted; the vectors can go afterwards."""
    terms = tuple(term for term in survey.terms if term in survey.reached)
    if not terms:
        return Products(
            units={}, own=np.zeros((len(plan.parts), 0, 0)), sums={}, across={}, terms=()
        )
    if isinstance(survey.vectors, ExactVectors):
        return _of_exact(survey.vectors, survey.rows, plan, terms)
    return _of_sketches(survey.vectors, survey.sums, plan, terms)


def _of_exact(
    vectors: ExactVectors, rows: Mapping[str, Tensor], plan: Plan, terms: tuple[str, ...]
) -> Products:
    """All at once, for whoever reads the vectors once more pays for it."""
    names = [bucket for bucket in plan.buckets if bucket != ALL]
    parts = [list(plan.buckets[name]) for name in names]  # neighbours: sorted by bucket
    inside, between, sums = (
        found.cpu().numpy().astype(np.float64, copy=False)
        for found in vectors.in_one_pass(
            [rows[term] for term in terms], [len(part) for part in parts]
        )
    )
    units = {
        term: _in_range(products, vectors, [part_name(i, term) for i in range(len(plan.parts))])
        for term, products in zip(terms, inside, strict=True)
    }
    return Products(
        units=units,
        own=between,
        sums={name: sums[:, at] for at, name in enumerate([ALL, *names])},
        # By index and not by a product with zeros and ones: a NaN in one bucket stays there.
        across={
            term: np.array([[products[np.ix_(a, b)].sum() for b in parts] for a in parts])
            for term, products in units.items()
            if term != NULL
        },
        terms=terms,
    )


def _of_sketches(vectors: Vectors, sums: Vectors, plan: Plan, terms: tuple[str, ...]) -> Products:
    """Buckets have vectors of their own, which may be exact."""
    numbers = range(len(plan.parts))
    names = [bucket for bucket in plan.buckets if bucket != ALL]

    def units_of(term: str) -> Floats:
        members = [part_name(i, term) for i in numbers]
        return _in_range(products_of(vectors, members, wide=False).sum(0), vectors, members)

    def terms_of(kept: Vectors, part: int | str, *, wide: bool) -> Floats:
        return products_of(kept, [part_name(part, term) for term in terms], wide=wide)

    return Products(
        units={term: units_of(term) for term in terms},
        own=np.array([terms_of(vectors, i, wide=False).sum(0) for i in numbers]),
        sums={bucket: terms_of(sums, bucket, wide=True) for bucket in plan.buckets},
        across={
            term: products_of(sums, [part_name(bucket, term) for bucket in names]).sum(0)
            for term in terms
            if term != NULL
        },
        terms=terms,
    )


def _in_range(products: Floats, vectors: Vectors, names: Sequence[str]) -> Floats:
    """Products of float32 vectors, in float64 where they are out of float32's range."""
    largest = np.diagonal(products).max()
    if np.isfinite(products).all() and (largest == 0 or largest > SMALL):
        return products
    wide: Floats = products_of(vectors, names).sum(0)
    return wide


def metrics_of(
    products: Products, plan: Plan, weights: Weights, losses: Mapping[str, Floats], *, seed: int
) -> dict[str, float]:
    """Every key of the analysis but those without a value: no path, or a bucket without tokens."""
    values: dict[str, float] = {}
    part_weights = np.array([weights.row[part.rows].sum() for part in plan.parts])
    for bucket, parts in plan.buckets.items():
        at = list(parts)
        values.update(_counts(bucket, plan, weights))
        weight = float(part_weights[at].sum())
        if weight == 0:
            continue
        means = {term: float(sums[at].sum()) / weight for term, sums in losses.items()}
        values.update(_losses(bucket, means))
        if products.terms:
            values.update(_norms(bucket, products, weight, plan, weights))
            values.update(relations(bucket, products, at, part_weights[at]))
        for term in products.terms:
            matrix = products.units[term][np.ix_(at, at)]
            values.update(_signals(bucket, term, products.terms[0], matrix, part_weights[at], seed))
    values.update(_between(products, plan))
    values.update(_top_level(values, products.terms, losses))
    return values


def _counts(bucket: str, plan: Plan, weights: Weights) -> dict[str, float]:
    rows = plan.rows(bucket)
    stds = np.array([plan.parts[i].reward_std for i in plan.buckets[bucket]])
    found: dict[str, float] = {
        "grad_norm/<bucket>/sample_count": len(rows),
        "grad_norm/<bucket>/sample_pct": len(rows) / len(plan.rows(ALL)),
        "grad_norm/<bucket>/group_rv_count": len(stds),
        "grad_norm/<bucket>/reward_std_mean": stds.mean(),
        "grad_norm/<bucket>/reward_std_min": stds.min(),
        "grad_norm/<bucket>/reward_std_max": stds.max(),
    }
    if weights.tokens is not None:
        found["grad_norm/<bucket>/token_count"] = weights.tokens[rows].sum()
    return {key(template, bucket=bucket): float(value) for template, value in found.items()}


def _losses(bucket: str, means: Mapping[str, float]) -> dict[str, float]:
    real = {term: mean for term, mean in means.items() if term != NULL}
    named = {LOSS_NAMES.get(term, term): mean for term, mean in real.items()}
    named["total"] = sum(real.values())
    return {
        key("grad_norm/<bucket>/loss/<name>", bucket=bucket, name=name): mean
        for name, mean in named.items()
    }


def _norms(
    bucket: str, products: Products, weight: float, plan: Plan, weights: Weights
) -> dict[str, float]:
    """‖g‖ = ‖Σx‖/T of each term and of their sum, and what RAGEN divides them by."""
    rows = plan.rows(bucket)
    counts = {"sample": float(len(rows))}
    if weights.tokens is not None:
        counts["token"] = float(weights.tokens[rows].sum())
    values: dict[str, float] = {}

    def name(what: str, term: str) -> str:
        return key(f"grad_norm/<bucket>/{what}<term>", bucket=bucket, term=term)

    for term, length in _lengths(products, products.sums[bucket].sum(0)):
        if term == NULL:
            values[name("null/", products.terms[0])] = length / weight
            continue
        values[name("", term)] = length / weight
        for what, count in counts.items():
            values[name(f"per_{what}/", term)] = length / weight / count
            values[name(f"per_{what}_sum/", term)] = length / count
    return values


def _lengths(products: Products, matrix: Floats) -> Iterator[tuple[str, float]]:
    yield from zip(products.terms, gram.norms(matrix).tolist(), strict=True)
    total = matrix[np.ix_(products.real, products.real)].sum()
    yield "total", float(np.sqrt(np.maximum(total, 0.0)))


def relations(
    bucket: str, products: Products, parts: Sequence[int], weights: Floats
) -> dict[str, float]:
    """Shares of the total, cosines between terms, and the same free of the noise both share.

    Two terms on one sample share its noise. <A, B> − Σ_i <a_i, b_i> leaves only products of
    different units. Divided by lengths that could be zero it may be anything, so it is given where
    both signals are certain, and within the bounds of a cosine.
    """
    real, terms = products.real, [products.terms[i] for i in products.real]
    matrix = products.sums[bucket].sum(0)[np.ix_(real, real)]
    values = {
        key("grad_norm/<bucket>/share/<term>", bucket=bucket, term=term): float(share)
        for term, share in zip(terms, gram.shares(matrix), strict=True)
    }
    cosine = gram.cosines(matrix)
    across = matrix - products.own[list(parts)].sum(0)[np.ix_(real, real)]
    at = np.ix_(list(parts), list(parts))
    certain = [gram.has_signal(products.units[term][at], weights) for term in terms]
    for (i, a), (j, b) in combinations(enumerate(terms), 2):
        pair = {"bucket": bucket, "term_a": a, "term_b": b}
        values[key("grad_norm/<bucket>/cos/<term_a>~<term_b>", **pair)] = float(cosine[i, j])
        scale = across[i, i] * across[j, j]
        if certain[i] and certain[j] and across[i, i] > 0 and scale > 0:
            free = float(np.clip(across[i, j] / np.sqrt(scale), -1.0, 1.0))
            values[key("grad_norm/<bucket>/cos_signal/<term_a>~<term_b>", **pair)] = free
    # 0/0 has no value and is left out; a NaN that comes of a NaN is one.
    if np.isnan(matrix).any():
        return values
    return {name: value for name, value in values.items() if not np.isnan(value)}


def _signals(
    bucket: str, term: str, task: str, matrix: Floats, weights: Floats, seed: int
) -> dict[str, float]:
    found = gram.signal(matrix, weights, seed=seed)
    if found is None:
        return {}
    prefix, named = ("null_", task) if term == NULL else ("", term)
    values: dict[str, float | None] = {
        "signal": signed_root(found.signal_sq),
        "signal_low": None if found.low is None else signed_root(found.low),
        "signal_high": None if found.high is None else signed_root(found.high),
    }
    if term != NULL:
        values |= {"noise": signed_root(found.noise_sq), "p_value": found.p_value}
        values |= {"snr": None if found.noise_sq <= 0 else found.snr}
    return {
        key(f"grad_norm/<bucket>/{prefix}{name}/<term>", bucket=bucket, term=named): value
        for name, value in values.items()
        if value is not None
    }


def _between(products: Products, plan: Plan) -> dict[str, float]:
    """Cosines of a term on two buckets, which share no sample; of many: neighbours, the first."""
    buckets = [bucket for bucket in plan.buckets if bucket != ALL]
    values: dict[str, float] = {}
    for term, matrix in products.across.items():
        cosine = gram.cosines(matrix)
        for (i, a), (j, b) in combinations(enumerate(buckets), 2):
            if len(buckets) > MANY and i > 0 and j > i + 1:
                continue
            if not np.isnan(cosine[i, j]) or np.isnan(matrix[i, j]):
                template = "grad_norm/between/<term>/<bucket_a>~<bucket_b>"
                values[key(template, term=term, bucket_a=a, bucket_b=b)] = float(cosine[i, j])
    return values


def _top_level(
    values: Mapping[str, float], terms: Sequence[str], losses: Iterable[str]
) -> dict[str, float]:
    """RAGEN writes the norms and losses of `all` to the top level too."""
    gradients = [*(term for term in terms if term != NULL), "total"]
    named = [*(LOSS_NAMES.get(term, term) for term in losses if term != NULL), "total"]
    copied = {
        key("actor/grad_norm/<term>", term=term): key(
            "grad_norm/<bucket>/<term>", bucket=ALL, term=term
        )
        for term in gradients
    } | {
        key("actor/loss/<name>", name=name): key(
            "grad_norm/<bucket>/loss/<name>", bucket=ALL, name=name
        )
        for name in named
    }
    return {copy: values[name] for copy, name in copied.items() if name in values}
