"""Whatever bytes lie in a file, opening it gives a log or a UsageError, and the log can be read and
imported."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradiometer.doctor.rundata import RunData
from gradiometer.errors import GradiometerWarning, UsageError
from gradiometer.store.formats.tensorboard import _crc32c, _masked
from gradiometer.store.formats.wandb import BLOCK, FRAME, MAGIC
from gradiometer.store.import_log import import_log
from gradiometer.store.importers import open_log
from gradiometer.store.logs import Log

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = (
    "x.csv",
    "x.tsv",
    "x.jsonl",
    "x.json",
    "trainer_state.json",
    "events.out.tfevents.0",
    "x.wandb",
    "dynamics.db",
    "x",
)


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


REAL = {
    "progress.csv": (FIXTURES / "sb3_dqn" / "progress.csv").read_bytes()[:2000],
    "trainer_state.json": (
        (FIXTURES / "trl_grpo" / "checkpoint-30" / "trainer_state.json").read_bytes()
    ),
    "events.out.tfevents.0": (
        (FIXTURES / "tensor_scalars" / "events.out.tfevents.0").read_bytes()[:6000]
    ),
    "verl.jsonl": b"".join(
        json.dumps({"step": n, "data": {"a": n, "b": {"c": [n]}}}).encode() + b"\n"
        for n in range(20)
    ),
    "0.monitor.csv": b'#{"t_start": 1.5, "env_id": "x"}\nr,l,t\n'
    + b"".join(f"{n}.5,{10 + n},{n}.25\n".encode() for n in range(20)),
    "result.json": b"".join(
        json.dumps(
            {"timesteps_total": 10 * n, "info": {"learner": {"x": 0.5}}, "config": {"lr": 1}}
        ).encode()
        + b"\n"
        for n in range(8)
    ),
    "wandb.csv": b'"Step","a - reward","a - reward__MIN","b - reward"\n'
    + b"".join(f'"{n}","{n}.5","1",""\n'.encode() for n in range(9)),
    "run-a-tag-reward.csv": b"Wall time,Step,Value\n"
    + b"".join(f"17.5,{n},{n}.5\n".encode() for n in range(9)),
    "table.txt": b"| Step | reward |\n|---|---|\n"
    + b"".join(f"| {n}/20 | {n}% |\n".encode() for n in range(9)),
    "history.json": json.dumps(
        {"seed0": {"rewards": [1.5] * 5}, "seed1": {"rewards": [2.5] * 6, "steps": [1, 2]}}
    ).encode(),
    "evaluations.npz": npz(timesteps=[1, 2], results=[[1.0, 2.0], [3.0, 4.0]]),
    "metrics.jsonl.gz": gzip.compress(b'{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n'),
}


@pytest.fixture(autouse=True)
def _only_our_warnings() -> Iterator[None]:
    """Our own are the stated behaviour; anybody else's stay errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradiometerWarning)
        yield


