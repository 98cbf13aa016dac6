"""What a check of the audit says: ok, failed or skipped, with its numbers and what to change."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from gradiometer.records import Basis, Evidence, Finding, Severity
from gradiometer.store.strictjson import plain
from gradiometer.words import some

__all__ = [
    "About",
    "Check",
    "CheckState",
    "failed",
    "few",
    "in_order",
    "lines_of",
    "num_arguments",
    "passed",
    "skipped",
    "tolerance",
    "verdict",
]

CheckState = Literal["ok", "failed", "skipped"]
STATES = ("failed", "ok", "skipped")
SEVERITIES = ("critical", "warn", "info")
MARKS = {"ok": "✓", "failed": "✗", "skipped": "–"}
WIDEST, NARROWEST = 120, 60

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Relative, of a gradient summed in another order: TF32 keeps 10 bits, float32 errs by 1e-6."""
# A bfloat16 has 8 bits: a healthy sum of two decompositions differs by 4e-3, by 2e-2 over 64 rows.
HALF_TOLERANCE = 5e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer. `id` is the finding that a failure stands for, often shared."""

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

    def finding(self) -> Finding:
        """A failed check as the doctor's kind of record."""
        numbers = ", ".join(
            f"{name} {value:.4g}"
            for name, value in self.numbers.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        )
        reading = f"{self.name}: {numbers}" if numbers else self.name
        return Finding(
            id=self.id,
            title=self.message,
            severity=self.severity,
            basis=self.basis,
            block=self.block,
            evidence=(Evidence(series="audit", reading=reading),),
            cause=self.message,
            fix=self.fix,
            confirm=self.confirm or "change it and run the audit again: the check turns to ok",
            references=self.references,
        )


About = tuple[str, str]
"""The id and the name of a check."""


def passed(about: About, message: str, **numbers: Any) -> Check:
    """Nothing to do."""
    return Check(id=about[0], name=about[1], state="ok", message=message, numbers=numbers)


def skipped(about: About, message: str) -> Check:
    """An input is missing: the message says which."""
    return Check(id=about[0], name=about[1], state="skipped", message=message)


def failed(about: About, severity: Severity, message: str, *fix: str, **more: Any) -> Check:
    """Something to change, and how; `numbers` and the rest as in Check."""
    id, name = about
    return Check(
        id=id, name=name, state="failed", severity=severity, message=message, fix=fix, **more
    )


def in_order(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Failures first, the worst of them first; then what is well, then what was skipped."""
    return tuple(
        sorted(checks, key=lambda c: (STATES.index(c.state), SEVERITIES.index(c.severity)))
    )


few = partial(some, most=4)
"""Some of the names, and how many more there are."""


def num_arguments(function: Callable[..., Any]) -> int:
    """How many positional arguments a call must have; 0 where the signature is hidden."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def tolerance(losses: Iterable[Tensor], parameters: Sequence[Tensor]) -> float:
    """How far two ways to one gradient may differ, by the least precise numbers in the graph."""
    dtypes = {p.dtype for p in parameters if p.is_floating_point()}
    waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        # Private, and the only place that knows of an autocast inside the user's loss; without it
        # parameters decide.
        dtypes.update(each.dtype for each in getattr(node, "_input_metadata", ()))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    if dtypes & {torch.float16, torch.bfloat16}:
        return HALF_TOLERANCE
    return TOLERANCE[torch.float32] if torch.float32 in dtypes else TOLERANCE[torch.float64]


def lines_of(checks: Sequence[Check]) -> list[str]:
    """A mark, what was looked at, what was found, what to change: as wide as the terminal."""
    name = max((len(check.name) for check in checks), default=0)
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size((100, 24)).columns))
    lines: list[str] = []
    for check in checks:
        head = f"{MARKS[check.state]} {check.name.ljust(name)}  "
        state = {"ok": "", "failed": f"{check.severity}: ", "skipped": "skipped: "}[check.state]
        lines += _wrapped(head, state + check.message, width)
        for fix in check.fix:
            lines += _wrapped(" " * (len(head) - 2) + "→ ", fix, width)
    return lines


def _wrapped(head: str, body: str, width: int) -> list[str]:
    room = max(30, width - len(head))
    first, *rest = textwrap.wrap(body, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [head + first, *(" " * len(head) + line for line in rest)]


def verdict(checks: Sequence[Check]) -> str:
    """One line."""
    count = {state: sum(check.state == state for check in checks) for state in STATES}
    first = next((f": begin with {check.id}" for check in checks if check.state == "failed"), "")
    return f"{count['failed']} failed, {count['ok']} ok, {count['skipped']} skipped{first}"
