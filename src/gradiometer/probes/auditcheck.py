"""What a check of the audit says: ok, failed or skipped, with its numbers and what to change."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gradiometer.records import Basis, Evidence, Finding, Severity
from gradiometer.store.strictjson import plain

__all__ = [
    "About",
    "Check",
    "CheckState",
    "failed",
    "few",
    "finding_of",
    "num_arguments",
    "passed",
    "skipped",
    "tolerance",
]

CheckState = Literal["ok", "failed", "skipped"]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Relative, of a gradient that was summed in another order: TF32 products keep 10 bits, float32 without them 1e-6."""
HALF_TOLERANCE = (
    5e-2  # a bfloat16 has 8 bits: a healthy sum of two decompositions differs by 4e-3, by 2e-2 over 64 rows
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer. `id` is the finding that a failure stands for; several checks may share one."""

    id: str
    name: str
    """What was looked at, in two or three words."""
    state: CheckState
    message: str
    """What was found; for a skipped check, what to pass."""
    severity: Severity = "info"
    """Of a failure; a check that is ok and still has something to tell is `info`."""
    basis: Basis = "proved"
    numbers: Mapping[str, Any] = field(default_factory=dict)
    fix: tuple[str, ...] = ()
    block: str | None = None
    confirm: str = ""
    references: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        kept = ("id", "name", "state", "severity", "basis", "message", "numbers", "fix", "block")
        return {name: plain(getattr(self, name)) for name in kept}


About = tuple[str, str]
"""The id and the name of a check."""


def passed(about: About, message: str, **numbers: Any) -> Check:
    """Nothing to do."""
    return Check(id=about[0], name=about[1], state="ok", message=message, numbers=numbers)


def skipped(about: About, message: str) -> Check:
    """An input is missing: the message says which."""
    return Check(id=about[0], name=about[1], state="skipped", message=message)


def failed(about: About, severity: Severity, message: str, **more: Any) -> Check:
    """Something to change; `numbers`, `fix` and the rest as in Check."""
    return Check(id=about[0], name=about[1], state="failed", severity=severity, message=message, **more)


def finding_of(check: Check) -> Finding:
    """A failed check as the doctor's kind of record."""
    numbers = ", ".join(f"{name} {_short(value)}" for name, value in check.numbers.items() if _is_number(value))
    return Finding(
        id=check.id,
        title=check.message,
        severity=check.severity,
        basis=check.basis,
        block=check.block,
        evidence=(Evidence(series="audit", reading=f"{check.name}: {numbers}" if numbers else check.name),),
        cause=check.message,
        fix=check.fix,
        confirm=check.confirm or "change it and run the audit again: the check turns to ok",
        references=check.references,
    )


def few(names: Iterable[str], most: int = 4) -> str:
    """Some of the names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def num_arguments(function: Callable[..., Any]) -> int:
    """How many positional arguments a call must have; one that hides its signature is taken to need none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def tolerance(losses: Iterable[Tensor], parameters: Sequence[Tensor]) -> float:
    """How far two ways to the same gradient may differ, by the least precise numbers in the graph of the losses."""
    dtypes = {p.dtype for p in parameters if p.is_floating_point()}
    waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        # Private, and the only place that knows of an autocast inside the user's loss; without it parameters decide.
        dtypes.update(each.dtype for each in getattr(node, "_input_metadata", ()))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    if dtypes & {torch.float16, torch.bfloat16}:
        return HALF_TOLERANCE
    return TOLERANCE[torch.float32] if torch.float32 in dtypes else TOLERANCE[torch.float64]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: float) -> str:
    return f"{value:.4g}"
