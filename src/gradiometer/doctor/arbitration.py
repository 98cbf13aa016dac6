"""Which finding to act on: causes first, and what follows from them folded under them.

A cause folds a consequence only if it began no later, touches the same block and weighs no less; a critical finding is never
folded away. Chains count only through findings that are there: a link nobody saw explains nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from gradiometer.doctor.consequences import ALL_FROZEN, CONSEQUENCES, DEAD_TERM
from gradiometer.doctor.roles import Role, role_of
from gradiometer.records import Finding

FirstStep: TypeAlias = Callable[[str], int | None]

__all__ = ["Arbitrated", "arbitrate", "brings"]

SEVERITY = {"critical": 0, "warn": 1, "info": 2}
HISTORY = ("gradient-drift", "gradient-oscillation", "direction-random", "clip-always-active")
"""What describes the gradients and asks for nothing comes last."""
BASIS = {"proved": 0, "statistical": 1, "heuristic": 2}

TERM = re.compile(r"(?:/term/|actor/grad_norm/|actor/loss/|grad_norm/all/(?:loss/)?)(?P<term>[^/~]+)")
ALL_WEIGHTS = re.compile(r"^grad/all/update_ratio$|(^|[/_])(lr|learning_rate)$")
"""Evidence of a policy that stands still because every weight does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbitrated:
    """Findings to act on, the first one first, and those that hang on them."""

    findings: tuple[Finding, ...]
    folded: tuple[Finding, ...]


def arbitrate(findings: Iterable[Finding], *, first_step: FirstStep = lambda _: None) -> Arbitrated:
    """Order by what to do first, and fold each consequence under the most urgent finding shown that explains it.

    `first_step` says where a series begins: what held from its first measurement on was there before anything else, also
    where that series is measured once a rollout and another one at every step.

    Shown are those that nothing shown explains: since no chain of causes closes, exactly one set is like that.
    """
    ordered = sorted(findings, key=_urgency)
    reached = _reached(ordered, first_step)
    causes = [[i for i, found in enumerate(reached) if k in found] for k in range(len(ordered))]
    shown: dict[int, bool] = {}
    hanging: dict[int, list[str]] = {}
    for k in range(len(ordered)):
        if not _is_shown(k, ordered, causes, shown):
            first = next(i for i in causes[k] if _is_shown(i, ordered, causes, shown))
            hanging.setdefault(first, []).append(ordered[k].id)
    return Arbitrated(
        findings=tuple(_with(ordered[k], hanging.get(k, [])) for k in range(len(ordered)) if shown[k]),
        folded=tuple(ordered[k] for k in range(len(ordered)) if not shown[k]),
    )


def brings(finding: Finding) -> tuple[str, ...]:
    """What a finding brings about, directly, by its evidence: of a dead term by what the term is for, of a frozen policy by
    whether it is the policy alone."""
    if finding.id == "dead-term" and (role := _role(finding)) in DEAD_TERM:
        return DEAD_TERM[role]
    if finding.id == "policy-frozen" and any(ALL_WEIGHTS.search(evidence.series) for evidence in finding.evidence):
        return CONSEQUENCES[finding.id] + ALL_FROZEN
    return CONSEQUENCES.get(finding.id, ())


def _role(finding: Finding) -> Role | None:
    for evidence in finding.evidence:
        if found := TERM.search(evidence.series):
            return role_of(found["term"])
    return None


def _is_shown(k: int, ordered: Sequence[Finding], causes: Sequence[Sequence[int]], known: dict[int, bool]) -> bool:
    if k not in known:
        folds = any(_is_shown(i, ordered, causes, known) for i in causes[k])
        known[k] = ordered[k].severity == "critical" or not folds
    return known[k]


def _reached(ordered: Sequence[Finding], first_step: FirstStep) -> list[set[int]]:
    """Of each finding those that a chain of findings leads to, each link and the whole fitting in time and block."""
    by_id: dict[str, list[int]] = {}
    for i, finding in enumerate(ordered):
        by_id.setdefault(finding.id, []).append(i)
    direct = [
        [i for id in brings(one) for i in by_id.get(id, ()) if _fits(one, ordered[i], first_step)] for one in ordered
    ]
    found: list[set[int]] = []
    for start, cause in enumerate(ordered):
        waiting, seen = [start], {start}
        while waiting:
            new = set(direct[waiting.pop()]) - seen
            seen |= new
            waiting += new
        found.append({i for i in seen - {start} if _fits(cause, ordered[i], first_step)})
    return found


def _fits(cause: Finding, finding: Finding, first_step: FirstStep) -> bool:
    if cause.severity == "info" != finding.severity:  # a suspicion explains no warning away
        return False
    began, followed = _began(cause, first_step), finding.since_step
    in_time = began is None or followed is None or began <= followed
    return in_time and _touch(cause.block, finding.block)


def _began(cause: Finding, first_step: FirstStep) -> int | None:
    """Since when it holds; None where it was so as soon as it was looked at."""
    first = first_step(cause.evidence[0].series) if cause.evidence else None
    at_once = first is not None and cause.since_step is not None and cause.since_step <= first
    return None if at_once else cause.since_step


def _touch(one: str | None, other: str | None) -> bool:
    """The same block, one within the other (`layer.encoder` and `layer.encoder.0`), or no block in particular."""
    if one in (None, "all") or other in (None, "all") or one == other:
        return True
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _urgency(finding: Finding) -> tuple[int, int, float, int, str, str, str]:
    """Critical first, proved first, earlier first; then what explains more, and names, so that no order is left to chance."""
    since = -math.inf if finding.since_step is None else finding.since_step
    explains = -len(brings(finding))
    named = finding.id, finding.block or "", finding.title
    rank = SEVERITY[finding.severity] + (finding.severity == "info" and finding.id in HISTORY)
    return rank, BASIS[finding.basis], since, explains, *named


def _with(finding: Finding, ids: list[str]) -> Finding:
    return replace(finding, suppressed=tuple(dict.fromkeys((*finding.suppressed, *ids)))) if ids else finding
