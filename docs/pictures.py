"""Draw the pictures of the docs from real runs: `python docs/pictures.py demo` after
`gradiometer demo --no-serve`, `... tabs wiring` after the commands of docs/guide/tabs.md,
`... dead_term` after `gradiometer train cartpole run=runs/cartpole/healthy` and the same with
`fault=entropy_no_grad run=runs/cartpole/broken`."""

from __future__ import annotations

import io
import shutil
import sys
import threading
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import gradiometer as gm

PICTURES = Path(__file__).parent / "pictures"
DEMO, CARTPOLE = Path("runs/demo"), Path("runs/cartpole")
COLOURS = {"policy": "#3b6fb6", "entropy": "#d1603d"}
TABS = {
    "overview": "overview?run=broken",
    "wiring": "wiring?run=broken",
    "gradients": "gradients?run=ppo/seed-1",
    "terms": "terms?run=sokoban",
    "estimators": "estimators?run=estimators",
    "dynamics": "dynamics?run=prismatic",
    "compare": (
        "compare?"
        + "&".join(f"run={name}/seed-{seed}" for name in ("ppo", "slow") for seed in (1, 2, 3))
    ),
    "findings": "findings?run=broken",
}
"""The dashboard's tabs, and the view of runs/tabs that shows each."""


def dead_term() -> None:
    """The gradient of each loss term on the actor, healthy and broken, under the returns that do
    not differ."""
    figure, axes = plt.subplots(
        2, 2, figsize=(9, 4.6), sharex=True, sharey="row", height_ratios=(1, 1.6)
    )
    for column, name in enumerate(("healthy", "broken")):
        run = gm.load(CARTPOLE / name)
        steps, reward = run.series("reward")
        axes[0, column].plot(steps, reward, color="0.35", linewidth=1.2)
        axes[0, column].set_title(
            {"healthy": "healthy", "broken": "entropy under no_grad"}[name], fontsize=11
        )
        for term, colour in COLOURS.items():
            series = f"grad/actor/term/{term}/norm"
            if series in run.names():
                at, norms = run.series(series)
                axes[1, column].semilogy(
                    at,
                    np.maximum(norms, 1e-6),
                    ".-",
                    color=colour,
                    label=f"{term} term",
                    markersize=3,
                )
        dead = run.events("dead-term")
        if dead:
            axes[1, column].text(
                0.5,
                0.25,
                f"entropy: no gradient path, since step {dead[0].step}",
                transform=axes[1, column].transAxes,
                ha="center",
                color=COLOURS["entropy"],
                fontsize=10,
            )
        axes[1, column].set_xlabel("optimizer step")
        axes[1, column].legend(frameon=False, fontsize=9, loc="lower right")
    axes[0, 0].set_ylabel("return")
    axes[1, 0].set_ylabel("gradient norm on the actor")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(PICTURES / "dead_term.png", dpi=130)


def wiring() -> None:
    """The loss of runs/tabs/broken, drawn: what `gradiometer wiring RUN --svg FILE` writes."""
    from gradiometer.charts.drawing import as_svg_file
    from gradiometer.charts.wiring import read_diagram
    from gradiometer.charts.wiringsheets import draw_wiring

    with gm.load(Path("runs/tabs/broken")) as run:
        drawing = draw_wiring(read_diagram(run, "ppo-cartpole"))
    (PICTURES / "wiring.svg").write_text(as_svg_file(drawing), encoding="utf-8")


def tabs(*wanted: str) -> None:
    """A photograph of each tab of the dashboard, over runs/tabs; `tabs:wiring` of one."""
    views = {name: view for name, view in TABS.items() if not wanted or name in wanted}
    _photographs(Path("runs/tabs"), {f"tab_{name}": view for name, view in views.items()})


def demo() -> None:
    """The broken run of `gradiometer demo` beside the healthy one."""
    _photographs(DEMO, {"dashboard": "overview?run=broken&run=healthy"}, width=1440)


def _photographs(root: Path, views: dict[str, str], width: int = 1280) -> None:
    import uvicorn
    from PIL import Image
    from playwright.sync_api import sync_playwright

    from gradiometer.dashboard.app import create_app
    from gradiometer.dashboard.server import bind

    listening = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(root), log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-lcd-text"]
        )
        page = browser.new_page(viewport={"width": width, "height": 900})
        for name, view in views.items():
            page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/{view}")
            tab = view.partition("?")[0]
            page.wait_for_selector(f"html[data-ready={tab}]", timeout=60_000)
            time.sleep(4)  # the doctor reads in the background, and charts are drawn one by one
            photograph = (
                Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256, kmeans=1)
            )
            photograph.save(PICTURES / f"{name}.png", optimize=True)
        browser.close()
    server.should_exit = True


def timeline() -> None:
    """The time line of the doctor's page, of a made-up log whose steps become too large."""
    from playwright.sync_api import sync_playwright

    from gradiometer.charts.page import as_page
    from gradiometer.doctor.diagnosis import diagnose
    from gradiometer_labs.synthetic import sick_logs

    log = next(each.log for each in sick_logs(1) if each.kind == "steps-too-large")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-lcd-text"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_content(as_page(diagnose(log)))
        page.locator("figure").first.screenshot(path=PICTURES / "timeline.png")
        browser.close()


def runs() -> None:
    """The table of runs, over made-up logs of healthy and sick trainings."""
    import tempfile
    from itertools import chain, islice

    import uvicorn
    from PIL import Image
    from playwright.sync_api import sync_playwright

    from gradiometer.dashboard.app import create_app
    from gradiometer.dashboard.server import bind
    from gradiometer.store.run_notes import RunNotes, write_notes
    from gradiometer.store.writer import Writer
    from gradiometer_labs.synthetic import healthy_logs, sick_logs

    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "runs"
        made = chain(islice(healthy_logs(1), 8), islice(sick_logs(1), 12))
        for number, each in enumerate(made):
            config = {"lr": (3e-4, 1e-3)[number % 2], "num_envs": (8, 16)[number // 2 % 2]}
            folder = root / ("sweep", "night")[number % 2] / f"ppo-{number:02d}"
            with Writer(folder, facts={"config": config}) as writer:
                for row in each.log.rows():
                    writer.put(row)
            if number % 5 == 0:
                write_notes(folder, RunNotes(tags=("baseline",)))
        time.sleep(35)  # until none counts as live
        listening = bind("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(create_app(root), log_level="warning"))
        threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--no-sandbox", "--disable-lcd-text"],
            )
            page = browser.new_page(viewport={"width": 1440, "height": 820})
            page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/")
            page.wait_for_selector("html[data-ready=runs]", timeout=60_000)
            while "being read" in page.text_content("#filter-said"):
                time.sleep(1)
            photograph = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            photograph.quantize(256, kmeans=1).save(PICTURES / "tab_runs.png", optimize=True)
            browser.close()
        server.should_exit = True
        time.sleep(2)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    made = {
        "dead_term": dead_term,
        "demo": demo,
        "runs": runs,
        "tabs": tabs,
        "timeline": timeline,
        "wiring": wiring,
    }
    for asked in sys.argv[1:]:
        name, *parts = asked.split(":")
        made[name](*parts)
