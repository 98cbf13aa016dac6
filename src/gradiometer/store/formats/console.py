"""Logs as people keep them most: what a training printed, caught in a file.

Any text is read line by line (`console_lines.py`), at the pace of a file of hundreds of megabytes
and without holding it. Names and numbers become rows: a row ends where a name comes again. What
counts the steps is found at the end, among the counters that were printed (`step`, `Epoch 3/10`, a
progress bar); where none does, the rows are counted. Whoever prints through Ray or torchrun is kept
apart, and of several who print the same the first is read.

Text is no log because it has a number in it. A name is a series if it comes again at other steps;
samples and settings that are printed between the rows come more often, or only before them.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, cycle, islice
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradiometer.errors import NotARun
from gradiometer.store.console_lines import (
    WORDED,
    Bar,
    Box,
    Found,
    LineReader,
    Shape,
    is_counter,
)
from gradiometer.store.facts import redact
from gradiometer.store.formats import Reads, log_format, remembered
from gradiometer.store.log_rows import is_measured
from gradiometer.store.logs import Columns, Gathered, Log, short_id, warn
from gradiometer.store.opening import open_bytes, open_text
from gradiometer.store.provenance import log_of, name_of
from gradiometer.store.reader import Floats, Ints
from gradiometer.store.step_column import ROWS, STEP_KEYS
from gradiometer.words import counted, some

__all__ = ["ConsoleText", "read_console"]

AT_ONCE = 1 << 20
ROWS_AT_ONCE = 1 << 16
HELD = 1 << 20
BUFFERED = 1 << 19
"""Numbers that wait in rows of one shape before they are put to the series."""
MOST_SHAPES = 512
MOST_BOXES = 100
MOST_RARE = 50_000
MOST_SPEAKERS = 256
LEAST_POINTS = 3
TOO_OFTEN = 1.5
"""A name that comes this many times as often as the rows is printed for each sample."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
SUFFIXES = (".log", ".out", ".txt", ".err", ".stdout", ".stderr")
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
SOURCES = (
    *(".py", ".pyi", ".c", ".cc", ".cpp", ".h", ".cu", ".js", ".ts", ".rs", ".go", ".java", ".sh"),
    *(".yaml", ".yml", ".toml", ".ini", ".cfg", ".html", ".css", ".ipynb", ".json"),
)
SPEAKER = re.compile(
    r"(\(\w[^()\n]{0,80}? pid=\d+[^()\n]{0,40}\)|\[(?:[Rr]ank ?|default)\d+\]):? ?"
)
FIRST_OF_ROW = tuple("0123456789+-.|")
BAR = "\x01bar "
AT_ITS_END = 0.9
"""Of its length, behind which a bar that begins anew is the next epoch: not each draws its end."""
EVALUATED = re.compile(
    r"(?:^|[^a-z])(?:eval|evaluation|val|validation|test)(?:$|[^a-z])", re.IGNORECASE
)
RATE = re.compile(r"(?:^|[/_ ])(?:lr|learning[_ ]rate)$", re.IGNORECASE)
"""Where it is 0.000 throughout it was rounded: printed with three digits."""
HEADING = "\x02"
"""Before the name of a counter that stands alone in its line."""
APART = "\x00"
Points = tuple[Ints, Floats]


def is_text(start: bytes) -> bool:
    """Whether a file begins with text: UTF-8 or nearly so, or UTF-16 as PowerShell writes it."""
    if start.startswith(UTF16):
        return True
    if not start.strip() or b"\0" in start:
        return False
    text = start[:4096].decode("utf-8", errors="replace")
    odd = sum(not char.isprintable() and char not in "\t\r\n\b\x1b" for char in text)
    return 20 * (odd + text.count("\ufffd")) <= len(text)


def _is_printed(path: Path, start: bytes) -> bool:
    return path.suffix.lower() not in SOURCES and is_text(start)


def _begins_as_printed(path: Path, start: bytes) -> bool:
    """A file that begins with rows as they are printed, and not as JSON or a table, whose readers
    would refuse it."""
    if not _is_printed(path, start) or path.suffix.lower() in TABLES:
        return False
    line = start.lstrip().partition(b"\n")[0]
    with suppress(ValueError, RecursionError):
        json.loads(line)
        return False
    return _is_log(start, tables=False)


def _is_log(start: bytes, *, tables: bool = True) -> bool:
    text = ConsoleText(tables=tables)
    text.feed(_utf8(start))
    text.end()
    return text.is_log()


