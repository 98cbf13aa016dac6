"""Whatever becomes of a log (cut off, bytes changed, lost, doubled, mixed with another), reading it
gives a log or a UsageError, soon and in little memory."""

from __future__ import annotations

import random
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer.store.logs import Log

FIXTURES = Path(__file__).parent.parent / "fixtures"
MOST_SECONDS, MOST_BYTES = 5.0, 200 << 20
PIECES = (
    b"{'a': ",
    b"\x1b[",
    b"\r",
    b"|",
    b"nan",
    b"9" * 400,
    b"\xff\xfe",
    b"\0",
    b"step:",
    b"1e999",
)


BLOCKS = {
    "verl.log": "\x1b[36m(TaskRunner pid=7)\x1b[0m step:{n} - actor/pg_loss:np.float64(0.{n}) - lr:0.1",
    "trl.log": "\r {n}%|## | {n}/90 [00:01<00:09, 1.0s/it]\n{{'loss': 0.{n}, 'kl': nan, 'epoch': 0.{n}}}",
    "kv.log": "2024-01-02 12:30:{n} - INFO - step {n}/90 | mean reward: 0.{n} | acc={n}%",
    "box.log": "-----\n| rollout/ | |\n|    ep_rew_mean | 0.{n} |\n|    total_timesteps | {n} |",
    "table.log": "| Trial | iter | reward |\n|---+---+---|\n| PPO_a | {n} | 0.{n} |",
    "block.log": "#####\n  Learning iteration {n}/90\n  Mean reward: 0.{n}\n  ETA: 00:25:{n}",
    "wrapped.log": "{{\n  'step': {n},\n  'reward': '0.{n}',\n  'a': {{'b': tensor(1.{n})}}\n}}",
    "bar.log": "Train epoch [1/2]: 10%|#| {n}/90 [00:1<01:30, 2.0s/it, loss=0.{n}, reward=0.{n}]",
    "ranks.log": "[rank0]: step={n} loss=0.{n}\n[rank1]: step={n} loss=1.{n}",
    "numbers.txt": "Step\tTraining Loss\treward\n{n}\t0.{n}\t0.{n}",
}


def seeds() -> dict[str, bytes]:
    """A small log of each kind: every console, and every file among the fixtures."""
    found = {
        name: "\n".join(block.format(n=n) for n in range(10, 30)).encode()
        for name, block in BLOCKS.items()
    }
    for path in sorted(FIXTURES.rglob("*")):
        if path.is_file() and path.suffix != ".py" and path.stat().st_size < 1 << 20:
            found[path.name] = path.read_bytes()[: 1 << 13]
    return found


def mutated(blob: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to four changes."""
    changed = bytearray(blob)
    for _ in range(rng.randint(1, 4)):
        place, size = rng.randrange(len(changed) + 1), rng.choice((1, 3, 40, 900))
        match rng.randrange(7):
            case 0:
                del changed[place:]
            case 1:
                del changed[place : place + size]
            case 2:
                changed[place:place] = changed[place : place + size] * rng.choice((1, 2, 30))
            case 3 if changed:
                changed[place % len(changed)] ^= 1 << rng.randrange(8)
            case 4:
                other = rng.choice(others)
                begin = rng.randrange(len(other) + 1)
                changed[place:place] = other[begin : begin + 40 * size]
            case 5:
                changed[place:place] = rng.choice(PIECES) * rng.choice((1, 2, 50))
            case _:
                changed[place:place] = rng.randbytes(size)
    return bytes(changed)


def check(path: Path) -> None:
    """Open and read all of it; a UsageError is as good."""
    started = time.process_time()
    try:
        log = gm.load(path)
    except UsageError:
        log = None
    if isinstance(log, Log):
        for name in log.names():
            steps, values = log.series(name)
            assert len(steps) == len(values) > 0
            assert (steps[1:] > steps[:-1]).all()
    assert time.process_time() - started < MOST_SECONDS


def fuzz(folder: Path, count: int, seed: int) -> Iterator[str]:
    """The name and number of each mutated file that was read."""
    known, rng = seeds(), random.Random(seed)
    names, blobs = list(known), list(known.values())
    for number in range(count):
        name = names[number % len(names)]
        path = folder / name
        path.write_bytes(mutated(known[name], blobs, rng))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(path)
        except Exception as problem:
            raise AssertionError(f"seed {seed}, file {number}, {name}") from problem
        path.unlink()
        yield f"{name} {number}"


@pytest.mark.slow
def test_mutated_logs_are_read_or_refused(tmp_path: Path) -> None:
    assert len(list(fuzz(tmp_path, 140, seed=1))) == 140


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_thousand_mutated_logs_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    tracemalloc.start()
    assert len(list(fuzz(tmp_path, 5000, seed=100 + seed))) == 5000
    assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    tracemalloc.stop()
