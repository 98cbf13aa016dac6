"""TensorBoard event files: ours and TensorBoard's own reading of real ones agree, and what a crash
leaves is read."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rundata import RunData
from gradiometer.errors import GradiometerWarning, NotARun, RunDamaged, UsageError
from gradiometer.store.formats import tensorboard
from gradiometer.store.formats.tensorboard import (
    _crc32c,
    _masked,
    masked_crc32c,
    masked_crc32c_of_many,
    read_tfevents,
)
from gradiometer.store.importers import open_log

FIXTURES = Path(__file__).parent.parent / "fixtures"
READ_BY_TENSORBOARD: dict[str, dict[str, list[list[float]]]] = json.loads(
    (FIXTURES / "tensorboard_read.json").read_text()
)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, value: int | float | bytes, kind: str = "") -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if kind:
        return varint(number << 3 | {"f": 5, "d": 1}[kind]) + struct.pack("<" + kind, value)
    return varint(number << 3) + varint(int(value))


def record(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return (
        size
        + struct.pack("<I", masked_crc32c(size))
        + data
        + struct.pack("<I", _masked(_crc32c(data)))
    )


def event(step: int, *values: bytes, wall_time: float = 5.0) -> bytes:
    summary = b"".join(field(1, value) for value in values)
    return record(field(1, wall_time, "d") + field(2, step) + field(5, summary))


def scalar(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + field(2, value, "f")


def tensor(tag: str, dtype: int, *parts: bytes) -> bytes:
    return field(1, tag.encode()) + field(8, field(1, dtype) + b"".join(parts))


VERSION = record(field(1, 1.0, "d") + field(3, b"brain.Event:2"))


def written(path: Path, *records: bytes) -> Path:
    path.write_bytes(b"".join((VERSION, *records)))
    return path


@pytest.mark.parametrize("name", READ_BY_TENSORBOARD)
def test_our_reading_of_real_files_is_tensorboards(name: str) -> None:
    log = open_log(FIXTURES / name / "events.out.tfevents.0")
    assert set(log.names()) == set(READ_BY_TENSORBOARD[name])
    for tag, points in READ_BY_TENSORBOARD[name].items():
        theirs = {int(step): value for step, value in points}
        steps, values = log.series(tag)
        assert steps.tolist() == sorted(theirs)
        np.testing.assert_array_equal(values, [theirs[step] for step in sorted(theirs)])


def test_scalars_in_both_forms_are_the_same_numbers_also_where_they_are_not_finite() -> None:
    log = open_log(FIXTURES / "tensor_scalars")
    np.testing.assert_array_equal(log.series("loss")[1], log.series("old/loss")[1])
    assert not np.isfinite(log.series("loss")[1]).all()
    assert log.left_out == ("notes", "weights")


def test_an_sb3_event_file_holds_what_its_csv_holds() -> None:
    csv, events = (
        open_log(FIXTURES / "sb3_ppo" / name) for name in ("progress.csv", "events.out.tfevents.0")
    )
    assert set(events.names()) < set(csv.names())
    for name in events.names():
        assert events.series(name)[0].tolist() == csv.series(name)[0].tolist()
        np.testing.assert_allclose(events.series(name)[1], csv.series(name)[1], rtol=1e-6)
    assert events.facts["imported"]["x_axis"] == "environment steps"


def test_the_hyperparameters_of_a_cleanrl_run_are_its_config_and_its_names_are_known() -> None:
    log = open_log(FIXTURES / "cleanrl_ppo")
    assert log.facts["imported"]["library"] == "CleanRL"
    assert log.facts["config"]["clip_coef"] == 0.2
    assert log.facts["config"]["anneal_lr"] is True
    assert log.facts["config"]["target_kl"] is None
    data = RunData(log)
    assert data.unknown == ["charts/SPS"]
    assert data.fact("clip_range", "clip_coef") == 0.2
    kl = data.get("approx_kl")
    assert kl is not None
    assert (kl.name, kl.estimator) == ("losses/approx_kl", "k3")
    assert [series.estimator for series in data.every("approx_kl")] == ["k3", "k1"]


def test_the_arguments_of_a_trl_run_are_its_config_without_secrets() -> None:
    log = open_log(FIXTURES / "trl_grpo" / "runs")
    assert (log.facts["imported"]["library"], log.facts["imported"]["x_axis"]) == (
        "TRL",
        "optimizer steps",
    )
    assert (log.facts["config"]["beta"], log.facts["config"]["num_generations"]) == (0.02, 8)
    assert log.facts["config"]["hub_token"] == "[redacted]"
    assert log.left_out == ("model_config",)


def test_wall_times_are_kept() -> None:
    log = open_log(FIXTURES / "cleanrl_ppo")
    wall = log.steps()["wall_time"]
    assert np.isfinite(wall).all()
    assert (np.diff(wall) >= 0).all()
    assert [row.wall_time for row in log.rows()] == wall.tolist()


@pytest.mark.parametrize(
    ("dtype", "parts"),
    [
        (1, [field(5, struct.pack("<f", 2.5))]),
        (1, [field(5, 2.5, "f")]),
        (1, [field(4, struct.pack("<f", 2.5))]),
        (2, [field(6, struct.pack("<d", 2.5))]),
        (2, [field(4, struct.pack("<d", 2.5)), field(2, field(2, field(1, 1)))]),
        (19, [field(4, np.float16(2.5).tobytes())]),
        (19, [field(13, varint(int(np.float16(2.5).view(np.uint16))))]),
        (14, [field(4, np.float32(2.5).tobytes()[2:])]),
        (14, [field(13, varint(0x4020))]),
    ],
)
def test_a_tensor_of_one_number_is_a_scalar_however_it_is_packed(
    tmp_path: Path, dtype: int, parts: list[bytes]
) -> None:
    log = read_tfevents(written(tmp_path / "events.tfevents", event(3, tensor("x", dtype, *parts))))
    assert [part.tolist() for part in log.series("x")] == [[3], [2.5]]


@pytest.mark.parametrize(
    ("dtype", "number", "value"),
    [(3, 7, -4), (9, 10, -(2**40)), (10, 11, 1), (4, 7, 200), (23, 17, 7)],
)
def test_whole_numbers_in_tensors_are_scalars(
    tmp_path: Path, dtype: int, number: int, value: int
) -> None:
    for part in (field(number, varint(value)), field(number, value)):
        log = read_tfevents(
            written(tmp_path / "events.tfevents", event(0, tensor("x", dtype, part)))
        )
        assert log.series("x")[1].tolist() == [float(value)]


def test_what_is_no_scalar_is_left_out_and_named(tmp_path: Path) -> None:
    shape = field(2, field(2, field(1, 2)))
    pair = tensor("pair", 1, shape, field(5, struct.pack("<2f", 1, 2)))
    filled = tensor(
        "filled", 1, shape, field(5, struct.pack("<f", 1))
    )  # a shape of two with its one value repeated
    picture, text = (
        field(1, b"picture") + field(4, b""),
        tensor("text/text_summary", 7, field(8, b"words")),
    )
    odd = tensor("odd", 99, field(4, b"1234"))
    log = read_tfevents(
        written(tmp_path / "e.tfevents", event(1, pair, filled, picture, text, odd, scalar("x", 1)))
    )
    assert log.names() == ["x"]
    assert log.left_out == ("filled", "odd", "pair", "picture", "text")


def test_negative_steps_and_spoken_numbers_come_through(tmp_path: Path) -> None:
    values = (math.nan, math.inf, -math.inf)
    log = read_tfevents(
        written(
            tmp_path / "e.tfevents", *(event(s - 1, scalar("x", v)) for s, v in enumerate(values))
        )
    )
    assert log.series("x")[0].tolist() == [-1, 0, 1]
    np.testing.assert_array_equal(log.series("x")[1], values)


@pytest.mark.parametrize("lost", [1, 3, 10, 30])
def test_a_cut_off_file_gives_what_is_whole_and_says_so(tmp_path: Path, lost: int) -> None:
    blob = (FIXTURES / "sb3_dqn" / "events.out.tfevents.0").read_bytes()
    (tmp_path / "x.tfevents").write_bytes(blob[:-lost])
    with pytest.warns(GradiometerWarning, match="cut off at its end"):
        log = open_log(tmp_path / "x.tfevents")
    whole = open_log(FIXTURES / "sb3_dqn" / "events.out.tfevents.0")
    assert sum(s.count for s in log.summaries()) in (
        sum(s.count for s in whole.summaries()) - n for n in (1, 2)
    )


def test_zeros_at_the_end_are_what_the_disk_never_filled(tmp_path: Path) -> None:
    blob = (FIXTURES / "sb3_dqn" / "events.out.tfevents.0").read_bytes()
    (tmp_path / "x.tfevents").write_bytes(blob + bytes(4096))
    with pytest.warns(GradiometerWarning, match="cut off at its end"):
        assert open_log(tmp_path / "x.tfevents").newest_step == 4000


def test_a_record_with_a_wrong_checksum_is_left_out_and_said(tmp_path: Path) -> None:
    good, bad = event(0, scalar("x", 1)), bytearray(event(1, scalar("x", 2)))
    bad[-6] ^= 1  # within the number: without the checksum it would pass for one
    path = written(tmp_path / "e.tfevents", good, bytes(bad), event(2, scalar("x", 3)))
    with pytest.warns(GradiometerWarning, match="1 record left out: a wrong checksum"):
        assert read_tfevents(path).series("x")[0].tolist() == [0, 2]


def test_a_wrong_length_is_damage_that_names_its_place(tmp_path: Path) -> None:
    first = event(0, scalar("x", 1))
    bad = bytearray(event(1, scalar("x", 2)))
    bad[0] ^= 1
    path = written(tmp_path / "e.tfevents", first, bytes(bad), event(2, scalar("x", 3)))
    with pytest.raises(RunDamaged, match=f"damaged at byte {len(VERSION) + len(first)}"):
        read_tfevents(path)


def test_a_record_that_is_no_event_is_left_out_and_said(tmp_path: Path) -> None:
    path = written(tmp_path / "e.tfevents", record(b"\x0a\xff"), event(2, scalar("x", 3)))
    with pytest.warns(GradiometerWarning, match="1 record left out: not an event"):
        assert read_tfevents(path).series("x")[0].tolist() == [2]


def test_files_of_one_folder_are_one_run_and_the_later_word_counts(tmp_path: Path) -> None:
    written(
        tmp_path / "events.out.tfevents.1", *(event(step, scalar("x", step)) for step in range(5))
    )
    written(
        tmp_path / "events.out.tfevents.2",
        *(event(step, scalar("x", -step)) for step in range(3, 8)),
    )
    with pytest.warns(GradiometerWarning, match="steps fall back from 4 to 3"):
        log = open_log(tmp_path)
    assert log.series("x")[1].tolist() == [0.0, 1.0, 2.0, -3.0, -4.0, -5.0, -6.0, -7.0]
    assert log.facts["imported"]["returns"] == [[4, 3]]


def test_a_file_is_known_by_its_first_record_whatever_it_is_called(tmp_path: Path) -> None:
    assert open_log(written(tmp_path / "anything", event(0, scalar("x", 1)))).names() == ["x"]


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", UsageError, "holds no scalars"),
        (b"hello, this is text", NotARun, "does not begin with a record"),
        (VERSION[:9], NotARun, "not one whole record"),
        (VERSION, UsageError, "holds no scalars"),
        (VERSION + event(0, tensor("t", 7, field(8, b"words"))), UsageError, "holds no scalars"),
    ],
)
def test_a_file_without_scalars_is_an_error(
    tmp_path: Path, content: bytes, error: type[Exception], says: str
) -> None:
    (tmp_path / "x.tfevents").write_bytes(content)
    with pytest.raises(error, match=says):
        open_log(tmp_path / "x.tfevents")


def test_records_that_span_blocks_and_records_too_large_to_hold_are_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "BLOCK", 100)
    monkeypatch.setattr(tensorboard, "LARGEST_HELD", 1000)
    monkeypatch.setattr(tensorboard, "LARGEST_CHECKED", 500)
    big = record(field(1, 1.0, "d") + field(4, bytes(3000)))
    middling = record(field(1, 1.0, "d") + field(4, bytes(700)))
    steps = range(50)
    records = [one for step in steps for one in (event(step, scalar("x", step)), big, middling)]
    assert read_tfevents(written(tmp_path / "e.tfevents", *records)).series("x")[
        0
    ].tolist() == list(steps)
    written(tmp_path / "e.tfevents", *records, big[:-1])
    with pytest.warns(GradiometerWarning, match="cut off"):
        assert read_tfevents(tmp_path / "e.tfevents").series("x")[0].tolist() == list(steps)


def test_the_checksum_is_crc32c() -> None:
    assert _crc32c(b"123456789") == 0xE3069283
    assert _crc32c(bytes(32)) == 0x8A9136AA
    assert _crc32c(bytes(range(32))) == 0x46DD794E  # the vectors of RFC 3720
    rng = np.random.default_rng(0)
    blob = rng.bytes(2000)
    pieces = [
        (int(start), int(length))
        for start, length in zip(range(0, 1900, 19), rng.integers(0, 4, 100) * 20, strict=True)
    ]
    assert masked_crc32c_of_many(blob, pieces) == [
        masked_crc32c(blob[start : start + length]) for start, length in pieces
    ]


def test_an_event_holds_any_number_of_values(tmp_path: Path) -> None:
    rows: dict[int, dict[str, Any]] = {
        step: {f"tag/{n}": float(step * n) for n in range(5)} for step in range(4)
    }
    records = [
        event(step, *(scalar(tag, value) for tag, value in row.items()))
        for step, row in rows.items()
    ]
    log = read_tfevents(written(tmp_path / "e.tfevents", *records))
    assert {row.step: dict(row.values) for row in log.rows()} == rows