def _that_print(folder: Path, files: list[Path]) -> list[Path]:
    return [path for path in files if path.suffix.lower() in SUFFIXES and _prints(path)]


@remembered
def _prints(path: Path) -> bool:
    with open_bytes(path) as file:
        start = file.read(AT_ONCE)
    return is_text(start) and _is_log(start)


@log_format("printed", rank=55, detect=_begins_as_printed)
@log_format(
    "console",
    rank=95,
    title="what a training printed",
    detect=_is_printed,
    find=_that_print,
    reads=[
        Reads(
            tool="verl, ROLL, slime on the console",
            file="text with `step:3 - critic/score/mean:0.1 - ...` or `rollout 3: {...}`",
            steps="`step`, `rollout`",
            taken="every number of those lines; a printed configuration as the settings",
        ),
        Reads(
            tool="transformers, TRL, unsloth, ms-swift on the console",
            file="text with `{'loss': 0.1, ...}`, or a notebook's table",
            steps="`step`, the progress bar, or rows",
            taken="every number, also where a bar or a terminal cut the dict",
        ),
        Reads(
            tool="SB3, Spinning Up, RLlib, AReaL on the console",
            file="text with boxes of names and values, or tables with a line of names",
            steps="`total_timesteps`, `TotalEnvInteracts`, `iter`, ...",
            taken="every number, with its section",
        ),
        Reads(
            tool="rsl_rl, ML-Agents, tianshou, OpenRLHF, NeMo-RL, prime-rl, one's own scripts",
            file="text with `Step 3, reward: 0.1`, `name=1`, a bar's postfix, or blocks of lines",
            steps="`Step 3`, `Epoch 3/10`, `Learning iteration 3/1500`, `3/600`, a bar, or rows",
            taken="names that come again, of several words if need be; no times and sizes",
        ),
    ],
)
def read_console(path: Path) -> Log:
    """The log in what a training printed."""
    text = ConsoleText()
    for piece in pieces(path):
        text.feed(piece)
    text.end()
    return text.log(path)


def pieces(path: Path) -> Iterator[bytes]:
    """The text of a file as UTF-8, in pieces that end with a line if lines end at all."""
    with open_bytes(path) as file:
        first = file.read(2)
    encoding = "utf-16" if first in UTF16 else ""
    rest = b""
    for piece in _blocks(path, encoding):
        piece = rest + piece
        whole = max(piece.rfind(b"\n"), piece.rfind(b"\r", 0, -1)) + 1
        if not whole and len(piece) > 8 * AT_ONCE:
            whole = len(piece)
        rest = piece[whole:]
        yield piece[:whole]
    yield rest


def _blocks(path: Path, encoding: str) -> Iterator[bytes]:
    if not encoding:
        with open_bytes(path) as file:
            yield from iter(partial(file.read, AT_ONCE), b"")
        return
    with open_text(path, encoding=encoding) as text:
        for block in iter(partial(text.read, AT_ONCE), ""):
            yield block.encode("utf-8", errors="replace")


def _utf8(start: bytes) -> bytes:
    if start.startswith(UTF16):
        text = start[: len(start) & ~1].decode("utf-16", errors="replace")
        return text.encode("utf-8", errors="replace")
    return start


def plain_lines(data: bytes) -> bytes:
    """Text without colours, its boxes drawn with `|`, a bar's updates as lines."""
    if b"\x1b" in data:
        for colour in RAYS_COLOURS:
            data = data.replace(colour, b"")
        data = COLOUR.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if data.isascii():
        return data
    if b"\xe2\x94" in data or b"\xe2\x95" in data:
        for drawn in DRAWN:
            data = data.replace(drawn, b"|")
    return data.replace(b"\xc2\xa0", b" ")


