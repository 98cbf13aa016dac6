"""The soak: a long training with a live doctor, two sinks and ten pages that look on, killed again
and again.

    python -m benchmarks.soak                                    # half an hour, twenty kills
    python -m benchmarks.soak --minutes 2 --kills 4              # what `make proofs` runs

In the first half nobody disturbs the training, so that its memory can be judged; in the second half
`kill -9` strikes once in each of `--kills` equal spans, at a random moment, also while the training
is starting. Every row is written down in a ledger of the soak's own before writer and sinks get it.
The exit code is 1 if a check fails; `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak_actors import RUN, checkpoints, ledger_path
from benchmarks.soak_checks import GONE_SECONDS, Check, verdict
from benchmarks.soak_counting import Comparison, Ledger, Tally, count_run, opened
from gradiometer.store.reader import load

__all__ = ["Plan", "main", "soak"]

ROOT = Path(__file__).parents[1]
PAGE = 4096
START_SECONDS = 120.0
END_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long, how hard, where."""

    minutes: float
    kills: int
    clients: int
    rate: float
    seed: int
    out: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What one kill -9 did."""

    life: int
    second: float
    """Of the soak."""
    training: bool
    """Whether the process had handed a row over; otherwise it was starting."""
    lost_seconds: float
    lost_points: int
    intact: bool
    """By SQLite's own check, and by every checksum."""
    doctor_gone: float | None
    """Seconds until the live doctor had ended."""


@dataclass(slots=True, kw_only=True)
class Diary:
    """What the soak saw, for the checks."""

    plan: Plan
    started: float = field(default_factory=time.time)
    lives: list[int] = field(default_factory=list)
    """The step at which each process of the training resumed."""
    kills: list[Kill] = field(default_factory=list)
    sizes: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """RSS in bytes by process, with the time: dashboard, training, doctor; only those of the first
    half."""
    largest_log: int = 0
    """Bytes of SQLite's log beside the run, which can begin anew only when no reader looks at
    it."""
    doctor_deaths: int = 0
    """Live doctors that ended while their training went on."""
    endings: dict[str, int | None] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.plan.out / "runs" / RUN

    def entries(self) -> list[tuple[int, Any]]:
        """The ledger of each life, behind the step it resumed at."""
        return [
            (resume, Ledger.read(ledger_path(self.plan.out, life)))
            for life, resume in enumerate(self.lives)
        ]


class Sampler(threading.Thread):
    """Once a second: how large are they, and does the doctor live?"""

    def __init__(self, diary: Diary) -> None:
        super().__init__(daemon=True)
        self.diary, self.steady = diary, True
        self.processes: dict[str, int] = {}
        self._over = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        while not self._over.wait(1.0):
            now = time.time()
            for name, pid in list(self.processes.items()):
                if name == "dashboard" or self.steady:
                    self._sample(name, pid, now)
            with suppress(FileNotFoundError):  # it goes when the run is closed
                self.diary.largest_log = max(
                    self.diary.largest_log, (self.diary.run / "run.db-wal").stat().st_size
                )
            if self.steady and "training" in self.processes:
                self._sample_doctor(self.processes["training"], now)

    def _sample(self, name: str, pid: int, now: float) -> None:
        if size := resident(pid):
            self.diary.sizes[name].append((now, size))

    def _sample_doctor(self, training: int, now: float) -> None:
        doctor = doctor_of(training)
        if doctor is not None:
            self._sample("doctor", doctor, now)
        elif self.diary.sizes.get("doctor") and self.steady:
            self.diary.doctor_deaths += 1

    def stop(self) -> None:
        """No more."""
        self._over.set()
        self.join()


def resident(pid: int) -> int:
    """RSS in bytes; 0 for a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def doctor_of(training: int) -> int | None:
    """The process id of a training's live doctor."""
    try:
        children = Path(f"/proc/{training}/task/{training}/children").read_text().split()
        return next(
            (
                int(pid)
                for pid in children
                if b"doctor.live" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ),
            None,
        )
    except OSError:
        return None


def is_running(pid: int) -> bool:
    """Whether a process is there; one that waits for its parent's look is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def process(diary: Diary, name: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose stderr is kept as `<name>.err`; asked to end, and made to if it does not."""
    with (diary.plan.out / f"{name}.err").open("w") as errors:
        started = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield started
        finally:
            started.terminate()
            try:
                diary.endings[name] = started.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
                diary.endings[name] = None
            if started.stdout is not None:
                started.stdout.close()


def soak(plan: Plan) -> tuple[Diary, list[Check]]:
    """All of it."""
    (plan.out / "runs").mkdir(parents=True, exist_ok=True)
    diary = Diary(plan=plan)
    sampler = Sampler(diary)
    with process(
        diary, "dashboard", "gradiometer", "serve", str(plan.out / "runs"), "-p", "0"
    ) as dashboard:
        assert dashboard.stdout is not None
        where = re.search(r"http://[^/\s]+", dashboard.stdout.readline())
        assert where is not None, "the dashboard did not start"
        sampler.processes["dashboard"] = dashboard.pid
        sampler.start()
        out = str(plan.out / "clients.json")
        number = str(plan.clients)
        with process(
            diary,
            "clients",
            "benchmarks.soak_actors",
            "follow",
            where[0],
            "--clients",
            number,
            "--out",
            out,
        ):
            _lead(diary, sampler)
            time.sleep(3.0)  # the pages hear of the last steps
        sampler.stop()
    (plan.out / "rss.json").write_text(json.dumps(diary.sizes), encoding="utf-8")
    return diary, verdict(diary)


