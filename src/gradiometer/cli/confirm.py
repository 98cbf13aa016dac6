"""`gradiometer doctor RUN --confirm`: experiments on the first findings, and what they showed."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradiometer.cli import labs
from gradiometer.cli.printing import console, print_json, visible
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.report import labelled
from gradiometer.errors import UsageError
from gradiometer.store.importers import open_log
from gradiometer.words import counted

if TYPE_CHECKING:
    from gradiometer.probes.confirm import Confirmation, Probe

__all__ = ["Confirmations", "as_lines", "as_markdown", "prepared"]

NOT_OURS = (
    "this is no run of a lab that could be trained again here:"
    " give your own experiment, --probe module:function"
)
NO_LABS = (
    "the experiments on a run of a lab need gradiometer-labs, which is not installed: pip install"
    ' "gradiometer[labs]"; or give your own experiment, --probe module:function'
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Confirmations:
    """What --confirm is to do: one run, and a probe where one was named."""

    path: Path
    probe: Probe | None

    def tell(self, diagnosis: Diagnosis, *, form: str, output: str) -> None:
        """Say each as soon as it is over, where the report went; with HTML on the terminal."""
        written = Path(output) if output and form != "html" else None
        width = 100 if output else min(console().width, 120)
        for found in self._run(diagnosis):
            said = as_markdown(found) if form == "markdown" else as_lines(found, width=width)
            if written is None:
                print(visible(f"\n{said}"), flush=True)
            else:
                with written.open("a", encoding="utf-8") as file:
                    file.write(f"\n{said}\n")

    def tell_as_json(self, diagnosis: Diagnosis, content: Mapping[str, Any]) -> None:
        """The diagnosis and its `confirmations` as one JSON object, also when a probe fails."""
        found: list[dict[str, Any]] = []
        try:
            for each in self._run(diagnosis):
                found.append(dataclasses.asdict(each))  # noqa: PERF401  (kept when the next one fails)
        finally:
            print_json({**content, "confirmations": found})

    def _run(self, diagnosis: Diagnosis) -> Iterator[Confirmation]:
        from gradiometer.probes.confirm import confirmed, worth_confirming

        findings = worth_confirming(diagnosis.findings)
        if not findings:
            print("nothing to confirm: no finding needs action", file=sys.stderr)
            return
        with open_log(self.path) as run:
            facts = dict(run.facts)
        probe = self.probe or _lab_probe(facts)
        yield from confirmed(
            findings, probe, seed=_seed_of(facts), missing=_missing(), progress=_progress()
        )


def prepared(paths: Sequence[Path], *, probe: str) -> Confirmations:
    """Checked before anything is judged: a wrong --probe is told at once."""
    if len(paths) != 1:
        raise UsageError(f"--confirm takes one run at a time; found {len(paths)}")
    if not probe:
        return Confirmations(path=paths[0], probe=None)
    from gradiometer.probes.confirm import load_probe

    return Confirmations(path=paths[0], probe=load_probe(probe))


def as_lines(found: Confirmation, *, width: int = 100) -> str:
    """A confirmation for a terminal."""
    lines = [f"CONFIRM {found.finding} · {_outcome(found)}"]
    ran = found.outcome != "not-run"
    lines += labelled("did" if ran else "by hand", found.done, width) if found.done else []
    return "\n".join(lines + labelled("saw" if ran else "why", found.seen, width))


def as_markdown(found: Confirmation) -> str:
    """The same for a Markdown report."""
    ran = found.outcome != "not-run"
    lines = [f"### Confirm {found.finding}: {_outcome(found)}", ""]
    lines += [f"- {'did' if ran else 'by hand'}: {found.done}"] if found.done else []
    return "\n".join([*lines, f"- {'saw' if ran else 'why'}: {found.seen}"])


def _outcome(found: Confirmation) -> str:
    if found.outcome == "not-run":
        return "not run"
    count = len(found.seeds)
    return f"{found.outcome} · {counted(count, 'seed')}, {found.seconds:.0f} s"


def _lab_probe(facts: dict[str, Any]) -> Probe | None:
    if not labs.installed():
        return None
    from gradiometer_labs.confirm import probe_of

    return probe_of(facts)


def _missing() -> str:
    """Why there is no experiment."""
    return NOT_OURS if labs.installed() else NO_LABS


def _seed_of(facts: dict[str, Any]) -> int:
    seed = facts.get("seed")
    return seed if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 else 0


def _progress() -> Callable[[str, int, int], None]:
    """One line that counts on a terminal, a line for each quarter where nobody looks."""
    live = sys.stderr.isatty()

    def say(finding: str, done: int, total: int) -> None:
        if live:
            print(
                f"\rconfirming {finding}: {done}/{total} ",
                end="" if done < total else "\n",
                file=sys.stderr,
                flush=True,
            )
        elif done == total or done * 4 // total > (done - 1) * 4 // total:
            print(f"confirming {finding}: {done}/{total}", file=sys.stderr, flush=True)

    return say