def promising(data: bytes) -> Ints:
    """Which lines of a text may have named numbers, found with array arithmetic: most have none.

    A line is one that has a bracket or a bar of a table, a number soon behind a `:` or `=`, or few
    words for its numbers.
    """
    kinds = np.frombuffer(data.translate(KINDS), dtype=np.uint8)
    starts = np.append(0, np.flatnonzero(kinds == NEWLINE) + 1)
    if starts[-1] == len(kinds):
        starts = starts[:-1]
    digit = kinds == DIGIT
    signs = np.flatnonzero(kinds == SIGN)
    signs = signs[(signs > 0) & (signs < len(kinds) - 3)]
    soon = digit[signs + 1] | digit[signs + 2] | digit[signs + 3]
    a_time = digit[signs - 1] & digit[signs + 1]
    marked = kinds == TABLE
    braces = np.flatnonzero(kinds[:-1] == BRACE)
    marked[braces[np.isin(kinds[braces + 1], (QUOTE, NEWLINE, SPACE))]] = True
    marked[signs[soon & ~a_time]] = True
    place = data.find(b"nan")
    while place >= 0:
        if data[place - 1 : place] in (b" ", b":", b"="):
            marked[place - 1] = not data[place + 3 : place + 4].isalpha()
        place = data.find(b"nan", place + 3)
    chosen = _in_each(np.flatnonzero(marked), starts) > 0
    figures = _in_each(np.flatnonzero(digit[1:] > digit[:-1]) + 1, starts)
    words = _in_each(np.flatnonzero((kinds[1:] == SPACE) & (kinds[:-1] != SPACE)) + 1, starts)
    figures[digit[starts]] += 1
    return np.flatnonzero(chosen | ((figures > 0) & (words <= 4 * figures)))


def _in_each(places: Ints, starts: Ints) -> Ints:
    """How many of the places are in each line."""
    return np.diff(np.append(np.searchsorted(places, starts), len(places)))


DIGIT, SIGN, TABLE, BRACE, QUOTE, SPACE, NEWLINE = range(1, 8)
OF_KIND = (b"0123456789", b":=", b"|", b"{", b"'\"", b" \t", b"\n")
KINDS = bytes(
    next((kind for kind, of in enumerate(OF_KIND, 1) if byte in of), 0) for byte in range(256)
)
FIGURES = re.compile("[0-9]+")
DRAWN = tuple(drawn.encode() for drawn in "│┃║")
RAYS_COLOURS = (b"\x1b[36m", b"\x1b[0m")
"""Of every line that Ray prints; others are looked for."""
COLOUR = re.compile(
    rb"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9])"
)


class _Speaker:
    """Who prints, and the row that is being printed."""

    def __init__(self, key: str, *, tables: bool) -> None:
        self.key = key
        self.lines = LineReader(tables=tables)
        self.row: dict[str, float] = {}
        self.shape: Shape | None = None
        """Of the row, where it is a line of that shape and nothing else: the numbers wait."""
        self.names: tuple[str, ...] = ()
        """Of those numbers: the shape's, behind the progress bar if there is one."""
        self.numbers: list[float] = []
        self.number = 0
        """Of the row, in the order in which rows begin."""


