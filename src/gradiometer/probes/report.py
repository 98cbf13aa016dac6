"""From the inner products of a survey to named numbers: the keys of source 003, and the sound ones beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gradiometer.maths import gram
from gradiometer.maths.gram import signed_root
from gradiometer.maths.vectors import Vectors, products_of
from gradiometer.metrics import key
from gradiometer.probes.plan import ALL, Plan, Weights
from gradiometer.probes.survey import NULL, Survey, part_name

__all__ = ["Products", "measure", "metrics_of"]

Floats = NDArray[np.float64]
LOSS_NAMES = {"task": "policy"}
"""What the source calls the loss of a term whose gradient it calls otherwise."""
MANY = 12  # buckets; their pairs grow with the square
SMALL = 1e-25  # a squared norm below which float32 products have lost digits


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
    numbers = range(len(plan.parts))

    def units_of(term: str) -> Floats:
        names = [part_name(i, term) for i in numbers]
        products: Floats = products_of(survey.vectors, names, wide=False).sum(0)
        largest = np.diagonal(products).max()
        if not (np.isfinite(products).all() and (largest == 0 or largest > SMALL)):  # out of float32's range
            products = products_of(survey.vectors, names).sum(0)
        return products

    def terms_of(vectors: Vectors, part: int | str, *, wide: bool) -> Floats:
        return products_of(vectors, [part_name(part, term) for term in terms], wide=wide)

    if not terms:
        return Products(units={}, own=np.zeros((len(numbers), 0, 0)), sums={}, across={}, terms=())
    units = {term: units_of(term) for term in terms}
    return Products(
        units=units,
        own=np.array([terms_of(survey.vectors, i, wide=False).sum(0) for i in numbers]),
        sums={bucket: terms_of(survey.sums, bucket, wide=True) for bucket in plan.buckets},
        across={term: _across(survey, plan, term, units[term]) for term in terms if term != NULL},
        terms=terms,
    )


def _across(survey: Survey, plan: Plan, term: str, units: Floats) -> Floats:
    """Buckets against buckets: exact where their vectors are, and else sums over the units' products."""
    buckets = [bucket for bucket in plan.buckets if bucket != ALL]
    if survey.sums is not survey.vectors:
        products: Floats = products_of(survey.sums, [part_name(bucket, term) for bucket in buckets]).sum(0)
        return products
    parts = [list(plan.buckets[bucket]) for bucket in buckets]
    # By index and not by a product with zeros and ones: a NaN in one bucket is none of the others' business.
    return np.array([[units[np.ix_(a, b)].sum() for b in parts] for a in parts])


def metrics_of(
    products: Products, plan: Plan, weights: Weights, losses: Mapping[str, Floats], *, seed: int
) -> dict[str, float]:
    """Every key of the analysis. What has no value is left out: a term without a path, a bucket without a token."""
    values: dict[str, float] = {}
    part_weights = np.array([weights.row[part.rows].sum() for part in plan.parts])
    for bucket, parts in plan.buckets.items():
        at = list(parts)
        values.update(_counts(bucket, plan, weights))
        weight = float(part_weights[at].sum())
        if weight == 0:
            continue
        values.update(_losses(bucket, {term: float(sums[at].sum()) / weight for term, sums in losses.items()}))
        if products.terms:
            values.update(_norms(bucket, products, weight, plan, weights))
            values.update(_relations(bucket, products, at))
        for term in products.terms:
            matrix = products.units[term][np.ix_(at, at)]
            values.update(_signals(bucket, term, products.terms[0], matrix, part_weights[at], seed))
    values.update(_between(products, plan))
    values.update(_top_level(values, products.terms, losses))
    return values


def _counts(bucket: str, plan: Plan, weights: Weights) -> dict[str, float]:
    rows, stds = plan.rows(bucket), np.array([plan.parts[i].reward_std for i in plan.buckets[bucket]])
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
    named = {LOSS_NAMES.get(term, term): mean for term, mean in real.items()} | {"total": sum(real.values())}
    return {key("grad_norm/<bucket>/loss/<name>", bucket=bucket, name=name): mean for name, mean in named.items()}


