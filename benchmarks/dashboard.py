"""The dashboard on 50 runs × 2,000 steps × 40 series, on a series of a million points, and beside a
training that writes.

In Chromium with an empty cache and over HTTP; the server, the browser and the measuring share the
same two cores. Beside the thinning by SQLite stands what one would write first: fetch the series,
then thin it in numpy. Compiling Plotly takes most of the time to the first chart. Gradients draws a
map of layers and a dozen curves, and half of its time is Plotly's.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dashboard_runs import (
    NAMES,
    served,
    values_at,
    watch_all,
    watched_by_a_page,
    write_at_full_speed,
    write_long,
    write_many,
)
from benchmarks.rows import Row, Scale, clock, counted, measured
from benchmarks.timing import in_turns
from gradiometer import records
from gradiometer.store.reader import load
from gradiometer.store.thinning import bucket_edges, thin
from gradiometer.store.writer import Writer

__all__ = ["rows"]

TABS = ("gradients", "terms", "estimators", "dynamics", "compare", "findings", "overview")


def rows(scale: Scale) -> Iterator[Row]:
    """Many runs, a long one, a writer beside a page, many pages."""
    runs, steps, points = scale.of((50, 2_000, 1_000_000), (3, 100, 5_000))
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write_many(root / "many", runs, steps)
        with served(root / "many") as where:
            yield from browser(where, scale)
            yield from ticks(where, root / "many" / f"run-{runs - 1:02d}", steps)
        write_long(root / "long" / "run", points)
        with served(root / "long") as where:
            yield from one_long(where, root / "long" / "run", points, scale)
        yield from beside_a_writer(root / "busy", scale)
        yield from clients(root / "watched", scale)


def browser(where: str, scale: Scale) -> Iterator[Row]:
    """First paint in a fresh profile, and switching tabs; beside them the whole page loaded
    anew."""
    from playwright.sync_api import sync_playwright

    words, charts, switched = [], [], {tab: list[float]() for tab in TABS}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(scale.rounds()):
            page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.goto(f"{where}/overview")
            page.wait_for_selector("html[data-ready=overview]", timeout=60_000)
            marks = page.evaluate(
                "Object.fromEntries(performance.getEntriesByType('mark').map(m => [m.name,"
                " m.startTime]))"
            )
            words.append(marks["words"])
            charts.append(marks["charts"])
            for tab in TABS:
                switched[tab].append(page.evaluate(SWITCH, tab))
            page.context.close()
        chromium.close()
    yield measured(
        "first meaningful paint: verdict, picker, facts", words, unit="ms", at_most=1_500
    )
    ratio, told = np.array(words) / np.array(charts), f"the chart after {np.median(charts):,.0f} ms"
    yield measured("first meaningful paint / first chart drawn", ratio, note=told)
    for tab, times in switched.items():
        yield measured(f"switch to {tab}", times, unit="ms", at_most=300)
    slowest = np.max(list(switched.values()), 0)
    yield measured(
        "the slowest switch / loading the page to its first chart", slowest / np.array(charts)
    )


SWITCH = """tab => new Promise(done => {
  const start = performance.now();
  const seen = new MutationObserver(() => {
    if (document.documentElement.dataset.ready !== tab) return;
    seen.disconnect();
    done(performance.now() - start);
  });
  seen.observe(document.documentElement, {attributes: true});
  document.querySelector(`[data-tab="${tab}"]`).click();
})"""


def ticks(where: str, folder: Path, steps: int) -> Iterator[Row]:
    """What a live tick carries after ten more steps of the run in view."""
    import httpx

    with httpx.Client(base_url=where, timeout=60, params={"run": folder.name}) as client:
        with Writer(folder, resume=steps - 1) as writer:
            for step in range(steps, steps + 10):
                writer.put(
                    records.Row(step=step, wall_time=1.7e9 + step, values=values_at(step, 49))
                )
        # A resumed run is sent whole, once; from then on there are ticks.
        cursors = {tab: client.get(f"/{tab}.json").json()["cursor"] for tab in TABS}
        time.sleep(1)
        sent = {tab: (_tick(client, tab, cursors[tab]), _wire(client, tab, "")) for tab in TABS}
    tab = max(sent, key=lambda each: sent[each][0])
    tick, whole = sent[tab]
    told = (
        f"{tab}, where it is largest; its whole view {whole / 1024:,.0f} KiB, 1/{whole / tick:.0f}"
    )
    yield counted("a live tick of ten steps", tick / 1024, unit="KiB", at_most=20, note=told)


def _tick(client: Any, tab: str, cursor: str) -> int:
    """As if the cursor were ten steps old: the last steps in it are put back."""
    head, _, lasts = cursor.rpartition(".")
    pieces = [piece.split("x") for piece in lasts.split("_") if piece]
    older = "_".join(f"{int(last) - 10 if last else ''}x{count}" for last, count in pieces)
    return _wire(client, tab, f"{head}.{older}")


def _wire(client: Any, tab: str, cursor: str) -> int:
    with client.stream("GET", f"/{tab}.json", params={"after": cursor}) as response:
        return sum(len(chunk) for chunk in response.iter_raw())


def one_long(where: str, folder: Path, points: int, scale: Scale) -> Iterator[Row]:
    """A view of a million points, and the thinning by itself beside numpy's."""
    import httpx

    with httpx.Client(base_url=where, timeout=60) as client, load(folder) as run:
        taken = in_turns(
            {
                "thinned by SQLite": lambda: run.thinned("reward", 1000),
                "fetched, then thinned": lambda: thin(
                    *run.series("reward"), bucket_edges(0, points - 1, 1000)
                ),
                **{
                    tab: partial(client.get, f"/{tab}.json")
                    for tab in ("compare", "overview", "gradients")
                },
            },
            rounds=scale.rounds(),
        )
        assert run.thinned("reward", 1000).high.max() == 1e3, "the spike is hidden"
    million = "a million points in a series"
    thinned, fetched = taken["thinned by SQLite"], taken["fetched, then thinned"]
    yield measured(f"{million}, thinned by SQLite", 1e3 * thinned, unit="ms", at_most=300)
    yield measured(
        f"{million}: fetched, then thinned / by SQLite",
        fetched / thinned,
        note=clock(taken, "fetched, then thinned"),
    )
    for tab in ("compare", "overview", "gradients"):
        yield measured(
            f"{million}: the view {tab} again, over HTTP", 1e3 * taken[tab], unit="ms", at_most=300
        )