class ConsoleText:
    """Text while it is read: rows so far, by number, and who printed them."""

    def __init__(self, *, tables: bool = True) -> None:
        self.rows = _Rows()
        self.sure: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}
        """Names by how surely their lines are rows of a log."""
        self._tables = tables
        self.config: dict[str, Any] = {}
        self.first = ""
        self._speakers: dict[str, _Speaker] = {"": _Speaker("", tables=tables)}
        self._tokens: dict[bytes, bytes] = {}
        """A speaker as he is printed, and as two bytes without a number in them."""
        self._by_token: dict[str, _Speaker] = {}
        self._open: set[str] = set()
        self._sparse = True
        self._pieces = 0
        self._bars: dict[str, list[int]] = {}
        self._bar = ""
        self._repeats: _Speaker | None = None
        """Whose last line was of a known shape: the next may be too."""
        self._boxes: dict[tuple[str, ...], Box] = {}
        self._num_boxes = 0

    def feed(self, data: bytes) -> None:
        """Some lines."""
        if b"\x1b" in data:
            for said, token in islice(self._tokens.items(), 2):  # as Ray prints them, in one go
                data = data.replace(said.join(RAYS_COLOURS), token)
        data = plain_lines(data)
        if not data:
            return
        for said, token in self._tokens.items():
            data = data.replace(said, token)
        known_speakers = len(self._tokens)
        lines = data.split(b"\n")
        chosen = promising(data).tolist() if self._sparse else range(len(lines))
        every, done = len(chosen) >= len(lines) - 1, -1
        for index in chosen:
            while self._open and done + 1 < index:  # a dict goes over lines, whatever is in them
                done += 1
                self._line(lines, done, done - 1)
            if index > done and every:
                done += self._at_once(lines, index)
            if index > done:
                self._line(lines, index, done)
                done = index
        while self._open and done + 1 < len(lines):
            done += 1
            self._line(lines, done, done - 1)
        self._look_again(len(chosen) / len(lines), known_speakers)

    def _line(self, lines: list[bytes], index: int, done: int) -> None:
        self._repeats = None
        if not lines[index]:
            return
        line = lines[index].decode("utf-8", errors="replace")
        speaker, line = self._who(line)
        if not speaker.lines.is_open and line[:1] != "|":
            learned = speaker.lines.shapes.match(line)
            if learned is not None:
                self._learned(speaker, *learned)
                if speaker.shape is not None and speaker.names is speaker.shape.names:
                    self._repeats = speaker
                return
        if done < index - 1 and line.lstrip()[:1] in FIRST_OF_ROW:
            self._look_back(speaker, lines, index)
        for found in speaker.lines.read(line):
            self._take(speaker, found)
        if speaker.lines.is_open:
            self._open.add(speaker.key)
        else:
            self._open.discard(speaker.key)

    def _look_again(self, share: float, known_speakers: int) -> None:
        """Where most lines are worth reading they are not looked at beforehand, for a while."""
        self._pieces += 1
        if not self._sparse:
            self._sparse = self._pieces % 8 == 0
        elif len(self._tokens) == known_speakers:
            self._sparse = share < 0.5

    def _look_back(self, speaker: _Speaker, lines: list[bytes], index: int) -> None:
        """The names above a row of numbers have no number, so nobody has read them."""
        for line in reversed(lines[max(index - 3, 0) : index]):
            _, text = self._who(line.decode("utf-8", errors="replace"))
            if WORDED.search(text):
                speaker.lines.text = text
                return

    def _who(self, line: str) -> tuple[_Speaker, str]:
        first = line[:1]
        if first == "\x05":
            speaker = self._by_token.get(line[:3])
            return (speaker, line[3:].removeprefix(" ")) if speaker else (self._speakers[""], line)
        if first in ("(", "[") and (said := SPEAKER.match(line)):
            return self._speaker(said[1]), line[said.end() :]
        return self._speakers[""], line

    def _learned(self, speaker: _Speaker, shape: Shape, numbers: list[float]) -> None:
        """A line of a known shape; where nothing else is printed the row is these numbers."""
        if speaker.shape is shape:
            self.rows.add(speaker.key, speaker.number, speaker.names, speaker.numbers)
            speaker.numbers, speaker.number = numbers, self.rows.begin()
            if speaker.names is not shape.names:
                self._put_bar(speaker, shape)
        elif self._bar or speaker.row or speaker.shape is not None:
            found = Found(dict(zip(shape.names, numbers, strict=True)), shape.sure)
            self._take(speaker, found)
            with_bar = self._bar in speaker.row
            if bool(self._bar) == with_bar and len(speaker.row) == len(numbers) + with_bar:
                speaker.row, speaker.shape, speaker.numbers = {}, shape, numbers
                speaker.names = shape.names
                if with_bar:
                    self._put_bar(speaker, shape)
        else:
            speaker.shape, speaker.numbers, speaker.number = shape, numbers, self.rows.begin()
            speaker.names = shape.names
            self.sure[shape.sure].update(shape.names)

    def _put_bar(self, speaker: _Speaker, shape: Shape) -> None:
        """The row has begun where the progress bar is."""
        at = self._position()
        assert at is not None
        if speaker.names[0] != self._bar or len(speaker.names) == len(shape.names):
            speaker.names = (self._bar, *shape.names)
        speaker.numbers = [at, *speaker.numbers]

    def _at_once(self, lines: list[bytes], index: int) -> int:
        """Read the lines that are like those before them; how many these are."""
        if self._open or not index:
            return 0
        if self._repeats is not None:
            return self._like_last(self._repeats, lines, index)
        if lines[index][:1] == b"|" and lines[index - 1][:1] != b"|":
            return self._like_box(self._speakers[""], lines, index)
        return 0

    def _like_last(self, speaker: _Speaker, lines: list[bytes], index: int) -> int:
        """Lines of the shape of the last, each of which is a row."""
        shape = speaker.shape
        assert shape is not None
        found = speaker.lines.shapes.run(shape, lines, index)
        if found:
            numbers = map(float, chain.from_iterable(found))
            values = array(
                "d", map(mul, numbers, cycle(shape.factors)) if shape.factors else numbers
            )
            self.rows.add(speaker.key, speaker.number, shape.names, speaker.numbers)
            speaker.numbers = self._all_but_last(speaker, shape.names, values)
        self._repeats = None
        return len(found)

    def _like_box(self, speaker: _Speaker, lines: list[bytes], index: int) -> int:
        """Boxes of the names that the row so far has, each of which is a row."""
        names, first = tuple(speaker.row), index
        box = self._boxes.get(names)
        if box is not None and self._goes_on(speaker, box):
            values = array("d")
            while found := box.pattern.fullmatch(b"\n".join(lines[index : index + box.size])):
                values.extend(map(float, found.groups()))
                index += box.size
                while index < len(lines) and not lines[index].strip(b"-"):
                    index += 1
            if values:
                self.rows.add(speaker.key, speaker.number, names, list(speaker.row.values()))
                newest = self._all_but_last(speaker, names, values)
                speaker.row = dict(zip(names, newest, strict=True))
                return index - first
        if self._num_boxes < MOST_BOXES:
            self._num_boxes += 1
            if box := Box.at(lines, index, speaker.lines.section):
                self._boxes[box.names] = box
        return 0

    def _goes_on(self, speaker: _Speaker, box: Box) -> bool:
        """Whether the box ends the row and is the next one."""
        alone = speaker.shape is None and self._position() is None
        return alone and speaker.lines.section == box.section

    def _all_but_last(
        self, speaker: _Speaker, names: tuple[str, ...], values: array[float]
    ) -> list[float]:
        """Put rows that follow one another to the rest; the last has not ended: its numbers."""
        last = len(values) - len(names)
        self.rows.extend(speaker.key, names, values[:last])
        speaker.number = self.rows.begin()
        return values[last:].tolist()

    def end(self) -> None:
        """There is no more text."""
        for speaker in self._speakers.values():
            self._end_row(speaker)
        self.rows.end()

    def is_log(self) -> bool:
        """Whether there is a log in it; after the end."""
        return bool(PrintedSeries(self).kept)

    def log(self, path: Path) -> Log:
        """What was found as a log; an error where it is none."""
        series = PrintedSeries(self)
        if not series.kept:
            raise NotARun(
                f"{path} is not a run, nor a log that can be read: it is text in which no named"
                " numbers come again, line after line; give what the training printed or logged"
            )
        gathered = series.gathered()
        series.tell(path)
        step = series.step_name
        del series
        self.rows = _Rows()  # both are as large as the log that is made now
        log = log_of(
            path,
            gathered,
            "console",
            short_id(name_of(path), self.first),
            step=step,
            config=redact(self.config) or None,
        )
        if not step:
            log.facts["imported"]["x_axis"] = ROWS
        return log

    def _speaker(self, key: str) -> _Speaker:
        speaker = self._speakers.get(key)
        if speaker is None:
            if len(self._speakers) > MOST_SPEAKERS:
                return self._speakers[""]
            speaker = self._speakers[key] = _Speaker(key, tables=self._tables)
            number = len(self._speakers)
            token = f"\x05{chr(65 + number // 26)}{chr(65 + number % 26)}"
            self._tokens[key.encode()], self._by_token[token] = token.encode(), speaker
        return speaker

    def _take(self, speaker: _Speaker, found: Found) -> None:
        if found.bar is not None:
            self._move(found.bar)
        if found.config is not None and len(found.config) > len(self.config):
            self.config = found.config
        values = found.values
        if not values:
            return
        if not found.sure and all(map(is_counter, values)):
            values = {HEADING + name: number for name, number in values.items()}
        if speaker.shape is not None:
            speaker.row = dict(zip(speaker.names, speaker.numbers, strict=True))
            speaker.shape = None
        row, at = speaker.row, self._position()
        if row and (not row.keys().isdisjoint(values) or (found.sure and self._moved(row, at))):
            self._end_row(speaker)
        if not speaker.row:
            speaker.number = self.rows.begin()
            if at is not None:
                speaker.row[self._bar] = at
        speaker.row.update(values)
        self.sure[found.sure].update(values)
        if found.sure:
            self.first = self.first or str(sorted(values.items()))

    def _position(self) -> int | None:
        state = self._bars.get(self._bar)
        return None if state is None else state[0] + state[1]

    def _moved(self, row: dict[str, float], at: int | None) -> bool:
        return at is not None and row.get(self._bar) != at

    def _move(self, bar: Bar) -> None:
        """A bar that begins anew behind its end counts on: epochs of one length."""
        key = f"{BAR}{FIGURES.sub('#', bar.label)} {bar.of}"
        state = self._bars.get(key)
        if state is None:
            if len(self._bars) > MOST_SPEAKERS:
                return
            state = self._bars[key] = [0, 0]
        if bar.at < state[1] and state[1] >= AT_ITS_END * bar.of:
            state[0] += bar.of
        state[1] = bar.at
        self._bar = key

    def _end_row(self, speaker: _Speaker) -> None:
        if speaker.shape is not None:
            self.rows.add(speaker.key, speaker.number, speaker.names, speaker.numbers)
            speaker.shape = None
        if speaker.row:
            row = speaker.row
            self.rows.add(speaker.key, speaker.number, tuple(row), list(row.values()))
            speaker.row = {}