def _lead(diary: Diary, sampler: Sampler) -> None:
    """The training's lives: a long undisturbed one, which ends with the first kill, and those
    between kills."""
    plan = diary.plan
    chance = random.Random(plan.seed)
    half, span = plan.minutes * 30, plan.minutes * 30 / max(1, plan.kills)
    moments = [half + span * (place + chance.random()) for place in range(plan.kills)]
    for moment in [*moments, None]:
        with _life(diary) as training:
            sampler.processes["training"] = training.pid
            if len(diary.lives) == 1:  # however long it takes to start, the first half is steady
                _await_rows(diary, training)
                diary.started = time.time()
            if moment is None:
                _rest(diary.started + 2 * half)
                _await_rows(diary, training)
                sampler.steady = False
                break
            _rest(diary.started + moment)
            sampler.steady = False
            del sampler.processes["training"]
            diary.kills.append(_strike(diary, training))


def _rest(until: float) -> None:
    time.sleep(max(0.0, until - time.time()))


@contextmanager
def _life(diary: Diary) -> Iterator[subprocess.Popen[str]]:
    """A process of the training, from the newest checkpoint whose step the run still has."""
    life, resume = len(diary.lives), _where_to_resume(diary)
    diary.lives.append(resume)
    arguments = ("--life", str(life), "--resume", str(resume), "--rate", str(diary.plan.rate))
    with process(
        diary,
        f"training-{life:03d}",
        "benchmarks.soak_actors",
        "train",
        str(diary.plan.out),
        *arguments,
    ) as one:
        yield one


def _where_to_resume(diary: Diary) -> int:
    if not diary.lives:
        return -1
    with closing(opened(diary.run)) as db:
        (newest,) = db.execute("SELECT coalesce(max(step), -1) FROM steps").fetchone()
    return max(step for step in checkpoints(diary.plan.out) if step <= newest)


def _await_rows(diary: Diary, training: subprocess.Popen[str]) -> None:
    """Until the newest life has a row: what it resumed from is then all in order."""
    deadline = time.time() + START_SECONDS
    while not len(diary.entries()[-1][1]) and training.poll() is None and time.time() < deadline:
        time.sleep(0.2)


def _strike(diary: Diary, training: subprocess.Popen[str]) -> Kill:
    """kill -9, and what is left."""
    doctor = doctor_of(training.pid)
    training.send_signal(signal.SIGKILL)
    training.wait()
    struck = time.time()
    while doctor is not None and is_running(doctor) and time.time() < struck + 2 * GONE_SECONDS:
        time.sleep(0.05)
    gone = time.time() - struck
    with closing(opened(diary.run)) as db:
        (answer,) = db.execute("PRAGMA integrity_check").fetchone()
    with load(diary.run) as run:
        damage = run.verify()
    lost, comparison = _lost(diary)
    return Kill(
        life=len(diary.lives) - 1,
        second=struck - diary.started,
        training=len(diary.entries()[-1][1]) > 0,
        lost_seconds=lost,
        lost_points=comparison.missing,
        intact=answer == "ok" and not damage,
        doctor_gone=None if doctor is None else gone,
    )


def _lost(diary: Diary) -> tuple[float, Comparison]:
    """Seconds and points that the ledger has and the run has not, beyond the step of the last
    resume.

    A process that was killed while it started may or may not have taken the run back to its
    checkpoint: both are in order.
    """
    entries = diary.entries()
    after = max(-1, diary.lives[-1] - 1)
    found = count_run(diary.run, after)
    possible = [Tally.of_entries(entries)]
    if not len(entries[-1][1]):
        possible.append(Tally.of_entries(entries[:-1]))
    judged = []
    for expected in possible:
        comparison = Comparison.of(expected.beyond(after), found)
        judged.append((comparison.seconds_lost(expected), comparison))
    return min(judged, key=lambda pair: pair[0])


def main(arguments: list[str]) -> int:
    """Soak, and say what came of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description="A long training, killed again and again."
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rate", type=float, default=30.0, help="training steps a second")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument(
        "--out", type=Path, help="an empty folder; without it one that is gone afterwards"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    out = asked.out or Path(tempfile.mkdtemp(prefix="gradiometer-soak-"))
    if out.exists() and any(out.iterdir()):
        parser.error(f"{out} is not empty: give the soak a folder of its own")
    numbers = {
        name: getattr(asked, name) for name in ("minutes", "kills", "clients", "rate", "seed")
    }
    try:
        diary, checks = soak(Plan(out=out, **numbers))
        say(diary, checks, as_json=asked.json)
    finally:
        if asked.out is None:
            shutil.rmtree(out)
    return 0 if all(check.holds for check in checks) else 1


def say(diary: Diary, checks: list[Check], *, as_json: bool) -> None:
    """The verdict: a table, or one object."""
    if as_json:
        said = {
            "checks": [asdict(check) for check in checks],
            "kills": [asdict(kill) for kill in diary.kills],
        }
        print(json.dumps(said))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in ("", "check", "found", "bound"):
        table.add_column(column)
    for check in checks:
        table.add_row(
            "[green]✓[/]" if check.holds else "[red]✗[/]", check.name, check.found, check.bound
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
