"""The dashboard on many runs, on a long one, and beside a training that writes; in Chromium and over HTTP.

    python -m benchmarks.dashboard

Beside the thinning by SQLite stands what one would write first: fetch the series, then thin it in numpy.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.records import Row
from gradiometer.store.reader import load
from gradiometer.store.thinning import bucket_edges, thin
from gradiometer.store.writer import Writer

RUNS, STEPS, SERIES = 50, 2_000, 40
LONG = 1_000_000
CLIENTS = 50
REPEATS = 7
WRITTEN = 20_000
TABS = ("gradients", "terms", "estimators", "dynamics", "compare", "findings", "overview")
BLOCKS = ("all", "actor", "critic", "trunk")
QUANTITIES = (
    "norm/raw", "norm/clipped", "norm/update", "update_ratio", "max_abs", "health", "cos_prev", "zero_fraction", "noise_scale",
)  # fmt: skip
NAMES = ["reward", "entropy", "approx_kl", "grad/all/clip/rate", *(f"grad/{b}/{q}" for b in BLOCKS for q in QUANTITIES)]


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        many, long = root / "many", root / "long"
        write_many(many)
        write_long(long / "run")
        with served(many) as where:
            browser(where)
            ticks(where, many)
        with served(long) as where:
            one_long(where, long / "run")
        beside_a_writer(root)
        clients(root)


def values_at(step: int, seed: int) -> dict[str, float]:
    """Forty numbers that look like a training's."""
    wave = math.sin(step / 50 + seed)
    return {
        name: 1.0 + abs(wave) * (place + 1) / SERIES + 0.1 * ((step * (place + 7)) % 13)
        for place, name in enumerate(NAMES)
    }


