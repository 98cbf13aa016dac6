"""The first page on 2,000 runs, a log of 37 MiB that grows by a line, and the memory of a server on
a live run with ten readers.

In Chromium with an empty cache, over a server whose own cache is empty too: no state of a run is
known, and the processes that read them share the same two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.dashboard_runs import served, values_at, write_many
from benchmarks.rows import Row, Scale, counted, measured
from gradiometer import records
from gradiometer.store.writer import Writer

__all__ = ["rows"]

FRAMES = """() => new Promise(done => {
  const box = document.querySelector(".grid-box"), times = [];
  let last = performance.now(), left = 120;
  const frame = now => {
    times.push(now - last);
    last = now;
    box.scrollTop += 340;
    if (left--) requestAnimationFrame(frame);
    else done(times.slice(1));
  };
  requestAnimationFrame(frame);
})"""


def rows(scale: Scale) -> Iterator[Row]:
    """The table, the log, the memory."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        yield from table(root / "many", scale)
        yield from grown_log(root / "logs", scale)
        yield from memory(root / "live", scale)


def table(folder: Path, scale: Scale) -> Iterator[Row]:
    """How soon the rows are there, and how smoothly they scroll."""
    from playwright.sync_api import sync_playwright

    number = scale.of(2_000, 40)
    write_many(folder.parent / "some", 20, 60)
    for place in range(number):
        source = folder.parent / "some" / f"run-{place % 20:02d}"
        shutil.copytree(source, folder / f"sweep-{place // 200}" / f"run-{place:04d}")
    painted, frames = list[float](), list[float]()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(scale.rounds()):
            with served(folder) as where:
                page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
                page.goto(where)
                page.wait_for_selector("html[data-ready=runs]", timeout=60_000)
                painted.append(page.evaluate("performance.getEntriesByName('table')[0].startTime"))
                frames += page.evaluate(FRAMES)
                page.context.close()
        chromium.close()
    yield measured(f"{number:,} runs: the table is painted", painted, unit="ms", at_most=1_500)
    slow = float(np.quantile(frames, 0.95))
    name = f"{number:,} runs: a frame while scrolling, 95 of 100"
    yield counted(name, slow, unit="ms", at_most=50, note=f"the longest {max(frames):.0f} ms")


def grown_log(folder: Path, scale: Scale) -> Iterator[Row]:
    """A line is added to a log: how long the list of runs takes, and the view of the log."""
    import httpx

    lines = scale.of(200_000, 500)
    file = folder / "run" / "metrics.jsonl"
    file.parent.mkdir(parents=True)
    names = [f"metric_{place}" for place in range(6)]
    row = dict.fromkeys(names, 0.123456789)
    file.write_text("".join(json.dumps({"step": s, **row}) + "\n" for s in range(lines)))
    listed, seen = list[float](), list[float]()
    with served(folder) as where, httpx.Client(base_url=where, timeout=120) as client:
        while client.get("/compare.json", params={"run": "run"}).status_code != 200:
            time.sleep(0.5)
        for extra in range(scale.rounds()):
            with file.open("a") as out:
                out.write(json.dumps({"step": lines + extra, **row}) + "\n")
            for path, times in (("/runs.json", listed), ("/compare.json?run=run", seen)):
                began = time.perf_counter()
                client.get(path)
                times.append(1e3 * (time.perf_counter() - began))
    size = f"a JSONL of {file.stat().st_size >> 20} MiB grown by a line"
    yield measured(f"{size}: the list of runs", listed, unit="ms", at_most=300)
    yield measured(f"{size}: its view", seen, unit="ms", at_most=1_500)


def memory(folder: Path, scale: Scale) -> Iterator[Row]:
    """What a server holds after minutes of a live run with ten readers, beside what it held after
    the first quarter."""
    import httpx

    seconds = scale.of(1_200, 4)
    held = list[float]()
    with Writer(folder / "run") as writer, served(folder) as where:
        pid = _pid_of(where)
        stop = threading.Event()

        def follow(tab: str) -> None:
            cursor = ""
            with httpx.Client(base_url=where, timeout=60) as client:
                while not stop.is_set():
                    asked = {"run": "run", "after": cursor}
                    cursor = client.get(f"/{tab}.json", params=asked).json().get("cursor", "")
                    time.sleep(1.0)

        tabs = ["overview", "gradients", "compare", "findings", "terms"] * 2
        writer.put(records.Row(step=0, wall_time=0.0, values=values_at(0, 0)))
        writer.flush()
        threads = [threading.Thread(target=follow, args=(tab,)) for tab in tabs]
        for thread in threads:
            thread.start()
        for step in range(1, 4 * seconds):
            writer.put(records.Row(step=step, wall_time=time.time(), values=values_at(step, 0)))
            writer.flush()
            time.sleep(0.25)
            held.append(_resident(pid))
        stop.set()
        for thread in threads:
            thread.join()
    quarter = held[len(held) // 4]
    grown = (held[-1] - quarter) * 3600 / (0.75 * seconds)
    note = f"{quarter:.0f} MiB after a quarter of {seconds} s, {held[-1]:.0f} MiB at the end"
    yield counted("ten readers of a live run: the server grows", grown, unit="MiB/h", note=note)


def _pid_of(where: str) -> int:
    """The process that listens at an address."""
    port = int(where.rpartition(":")[2])
    wanted = f":{port:04X}"
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(wanted) and line.split()[3] == "0A"
    }
    for found in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            link = os.readlink(found)
        except OSError:
            continue
        if link.removeprefix("socket:[").rstrip("]") in inodes:
            return int(found.parts[2])
    raise RuntimeError(f"nobody listens at {where}")


def _resident(pid: int) -> float:
    """MiB."""
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    )
