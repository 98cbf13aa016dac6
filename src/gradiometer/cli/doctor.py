"""`gradiometer doctor`: why a policy does not learn, from a run or anybody's log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gradiometer.cli.confirm import prepared
from gradiometer.cli.printing import console, print_json, warnings_in_a_line
from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.doctor.report.markdown import as_markdown, several_as_markdown
from gradiometer.doctor.report.plain import plain, plain_of_several
from gradiometer.doctor.report.text import as_text, several_as_text
from gradiometer.errors import UnknownName, UsageError
from gradiometer.store.importers import logs_in, open_log

__all__ = ["doctor"]

FORMATS = ("text", "markdown", "html")
SEVERITIES = ("info", "warn", "critical")
NO_LIMIT = "none"


def doctor(
    paths: list[str],
    *,
    since: int | None,
    form: str,
    output: str,
    fail_on: str,
    verbose: bool,
    confirm: bool,
    probe: str,
    as_json: bool,
) -> int:
    """Judge each path, say it, and return the exit code: 1 with a finding at or above `fail_on`, else 0."""
    if form not in FORMATS:
        raise UnknownName("format", form, FORMATS, hint=f"(there are {', '.join(FORMATS)})")
    if fail_on not in (NO_LIMIT, *SEVERITIES):
        raise UnknownName("severity", fail_on, SEVERITIES, hint=f"(there are {', '.join(SEVERITIES)}, or none)")
    if form == "html" and not output:
        raise UsageError("--format html writes a file: name it with -o report.html")
    if output and Path(output).is_dir():
        raise UsageError(f"-o {output} is a folder: name a file in it, such as {Path(output) / f'doctor.{form}'}")
    if probe and not confirm:
        raise UsageError("--probe belongs to --confirm: gradiometer doctor RUN --confirm --probe module:function")
    with warnings_in_a_line():
        named = [path for given in paths for path in logs_in(Path(given))]
        asked = prepared(named, probe=probe) if confirm else None
        diagnoses = [_diagnosis(path, since) for path in _each(named)]
    if output or not as_json:
        _say(diagnoses, form=form, output=output, verbose=verbose)
    if as_json:
        content = plain(diagnoses[0]) if len(diagnoses) == 1 else plain_of_several(diagnoses)
        print_json(content) if asked is None else asked.tell_as_json(diagnoses[0], content)
    elif asked is not None:
        asked.tell(diagnoses[0], form=form, output=output)
    reached = [SEVERITIES.index(d.worst) for d in diagnoses if d.worst is not None]
    return int(fail_on != NO_LIMIT and max(reached, default=-1) >= SEVERITIES.index(fail_on))


def _diagnosis(path: Path, since: int | None) -> Diagnosis:
    with open_log(path) as run:
        return diagnose(run, since=since)


def _each(paths: list[Path]) -> Iterator[Path]:
    """The paths, with progress on a terminal where they are many."""
    with _progress(len(paths)) as advance:
        for path in paths:
            yield path
            advance()


@contextmanager
def _progress(count: int) -> Iterator[Callable[[], None]]:
    if count < 3 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=count)
        yield lambda: bar.advance(task)


def _say(diagnoses: list[Diagnosis], *, form: str, output: str, verbose: bool) -> None:
    out = console()
    one = len(diagnoses) == 1
    if form == "html":
        from gradiometer.doctor.report.page import as_page

        said = as_page(diagnoses)
    elif form == "markdown":
        said = as_markdown(diagnoses[0]) if one else several_as_markdown(diagnoses)
    else:
        width = 100 if output else min(out.width, 120)
        said = as_text(diagnoses[0], width=width, verbose=verbose) if one else several_as_text(diagnoses, width=width)
    if output:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        Path(output).write_text(said if said.endswith("\n") else said + "\n", encoding="utf-8")
        print(f"kept in {output}", file=sys.stderr)
    else:
        print(said)