def _norms(bucket: str, products: Products, weight: float, plan: Plan, weights: Weights) -> dict[str, float]:
    """‖g‖ = ‖Σx‖/T of each term and of their sum, and what the source divides them by."""
    rows = plan.rows(bucket)
    counts = {"sample": float(len(rows))}
    if weights.tokens is not None:
        counts["token"] = float(weights.tokens[rows].sum())
    values: dict[str, float] = {}
    for term, length in _lengths(products, products.sums[bucket].sum(0)):
        if term == NULL:
            values[key("grad_norm/<bucket>/null/<term>", bucket=bucket, term=products.terms[0])] = length / weight
            continue
        values[key("grad_norm/<bucket>/<term>", bucket=bucket, term=term)] = length / weight
        for what, count in counts.items():
            values[key(f"grad_norm/<bucket>/per_{what}/<term>", bucket=bucket, term=term)] = length / weight / count
            values[key(f"grad_norm/<bucket>/per_{what}_sum/<term>", bucket=bucket, term=term)] = length / count
    return values


def _lengths(products: Products, matrix: Floats) -> Iterator[tuple[str, float]]:
    yield from zip(products.terms, gram.norms(matrix).tolist(), strict=True)
    yield "total", float(np.sqrt(np.maximum(matrix[np.ix_(products.real, products.real)].sum(), 0.0)))


def _relations(bucket: str, products: Products, parts: Sequence[int]) -> dict[str, float]:
    """Shares of the total, cosines between terms, and the same cosines free of the noise both terms share.

    Two terms on one sample share its noise. <A, B> − Σ_i <a_i, b_i> leaves only products of different units.
    """
    real, terms = products.real, [products.terms[i] for i in products.real]
    matrix = products.sums[bucket].sum(0)[np.ix_(real, real)]
    values = {
        key("grad_norm/<bucket>/share/<term>", bucket=bucket, term=term): float(share)
        for term, share in zip(terms, gram.shares(matrix), strict=True)
    }
    cosine = gram.cosines(matrix)
    across = matrix - products.own[list(parts)].sum(0)[np.ix_(real, real)]
    for (i, a), (j, b) in combinations(enumerate(terms), 2):
        pair = {"bucket": bucket, "term_a": a, "term_b": b}
        values[key("grad_norm/<bucket>/cos/<term_a>~<term_b>", **pair)] = float(cosine[i, j])
        scale = across[i, i] * across[j, j]
        if len(parts) >= gram.MIN_UNITS and across[i, i] > 0 and scale > 0:
            values[key("grad_norm/<bucket>/cos_signal/<term_a>~<term_b>", **pair)] = float(
                across[i, j] / np.sqrt(scale)
            )
    # 0/0 has no value and is left out; a NaN that comes of a NaN is one.
    return {name: value for name, value in values.items() if not np.isnan(value) or np.isnan(matrix).any()}


def _signals(bucket: str, term: str, task: str, matrix: Floats, weights: Floats, seed: int) -> dict[str, float]:
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
    """Cosines of one term's gradient on two buckets, which share no sample; of many buckets the neighbours and the first."""
    buckets = [bucket for bucket in plan.buckets if bucket != ALL]
    values: dict[str, float] = {}
    for term, matrix in products.across.items():
        cosine = gram.cosines(matrix)
        for (i, a), (j, b) in combinations(enumerate(buckets), 2):
            if len(buckets) > MANY and i > 0 and j > i + 1:
                continue
            if not np.isnan(cosine[i, j]) or np.isnan(matrix[i, j]):
                name = key("grad_norm/between/<term>/<bucket_a>~<bucket_b>", term=term, bucket_a=a, bucket_b=b)
                values[name] = float(cosine[i, j])
    return values


def _top_level(values: Mapping[str, float], terms: Sequence[str], losses: Iterable[str]) -> dict[str, float]:
    """The source writes the norms and losses of `all` to the top level too."""
    norms = {
        key("actor/grad_norm/<term>", term=term): key("grad_norm/<bucket>/<term>", bucket=ALL, term=term)
        for term in [*(term for term in terms if term != NULL), "total"]
    }
    named = [*(LOSS_NAMES.get(term, term) for term in losses if term != NULL), "total"]
    copied = norms | {
        key("actor/loss/<name>", name=name): key("grad_norm/<bucket>/loss/<name>", bucket=ALL, name=name)
        for name in named
    }
    return {copy: values[name] for copy, name in copied.items() if name in values}