def opened(name: str, content: bytes, *, keep: bool = True) -> None:
    """Open, read all of it, and make a run of it if it is to be kept; a UsageError is as good."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / name
        file.write_bytes(content)
        try:
            log = open_log(file)
        except UsageError:
            return
        assert isinstance(log, Log)
        for series in log.names():
            steps, values = log.series(series)
            assert len(steps) == len(values) > 0
            assert (steps[1:] > steps[:-1]).all()
        assert sum(len(row.values) for row in log.rows()) == sum(
            one.count for one in log.summaries()
        )
        RunData(log)
        if keep:
            assert import_log(log, Path(place) / "run").series == len(log.names())


@example("x", b"\x00\r,")
@given(st.sampled_from(NAMES), st.binary(max_size=300))
def test_random_bytes_are_a_log_or_a_usage_error(name: str, content: bytes) -> None:
    opened(name, content)


@given(st.sampled_from(sorted(REAL)), st.data())
def test_real_logs_with_bytes_changed_lost_and_doubled(name: str, data: st.DataObject) -> None:
    blob = bytearray(REAL[name])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(len(blob) - 1, 0)))
        what = data.draw(st.sampled_from(["change", "cut", "drop", "double", "insert"]))
        size = data.draw(st.integers(1, 40))
        if what == "change" and blob:
            blob[place] = data.draw(st.integers(0, 255))
        elif what == "cut":
            del blob[place:]
        elif what == "drop":
            del blob[place : place + size]
        elif what == "double":
            blob[place:place] = blob[place : place + size]
        else:
            blob[place:place] = data.draw(st.binary(min_size=1, max_size=8))
    opened(name, bytes(blob))


CELLS = st.one_of(
    st.just(""),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=5),
    st.sampled_from(
        [
            "nan",
            "-inf",
            "None",
            "1e999",
            "9" * 400,
            '"',
            '""',
            "1_0",
            "٣",
            " 1 ",
            "\r",
            "\0",
            "true",
        ]
    ),
)
HEADS = st.sampled_from(
    [
        "step",
        "Step",
        "epoch",
        "loss",
        "",
        "loss",
        "train/entropy_loss",
        "time/total_timesteps",
        '"a,b"',
    ]
)


@given(
    st.lists(HEADS, max_size=5),
    st.lists(st.lists(CELLS, max_size=6), max_size=8),
    st.sampled_from(",;\t"),
    st.booleans(),
)
def test_random_tables(names: list[str], rows: list[list[str]], separator: str, ends: bool) -> None:
    lines = [separator.join(row) for row in (names, *rows)]
    opened("x.csv", ("\n".join(lines) + "\n" * ends).encode(errors="surrogatepass"))


KEYS = st.one_of(
    st.sampled_from(["step", "_step", "epoch", "data", "loss", "log_history", "columns", "_type"]),
    st.text(max_size=4),
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(10**400), 10**400),
        st.floats(),
        st.text(max_size=6),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(VALUES, max_size=5), st.sampled_from(["x.jsonl", "x.log"]))
def test_random_lines_of_json(values: list[object], name: str) -> None:
    opened(name, "\n".join(map(json.dumps, values)).encode())


@given(VALUES, st.booleans(), st.sampled_from(["trainer_state.json", "x.json"]))
def test_random_documents_of_json(value: object, held: bool, name: str) -> None:
    opened(name, json.dumps({"log_history": value} if held else value).encode())


ROWS = st.lists(
    st.dictionaries(KEYS, VALUES, max_size=4).map(lambda row: {"step": 3, **row}),
    min_size=1,
    max_size=4,
)


@given(ROWS)
def test_random_rows_with_steps(rows: list[dict[str, object]]) -> None:
    opened("x.jsonl", "\n".join(map(json.dumps, rows)).encode())
    opened("trainer_state.json", json.dumps({"log_history": rows}).encode(), keep=False)


def framed(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return (
        size
        + struct.pack("<I", _masked(_crc32c(size)))
        + data
        + struct.pack("<I", _masked(_crc32c(data)))
    )


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


NUMBERS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 12))
LEAVES = st.one_of(
    st.binary(max_size=12),
    st.tuples(st.integers(1, 17), NUMBERS).map(lambda pair: varint(pair[0] << 3) + varint(pair[1])),
    st.tuples(st.integers(1, 17), st.binary(min_size=4, max_size=4)).map(
        lambda pair: varint(pair[0] << 3 | 5) + pair[1]
    ),
    st.tuples(st.integers(1, 17), st.binary(min_size=8, max_size=8)).map(
        lambda pair: varint(pair[0] << 3 | 1) + pair[1]
    ),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 5, 8, 9, 17]), inner).map(
            lambda pair: varint(pair[0] << 3 | 2) + varint(len(pair[1])) + pair[1]
        ),
        max_size=4,
    ).map(b"".join),
    max_leaves=10,
)
"""Bytes that are often protobuf messages within messages, in the fields that events and W&B's
records use."""


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


TENSORS = st.tuples(st.integers(0, 24), st.lists(LEAVES | NESTED, max_size=3)).map(
    lambda parts: field(8, varint(8) + varint(parts[0]) + b"".join(parts[1]))
)
SIMPLE = st.binary(min_size=4, max_size=4).map(lambda value: varint(2 << 3 | 5) + value)
TAGS = st.sampled_from([b"loss", b"hyperparameters/text_summary", b"args", b"\xff", b""]).map(
    lambda tag: field(1, tag)
)
EVENTS = st.tuples(
    st.integers(0, 2**64 - 1), st.lists(st.tuples(TAGS, SIMPLE | TENSORS | NESTED), max_size=3)
).map(
    lambda parts: (
        varint(16)
        + varint(parts[0])
        + field(5, b"".join(field(1, tag + value) for tag, value in parts[1]))
    )
)


@given(st.lists(EVENTS, max_size=5))
def test_event_files_of_events_with_random_values(messages: list[bytes]) -> None:
    opened("events.out.tfevents.0", b"".join(map(framed, messages)))


@given(st.lists(NESTED, max_size=5))
def test_event_files_of_sound_records_with_random_messages(messages: list[bytes]) -> None:
    opened("events.out.tfevents.0", b"".join(map(framed, messages)))


@given(st.lists(NESTED, max_size=5))
def test_wandb_files_of_sound_records_with_random_messages(messages: list[bytes]) -> None:
    import zlib

    frames = [
        FRAME.pack(zlib.crc32(data, zlib.crc32(b"\1")), len(data), 1) + data for data in messages
    ]
    blob = MAGIC + b"\0" + b"".join(frames)
    assert len(blob) < BLOCK
    opened("x.wandb", blob)
