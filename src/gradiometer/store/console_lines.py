"""The named numbers in a line that a training printed, whatever printed it.

One parser for a log on disk (`formats/console.py`) and for what a script prints while it is watched
(`integrations/script/printed.py`). It knows `step:3 - a:1 - b:2` (verl), dicts (transformers, TRL),
progress bars with a postfix (tqdm), boxes `| name | value |` (SB3, Spinning Up), tables with a line
of names (RLlib, notebooks), and lines of `name: 1`, `name=1` and `name 1`, in which a name may be
several words.

A line alone proves nothing: who reads many lines keeps the names that come again. So what is found
here is generous, but never a time, a version, an address, a place in a file, or a size in bytes.
Everything is linear in the length of a line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = ["WORDED", "Bar", "Box", "Found", "LineReader", "Shape", "is_counter", "plain"]

LONGEST = 1 << 18
"""Characters of a line, or of a dict over several lines; what is longer is not a log's."""
MOST_LINES = 3000
"""Lines a dict may be spread over: a configuration of verl has 600."""
LONGEST_NAME = 120
MOST_WORDS = 6
MOST_CACHED = 20_000
MOST_AGAIN = 10
MOST_CELLS = 1000

NUMBER = (
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
    r"|[-+]?(?:nan|inf|NaN|Inf|NAN|INF)(?!\w)"
)
SIZES = r"(?!\s?(?:[KMGT]i?B|[Bb]ytes|s|ms|secs?|seconds?|mins?|minutes?|hours?|hrs?|h)\b)"
BEHIND = rf"(%|[kKM](?![\w/])|/\d++)?(?=[\s,;|)\]}}'\"<>±\\]|\.(?:\s|$)|$){SIZES}"
WORD = r"[^\W\d][\w/.@%+\-]*+"
DIGIT = re.compile("[0-9]")
FIGURES = re.compile("[0-9]+")
FIGURE = re.compile(r"[0-9]+|\b(?:nan|inf)\b", re.IGNORECASE)
"""The same with what is no number: `loss nan | reward nan` is a row, not prose."""
NUMERAL = re.compile(NUMBER)
OF_ONE = re.compile(rf"\[\(0, '({NUMBER})'\)\]")
"""What Sample Factory prints of its only policy: `Avg episode reward: [(0, '4.1')]`."""
VALUE = re.compile(rf"[:=][ \t]*+([\[('\"]*+)({NUMBER}){BEHIND}")
NAME_AT_END = re.compile(rf"(?:^|[^\w/.@%+\-])({WORD}(?:[ ]{WORD})*+(?:[ ]?\([^()]{{1,24}}\))?)$")
BARE = re.compile(rf"({WORD}(?:[ ]{WORD}){{0,4}}?)[ \t]+([#\[(]?)({NUMBER}){BEHIND}[)\]]?:?[ \t]*+")
MAY_BE_BARE = re.compile(r"[ \t][#\[(]?[-+.]*[\dnNiI]")
COUNT_OF = re.compile(r"[\[(\s]*+(\d++)\s?/\s?(\d++)[)\]]?(?=[\s,;:|]|$)")
SPOKEN = re.compile(r"\s(?:(?<=[^\W\d]\s)|(?<=[^\W\d]\.\s))\s*[#\[(]?[-+]?[.\d]")
"""`name 1`, which a line without `name: 1` has if it says something; or it has one of the next."""
FRACTION = re.compile(r"\d\s?/\s?\d")
BRACKETED = re.compile(r"\[\d")
COUNTED = re.compile(
    r"\b((?:global|total|train|training|env|learning)?[ _]?"
    r"(?:steps?|timesteps?|iter(?:ation)?s?|epochs?|episodes?|updates?|rollouts?|rounds?))"
    r"[ \t]{0,4}[:=]?[ \t]{0,4}[#\[(]?[ \t]{0,2}(\d[\d,]{0,18})(?:[ \t]?(?:/|of)[ \t]?\d+)?"
    r"(?=[\s,;:|)\]}]|\.{1,3}(?:\s|$)|$)",
    re.IGNORECASE,
)
"""A counter with its number, anywhere in a piece of text."""
COUNTING = ("step", "iter", "epoch", "episode", "update", "rollout", "round")
MAY_COUNT = re.compile(
    rf"(?:{'|'.join(COUNTING)})(?:ation)?s?[ \t]{{0,4}}[:=]?[ \t]{{0,4}}[#\[(]?[ \t]{{0,2}}\d"
)
"""What a text in small letters has if it has a counter: found much faster."""
PADDED = re.compile(rf"\b((?:{'|'.join(COUNTING)})(?:ation)?s?)[ \t]{{2,}}(?=\d)", re.IGNORECASE)
"""`Episode   100`, a counter that is padded to a column."""
NUMBERED = re.compile(r"\s*\[(\d{1,12})\](?=\s)")
"""`[12] loss: 0.3`"""
BOTH = re.compile(
    rf"\b([A-Za-z]+)/([A-Za-z]+) ([A-Za-z]+(?: [A-Za-z]+)?):? ({NUMBER})/({NUMBER})(?=[\s,;|]|$)"
)
"""`mean/median reward 1.5/1.0`, two names and two numbers."""
SAYS = re.compile(r"\s(?:is|are|was)\s+(?=[-+]?[.\d])")
AT_COUNT = re.compile(
    rf"({WORD}(?: {WORD}){{0,4}}?) (?:at|after|@|for|on|in)(?: the)? "
    rf"[A-Za-z_ ]{{2,20}}[ ]?#?(\d[\d,]{{0,18}})$"
)
"""`Reward at step 100`, of which the value comes next."""
OVER_COUNT = re.compile(
    rf"({WORD}(?: {WORD}){{0,4}}? (?:over|of|in|from|across)(?: the)?(?: last)? \d+"
    rf" {WORD}(?: {WORD})?)$"
)
"""`Evaluation over 10 episodes`: a name with a number in it."""
MAY_BE_OVER = re.compile(r" (?:over|of|in|from|across)(?: the)?(?: last)? \d")
PIECES = re.compile(r"[|,;\t•*]|\s{2,}| -{1,2} |\s[-–—>] ?|(?<=[\w\])]): |[\[\]{}<>]")
STARTS = re.compile(
    r"\s*(?:[\[(]?(?:\d{4}[-/.]\d\d?[-/.]\d\d?[T ]?)?\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?"
    r"(?:Z| ?[AP]M|[+-]\d\d:?\d\d)?[\])]?"
    r"|[IWEF]\d{4} [\d:.]+ +\d+ [\w/.]+:\d+\]|\d{4}-\d\d-\d\d|\d\d-\d\d(?= \d\d:\d\d)"
    r"|\[?(?:INFO|DEBUG|WARN(?:ING)?|ERROR|SUCCESS|TRACE|CRITICAL|NOTICE|info|debug)\]?"
    r"|\[(?![^\]\n]{0,60}[\s/]\d)[^\]\n\d][^\]\n]{0,60}\]"
    r"|[\w/.\-]+\.(?:py|cc|cpp|cu|rs|go):\d+|[A-Za-z_][\w.]*(?= - )|\|| - |--|[:>•*#=~]+)"
    r"(?=[\s:\]\[|]|$):?"
)
"""What loggers put before a message: times, levels, places in the source."""
LEVELS = {
    *("INFO", "DEBUG", "WARN", "WARNING", "ERROR", "SUCCESS", "TRACE", "CRITICAL", "NOTICE"),
    *("info", "debug", "warning", "error"),
}
UNITS_BEFORE = {"s", "sec", "secs", "seconds", "ms"}
"""Of the number before a name: `Time Elapsed: 114.8 s Mean Reward: 0.4`."""
SHORTENED = {
    *("avg", "ave", "max", "min", "grad", "seq", "mem", "std", "num", "no", "ep", "dev", "var"),
    *(
        "cum",
        "tot",
        "acc",
        "val",
        "len",
        "est",
        "temp",
        "pol",
        "rew",
        "ent",
        "resp",
        "reg",
        "approx",
    ),
}
"""Words whose dot does not end a sentence: `Grad. Norm`."""
NO_METRICS = {
    *(
        "localhost",
        "port",
        "pid",
        "ppid",
        "line",
        "ip",
        "version",
        "cuda",
        "device",
        "gpu",
        "errno",
    ),
    *("id", "node", "http", "https", "exit code", "code", "file", "lineno", "rank", "local_rank"),
    *("world_size", "seed", "eta", "uid", "job id", "jobid", "process", "thread", "year", "date"),
    *("figure", "fig", "table", "section", "chapter", "page", "issue", "pr", "python", "torch"),
}
IN_SOURCE = re.compile(r"\.(?:py|cc|cpp|cu|h|rs|go|js|ts|json|yaml|yml|txt|md|sh|toml|html|com)$")
COUNTER = re.compile(
    r"(?:(?:global|total|current|cur|eval|train(?:ing|er)?|env(?:ironment)?|learn(?:ing|er)|progress|opt"
    r"|optimi[sz]er|grad(?:ient)?|policy|num(?:ber)?|of|n(?=_)|agent|update|time|misc|system|finished"
    r"|completed|starting|end|the|actor|info|diagnostics|charts|counters|perf)[ _/\-]?)*"
    r"(?:steps?|time[ _]?steps?|iter(?:ation)?s?|itr|epochs?|episodes?|ep|updates?|frames?"
    r"|rounds?|rollouts?|batch(?:es)?|generation|(?:total)?env[ _]?interacts)"
    r"(?:[ _/](?:total|so[ _]far|lifetime|num|number|idx|index|no|id))?"
    r"|n/\d+|\[n\]",
    re.IGNORECASE,
)
WRAPPED = re.compile(
    r"(?:(?:np|numpy|torch|jnp|jax)\.)?(?:b?float|u?int)(?:8|16|32|64)\(([^()]{1,60})\)"
    r"|(?:torch\.)?(?:tensor|[aA]rray)\(\[?\s*([-+\w.]{1,60})\s*\]?[^()]{0,80}\)"
)
BAR = re.compile(
    r"(?<!\d)(\d++)/(\d++)\s*+\[[\d:]{2,12}<[^,\]]{0,40}(?:,\s*[\d.?]+\s?[\w/%]{0,12})?"
)
BOXED = re.compile(
    r"\|(\s*)([A-Za-z_][^|\s]*)\s*\|\s*([-+]?\d++(?:\.\d*+)?+(?:[eE][-+]?\d++)?+)\s*\|?$"
)
"""A line of SB3's box; others have spaces in their names, or no plain number."""
SECTION = re.compile(r"\|(\s*)([A-Za-z_][^|\s]*/)\s*\|\s*\|$")
"""Where a section of such a box begins."""
NUMBER_IN_BOX = r"([-+]?[0-9]++(?:\.[0-9]*+)?+(?:[eE][-+]?[0-9]++)?+)"
MOST_BOX_LINES = 200
MAY_SPEAK = (b"(", b"[R", b"[r", b"[d")
PLAIN_NUMBER = re.compile(r"(?<![\w.])[-+]?\d++(?:\.\d*+)?+(?:[eE][-+]?\d++)?+|(?<=[\w])\d++")
OTHER_DIGITS = str.maketrans("0123456789", "3456789124")
LONGEST_SHAPE = 2000
MOST_SEEN, MOST_LEARNED, MOST_SHAPES = 10_000, 100, 4
OPENED = re.compile(r"\{\s*(?:['\"][^'\"\n]{1,200}['\"]\s*:|$)")
CONTINUED = re.compile(r"\s*['\"][^'\"\n]{1,200}['\"]\s*:")
IN_DICT = re.compile(rf"['\"]([^'\"]{{1,200}})['\"]\s*:\s*['\"]?({NUMBER})['\"]?\s*(?=[,}}\]]|$)")
NOT_JSON = re.compile(r"(?<![\w\"/.\-])([-+]?)(nan|inf|NaN|Infinity|True|False|None)(?![\w\"/])")
SAID = {
    **{"nan": "NaN", "NaN": "NaN", "inf": "Infinity", "Infinity": "Infinity"},
    **{"True": "true", "False": "false", "None": "null"},
}
NUMBERS_ONLY = re.compile(
    r"[\s|]*[-+]?[\d.](?:[-+\d.eE\s|,;%]|nan|inf|NaN|None|No log|[kM](?=[\s|]|$))*$"
)
WORDY = re.compile(r"\w")
WORDED = re.compile(r"[^\W\d_]")
COLOUR = re.compile(
    r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9])"
)
BOXES = str.maketrans({"│": "|", "┃": "|", "║": "|", "╎": "|", "¦": "|", "\u00a0": " "})
DRAWN = ("│", "┃", "║", "\u00a0")
FACTORS = {"%": 0.01, "k": 1e3, "K": 1e3, "M": 1e6}
LEAST_NUMBERS = 0.6
"""Of a dict's values, for it to be a row of a log; a configuration is mostly words."""
SUMMARY = ("train_runtime", "train_samples_per_second")
"""Who prints these sums up a run that has ended."""
LEAST_CONFIG = 8


