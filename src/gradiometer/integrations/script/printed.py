"""Scalars in what the script prints: `step 10 reward 3.2 loss=0.1`, `{'loss': 0.1}`, and tables of `| key | value |`.

A guess, so a careful one: a line counts when its keys have come before, or when one of them is a name of the catalogue.
What is printed stays as it is: sys.stdout is the same object, of which `write` is overheard.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress

from gradiometer.metrics import resolve

__all__ = ["Printed", "overhear", "scalars_in"]

LONGEST = 4000
NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
KEY = r"[A-Za-z_][\w/.()-]*"
END = r"(?=%?(?:[\s,;|)\]}]|/\d|$))"
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
IN_DICT = re.compile(rf"['\"]({KEY})['\"]\s*:\s*['\"]?({NUMBER})['\"]?\s*(?=[,}}])")
IN_PAIRS = re.compile(rf"(?<![\w/.:\-])({KEY})\s*[=:]\s*({NUMBER}){END}")
IN_WORDS = re.compile(rf"({KEY})(?:\s*[=:]\s*|\s+)({NUMBER})(?:%|/\d+)?(?:[\s,;|]+|$)")
ROW = re.compile(rf"\|\s*({KEY})\s*\|\s*({NUMBER})\s*\|")
SECTION = re.compile(rf"\|\s*({KEY}/)\s*\|\s*\|")
AXES = re.compile(
    r"(global_|train_|env_|total_|num_)?(steps?|timesteps?|iter(ation)?s?|updates?|epochs?|episodes?|batch(es)?|frames?|time|eta)",
    re.IGNORECASE,
)
"""Where in the training a line was printed: not a series, our own axis says it."""


def scalars_in(line: str) -> dict[str, float]:
    """The named numbers of a line; none unless it looks like a line of a log."""
    line = COLOUR.sub("", line).strip()
    if not line or len(line) > LONGEST:
        return {}
    if row := ROW.fullmatch(line):
        pairs = [(row[1], row[2])]
    elif line[0] == "{" and line[-1] == "}":
        pairs = IN_DICT.findall(line)
    elif re.fullmatch(rf"(?:{IN_WORDS.pattern}){{2,}}", line):
        pairs = IN_WORDS.findall(line)
    else:
        pairs = IN_PAIRS.findall(line)
    return {key.rstrip("."): float(number) for key, number in pairs if not AXES.fullmatch(key)}


class Printed:
    """Lines as they are completed, from pieces of text."""

    def __init__(self, take: Callable[[dict[str, float]], None]) -> None:
        self._take = take
        self._rest = self._section = ""
        self._shapes: set[tuple[str, ...]] = set()

    def hear(self, text: str) -> None:
        """Some text was written."""
        if "\n" not in text and "\r" not in text:
            self._rest = (self._rest + text)[-LONGEST - 1 :]
            return
        *lines, self._rest = re.split(r"[\r\n]+", self._rest + text)
        for line in lines:
            self._line(line)

    def _line(self, line: str) -> None:
        if section := SECTION.fullmatch(line.strip()):
            self._section = section[1]
            return
        if not line.lstrip().startswith("|"):
            self._section = ""
        found = {self._section + key: value for key, value in scalars_in(line).items()}
        shape = tuple(found)
        if found and (shape in self._shapes or any(resolve(key) for key in found)):
            self._take(found)
        self._shapes.add(shape)


def overhear(hear: Callable[[str], None]) -> Callable[[], None]:
    """Tell `hear` what is written to stdout, until the returned function is called."""
    out = sys.stdout
    if out is None:
        return lambda: None
    write = out.write

    def overheard(text: str) -> int:
        count = write(text)
        hear(text)
        return count

    try:
        out.write = overheard  # type: ignore[method-assign]
    except AttributeError:  # a stream that takes no attributes
        return lambda: None

    def remove() -> None:
        with suppress(AttributeError):
            if out.write is overheard:
                del out.write

    return remove