class _Rows:
    """Rows by number, as columns: those of a shape that comes again wait together."""

    def __init__(self) -> None:
        self.columns = Columns(at_once=HELD)
        self.count = 0
        self._shapes: dict[tuple[str, tuple[str, ...]], tuple[array[int], array[float]]] = {}
        self._seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._rare: dict[str, list[tuple[int, float]]] = {}
        self._common: set[str] = set()
        self._waiting = 0

    def begin(self) -> int:
        """A row begins: its number."""
        self.count += 1
        return self.count

    def add(self, speaker: str, row: int, names: tuple[str, ...], values: list[float]) -> None:
        """A row has ended."""
        shape = (speaker, names)
        held = self._shapes.get(shape) or self._one_by_one(shape, row, values)
        if held is None:
            return
        held[0].append(row)
        held[1].extend(values)
        self._waiting += len(values)
        if self._waiting > BUFFERED:
            self._put()

    def extend(self, speaker: str, names: tuple[str, ...], values: array[float]) -> None:
        """Rows begin and end, one after another."""
        width, first = len(names), self.count + 1
        self.count += len(values) // width
        held = self._shapes.get((speaker, names))
        if held is None:
            for place, row in enumerate(range(first, self.count + 1)):
                self.add(speaker, row, names, values[place * width : (place + 1) * width].tolist())
            return
        held[0].extend(range(first, self.count + 1))
        held[1].extend(values)
        self._waiting += len(values)
        if self._waiting > BUFFERED:
            self._put()

    def end(self) -> None:
        """No more rows: names that came once or twice are kept too, for who knows better."""
        self._put()
        for name, points in self._rare.items():
            for row, value in points:
                self.columns.add(name, row, value)
        self._rare = {}
        self.columns.finish()

    def _one_by_one(
        self, shape: tuple[str, tuple[str, ...]], row: int, values: list[float]
    ) -> tuple[array[int], array[float]] | None:
        prefix = f"{shape[0]}{APART}" if shape[0] else ""
        if len(self._seen) > MOST_RARE:
            self._seen.clear()
        self._seen[shape] += 1
        if self._seen[shape] >= LEAST_POINTS and len(self._shapes) < MOST_SHAPES:
            held = self._shapes[shape] = (array("q"), array("d"))
            for name in shape[1]:
                self._is_common(prefix + name)
            return held
        for name, value in zip(shape[1], values, strict=True):
            self._rarely(prefix + name, row, value)
        return None

    def _rarely(self, name: str, row: int, value: float) -> None:
        """Names that come twice in hundreds of megabytes are forgotten: there may be millions."""
        if name in self._common:
            self.columns.add(name, row, value)
            return
        points = self._rare.setdefault(name, [])
        points.append((row, value))
        if len(points) >= LEAST_POINTS:
            self._is_common(name)
        elif len(self._rare) > MOST_RARE:
            self._rare.clear()

    def _is_common(self, name: str) -> None:
        self._common.add(name)
        for row, value in self._rare.pop(name, ()):
            self.columns.add(name, row, value)

    def _put(self) -> None:
        for (speaker, names), (numbers, values) in self._shapes.items():
            if not numbers:
                continue
            rows = np.frombuffer(numbers, dtype=np.int64)
            table = np.frombuffer(values, dtype=np.float64).reshape(len(rows), len(names))
            prefix = f"{speaker}{APART}" if speaker else ""
            for place, name in enumerate(names):
                self.columns.extend(prefix + name, rows, table[:, place])
        self._shapes = {shape: (array("q"), array("d")) for shape in self._shapes}
        self._waiting = 0


