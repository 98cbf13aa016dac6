"""`gradiometer audit`: run a script to its first optimizer step, and say what is wired wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradiometer.cli.commands import AuditRequest
from gradiometer.cli.failing import fail_on
from gradiometer.cli.printing import console, print_json
from gradiometer.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from gradiometer.probes.auditcheck import Check
    from gradiometer.probes.auditscript import ScriptState

__all__ = ["audit"]


def audit(request: AuditRequest) -> int:
    """Run it, stop it, print the table; the exit code is 1 with a failure at or above `fail_on`."""
    limit = fail_on(request.fail_on, states=False)
    script, arguments = Path(request.script), tuple(request.arguments)
    if not script.is_file():  # told before torch is imported, which takes seconds
        raise UsageError(f"no script at {script}: give a Python file, then its arguments")
    try:
        from gradiometer.probes.auditcheck import in_order
        from gradiometer.probes.auditscript import Script, checks_of, observed
    except ModuleNotFoundError as problem:
        if problem.name != "torch":
            raise
        raise MissingExtra("torch", "torch", "gradiometer audit") from problem

    seen = observed(Script(path=script, arguments=arguments, steps=request.steps))
    checks = in_order(checks_of(seen))
    if request.json:
        print_json(_plain(request.script, seen, checks))
    else:
        _print(request.script, seen, checks)
    failed = [check.severity for check in checks if check.state == "failed"]
    return limit.exit_code(failed)


def _plain(script: str, seen: ScriptState, checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "script": script,
        "steps": seen.steps,
        "optimizers": [type(optimizer).__name__ for optimizer in seen.optimizers],
        "parameters": len(seen.named) - seen.num_loose,
        "scale": seen.scale,
        "checks": [check.plain() for check in checks],
    }


def _print(script: str, seen: ScriptState, checks: Sequence[Check]) -> None:
    from gradiometer.probes.auditcheck import lines_of, verdict

    out = console()
    of_modules = list(seen.named.values())[: len(seen.named) - seen.num_loose]
    trained = sum(p.requires_grad for p in of_modules)
    held = ", ".join(type(optimizer).__name__ for optimizer in seen.optimizers)
    times = "its first step" if seen.steps == 1 else f"{seen.steps} steps"
    out.print(
        f"{script}: stopped at {times}; {held};"
        f" {trained} of {len(of_modules)} parameters require a gradient\n",
        soft_wrap=True,
    )
    for line in lines_of(checks):
        out.print(line, soft_wrap=True)
    out.print(f"\n{verdict(checks)}", soft_wrap=True)
