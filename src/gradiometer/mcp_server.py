"""Runs for coding assistants: the tools of `gradiometer mcp`, over the Model Context Protocol.

Read-only, and only what lies below one folder. An answer is JSON, small enough to be read whole: a
diagnosis without the checks that found nothing, a series in a few hundred points.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradiometer.dashboard.run_index import RunIndex
from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.doctor.report import plain
from gradiometer.errors import GradiometerError, MissingExtra, UnknownName, UsageError
from gradiometer.store.comparison import Source, by_default, differences, quantities, read
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run
from gradiometer.store.strictjson import to_json
from gradiometer.store.wiring import read_wiring
from gradiometer.version import __version__

if TYPE_CHECKING:
    from mcp.server import MCPServer

__all__ = ["RunTools", "make_server"]

MOST_RUNS = 200
MOST_COMPARED = 20
MOST_POINTS = 500
MOST_NAMES = 400
INSTRUCTIONS = (
    "Gradiometer reads reinforcement-learning trainings: its own runs and the logs of other tools."
    " Begin with list_runs, then diagnose one: the first finding is the cause to act on, with"
    " evidence, a fix and how to confirm it. `basis: proved` is a fact of the program,"
    " `statistical` a test, `heuristic` a threshold. State `too-early` or `unknown` means that"
    " nothing can be said."
)


class RunTools:
    """What an assistant may ask about the runs below a folder."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder: name one with runs or logs below it")
        self._index = RunIndex(folder)

    def list_runs(self) -> str:
        """Runs and logs below the folder, the newest first: id, newest step, whether it is live."""
        cards = self._index.cards()
        rows = [
            {
                "id": card.id,
                "status": card.state,
                "newest_step": card.newest_step,
                "started": card.started,
                "kind": card.kind,
                "problem": card.problem or None,
            }
            for card in cards[:MOST_RUNS]
        ]
        return to_json({"runs": rows, "not_shown": max(0, len(cards) - MOST_RUNS)})

    def diagnose(self, run: str, since: int | None = None) -> str:
        """What is wrong with a run: state, verdict, outcome, findings; the cause to act on first.

        `since` leaves out the steps before it; -500 looks at the last 500 steps."""
        with self._index.open(run) as log:
            found = diagnose(log, since=since)
        return to_json({**_short(found), "run": run})

    def list_series(self, run: str, match: str = "") -> str:
        """Names of the series of a run; `match` keeps those that contain it."""
        with self._index.open(run) as log:
            names = [name for name in sorted(log.names()) if match in name]
            facts = dict(log.facts)
        shown = names[:MOST_NAMES]
        return to_json({"series": shown, "not_shown": len(names) - len(shown), "facts": facts})

    def series(self, run: str, name: str, points: int = 100) -> str:
        """A series in at most `points` (up to 500) buckets: last step, mean, low, high of each."""
        with self._index.open(run) as log:
            if name not in log.names():
                raise UnknownName("series", name, log.names(), hint="(list_series lists them)")
            found = log.thinned(name, max(2, min(points, MOST_POINTS)))
        columns = {"step": found.steps, "mean": found.mean, "low": found.low, "high": found.high}
        if found.whole:
            columns = {"step": found.steps, "value": found.mean}
        return to_json(
            {"name": name, "every_point": found.whole}
            | {column: values.tolist() for column, values in columns.items()}
        )

    def wiring(self, run: str, step: int | None = None) -> str:
        """The loss as its autograd graph has it: terms, coefficients, and which blocks each trains.

        A term that is not alive has no gradient at all."""
        with self._index.open(run) as log:
            return to_json({"run": run, **dataclasses.asdict(read_wiring(log, step))})

    def compare(self, runs: list[str]) -> str:
        """Runs beside each other: state, where they ended, the settings in which they differ."""
        ids = list(dict.fromkeys(runs))
        if not 2 <= len(ids) <= MOST_COMPARED:
            raise UsageError(f"give 2 to {MOST_COMPARED} runs to compare; found {len(ids)}")
        with ExitStack() as stack:
            logs = {id: stack.enter_context(self._index.open(id)) for id in ids}
            books = {id: quantities(log.names(), log.facts) for id, log in logs.items()}
            metrics = by_default(list(books.values()))
            rows = {
                id: _row(log, {name: books[id][name] for name in metrics if name in books[id]})
                for id, log in logs.items()
            }
            apart = differences({id: log.facts for id, log in logs.items()})
        return to_json({"runs": rows, "differences": dataclasses.asdict(apart)})

    def tools(self) -> Iterable[Callable[..., str]]:
        """All of them."""
        return (
            self.list_runs,
            self.diagnose,
            self.list_series,
            self.series,
            self.wiring,
            self.compare,
        )


def _row(log: Run | Log, sources: Mapping[str, Source]) -> dict[str, Any]:
    judged = diagnose(log)
    ended = {metric: read(log, source) for metric, source in sources.items()}
    return {
        "state": judged.state,
        "verdict": judged.verdict,
        "first_finding": judged.findings[0].id if judged.findings else None,
        "ended": {
            metric: {"last": at.last, "mean_of_last_tenth": at.tail, "step": at.last_step}
            for metric, at in ended.items()
            if at is not None
        },
    }


def _short(found: Diagnosis) -> dict[str, Any]:
    """A diagnosis without what found nothing; how many checks could look stays."""
    whole = plain(found)
    left_out = ("skipped", "looked", "unknown_keys", "folded")
    checks = {"could_run": len(found.looked) + len(found.findings) + len(found.folded)}
    checks["skipped_missing_data"] = len(found.skipped)
    folded = [{"id": each.id, "title": each.title} for each in found.folded]
    return {key: value for key, value in whole.items() if key not in left_out} | {
        "consequences": folded,
        "checks": checks,
    }


def make_server(folder: Path) -> MCPServer:
    """A server with these tools; `run()` speaks over standard input and output."""
    try:
        from mcp.server import MCPServer
        from mcp.types import ToolAnnotations
    except ImportError as problem:
        raise MissingExtra("mcp", "mcp", "gradiometer mcp") from problem
    hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    tools = RunTools(folder).tools()
    server = MCPServer(
        "gradiometer", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR"
    )
    for tool in tools:
        server.add_tool(_telling(tool), annotations=hints, structured_output=False)
    return server


def _telling(tool: Callable[..., str]) -> Callable[..., str]:
    """The same tool, whose answer to a mistake is what was wrong."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def asked(*args: Any, **kwargs: Any) -> str:
        try:
            return tool(*args, **kwargs)
        except GradiometerError as problem:
            raise ToolError(str(problem)) from None

    return asked
