"""`gradiometer doctor`: why a policy does not learn, from a run or anybody's log."""

from __future__ import annotations

import sys
from pathlib import Path

from gradiometer.cli.commands import DoctorRequest
from gradiometer.cli.confirm import prepared
from gradiometer.cli.failing import fail_on
from gradiometer.cli.printing import console, print_json, visible, warnings_in_a_line
from gradiometer.cli.progress import tracked
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.report import (
    as_markdown,
    as_text,
    plain,
    plain_of_several,
    several_as_markdown,
    several_as_text,
)
from gradiometer.doctor.schema import schema
from gradiometer.doctor.several import RunsDiagnosis, diagnose_runs
from gradiometer.errors import UnknownName, UsageError
from gradiometer.metrics import parse_told
from gradiometer.store.importers import logs_in

__all__ = ["doctor"]

FORMATS = ("text", "markdown", "html")


def doctor(request: DoctorRequest) -> int:
    """Judge each path and say it; the exit code is 1 at a finding or state as bad as `fail_on`."""
    if request.schema:
        print_json(schema())
        return 0
    _check(request)
    limit = fail_on(request.fail_on)
    told = parse_told(request.name)
    form, output = request.format, request.output
    with warnings_in_a_line():
        named = [path for given in request.paths for path in logs_in(given)]
        asked = prepared(named, probe=request.probe) if request.confirm else None
        found = diagnose_runs(tracked(named, "runs", from_on=3), since=request.since, names=told)
    if output or not request.json:
        _say(found, form=form, output=output, verbose=request.verbose)
    if request.json:
        content = plain(found.longest) if len(found.runs) == 1 else plain_of_several(found)
        print_json(content) if asked is None else asked.tell_as_json(found.longest, content)
    elif asked is not None:
        asked.tell(found.longest, form=form, output=output)
    severities = [said for each in found.runs for said in _severities(each)]
    return limit.exit_code(severities, [each.state for each in found.runs])


def _severities(diagnosis: Diagnosis) -> list[str]:
    """Of the worst finding, and of the state: a broken run may have no finding that says why."""
    of_state = {"broken": "critical", "not-learning": "warn"}.get(diagnosis.state)
    return [each for each in (diagnosis.worst, of_state) if each is not None]


def _check(request: DoctorRequest) -> None:
    """Mistakes of the command line are told before anything is read."""
    form, output = request.format, request.output
    if form not in FORMATS:
        raise UnknownName("format", form, FORMATS, hint=f"(there are {', '.join(FORMATS)})")
    if not request.paths:
        raise UsageError("give a run or a log: gradiometer doctor runs/ppo-7")
    if form == "html" and not output:
        raise UsageError("--format html writes a file: name it with -o report.html")
    if output and Path(output).is_dir():
        raise UsageError(
            f"-o {output} is a folder: name a file in it, such as {Path(output) / f'doctor.{form}'}"
        )
    if request.probe and not request.confirm:
        raise UsageError(
            "--probe belongs to --confirm: gradiometer doctor RUN --confirm --probe module:function"
        )


def _say(found: RunsDiagnosis, *, form: str, output: str, verbose: bool) -> None:
    out = console()
    one = found.longest if len(found.runs) == 1 else None
    if form == "html":
        from gradiometer.charts.page import as_page

        said = as_page(one or found)
    elif form == "markdown":
        said = several_as_markdown(found) if one is None else as_markdown(one)
    else:
        width = 100 if output else min(out.width, 120)
        said = (
            several_as_text(found, width=width)
            if one is None
            else as_text(one, width=width, verbose=verbose)
        )
    if output:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        Path(output).write_text(said if said.endswith("\n") else said + "\n", encoding="utf-8")
        print(f"kept in {output}", file=sys.stderr)
    else:
        print(visible(said))
