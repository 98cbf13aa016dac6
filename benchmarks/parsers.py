"""How fast logs that others wrote are read: console text of several kinds, as many bytes of each.

A log of 500 MB has to be read in 20 s and 300 MB of memory. The alternatives are what one would do
by hand: Python's own loop over the lines, which finds nothing, `grep -c` for a name, and for dicts
`ast.literal_eval` of each line. `samples` is what most large logs are: lines that a model wrote,
and a row of numbers now and then.
"""

from __future__ import annotations

import ast
import random
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.fresh import MIB, in_fresh_processes, resident
from benchmarks.rows import Row, Scale, clock, counted, measured
from benchmarks.timing import Taken, seconds_of
from gradiometer.store.importers import open_log

__all__ = ["rows"]

SAID = (
    "the model states that if a formula is true then we find 12 apples and so on: the answer, which"
    " equals 42, follows from line (3) \\boxed{7} where x is not y; let us verify step by step"
)
WORDS = SAID.split()
AT_MOST_SECONDS, AT_MOST_MIB, LARGE = 20.0, 300.0, 500
Text = Callable[[int, random.Random], str]


def samples(step: int, rng: random.Random) -> str:
    """verl under Ray: what the model wrote, then the step's line."""
    who = "\x1b[36m(TaskRunner pid=64115)\x1b[0m "
    said = [who + " ".join(rng.choices(WORDS, k=18)) for _ in range(200)]
    row = " - ".join(f"actor/name_{n}:np.float64({rng.random()})" for n in range(50))
    return "\n".join([*said, f"{who}step:{step} - critic/score/mean:{rng.random()} - {row}\n"])


def dicts(step: int, rng: random.Random) -> str:
    """TRL: a progress bar, then a dict."""
    bar = f"\r {step % 100}%|###       | {step}/1000000 [1:00:00<2:00:00,  4.5s/it]"
    row = ", ".join(f"'completions/name_{n}': {rng.random()}" for n in range(24))
    return f"{bar}\n{{'loss': {rng.random()}, {row}, 'epoch': {step / 1e6:.4f}}}\n"


def lines(step: int, rng: random.Random) -> str:
    """A logger's lines of names and numbers."""
    return (
        f"2024-01-02 12:30:11,123 - INFO - train.py:120 - step {step} | loss: {rng.random():.4f}"
        f" | mean reward: {rng.random():.4f} | kl={rng.random():.5f}, entropy={rng.random():.3f}\n"
    )


def boxes(step: int, rng: random.Random) -> str:
    """SB3's box."""
    names = {"rollout/": ("ep_len_mean", "ep_rew_mean"), "train/": ("approx_kl", "loss", "std")}
    rule = "-" * 42 + "\n"
    cells = [f"| time/ |  |\n|    total_timesteps | {2048 * step:<12} |\n"]
    for section, inside in names.items():
        cells.append(f"| {section:<22} | {'':<12} |\n")
        cells += [f"|    {name:<19} | {rng.random():<12.8f} |\n" for name in inside]
    return rule + "".join(cells) + rule


KINDS: dict[str, Text] = {"samples": samples, "dicts": dicts, "lines": lines, "boxes": boxes}


def write(path: Path, text: Text, size: int) -> None:
    """A log of about so many bytes."""
    rng, written, step = random.Random(0), 0, 0
    with path.open("w") as file:
        while written < size:
            step += 1
            written += file.write(text(step, rng))


def load(path: Path) -> int:
    """Read it as a log: how many points it has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(one.count for one in open_log(path).summaries())


def iterate(path: Path) -> int:
    """Python's loop over the lines."""
    with path.open("rb") as file:
        return sum(b"reward" in line for line in file)


def grep(path: Path) -> None:
    """How many lines have a name."""
    subprocess.run(["grep", "-c", "reward", str(path)], check=False, capture_output=True)


def evaluate(path: Path) -> int:
    """What a script of ten lines does with dicts."""
    with path.open() as file:
        return sum(len(ast.literal_eval(line)) for line in file if line.startswith("{"))


def taken(path: Path) -> tuple[float, int, int]:
    """Seconds, the most bytes ever in memory, and points."""
    started = time.perf_counter()
    points = load(path)
    return time.perf_counter() - started, resident("VmHWM"), points


def rows(scale: Scale) -> Iterator[Row]:
    """Each kind beside the alternatives, and a large one in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in KINDS.items():
            path = Path(folder) / f"{name}.log"
            write(path, text, scale.of(20, 1) * MIB)
            yield from _beside(name, path, scale)
            path.unlink()
        for name, text in KINDS.items():
            path = Path(folder) / f"{name}.log"
            size = scale.of(LARGE, 2)
            write(path, text, size * MIB)
            ((seconds, most, points),) = in_fresh_processes([partial(taken, path)])
            note = f"{points:,} points, in one round"
            yield counted(
                f"{name}, {size} MB", seconds, unit="s", at_most=AT_MOST_SECONDS, note=note
            )
            yield counted(f"{name}, {size} MB: memory", most / MIB, unit="MB", at_most=AT_MOST_MIB)
            path.unlink()


def _beside(name: str, path: Path, scale: Scale) -> Iterator[Row]:
    calls = {"a log": load, "a loop over lines": iterate, "`grep -c`": grep}
    if name == "dicts":
        calls["`ast.literal_eval`"] = evaluate
    times: dict[str, list[float]] = {call: [] for call in calls}
    for _ in range(scale.rounds()):
        for call, function in calls.items():
            times[call].append(seconds_of(partial(function, path)))
    by: Taken = {call: np.array(seconds) for call, seconds in times.items()}
    megabytes = path.stat().st_size / MIB
    note = clock(by, *calls)
    yield measured(f"{name}: read as a log", megabytes / by["a log"], unit="MB/s", note=note)
    if name == "dicts":
        ratio = by["`ast.literal_eval`"] / by["a log"]
        yield measured(f"{name}: `ast.literal_eval` / a log", ratio, at_least=1.0)