def beside_a_writer(folder: Path, scale: Scale) -> Iterator[Row]:
    """A process that writes as fast as it can, alone and while a page is open on the run."""
    with Writer(folder / "run") as writer:
        writer.put(records.Row(step=0, wall_time=0.0, values=values_at(0, 0)))
    steps, alone, watched, errors = scale.of(10_000, 500), list[float](), list[float](), 0
    with served(folder) as where:
        for _ in range(scale.rounds()):
            alone.append(write_at_full_speed(folder / "run", steps))
            with watched_by_a_page(where) as told:
                watched.append(write_at_full_speed(folder / "run", steps))
            errors += told["errors"]
    if errors:
        raise RuntimeError(f"the page that followed the run got {errors} errors")
    rate = steps * len(NAMES) / np.median(alone)
    ratio = np.array(alone) / np.array(watched)
    name = "throughput of a writer while a page follows it / alone"
    yield measured(name, ratio, at_least=0.95, note=f"alone {rate:,.0f} points/s")


def clients(folder: Path, scale: Scale) -> Iterator[Row]:
    """Fifty pages on one live run: how late they see a step."""
    steps, number, written = scale.of((2_000, 50, 300), (100, 3, 20))
    with Writer(folder / "run") as writer, served(folder) as where:
        for step in range(steps):
            writer.put(records.Row(step=step, wall_time=time.time(), values=values_at(step, 0)))
        writer.flush()
        late, errors = asyncio.run(watch_all(where, writer, number, range(steps, steps + written)))
    if errors:
        raise RuntimeError(f"{number} clients got {errors} errors")
    told = (
        f"a step every 50 ms, {max(late):.2f} s at the latest, no error; the rounds are steps seen"
    )
    yield measured(f"{number} clients on one run: a step is seen after", late, unit="s", note=told)
