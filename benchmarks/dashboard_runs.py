"""What the dashboard is measured on: runs that look like trainings, a server in its own process,
pages that watch."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gradiometer.records import Row
from gradiometer.store.writer import Writer

__all__ = [
    "served",
    "values_at",
    "watch_all",
    "watched_by_a_page",
    "write_at_full_speed",
    "write_long",
    "write_many",
]

BLOCKS = ("all", "actor", "critic", "trunk")
QUANTITIES = (
    "norm/raw",
    "norm/clipped",
    "norm/update",
    "update_ratio",
    "max_abs",
    "health",
    "cos_prev",
    "zero_fraction",
    "noise_scale",
)
NAMES = [
    "reward",
    "entropy",
    "approx_kl",
    "grad/all/clip/rate",
    *(f"grad/{b}/{q}" for b in BLOCKS for q in QUANTITIES),
]


def values_at(step: int, seed: int) -> dict[str, float]:
    """Forty numbers that look like a training's."""
    wave = math.sin(step / 50 + seed)
    return {
        name: 1.0 + abs(wave) * (place + 1) / len(NAMES) + 0.1 * ((step * (place + 7)) % 13)
        for place, name in enumerate(NAMES)
    }


def write_many(folder: Path, runs: int, steps: int) -> None:
    """Runs of 40 series."""
    for number in range(runs):
        facts = {
            "started": f"2026-01-01T00:{number:02d}",
            "config": {"seed": number % 5, "lr": 10.0 ** -(number // 5 % 4)},
        }
        with Writer(folder / f"run-{number:02d}", facts=facts) as writer:
            for step in range(steps):
                writer.put(Row(step=step, wall_time=1.7e9 + step, values=values_at(step, number)))
                if step % 500 == 499:
                    writer.flush()


def write_long(folder: Path, steps: int) -> None:
    """One series, with one spike."""
    values = np.random.default_rng(0).normal(size=steps)
    values[654_321 % steps] = 1e3
    with Writer(folder) as writer:
        for step in range(steps):
            writer.put(
                Row(step=step, wall_time=float(step), values={"reward": float(values[step])})
            )
            if step % 50_000 == 0:
                writer.flush()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """`gradiometer serve` in a process of its own."""
    command = [sys.executable, "-m", "gradiometer", "serve", str(folder), "-p", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://[^/\s]+", process.stdout.readline())
    assert found is not None
    time.sleep(2.0)  # imports of the doctor, in the background
    try:
        yield found[0]
    finally:
        process.terminate()
        process.wait()


WRITE = """
import sys, time
from gradiometer.records import Row
from gradiometer.store.writer import Writer
from benchmarks.dashboard_runs import values_at
count = int(sys.argv[2])
rows = [Row(step=step, wall_time=float(step), values=values_at(step, 0)) for step in range(count)]
start = time.perf_counter()
with Writer(sys.argv[1], overwrite=True) as writer:
    for place in range(0, count, 1000):
        for row in rows[place:place + 1000]:
            writer.put(row)
        writer.flush()
assert not writer.dropped
print(time.perf_counter() - start)
"""


def write_at_full_speed(folder: Path, steps: int) -> float:
    """Seconds that a process takes to write a run."""
    command = [sys.executable, "-c", WRITE, str(folder), str(steps)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


WATCH = """
import sys, threading, json, time, httpx
stop, told = threading.Event(), {"ok": 0, "errors": 0}
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
with httpx.Client(base_url=sys.argv[1], timeout=60) as client:
    cursor = ""
    print("ready", flush=True)
    while not stop.is_set():
        answer = client.get("/overview.json", params={"run": "run", "after": cursor})
        told["ok" if answer.status_code == 200 else "errors"] += 1
        cursor = answer.json().get("cursor", "")
        time.sleep(1.0)
print(json.dumps(told))
"""


@contextmanager
def watched_by_a_page(where: str) -> Iterator[dict[str, int]]:
    """A process that follows the run at that address; what it was told is there at the end."""
    told: dict[str, int] = {}
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH, where],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert watcher.stdout is not None
    watcher.stdout.readline()
    yield told
    told.update(json.loads(watcher.communicate("\n")[0]))


async def watch_all(
    where: str, writer: Writer, clients: int, steps: range
) -> tuple[list[float], int]:
    """Clients on a run that writes a step every 50 ms: how late each saw each step, and how many
    errors there were."""
    born: dict[int, float] = {}
    late: list[float] = []
    errors = 0

    async def write() -> None:
        for step in steps:
            born[step] = time.time()
            writer.put(Row(step=step, wall_time=born[step], values=values_at(step, 0)))
            await asyncio.sleep(0.05)

    async def watch() -> None:
        nonlocal errors
        import httpx

        async with httpx.AsyncClient(base_url=where, timeout=60) as client:
            cursor = (await client.get("/overview.json", params={"run": "run"})).json()["cursor"]
            async with client.stream("GET", "/live") as stream:
                async for line in stream.aiter_lines():
                    if not line.startswith('data: {"run"'):
                        continue
                    answer = await client.get(
                        "/overview.json", params={"run": "run", "after": cursor}
                    )
                    errors += answer.status_code != 200
                    told = answer.json()
                    cursor = told["cursor"]
                    steps = {
                        step
                        for chart in told["charts"]
                        for line_ in chart["lines"]
                        for step in line_["points"]["steps"]
                    }
                    late.extend(time.time() - born[step] for step in steps if step in born)

    tasks = [asyncio.create_task(watch()) for _ in range(clients)]
    await asyncio.sleep(3)
    await write()
    await asyncio.sleep(2)
    dead = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return late, errors + len(dead)
