"""What a term of a loss is for, by the name people give it, and which settings weigh it."""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["COEFFICIENTS", "REGULARISERS", "Role", "role_of"]

Role = Literal["policy", "value", "entropy", "kl", "penalty", "auxiliary"]
ROLES: dict[Role, frozenset[str]] = {
    "entropy": frozenset({"entropy", "entropies", "ent"}),
    "kl": frozenset({"kl"}),
    "value": frozenset({"value", "values", "vf", "critic", "v", "q", "qf", "qvalue", "td"}),
    "policy": frozenset({"policy", "pg", "actor", "task", "surrogate", "ppo", "grpo", "reinforce", "pi"}),
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
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", term)  # entropyLoss, KLDiv
    words = {JOINED.sub("", word) for word in re.split(r"[^a-z]+", parted.lower())}
    found = [role for role, names in ROLES.items() if words & names]
    sure = [role for role in found if role in ("entropy", "kl")] or found
    return sure[0] if len(sure) == 1 else None
