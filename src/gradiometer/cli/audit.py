"""`gradiometer audit`: run a training script to its first optimizer step, and say what is wired wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradiometer.cli.printing import console, print_json
from gradiometer.errors import MissingExtra, UnknownName

if TYPE_CHECKING:
    from gradiometer.probes.auditcheck import Check
    from gradiometer.probes.auditscript import Seen

__all__ = ["audit"]

SEVERITIES = ("info", "warn", "critical")
NO_LIMIT = "none"
ORDER = {"failed": 0, "ok": 1, "skipped": 2}


def audit(script: str, arguments: list[str], *, steps: int, fail_on: str, as_json: bool) -> int:
    """Run it, stop it, print the table, and return the exit code: 1 with a failure at or above `fail_on`, else 0."""
    if fail_on not in (NO_LIMIT, *SEVERITIES):
        raise UnknownName("severity", fail_on, SEVERITIES, hint=f"(there are {', '.join(SEVERITIES)}, or none)")
    try:
        from gradiometer.probes.auditjudge import checks_of
        from gradiometer.probes.auditscript import Script, seen_of
    except ModuleNotFoundError as problem:
        if problem.name != "torch":
            raise
        raise MissingExtra("torch", "torch", "gradiometer audit") from problem

    seen = seen_of(Script(path=Path(script), arguments=tuple(arguments), steps=steps))
    checks = sorted(checks_of(seen), key=lambda check: (ORDER[check.state], -SEVERITIES.index(check.severity)))
    if as_json:
        print_json(_plain(script, seen, checks))
    else:
        _print(script, seen, checks)
    reached = [SEVERITIES.index(check.severity) for check in checks if check.state == "failed"]
    return int(fail_on != NO_LIMIT and max(reached, default=-1) >= SEVERITIES.index(fail_on))


def _plain(script: str, seen: Seen, checks: list[Check]) -> dict[str, Any]:
    return {
        "script": script,
        "steps": seen.steps,
        "optimizers": [type(optimizer).__name__ for optimizer in seen.optimizers],
        "parameters": len(seen.named) - seen.num_loose,
        "scale": seen.scale,
        "checks": [check.plain() for check in checks],
    }


def _print(script: str, seen: Seen, checks: list[Check]) -> None:
    from gradiometer.probes.auditprint import lines_of, verdict

    out = console()
    of_modules = list(seen.named.values())[: len(seen.named) - seen.num_loose]
    trained = sum(p.requires_grad for p in of_modules)
    held = ", ".join(type(optimizer).__name__ for optimizer in seen.optimizers)
    times = "its first step" if seen.steps == 1 else f"{seen.steps} steps"
    out.print(
        f"{script}: stopped at {times}; {held}; {trained} of {len(of_modules)} parameters require a gradient\n",
        soft_wrap=True,
    )
    for line in lines_of(checks):
        out.print(line, soft_wrap=True)
    out.print(f"\n{verdict(checks)}", soft_wrap=True)