def write_many(folder: Path) -> None:
    """Fifty runs of 2,000 steps and 40 series."""
    for number in range(RUNS):
        facts = {
            "started": f"2026-01-01T00:{number:02d}",
            "config": {"seed": number % 5, "lr": 10.0 ** -(number // 5 % 4)},
        }
        with Writer(folder / f"run-{number:02d}", facts=facts) as writer:
            for step in range(STEPS):
                writer.put(Row(step=step, wall_time=1.7e9 + step, values=values_at(step, number)))
                if step % 500 == 499:
                    writer.flush()


def write_long(folder: Path) -> None:
    """One series of a million points, with one spike."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=LONG)
    values[654_321] = 1e3
    with Writer(folder) as writer:
        for step in range(LONG):
            writer.put(Row(step=step, wall_time=float(step), values={"reward": float(values[step])}))
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


def browser(where: str) -> None:
    """First paint in a fresh profile, and switching tabs."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        words, charts, switched = [], [], {tab: list[float]() for tab in TABS}
        for _ in range(3):
            page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.goto(where)
            page.wait_for_selector("html[data-ready=overview]", timeout=60_000)
            marks = page.evaluate(
                "Object.fromEntries(performance.getEntriesByType('mark').map(m => [m.name, m.startTime]))"
            )
            words.append(marks["words"])
            charts.append(marks["charts"])
            for tab in TABS:
                switched[tab].append(page.evaluate(SWITCH, tab))
            page.context.close()
        chromium.close()
    print(f"\n{RUNS} runs x {STEPS} steps x {SERIES} series, Chromium, empty cache")
    print(f"first meaningful paint (verdict, picker, facts)  {statistics.median(words):7.0f} ms   target 1500")
    print(f"first chart drawn                                {statistics.median(charts):7.0f} ms")
    for tab, times in switched.items():
        print(f"switch to {tab:12}                           {statistics.median(times):7.0f} ms   target 300")


SWITCH = """tab => new Promise(done => {
  const start = performance.now();
  const seen = new MutationObserver(() => {
    if (document.documentElement.dataset.ready === tab) { seen.disconnect(); done(performance.now() - start); }
  });
  seen.observe(document.documentElement, {attributes: true});
  document.querySelector(`[data-tab="${tab}"]`).click();
})"""


def ticks(where: str, folder: Path) -> None:
    """What a live tick carries after ten more steps of the run in view."""
    import httpx

    with httpx.Client(base_url=where, timeout=60) as client:
        views = {tab: client.get(f"/{tab}.json", params={"run": "run-49"}).json()["cursor"] for tab in TABS}
        with Writer(folder / "run-49", resume=STEPS - 1) as writer:
            for step in range(STEPS, STEPS + 10):
                writer.put(Row(step=step, wall_time=1.7e9 + step, values=values_at(step, 49)))
        # A resumed run is sent whole, once; from then on there are ticks.
        views = {tab: client.get(f"/{tab}.json", params={"run": "run-49"}).json()["cursor"] for tab in TABS}
        time.sleep(1)
        print("\na live tick of ten new steps: bytes on the wire (gzip), of the whole view")
        for tab in TABS:
            whole = _wire(client, tab, "")
            print(f"{tab:12} {_tick(client, tab, views[tab]):8,} of {whole:9,}   target 20,480")


def _tick(client: Any, tab: str, cursor: str) -> int:
    """As if the cursor were ten steps old: the last steps in it are put back."""
    head, _, lasts = cursor.rpartition(".")
    pieces = [piece.split("x") for piece in lasts.split("_") if piece]
    older = "_".join(f"{int(last) - 10 if last else ''}x{count}" for last, count in pieces)
    return _wire(client, tab, f"{head}.{older}")


def _wire(client: Any, tab: str, cursor: str) -> int:
    with client.stream("GET", f"/{tab}.json", params={"run": "run-49", "after": cursor}) as response:
        return sum(len(chunk) for chunk in response.iter_raw())


def one_long(where: str, folder: Path) -> None:
    """A view of a million points, and the thinning by itself beside numpy's."""
    import httpx

    with httpx.Client(base_url=where, timeout=60) as client:
        views = {tab: _timed(partial(client.get, f"/{tab}.json")) for tab in ("compare", "overview", "gradients")}
    print(f"\none series of {LONG:,} points")
    for tab, seconds in views.items():
        print(f"{tab:12} over HTTP            {1e3 * seconds:7.0f} ms   target 300")
    with load(folder) as run:
        quick = _timed(lambda: run.thinned("reward", 1000))
        slow = _timed(lambda: thin(*run.series("reward"), bucket_edges(0, LONG - 1, 1000)))
        spike = float(run.thinned("reward", 1000).high.max())
    print(
        f"thinned by SQLite               {1e3 * quick:7.0f} ms; fetched, then numpy {1e3 * slow:.0f} ms: 1/{slow / quick:.1f}"
    )
    print(f"the spike of 1000 among a million reads {spike:g}")


def _timed(work: Callable[[], object]) -> float:
    work()
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


WRITE = """
import sys, time
from gradiometer.records import Row
from gradiometer.store.writer import Writer
from benchmarks.dashboard import values_at
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


def beside_a_writer(root: Path) -> None:
    """A process that writes as fast as it can, alone and while a page is open on the run."""
    folder = root / "busy"
    alone, watched, answers = [], [], []
    with served(folder_with_a_run(folder)) as where:
        for _ in range(5):
            alone.append(_write(folder / "run"))
            watcher = subprocess.Popen(
                [sys.executable, "-c", WATCH, where], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
            )
            assert watcher.stdout is not None
            watcher.stdout.readline()
            watched.append(_write(folder / "run"))
            answers.append(json.loads(watcher.communicate("\n")[0]))
    slower = [100 * (b / a - 1) for a, b in zip(alone, watched, strict=True)]
    rate = WRITTEN * SERIES / statistics.median(alone)
    print(f"\na writer at full speed ({rate:,.0f} points/s), alone and while a page follows the run, 5 pairs")
    print(f"slower by {statistics.median(slower):.1f} % ({min(slower):.1f} to {max(slower):.1f})   target 5")
    print(f"answers meanwhile {sum(a['ok'] for a in answers)}, errors {sum(a['errors'] for a in answers)}")


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


def folder_with_a_run(folder: Path) -> Path:
    """So that the server has something to find."""
    with Writer(folder / "run") as writer:
        writer.put(Row(step=0, wall_time=0.0, values=values_at(0, 0)))
    return folder


def _write(folder: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(folder), str(WRITTEN)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def clients(root: Path) -> None:
    """Fifty pages on one live run: how late they see a step."""
    folder = root / "watched"
    with Writer(folder / "run") as writer, served(folder) as where:
        for step in range(STEPS):
            writer.put(Row(step=step, wall_time=time.time(), values=values_at(step, 0)))
        writer.flush()
        late, errors = asyncio.run(_watch_all(where, writer))
    print(f"\n{CLIENTS} clients on one run that writes a step every 50 ms for 15 s, each asking for its tick")
    print(
        f"a step is seen after {statistics.median(late):.2f} s (median), {max(late):.2f} s at the latest; errors {errors}"
    )


async def _watch_all(where: str, writer: Writer) -> tuple[list[float], int]:
    born: dict[int, float] = {}
    late: list[float] = []
    errors = 0

    async def write() -> None:
        for step in range(STEPS, STEPS + 300):
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
                    answer = await client.get("/overview.json", params={"run": "run", "after": cursor})
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

    tasks = [asyncio.create_task(watch()) for _ in range(CLIENTS)]
    await asyncio.sleep(3)
    await write()
    await asyncio.sleep(2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return late, errors


if __name__ == "__main__":
    main()
