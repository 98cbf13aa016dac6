"""`python -m benchmarks.names FOLDER ... [--list]`: how much of other people's logs names explain.

Every log below the folders is opened as the doctor opens it. A run is understood when a column is
what it is trained for; of the columns those count that are no times, counters or hardware. `--list`
prints each name with what it is read as, for a reader's eye: a wrong meaning is worse than none.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradiometer.errors import GradiometerError
from gradiometer.metrics import OUTCOMES, Meaning, read_names
from gradiometer.names import is_bookkeeping
from gradiometer.store.importers import logs_in, open_log

__all__ = ["Understood", "main", "understood"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """One log: its columns that count, and what they are read as."""

    path: Path
    columns: tuple[str, ...]
    read: dict[str, Meaning]

    @property
    def outcome(self) -> str | None:
        """The column that says how well it goes, as the doctor chooses it."""
        by_meaning = {meant.metric.name: name for name, meant in reversed(self.read.items())}
        return next((by_meaning[name] for name in OUTCOMES if name in by_meaning), None)

    @property
    def unread(self) -> list[str]:
        """Columns that count and have no meaning."""
        return [name for name in self.columns if name not in self.read]


def understood(folders: Sequence[Path]) -> Iterator[Understood | GradiometerError]:
    """Each log below the folders, or why it cannot be read."""
    for folder in folders:
        try:
            for path in logs_in(folder):
                with open_log(path) as log:
                    names = log.names()
                read = read_names(names)
                counted = [name for name in names if name in read or not is_bookkeeping(name)]
                yield Understood(path=path, columns=tuple(counted), read=read)
        except GradiometerError as problem:
            yield problem


def main(given: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.names", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="A folder a run, or a log.")
    parser.add_argument("--list", action="store_true", help="Each name with its meaning.")
    asked = parser.parse_args(given)
    warnings.simplefilter("ignore")
    found = list(understood(asked.folders))
    logs = [each for each in found if isinstance(each, Understood)]
    if asked.list:
        _list(logs)
    for each in found:
        if isinstance(each, GradiometerError):
            print(f"not read: {str(each).splitlines()[0][:150]}")
        elif each.outcome is None:
            print(f"no outcome: {each.path}: {', '.join(each.columns[:8])}")
    columns = sum(len(each.columns) for each in logs)
    known = columns - sum(len(each.unread) for each in logs)
    outcomes = sum(each.outcome is not None for each in logs)
    print(f"{outcomes} of {len(logs)} logs have an outcome ({outcomes / max(1, len(logs)):.0%})")
    print(f"{known} of {columns} columns are understood ({known / max(1, columns):.0%})")
    return 0


def _list(logs: Sequence[Understood]) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for each in logs:
        for name in each.columns:
            meant = each.read.get(name)
            how = "" if meant is None else f"{meant.metric.name}{' ?' if meant.guessed else ''}"
            seen[name, how] += 1
    for (name, how), count in sorted(seen.items(), key=lambda item: (item[0][1] == "", item[0])):
        print(f"{count:4d}  {name:60s} {how or '-'}")


if __name__ == "__main__":
    sys.exit(main())
