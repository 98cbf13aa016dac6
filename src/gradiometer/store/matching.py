"""Names that a regular expression finds, without one that takes forever holding up whoever asked, or all the others.

Python's `re` keeps every other thread waiting while it searches and cannot be stopped, and `(\\w+)+!` over one long name
takes years. What might take long is therefore searched in a process of its own, which can be stopped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from functools import lru_cache

from gradiometer.errors import UsageError

__all__ = ["matching", "pattern"]

LONGEST = 1_000
WORK = 20_000_000
"""Steps of a search that may be taken here: about 0.2 s."""
PATIENCE_SECONDS = 2.0
AT_ONCE = threading.BoundedSemaphore(2)
SEARCH = """
import json, re, sys
match, names = json.load(sys.stdin)
print(json.dumps([place for place, name in enumerate(names) if re.search(match, name)]))
"""


def pattern(match: str) -> re.Pattern[str]:
    """A regular expression over names of series; one that is none is an error that says why."""
    if len(match) > LONGEST:
        raise UsageError(f"match has {len(match)} characters: at most {LONGEST} can be searched for")
    try:
        return re.compile(match)
    except (re.error, OverflowError, RecursionError) as problem:
        raise UsageError(f"match {match!r} is not a regular expression ({problem})") from problem


def matching(match: str, names: Iterable[str]) -> frozenset[str]:
    """Those of the names in which the expression finds something."""
    return _matching(match, tuple(sorted(set(names))))


@lru_cache(maxsize=16)
def _matching(match: str, names: tuple[str, ...]) -> frozenset[str]:
    compiled = pattern(match)
    if _is_quick(match, names):
        return frozenset(name for name in names if compiled.search(name))
    if not AT_ONCE.acquire(timeout=PATIENCE_SECONDS):
        raise UsageError(f"match {match!r} has to wait for other searches: try again in a moment")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", SEARCH],
            input=json.dumps([match, names]), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as problem:
        raise UsageError(
            f"match {match!r} takes too long over {len(names)} names: leave out repetitions, above all of repetitions"
        ) from problem
    finally:
        AT_ONCE.release()
    return frozenset(names[place] for place in json.loads(done.stdout))


def _is_quick(match: str, names: Iterable[str]) -> bool:
    """Whether backtracking cannot explode: no group is repeated, and n choices take at most length^(n + 1) steps."""
    choices = sum(map(match.count, "*+?{|"))
    return not re.search(r"\)[*+?{]", match) and sum(len(name) ** (choices + 1) for name in names) <= WORK
