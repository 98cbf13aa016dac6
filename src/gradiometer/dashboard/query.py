"""What the page, or anybody with curl, asks of a view: the query string, read once and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gradiometer.errors import UsageError

__all__ = ["AXES", "METRIC", "Query", "parse_query"]

AXES = ("step", "wall", "relative", "env_steps", "rollout", "epoch")
"""What x can be by name."""
METRIC = "metric:"
"""And before the name of a series: any logged metric."""
MOST, MOST_EVER = 600, 20_000
MOST_RUNS = 200
OURS = ("run", "x", "from", "to", "most", "open", "after", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question to a view. `options` are the view's own parameters."""

    runs: tuple[str, ...] = ()
    """Ids, the one in focus first; none: the newest run."""
    x: str = "step"
    first: int | None = None
    last: int | None = None
    most: int = MOST
    """Points of a line; longer series come in buckets."""
    open: tuple[str, ...] | None = None
    """Folded sections whose charts come with their numbers; None: all of them."""
    after: str = ""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def opens(self, section: str) -> bool:
        """Whether the charts of a folded section come with their numbers."""
        return self.open is None or section in self.open

    def option(self, name: str, default: str = "") -> str:
        """One value of a parameter of the view; the last when it is given several times."""
        given = self.options.get(name)
        return given[-1] if given else default

    def every(self, name: str) -> tuple[str, ...]:
        """All values of a parameter of the view."""
        return self.options.get(name, ())


def parse_query(pairs: Iterable[tuple[str, str]]) -> Query:
    """The question in a query string; what cannot be understood is an error that says what can."""
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    x = given.get("x", ["step"])[-1]
    if x not in AXES and not (x.startswith(METRIC) and len(x) > len(METRIC)):
        raise UsageError(f"x={x!r}: x is one of {', '.join(AXES)}, or {METRIC}NAME of a series")
    runs = tuple(dict.fromkeys(given.get("run", [])))
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs at once: at most {MOST_RUNS} can be asked for")
    return Query(
        runs=runs,
        x=x,
        first=_whole(given, "from"),
        last=_whole(given, "to"),
        most=min(_whole(given, "most", least=2) or MOST, MOST_EVER),
        open=tuple(given["open"]) if "open" in given else None,
        after=given.get("after", [""])[-1],
        options={name: tuple(values) for name, values in given.items() if name not in OURS},
    )


def _whole(given: Mapping[str, list[str]], name: str, *, least: int = -(2**63)) -> int | None:
    text = given.get(name, [""])[-1]
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a whole number") from None
    if not least <= number < 2**63:
        raise UsageError(f"{name}={text!r} is out of range")
    return number
