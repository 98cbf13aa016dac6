"""The terms of a loss: what each is for, by its name, and how large two are beside each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import together

__all__ = [
    "COEFFICIENTS",
    "COSINE",
    "REGULARISERS",
    "SHARE",
    "TERM_NORM",
    "Pair",
    "Role",
    "cosine_of",
    "log_ratio",
    "named",
    "norms_by_block",
    "pairs_of",
    "role_of",
]

Role = Literal["policy", "value", "entropy", "kl", "penalty", "auxiliary"]
ROLES: dict[Role, frozenset[str]] = {
    "entropy": frozenset({"entropy", "entropies", "ent"}),
    "kl": frozenset({"kl"}),
    "value": frozenset({"value", "values", "vf", "critic", "v", "q", "qf", "qvalue", "td"}),
    "policy": frozenset(
        {"policy", "pg", "actor", "task", "surrogate", "ppo", "grpo", "reinforce", "pi"}
    ),
    "auxiliary": frozenset({"aux", "auxiliary", "balance", "router", "z"}),
    "penalty": frozenset({"bonus", "regulariser", "regularizer", "reg"}),
}
"""Words of a name; those of `entropy` and `kl` say what it is, whosever it is (`actor_entropy`)."""
JOINED = re.compile(r"(?<=.)(loss|div|penalty|term|coef)$")
"""What people write on to such a word without a break: pgloss, kldiv."""
REGULARISERS: tuple[Role, ...] = ("entropy", "kl", "penalty")
COEFFICIENTS: dict[Role, tuple[str, ...]] = {
    "entropy": ("entropy_coef", "entropy_coeff", "ent_coef", "entropy_coefficient", "entropy_beta"),
    "kl": ("kl_loss_coef", "kl_coef", "kl_coeff", "kl_beta", "init_kl_coef", "beta"),
    "value": ("vf_coef", "value_coef", "value_loss_coef", "critic_coef"),
}
"""Settings that switch a term off with a zero: SB3, CleanRL, verl and TRL spell them so."""


def role_of(term: str) -> Role | None:
    """What a term is for, by the words of its name; a name of two roles is none."""
    # entropyLoss, KLDiv
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", term)
    words = {JOINED.sub("", word) for word in re.split(r"[^a-z]+", parted.lower())}
    found = [role for role, names in ROLES.items() if words & names]
    sure = [role for role in found if role in ("entropy", "kl")] or found
    return sure[0] if len(sure) == 1 else None


TERM_NORM = "grad/<block>/term/<term>/norm"
SHARE = "grad/<block>/term/<term>/share"
COSINE = "grad/<block>/term/<term_a>~<term_b>/cos"


def named(series: Series) -> bool:
    """Of a block that has a name, or of all; not of a single layer."""
    return not series.parts.get("block", "layer.").startswith("layer.")


def norms_by_block(run: RunData) -> dict[str, dict[str, Series]]:
    """Norms by block and term, without layers: of many, one is always odd."""
    found: dict[str, dict[str, Series]] = {}
    for series in run.every(TERM_NORM):
        if named(series):
            found.setdefault(series.parts["block"], {})[series.parts["term"]] = series
    return found


def _of(terms: dict[str, Series], *roles: Role) -> list[Series]:
    return [series for term, series in terms.items() if role_of(term) in roles]


def log_ratio(above: Series, below: Series) -> Series:
    """log10 of one norm over another, where both were measured and are above zero."""
    above, below = together(above, below)
    x, y = above.values, below.values
    kept = np.isfinite(x) & np.isfinite(y) & (x > 0.0) & (y > 0.0)
    return replace(above, steps=above.steps[kept], values=np.log10(x[kept]) - np.log10(y[kept]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two terms on a block, and how many decades the first is above the second."""

    block: str
    first: Series
    second: Series
    ratio: Series


def pairs_of(run: RunData, first: tuple[Role, ...], second: tuple[Role, ...]) -> list[Pair]:
    """Every pair of terms in these roles, block by block."""
    return [
        Pair(block=block, first=a, second=b, ratio=log_ratio(a, b))
        for block, terms in norms_by_block(run).items()
        for a in _of(terms, *first)
        for b in _of(terms, *second)
    ]


def cosine_of(run: RunData, pair: Pair) -> Series | None:
    """The cosine of the two terms on their block, whichever was named first."""
    a, b = pair.first.parts["term"], pair.second.parts["term"]
    first = run.get(COSINE, block=pair.block, term_a=a, term_b=b)
    return first or run.get(COSINE, block=pair.block, term_a=b, term_b=a)
