"""An analysis as the contract writes it, without a model: every key, with the awkward cases in it.

bucket_1 has a negative task signal (less than noise), bucket_2 no KL (not measured), bucket_6 three
units (no interval).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.records import Row, Table
from gradiometer.store.writer import Writer

BUCKETS = tuple(f"bucket_{number}" for number in range(1, 7))
TERMS = ("task", "entropy", "kl")
SIZES = {"task": 0.4, "entropy": 0.03, "kl": 0.008}
GROUPS_EACH, GROUP_SIZE = 12, 16
COLUMNS = ["bucket", "group_id", "reward_std"]


def metrics(
    step: int = 1, *, null: bool = True, terms: tuple[str, ...] = TERMS
) -> dict[str, float]:
    """Every metric key of the contract."""
    rng = np.random.default_rng(step)
    values: dict[str, float] = {}
    for place, bucket in enumerate((*BUCKETS, "all")):
        groups = 3 if bucket == "bucket_6" else 6 * GROUPS_EACH if bucket == "all" else GROUPS_EACH
        values |= counts(bucket, place, groups)
        for term in (*terms, "total"):
            if (bucket, term) != ("bucket_2", "kl"):
                values |= norms(bucket, term, place, groups, rng, step=step, null=null)
        for name in ("policy", *(term for term in terms if term != "task"), "total"):
            if (bucket, name) != ("bucket_2", "kl"):
                values[f"grad_norm/{bucket}/loss/{name}"] = float(rng.normal(0.02, 0.05))
        for a, b in combinations(terms, 2):
            if not (bucket == "bucket_2" and "kl" in (a, b)):
                cosine = float(np.tanh(rng.normal(0, 0.8)))
                values[f"grad_norm/{bucket}/cos/{a}~{b}"] = cosine
                if bucket != "bucket_1":
                    values[f"grad_norm/{bucket}/cos_signal/{a}~{b}"] = 1.2 * cosine
    for term in terms:
        for a, b in combinations(BUCKETS, 2):
            if not (term == "kl" and "bucket_2" in (a, b)):
                values[f"grad_norm/between/{term}/{a}~{b}"] = float(np.tanh(rng.normal(0.2, 0.4)))
    for name in ("policy", *(term for term in terms if term != "task"), "total"):
        values[f"actor/loss/{name}"] = values[f"grad_norm/all/loss/{name}"]
    return values | {f"actor/grad_norm/{term}": values[f"grad_norm/all/{term}"] for term in terms}


def counts(bucket: str, place: int, groups: int) -> dict[str, float]:
    low, high = (0.0, 6.0) if bucket == "all" else (place * 1.0, place + 1.0)
    start = f"grad_norm/{bucket}"
    return {
        f"{start}/sample_count": groups * GROUP_SIZE,
        f"{start}/sample_pct": 1.0 if bucket == "all" else groups / (5 * GROUPS_EACH + 3),
        f"{start}/reward_std_mean": (low + high) / 2,
        f"{start}/reward_std_min": low + 0.05,
        f"{start}/reward_std_max": high - 0.05,
        f"{start}/group_rv_count": groups,
        f"{start}/token_count": groups * GROUP_SIZE * 210,
    }


def norms(
    bucket: str,
    term: str,
    place: int,
    groups: int,
    rng: np.random.Generator,
    *,
    step: int,
    null: bool,
) -> dict[str, float]:
    signal = (
        SIZES.get(term, 0.45)
        * (0.3 + 0.4 * min(place, 5))
        * float(rng.uniform(0.85, 1.15))
        / (1 + step / 60)
    )
    noise = SIZES.get(term, 0.45) * (0.9 if bucket != "all" else 0.35)
    plain = float(np.hypot(signal, noise))
    if (bucket, term) == ("bucket_1", "task"):
        signal = -0.12
    start = f"grad_norm/{bucket}"
    values = {f"{start}/{term}": plain}
    samples, tokens = groups * GROUP_SIZE, groups * GROUP_SIZE * 210
    for kind, count in (("per_sample", samples), ("per_token", tokens)):
        values |= {
            f"{start}/{kind}/{term}": plain / count,
            f"{start}/{kind}_sum/{term}": plain * count / tokens,
        }
    if term == "total":
        return values
    values |= {
        f"{start}/signal/{term}": signal,
        f"{start}/noise/{term}": noise,
        f"{start}/snr/{term}": signal / noise,
    }
    values |= {
        f"{start}/p_value/{term}": 0.4 if signal < noise / 2 else 0.002,
        f"{start}/share/{term}": SIZES.get(term, 0.2) / 0.45,
    }
    if groups >= 4:
        values |= {
            f"{start}/signal_low/{term}": signal - 0.5 * noise,
            f"{start}/signal_high/{term}": signal + 0.5 * noise,
        }
    if null:
        under = float(rng.normal(0, 0.2)) * noise
        values |= {f"{start}/null/{term}": noise * 1.02, f"{start}/null_signal/{term}": under}
        if groups >= 4:
            values |= {f"{start}/null_signal_low/{term}": under - 0.45 * noise}
            values |= {f"{start}/null_signal_high/{term}": under + 0.45 * noise}
    return values


def group_tables(step: int = 1) -> dict[str, dict[str, Any]]:
    """The group table of every bucket."""
    rng = np.random.default_rng(step)
    tables: dict[str, dict[str, Any]] = {}
    everything: list[list[Any]] = []
    for place, bucket in enumerate(BUCKETS):
        number = 3 if bucket == "bucket_6" else GROUPS_EACH
        spreads = np.sort(rng.uniform(place + 0.05, place + 0.95, number))
        rows = [
            [bucket, place * GROUPS_EACH + index, float(spread)]
            for index, spread in enumerate(spreads)
        ]
        tables[f"grad_norm/{bucket}/group_rv_table"] = {"columns": COLUMNS, "data": rows}
        everything += [["all", *row[1:]] for row in rows]
    return tables | {"grad_norm/all/group_rv_table": {"columns": COLUMNS, "data": everything}}


def circumstances() -> dict[str, Any]:
    return {
        "unit": "group",
        "aggregation": "token-mean",
        "bucket_mode": "quantile",
        "terms": list(TERMS),
        "buckets": ["all", *BUCKETS],
        "vectors": "exact",
        "cosine_error": None,
        "filter": {},
        "blocks": {},
        "dead": [],
    }


def of_the_whole_batch(step: int = 1) -> dict[str, float]:
    """The metrics of an analysis without buckets, which is drawn sooner."""
    return {name: value for name, value in metrics(step).items() if "/all/" in name}


def write_run(
    folder: Path,
    steps: Iterable[int] = (1, 11, 21),
    *,
    null: bool = True,
    whole: Iterable[int] = (),
) -> Path:
    """A run folder of ours with an analysis at each of the steps, and ordinary steps between;
    those of the steps `whole` have no buckets."""
    with Writer(folder, facts={"seed": 7, "started": "2026-01-01T00:00:00+00:00"}) as writer:
        for step in sorted({*range(25), *steps}):
            values = {"grad/all/norm/raw": 1.0, "reward": step / 10}
            if step in steps:
                values |= of_the_whole_batch(step) if step in whole else metrics(step, null=null)
                tables = {**group_tables(step), "anatomy": circumstances()}
                for name, content in tables.items():
                    writer.put(Table(step=step, name=name, content=content))
            writer.put(Row(step=step, wall_time=float(step), values=values))
    return folder