class Bar(NamedTuple):
    """How far a progress bar has come."""

    label: str
    at: int
    of: int


class Found(NamedTuple):
    """What a line says."""

    values: dict[str, float]
    sure: int = 0
    """Whether the line is a row of a log by its shape: 2 for a dict, a box, a table; 1 for a line
    with its step; 0 for names and numbers."""
    bar: Bar | None = None
    config: dict[str, Any] | None = None


def plain(text: str) -> str:
    """Text without colours, its boxes drawn with `|`."""
    if "\x1b" in text:
        text = COLOUR.sub("", text)
    if any(drawn in text for drawn in DRAWN):
        text = text.translate(BOXES)
    return text


@lru_cache(maxsize=MOST_CACHED)
def is_counter(name: str) -> bool:
    """Whether a name says where in the training a line was printed."""
    return COUNTER.fullmatch(name) is not None


class LineReader:
    """Lines of one speaker, in order: boxes have sections, tables a line of names, dicts may be
    spread over lines, and lines of one shape are learned."""

    def __init__(self, *, tables: bool = True) -> None:
        self._tables = tables
        self.text = ""
        """The last line without a number: it may be the names of a table."""
        self.is_open = False
        """A dict has begun and not ended."""
        self.section = ""
        """Of a box, in which the next names stand."""
        self._header: list[str] = []
        self._of_text = ""
        self._open: list[str] = []
        self._open_size = 0
        self.shapes = Shapes()

    def read(self, line: str) -> list[Found]:
        """What a line says; nothing for most lines. It has no colours (`plain`) and no end."""
        if self.is_open:
            closed = self._continue(line)
            if closed is not None:
                return closed
        if len(line) > LONGEST:
            return []
        if "|" in line and (cells := line.strip())[:1] == "|":
            return self._box(cells)
        if DIGIT.search(line) or "nan" in line:
            return self._numbers(line)
        if "{" in line and line.count("{") > line.count("}") and (opened := OPENED.search(line)):
            self._begin(line[opened.start() :])
        elif WORDED.search(line):
            self.text = line
        return []

    def _numbers(self, line: str) -> list[Found]:
        if "{" in line and (opened := OPENED.search(line)):
            return self._dict(line, opened.start())
        if "step:" in line and " - " in line and (found := _verl(line)):
            return [found]
        if NUMBERS_ONLY.match(line):
            row = self._row(line) if self._tables else None
            return [row] if row else []
        if VALUE.search(line) is None and _is_prose(line):
            return []
        if "(" in line:
            line = _unwrapped(line)
        if "[" in line and "<" in line and (bar := BAR.search(line)):
            return _with_bar(line, bar)
        values = pairs(line)
        if not values:
            return []
        found = _judged(values)
        self.shapes.learn(line, found)
        return [found]

    # Boxes and tables.

    def _box(self, line: str) -> list[Found]:
        if pair := BOXED.match(line):
            name = self.section + pair[2] if len(pair[1]) > 2 else pair[2]
            return [Found({name: float(pair[3])}, 2)]
        raw = line.strip("|").split("|", MOST_CELLS)
        if len(raw) > MOST_CELLS:
            return []
        cells = [cell.strip() for cell in raw]
        if not any(any(map(str.isalnum, cell)) for cell in cells):
            return []
        if len(cells) == 2 and not cells[1] and cells[0].endswith("/"):
            self.section = cells[0]
            return []
        numbers = [number_in(cell) for cell in cells]
        if len(cells) % 2 == 0 and _alternate(cells, numbers):
            section = self.section if raw[0].startswith("   ") else ""
            named = zip(cells[::2], numbers[1::2], strict=True)
            values = {section + name: number for name, number in named if number is not None}
            return [Found(values, 2)] if values else []
        return self._table(cells, numbers)

    def _table(self, cells: list[str], numbers: list[float | None]) -> list[Found]:
        self.text = ""
        if not self._tables:
            return []
        if len(cells) == len(self._header) and any(number is not None for number in numbers):
            return [self._of_table(numbers)]
        if len(cells) > 2 and not any(number is not None for number in numbers):
            self._header, self._of_text = [_cell_name(cell) for cell in cells], ""
        return []

    def _of_table(self, numbers: list[float | None]) -> Found:
        named = zip(self._header, numbers, strict=True)
        values = {name: number for name, number in named if number is not None and name}
        return Found(values, 2 if any(map(is_counter, values)) else 0)

    def _row(self, line: str) -> Found | None:
        """A line of numbers under a line of names."""
        if self.text != self._of_text:
            self._header, self._of_text = [], self.text
        for split in (_by_pipe, _by_tab, _by_spaces, _by_comma):
            cells = split(line)
            names = self._header or split(self.text)
            if split is _by_spaces and not self._header and len(names) != len(cells):
                names = self.text.split()
            if len(cells) < 2 or len(cells) != len(names):
                continue
            if self._header or _are_names(names):
                self._header = [_cell_name(name) for name in names]
                return self._of_table([number_in(cell) for cell in cells])
        return None

    # Dicts.

    def _dict(self, line: str, start: int) -> list[Found]:
        start -= line[start - 1 : start] == "["
        text = line[start:]
        if text.count("{") > text.count("}"):
            self._begin(text)
            return []
        found = read_dict(text)
        if not start and len(found) == 1 and found[0].sure:
            self.shapes.learn(line, found[0], _numbers_of_dict)
        before = line[:start]
        bar = BAR.search(before) if "<" in before else None
        counted = {} if bar else dict(_counted(before))
        if bar is None and (count := COUNT_OF.match(before)):
            counted[f"n/{count[2]}"] = float(count[1][:18])
        return [
            one._replace(
                values={**counted, **one.values} if one.values else {},
                sure=2 if counted and one.values else one.sure,
                bar=_bar(before, bar) if bar else None,
            )
            for one in found
        ]

    def _begin(self, text: str) -> None:
        self._open, self._open_size, self.is_open = [text], len(text), True

    def _continue(self, line: str) -> list[Found] | None:
        """Put a line to an open dict; None if it is not one of its lines."""
        begins = line.lstrip()[:2] in ("{'", '{"') and line.count("{") == line.count("}")
        fits = len(self._open) > 1 or len(self._open[0]) > 2 or CONTINUED.match(line)
        too_long = self._open_size > LONGEST or len(self._open) > MOST_LINES
        if begins or too_long or not fits or line.startswith("step:"):
            self._open, self.is_open = [], False
            return None
        if "[" in line and "<" in line and (bar := BAR.search(line)):
            return [Found({}, bar=_bar(line, bar))]
        self._open.append(line.strip())
        self._open_size += len(line)
        if "}" not in line:
            return []
        text = "".join(self._open)
        if text.count("{") > text.count("}"):
            return []
        self._open, self.is_open = [], False
        return read_dict(text)