class PrintedSeries:
    """What of the rows is kept: which names, at which steps."""

    def __init__(self, text: ConsoleText) -> None:
        self._columns, self._num_rows = text.rows.columns, text.rows.count
        self._sure = text.sure[2]
        self.crowded: Counter[str] = Counter()
        """Names that others print too, at the same time, and how many do."""
        self._keys = self._spoken_by()
        self._points = {name: self._joined(keys) for name, keys in self._keys.items()}
        if not any(
            len(self._points[name][0]) >= LEAST_POINTS for name in self._sure & set(self._points)
        ):
            self._sure = text.sure[1] | text.sure[2]
        self._names = [name for name in self._points if not name.startswith((BAR, HEADING))]
        self._has_sure_rows = False
        self._typical = self._typical_count()
        self._with_metrics = self._rows_with_metrics()
        self.step_name, self._axis_rows, self._axis_steps = self._axis()
        self._on_axis = self._mask([self._axis_rows])
        self.kept = self._kept()
        self._columns.let_go()

    def gathered(self) -> Gathered:
        """The series by step, some rows at a time."""
        gathered = Gathered()
        rows = self._all_rows()
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some_rows = rows[first : first + ROWS_AT_ONCE]
            block = {}
            for name in self.kept:
                of, values = self._points[name]
                here = slice(*np.searchsorted(of, (some_rows[0], some_rows[-1] + 1)))
                if here.stop > here.start:
                    block[name] = (np.searchsorted(some_rows, of[here]), values[here])
            gathered.block(self._steps_at(some_rows), block)
            self._columns.let_go()
        return gathered

    def tell(self, path: Path) -> None:
        """Warn of what was guessed and left."""
        if not self.step_name:
            warn(f"{path}: nothing that was printed counts the steps, so its rows are counted")
        if self.crowded:
            names = some(sorted(self.crowded))
            most = max(self.crowded.values())
            warn(f"{path}: {counted(most + 1, 'worker')} print {names}; the first is read")

    # Who printed a name.

    def _spoken_by(self) -> dict[str, list[str]]:
        """The columns of each name: the first speaker's, and of those who speak after he ended."""
        found: dict[str, list[str]] = {}
        for key in self._columns.names():
            found.setdefault(key.rpartition(APART)[2], []).append(key)
        for name, keys in found.items():
            if len(keys) > 1:
                found[name] = self._one_after_another(name, keys)
        return found

    def _one_after_another(self, name: str, keys: list[str]) -> list[str]:
        spans = {key: self._columns.held(key)[0][[0, -1]].tolist() for key in keys}
        taken: list[str] = []
        end = -1
        for key in sorted(keys, key=lambda key: spans[key][0]):
            first, last = spans[key]
            if first > end:
                taken.append(key)
                end = last
            else:
                self.crowded[name] += 1
        return taken

    def _joined(self, keys: list[str]) -> Points:
        parts = [self._columns.held(key) for key in keys]
        if len(parts) == 1:
            return parts[0]
        rows, values = zip(*parts, strict=True)
        return np.concatenate(rows), np.concatenate(values)

    # What counts the steps.

    def _typical_count(self) -> float:
        """How many rows a log has: what most of the surest names have."""
        metrics = [name for name in self._names if not is_counter(name)]
        often = {name: len(self._points[name][0]) for name in metrics}
        sure = [often[name] for name in metrics if name in self._sure and often[name] > 1]
        weak = [count for count in often.values() if count >= LEAST_POINTS]
        self._has_sure_rows = max(sure, default=0) >= LEAST_POINTS
        counts = sure if self._has_sure_rows else weak
        return float(np.median(counts)) if counts else 0.0

    def _axis(self) -> tuple[str, Ints, Ints]:
        able = [name for name in self._points if self._counts(name)]
        main = self._main_rows()
        for name in sorted(
            able,
            key=lambda name: (
                not self._beside(name, main),
                name.startswith(HEADING),
                *_preference(name),
            ),
        ):
            rows, values = self._points[name]
            whole = np.isfinite(values) & (np.abs(values) < 2**53) & self._with_metrics[rows]
            return _shown(name), rows[whole], values[whole].astype(np.int64)
        return self._row_count()

    def _rows_with_metrics(self) -> NDArray[np.bool_]:
        """Which rows have a metric beside the counter; a counter in a sample's text has none."""
        found = []
        for name in self._names:
            rows, _ = self._points[name]
            surely = name in self._sure or not self._has_sure_rows
            often = LEAST_POINTS - (name in self._sure) <= len(rows) <= TOO_OFTEN * self._typical
            if surely and often and not is_counter(name):
                found.append(rows)
        return self._mask(found)

    def _mask(self, found: Iterable[Ints]) -> NDArray[np.bool_]:
        held = np.zeros(self._num_rows + 1, dtype=np.bool_)
        for rows in found:
            held[rows] = True
            self._columns.let_go()
        return held

    def _counts(self, name: str) -> bool:
        """Whether a counter counts: whole, rising but for restarts, and about once a row."""
        if not (name.startswith((BAR, HEADING)) or is_counter(name)):
            return False
        rows, values = self._points[name]
        known = values[np.isfinite(values) & self._with_metrics[rows]]
        if len(known) < 2 or np.count_nonzero(known == np.floor(known)) < 0.98 * len(known):
            return False
        moves = np.diff(known)
        falls, changes = int((moves < 0).sum()), int((moves != 0).sum()) + 1
        few = falls <= 1 or falls <= 0.02 * len(known) or (falls <= 16 and 8 * falls < len(known))
        return few and 2 * changes >= self._typical and changes > 1

    def _beside(self, name: str, main: Ints) -> bool:
        """Whether a counter stands in the rows themselves, or counts what others print."""
        return bool(2 * np.count_nonzero(self._mask([self._points[name][0]])[main]) >= len(main))

    def _main_rows(self) -> Ints:
        """The rows of the name that most rows have, of about the typical count."""
        metrics = [name for name in self._names if not is_counter(name)]
        sure = [name for name in metrics if name in self._sure] or metrics
        fitting = [name for name in sure if len(self._points[name][0]) <= TOO_OFTEN * self._typical]
        most = max(fitting, key=lambda name: len(self._points[name][0]), default="")
        return self._points[most][0] if most else np.zeros(0, dtype=np.int64)

    def _row_count(self) -> tuple[str, Ints, Ints]:
        """Rows are counted; with a bar that came to 600 beside 60 rows each is ten steps, and the
        lines came late."""
        rows = self._main_rows()
        for name in self._points if len(rows) > LEAST_POINTS else ():
            at = float(self._points[name][1].max()) if name.startswith(BAR) else 0.0
            each = round(at / len(rows))
            if each and abs(at - each * len(rows)) <= each:
                return "progress bar", rows, np.arange(1, len(rows) + 1) * each
        return "", rows, np.arange(1, len(rows) + 1)

    def _all_rows(self) -> Ints:
        return np.flatnonzero(self._mask(self._points[name][0] for name in self.kept))

    def _steps_at(self, rows: Ints) -> Ints:
        place = np.searchsorted(self._axis_rows, rows, side="right") - 1
        return self._axis_steps[np.maximum(place, 0)]

    def _spread(self, rows: Ints) -> int:
        """Over how many steps rows are spread; as many as matter are counted."""
        return len(np.unique(self._steps_at(rows[: 1 << 12])))

    # What is a series.

    def _kept(self) -> list[str]:
        if not len(self._axis_rows):
            return []
        kept = []
        for name in self._names:
            if name != self.step_name and self._is_series(name):
                kept.append(name)
            self._columns.let_go()
        metrics = [name for name in kept if not is_counter(name)]
        return kept if any(map(self._proves, metrics)) else []

    def _is_series(self, name: str) -> bool:
        rows, values = self._points[name]
        least = 2 if name in self._sure else LEAST_POINTS
        if len(rows) < least or (is_counter(name) and 2 * len(rows) < self._typical):
            return False
        if name == "[n]":
            return False
        if len(rows) > TOO_OFTEN * self._typical and self._on_axis[rows].mean() < 0.5:
            return False
        if self._spread(rows) < least or (RATE.search(name) and not values.any()):
            return False
        return name in self._sure or not self._has_sure_rows or _speaks_of_learning(name)

    def _proves(self, name: str) -> bool:
        """Whether a series makes text a log: by its steps, by the shape of its lines, its name."""
        rows, values = self._points[name]
        if self._spread(rows) < LEAST_POINTS:
            return False
        different = len(np.unique(values[: 1 << 12]))
        if self.step_name and (name in self._sure or different > 1):
            return self._spread(self._axis_rows) >= LEAST_POINTS
        varied = name in self._sure or (len(rows) > LEAST_POINTS and different >= LEAST_POINTS)
        return varied and _speaks_of_learning(name)


_ORDER = {re.sub(r"[_ /\-]", "", key): place for place, key in enumerate(STEP_KEYS)}


def _preference(name: str) -> tuple[int, str]:
    """The names of steps in their order, then what nobody listed, bars, and last the epochs."""
    name = name.removeprefix(HEADING)
    if name.startswith(BAR) or re.fullmatch(r"n/\d+", name):
        return 1001, name
    spelled = re.sub(r"[_ /\-]", "", name.lower())
    if "epoch" in spelled:
        return 1002, name
    last = re.split(r"[ /]", name.lower())[-1].replace("_", "")
    return min(_ORDER.get(spelled, 1000), _ORDER.get(last, 1000)), name


def _speaks_of_learning(name: str) -> bool:
    return EVALUATED.search(name) is not None or is_measured(name)


def _shown(name: str) -> str:
    return "progress bar" if name.startswith(BAR) else name.removeprefix(HEADING)