class Shapes:
    """Lines that differ only in their numbers: learned once, they are read by one match.

    Which number is whose is found out by changing one at a time and reading the line again.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], int] = {}
        self._learned = 0
        self._known: dict[tuple[int, int, int, str], list[Shape]] = {}

    def match(self, line: str) -> tuple[Shape, list[float]] | None:
        """The numbers of a line of a known shape; None if it is of none."""
        for shape in self._known.get(_signs(line), ()) if self._known else ():
            if found := shape.pattern.fullmatch(line):
                numbers = list(map(float, found.groups()))
                if shape.factors:
                    numbers = [n * by for n, by in zip(numbers, shape.factors, strict=True)]
                return shape, numbers
        return None

    def run(self, shape: Shape, lines: list[bytes], index: int) -> list[tuple[bytes, ...]]:
        """The numbers of the lines from `index` on, up to the first that is not of the shape that
        the line before them has, or not of the same speaker."""
        before = lines[index - 1]
        start = 0
        if before[:1] == b"\x05":  # a speaker
            start = 4 if before[3:4] == b" " else 3
        text, begin = before[start:], before[: start + 1]
        if text.startswith(MAY_SPEAK):
            return []
        known = self._known.get(_signs(text.decode("utf-8", errors="replace")))
        if not known or known[0] is not shape:
            return []
        match, rows = _in_bytes(shape.pattern.pattern).fullmatch, []
        while index < len(lines) and lines[index][: start + 1] == begin:
            found = match(lines[index], start)
            if found is None:
                break
            rows.append(found.groups())
            index += 1
        return rows

    def learn(
        self, line: str, found: Found, read: Callable[[str], dict[str, float]] | None = None
    ) -> None:
        """A line was read the long way: when its names come the third time, it is learned from."""
        names = tuple(found.values)
        if len(line) > LONGEST_SHAPE or len(names) < 2 or self._learned >= MOST_LEARNED:
            return
        if len(self._seen) > MOST_SEEN:
            self._seen.clear()
        seen = self._seen[names] = self._seen.get(names, 0) + 1
        if 2 < seen < 20 and (shape := _shape(line, found, read or pairs)):
            self._learned += 1
            known = self._known.setdefault(_signs(line), [])
            if len(known) < MOST_SHAPES:
                known.append(shape)


class Shape(NamedTuple):
    """A line but for its numbers, and the names they have."""

    pattern: re.Pattern[str]
    names: tuple[str, ...]
    factors: tuple[float, ...]
    """What percents and thousands multiply by; empty where nothing does."""
    sure: int


@lru_cache(maxsize=MOST_LEARNED)
def _in_bytes(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode("utf-8", errors="replace"))


def _signs(line: str) -> tuple[int, int, int, str]:
    return line.count("="), line.count(":"), line.count("|"), line[:1]


def _shape(line: str, found: Found, read: Callable[[str], dict[str, float]]) -> Shape | None:
    """The pattern of a line; None where changing a number changes a name."""
    pattern, names, factors, after = "", [], [], 0
    for number in PLAIN_NUMBER.finditer(line):
        text = re.escape(line[after : number.start()])
        changed = number[0].translate(OTHER_DIGITS)
        again = read(f"{line[: number.start()]}{changed}{line[number.end() :]}")
        if again.keys() != found.values.keys():
            if WORDY.match(line, number.start() - 1) and number.start():
                continue  # a digit of a name, as in `name_0`
            return None
        moved = [name for name in again if again[name] != found.values[name]]
        if not moved:
            inside = line[number.start() - 1 : number.start()].isalpha()
            pattern += text + (r"\d++" if inside else r"[-+]?\d++(?:\.\d*+)?+(?:[eE][-+]?\d++)?+")
        elif len(moved) == 1 and 0 < abs(float(changed)) < math.inf:
            pattern += text + r"([-+]?\d++(?:\.\d*+)?+(?:[eE][-+]?\d++)?+)"
            names.append(moved[0])
            factors.append(again[moved[0]] / float(changed))
        else:
            return None
        after = number.end()
    if len(names) != len(found.values):
        return None
    pattern += re.escape(line[after:])
    plain = all(by == 1 for by in factors)
    by = () if plain else tuple(factors)
    return Shape(re.compile(pattern), tuple(names), by, found.sure)


class Box(NamedTuple):
    """A box of names and numbers but for the numbers, which several lines in a row have."""

    pattern: re.Pattern[bytes]
    names: tuple[str, ...]
    section: str
    """In which the lines before it ended; the box ends in it too."""
    size: int
    """Lines."""

    @classmethod
    def at(cls, lines: list[bytes], index: int, section: str) -> Box | None:
        """The box whose first line this is; None where it has more than names and numbers."""
        found: list[tuple[str | None, str]] = []
        patterns: list[str] = []
        title: str | None = None
        for line in lines[index : index + MOST_BOX_LINES]:
            text = line.decode("utf-8", errors="replace")
            if pair := BOXED.fullmatch(text):
                found.append((title if len(pair[1]) > 2 else "", pair[2]))
                patterns.append(_box_line(pair[1] + pair[2]) + NUMBER_IN_BOX)
            elif begun := SECTION.fullmatch(text):
                title = begun[2]
                patterns.append(_box_line(begun[1] + begun[2]))
            else:
                break
        if not found:
            return None
        section = section if title is None else title
        names = tuple((section if of is None else of) + name for of, name in found)
        pattern = "\n".join(rf"{line} *\|" for line in patterns)
        return cls(re.compile(pattern.encode("utf-8", "replace")), names, section, len(patterns))


def _box_line(name: str) -> str:
    return rf"\|{re.escape(name)} *\| *"


# A line of names and numbers.


def _is_prose(line: str) -> bool:
    """Too many words for its numbers; only for a line without `name: 1`."""
    if len(line) > 400 or not _says_something(line):
        return True
    words = line.count(" ") - 2 * line.count("  ")
    return words > 4 * len(FIGURES.findall(line)) + 1 and words > 4 * len(FIGURE.findall(line)) + 1


def _says_something(line: str) -> bool:
    if SPOKEN.search(line) or ("/" in line and FRACTION.search(line)):
        return True
    return "[" in line and BRACKETED.search(line) is not None


def pairs(line: str) -> dict[str, float]:
    """The named numbers of a line of `name: 1`, `name=1` and `name 1`."""
    line = _in_pairs(line)
    values: dict[str, float] = {}
    after = 0
    explicit = False
    for found in VALUE.finditer(line):
        opener, digits, behind = found.groups()
        before = line[after : found.start()]
        after = found.end()
        earlier, name = _fragment(before)
        values.update(earlier)
        if not name or (opener and opener[-1] in "[(" and line[after : after + 1] not in "])"):
            continue
        number = _value(digits, behind)
        if number is None or ((behind[:1] == "/" if behind else False) and not is_counter(name)):
            continue
        if not _put(values, name, number):
            return {}
        explicit = True
    tail = line[after:]
    if not explicit and not values:
        return _spoken(tail)
    if DIGIT.search(tail):
        values.update(_fragment(tail)[0])
    return values


def _in_pairs(line: str) -> str:
    """Other ways to say pairs, as `name: 1`."""
    if "  " in line and _may_count(line):
        line = PADDED.sub(r"\1 ", line)
    if "/" in line and BOTH.search(line):
        line = BOTH.sub(r"\1 \3: \4, \2 \3: \5", line)
    if "[(" in line:
        line = OF_ONE.sub(r" \1", line)
    if (" is " in line or " are " in line) and len(line) < 400 and _has_counter(line):
        line = SAYS.sub(": ", line)
    return line


def _has_counter(line: str) -> bool:
    return _may_count(line) and COUNTED.search(line) is not None


def _put(values: dict[str, float], name: str, number: float) -> bool:
    """A name that a line says twice is another thing the second time: `loss`, `loss#2`. One that
    it says ten times is none."""
    if name in values and not is_counter(name):
        again = next((n for n in range(2, MOST_AGAIN) if f"{name}#{n}" not in values), MOST_AGAIN)
        if again == MOST_AGAIN:
            return False
        name = f"{name}#{again}"
    values[name] = number
    return True


_cached: dict[str, tuple[dict[str, float], str]] = {}


def _fragment(text: str) -> tuple[dict[str, float], str]:
    """What stands between two values: pairs without a sign between them, and the next name."""
    if len(text) > 64:
        return _read_fragment(text)
    known = _cached.get(text)
    if known is None:
        if len(_cached) > MOST_CACHED:
            _cached.clear()
        known = _cached[text] = _read_fragment(text)
    return known


def _read_fragment(text: str) -> tuple[dict[str, float], str]:
    name = _name_at_end(text[-LONGEST_NAME:])
    if not DIGIT.search(text):
        return {}, name
    text = text[-400:]
    if not name and (at_count := AT_COUNT.search(text[-LONGEST_NAME:])):
        return dict(_counted(text)), _cleaned(at_count[1])
    end = text[-LONGEST_NAME:].rstrip()
    if MAY_BE_OVER.search(end) and (over := OVER_COUNT.search(end)):
        return {}, over[1]
    values: dict[str, float] = {}
    at = _after_start(text)
    if count := COUNT_OF.match(text, at):
        values[f"n/{count[2]}"] = float(count[1][:18])
    elif numbered := NUMBERED.match(text):
        values["[n]"] = float(numbered[1])
    may_count = _may_count(text)
    for piece in PIECES.split(text[at:]):
        values.update(_bare(piece.strip()) or (_counted(piece) if may_count else ()))
    return values, name


def _spoken(line: str) -> dict[str, float]:
    """Pairs of a line without a single `:` or `=`; it must consist of little else."""
    if _is_prose(line):
        return {}
    at = _after_start(line)
    values: dict[str, float] = {}
    if count := COUNT_OF.match(line, at):
        values[f"n/{count[2]}"] = float(count[1][:18])
        at = count.end()
    rest = line[at:]
    if (first := _COUNT_AND_COLON.match(rest)) and is_counter(first[1]):
        rest = f"{first[1]} {first[2]}, {rest[first.end() :]}"
    pieces = [piece for piece in _SPOKEN_PIECES.split(rest) if piece and not piece.isspace()]
    read = 0
    for piece in pieces:
        found = _bare(piece.strip())
        read += bool(found)
        values.update(found)
    if not values:
        return dict(_counted(line[at:]))
    return values if 2 * read >= len(pieces) else {}


_SPOKEN_PIECES = re.compile(r"[|,;]|\s-{1,2}\s")
_COUNT_AND_COLON = re.compile(r"([A-Za-z_]+)\s+#?(\d{1,15}(?:/\d{1,15})?)\s*:\s+")
"""`update 10: reward 0.5, loss 0.1`: what is counted stands before a colon."""


def _bare(piece: str) -> list[tuple[str, float]]:
    """`step 12 reward 0.3`, if the piece is that from its beginning to its end or its last name."""
    if not MAY_BE_BARE.search(piece):
        return []
    at = 0
    found: list[tuple[str, float]] = []
    while match := BARE.match(piece, at):
        words, _, digits, behind = match.groups()
        name, number = _cleaned(words), _value(digits, behind)
        if not name or number is None or ((behind or "")[:1] == "/" and not is_counter(name)):
            break
        found.append((name, number))
        at = match.end()
    rest = piece[at:]
    if not rest:
        return found
    a_name = rest[0].isalpha() and not DIGIT.search(rest) and rest.count(" ") < MOST_WORDS
    return found if a_name and any(is_counter(name) for name, _ in found) else []


def _counted(text: str) -> Iterator[tuple[str, float]]:
    """Counters with their numbers anywhere in a text."""
    if not _may_count(text):
        return
    for found in COUNTED.finditer(text[-400:]):
        yield found[1].strip(), float(found[2].replace(",", "")[:18])


def _may_count(text: str) -> bool:
    low = text.lower()
    for word in COUNTING:
        if word in low:
            return MAY_COUNT.search(low) is not None
    return False


def _after_start(line: str) -> int:
    """Where a line begins behind what a logger put before it."""
    at = 0
    while (start := STARTS.match(line, at)) and start.end() > at:
        at = start.end()
    return at


def _name_at_end(text: str) -> str:
    text = text.rstrip(" \t'\"`*_")
    found = NAME_AT_END.search(text)
    return _cleaned(found[1]) if found else ""


@lru_cache(maxsize=MOST_CACHED)
def _cleaned(name: str) -> str:
    """A name without the end of a sentence before it, a level, a unit; empty if it is none."""
    words = name.strip("_-.+").split(" ") if " " in name else [name.strip("-.+")]
    for place in range(len(words) - 1, 0, -1):
        before = words[place - 1]
        if before.endswith(".") and before[:-1].lower() not in SHORTENED:
            words = words[place:]
            break
    while len(words) > 1 and (words[0] in LEVELS or words[0] in UNITS_BEFORE):
        words = words[1:]
    if not words[0] or len(words) > MOST_WORDS or words[0] in LEVELS:
        return ""
    name = " ".join(words)
    last = name.lower()
    if last in NO_METRICS or IN_SOURCE.search(last) or "//" in name or len(name) > LONGEST_NAME:
        return ""
    return name


def _judged(values: dict[str, float]) -> Found:
    counters = sum(map(is_counter, values))
    return Found(values, int(0 < counters < len(values)))


def _value(digits: str, behind: str | None) -> float | None:
    try:
        number = float(digits.replace(",", "") if "," in digits else digits)
    except ValueError:
        return None
    return number * FACTORS.get(behind, 1.0) if behind else number


def number_in(cell: str) -> float | None:
    """The number a cell holds, alone or in the wrapping of numpy and torch."""
    if "(" in cell:
        cell = _unwrapped(cell)
    found = NUMERAL.match(cell)
    if not found:
        return None
    behind = cell[found.end() :].strip()
    return _value(found[0], behind) if not behind or behind in FACTORS else None


def _unwrapped(text: str) -> str:
    if "(" in text and ("tensor(" in text or "rray(" in text or "float" in text or "int" in text):
        return WRAPPED.sub(lambda found: found[1] or found[2], text)
    return text


# Other shapes.


def _verl(line: str) -> Found | None:
    """`step:3 - actor/entropy:0.1 - ...`"""
    values: dict[str, float] = {}
    start = line.find("step:")
    if start and (line[start - 1].isalnum() or line[start - 1] in "_/"):
        start = line.rfind(" ", 0, start) + 1
    line = line[start:]
    if "(" in line:
        line = line.replace("np.float64(", "").replace("np.float32(", "").replace(")", "")
    for part in line.split(" - "):
        name, colon, value = part.rpartition(":")
        try:
            number = float(value)
        except ValueError:
            held = number_in(value.strip()) if colon else None
            if held is None:
                continue
            number = held
        if name and " " not in name.strip() and len(name) <= LONGEST_NAME:
            values[name.strip()] = number
    return Found(values, 2) if len(values) > 1 else None


def _with_bar(line: str, found: re.Match[str]) -> list[Found]:
    """A bar, and the numbers in its postfix."""
    bar = _bar(line, found)
    rest = line[found.end() :]
    inside, _, after = rest.partition("]")
    values = pairs(inside.lstrip(", ")) if "=" in inside else {}
    if values:
        values = {**dict(_counted(bar.label)), **values}
    if not values and DIGIT.search(after) and len(after) < 4000:
        values = pairs(after)
        return [_judged(values)._replace(bar=bar)]
    return [Found(values, 2 if values else 0, bar)]


def _bar(line: str, found: re.Match[str]) -> Bar:
    label = line[: found.start()].partition("%")[0].rstrip("0123456789. ").rstrip(": ")
    return Bar(label[-40:], int(found[1][:15]), int(found[2][:15]))


def read_dict(text: str) -> list[Found]:
    """The rows in the text of a dict, or of a list of dicts, as Python or JSON writes them."""
    content = _parsed(text)
    if isinstance(content, list):
        rows = [row for row in content if isinstance(row, dict)]
        return [found for row in rows for found in _of_dict(row)]
    if isinstance(content, dict):
        return list(_of_dict(content))
    found = {
        name: float(number.replace(",", "")) for name, number in IN_DICT.findall(_unwrapped(text))
    }
    return list(_of_dict(found))


def _numbers_of_dict(text: str) -> dict[str, float]:
    found = read_dict(text)
    return found[0].values if len(found) == 1 else {}


def _parsed(text: str) -> Any:
    last = max(text.rfind("}"), text.rfind("]") if text[:1] == "[" else -1)
    text = text[: last + 1]
    load: Callable[[str], Any] = json.loads
    quoted = text if text[1:2] == '"' else text.replace("'", '"')
    try:
        return load(quoted)
    except (ValueError, RecursionError):
        pass
    try:
        return load(NOT_JSON.sub(lambda one: one[1] + SAID[one[2]], _unwrapped(quoted)))
    except (ValueError, RecursionError):
        return None


def _of_dict(content: Mapping[str, Any]) -> Iterator[Found]:
    values: dict[str, float] = {}
    try:
        leaves = _leaves(content, "", values, 0)
    except RecursionError:
        return
    if leaves >= LEAST_CONFIG and len(values) < LEAST_NUMBERS * leaves:
        yield Found({}, config=dict(content))
    elif values and len(values) >= LEAST_NUMBERS * leaves and not set(SUMMARY) & set(values):
        yield Found(values, 2 if len(values) > 2 or any(map(is_counter, values)) else 0)


def _leaves(content: Mapping[str, Any], path: str, values: dict[str, float], depth: int) -> int:
    """Put the numbers of a dict to `values`, by path; how many leaves it has."""
    count = 0
    for key, value in content.items():
        kind = type(value)
        name = f"{path}{key}"
        if kind is float:
            values[name] = value
        elif kind is int:
            values[name] = float(value) if abs(value) < 1 << 1000 else math.inf
        elif kind is dict:
            count += _leaves(value, f"{name}/", values, depth + 1)
            continue
        elif kind is str and (number := number_in(value.strip())) is not None:
            values[name] = number
        elif value is None:
            continue
        count += 1
    return count


# Cells of tables.


def _by_pipe(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if "|" in line else []


def _by_tab(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().split("\t")] if "\t" in line else []


_GAP = re.compile(r"\s{2,}|\t")


def _by_spaces(line: str) -> list[str]:
    return _GAP.split(line.strip())


def _by_comma(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")] if "," in line else []


def _are_names(names: list[str]) -> bool:
    if not all(name[:1].isalpha() or name[:1] == "_" for name in names):
        return False
    if any(len(name) > LONGEST_NAME or name.count(" ") >= MOST_WORDS for name in names):
        return False
    return any(map(is_counter, names)) or len(names) > 2


def _cell_name(cell: str) -> str:
    return cell.replace(" / ", "/").strip()


def _alternate(cells: list[str], numbers: list[float | None]) -> bool:
    """Whether cells are name, number, name, number."""
    if any(number is not None for number in numbers[::2]) or not all(cells[::2]):
        return False
    values = [number for number, cell in zip(numbers[1::2], cells[1::2], strict=True) if cell]
    return len(cells) == 2 or (bool(values) and all(number is not None for number in values))
