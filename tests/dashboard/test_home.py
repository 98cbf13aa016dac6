"""The table of runs in a real browser, over a real server and its processes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from gradiometer.records import Row
from gradiometer.store.run_notes import read_notes
from gradiometer.store.writer import Writer

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
BROKEN = "sweep/run-13"
AXE = Path(__file__).parents[2] / "build" / "axe" / "package" / "axe.min.js"


def write_run(folder: Path, number: int) -> None:
    facts = {"config": {"lr": (1e-4, 1e-3)[number % 2], "seed": number // 2, "gamma": 0.99}}
    with Writer(folder, facts=facts) as writer:
        for step in range(40):
            bad = folder.name == "run-13" and step > 20
            reward = 100 * math.tanh(step / 10) * (1 + number % 2) + step % 3
            values = {"reward": reward, "loss": math.nan if bad else 1.0, "entropy": 1.0}
            writer.put(Row(step=step, wall_time=1e9 + 60 * step, values=values))
    old = time.time() - 3600 - number
    os.utime(folder / "run.db", (old, old))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("home") / "runs"
    for number in range(29):
        write_run(root / ("sweep" if number % 3 else "other") / f"run-{number:02d}", number)
    return root


@pytest.fixture(scope="module")
def home(folder: Path, serving: Any) -> Iterator[str]:
    with serving(folder, write=True) as address:
        until = time.monotonic() + 300
        while httpx.get(f"{address}/table.json", timeout=60).json()["unread"]:
            assert time.monotonic() < until
            time.sleep(0.5)
        yield address


def until(page: Any, condition: str, seconds: float = 30.0) -> None:
    """Wait for a condition in JavaScript; the page's policy forbids Playwright's own way."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never became true: {condition}"
        page.wait_for_timeout(20)


def names(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        "[data-run-row]", "rows => rows.map(row => row.dataset.runRow)"
    )
    return found


def asked(page: Any) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_the_worst_of_29_runs_stands_first_in_colour_and_word(home: str, browse: Open) -> None:
    page = browse(home + "/")
    first = page.locator("[data-run-row]").first
    assert first.get_attribute("data-run-row") == BROKEN
    assert first.locator(".badge.critical").text_content() == "broken"
    assert "not finite" in first.locator(".why").text_content()
    assert first.locator(".spark .line").count() == 1
    said = page.text_content("#filter-said")
    assert said.startswith("29 runs: 1 broken, ")
    head = [cell.strip() for cell in page.locator("[data-head]").all_text_contents()]
    assert head[:8] == [
        *("Run", "State and verdict", "Status", "Outcome", "Best", "Last", "Steps", "Duration"),
    ]
    assert {"lr", "seed"} <= set(head)
    assert "gamma" not in head  # it is the same everywhere


def test_filter_order_groups_and_columns_are_in_the_link(home: str, browse: Open) -> None:
    page = browse(home + "/")
    page.fill("#run-filter", "lr>1e-4 folder:sweep -state:broken")
    until(page, "location.search.includes('q=')")
    page.click("[data-head=last] button")
    page.select_option("select[aria-label='Group by']", "lr")
    page.click(".home-columns summary")
    page.locator(".home-columns label", has_text="Duration").click()
    until(page, "location.search.includes('cols=')")
    wanted = [f"sweep/run-{n:02d}" for n in range(29) if n % 2 and n % 3 and n != 13]
    assert sorted(names(page)) == wanted
    assert page.locator(".group-row").count() == 1
    assert page.get_attribute("[data-head=last]", "aria-sort") == "descending"
    assert page.locator("[data-head=duration]").count() == 0
    before, link = names(page), page.url
    page.goto(home + "/runs")
    page.goto(link)
    page.wait_for_selector("html[data-ready=runs]")
    assert names(page) == before
    assert page.input_value("#run-filter") == "lr>1e-4 folder:sweep -state:broken"
    page.fill("#run-filter", "nonsense>3")
    until(page, "document.querySelector('.home-said.trouble') !== null")
    assert "No setting is called nonsense." in page.text_content("#filter-said")


def test_only_rows_in_sight_exist_and_the_keyboard_goes_through_all(
    home: str, browse: Open
) -> None:
    page = browse(home + "/", size=(1280, 420))
    assert len(names(page)) < 29
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "run-filter"
    page.locator("[data-run-row] a").first.focus()
    seen = set()
    for _ in range(28):
        seen.add(page.evaluate("document.activeElement.closest('tr').dataset.runRow"))
        page.keyboard.press("ArrowDown")
    seen.add(page.evaluate("document.activeElement.closest('tr').dataset.runRow"))
    assert len(seen) == 29
    last = page.evaluate("document.activeElement.closest('tr').dataset.runRow")
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready=overview]", timeout=60_000)
    assert asked(page)["run"] == [last]
    page.go_back()
    page.wait_for_selector("html[data-ready=runs]")
    assert page.locator("[data-run-row]").count() > 3


def test_several_chosen_runs_go_to_compare(home: str, browse: Open) -> None:
    page = browse(home + "/?q=folder:sweep")
    page.locator("thead input[type=checkbox]").check()
    page.click("text=Compare >> nth=1")
    page.wait_for_selector("html[data-ready=compare]", timeout=60_000)
    assert len(asked(page)["run"]) == 19
    lines = page.locator("[data-chart=compare-parallel] path.run-line")
    page.locator("[data-chart=compare-parallel]").scroll_into_view_if_needed()
    lines.first.wait_for(timeout=60_000, state="attached")  # a level line has no height
    assert lines.count() == 19
    assert "A better reward goes with lr" in page.text_content("#header")
    table = page.locator("[data-chart=compare-settings] table")
    page.locator("[data-chart=compare-settings]").scroll_into_view_if_needed()
    table.wait_for(timeout=60_000)
    table.locator(".sorter", has_text="lr").click()
    place = table.locator("thead th").all_text_contents().index("lr ▼")
    column = [
        row.split("\n")[0]
        for row in table.locator(f"tbody td:nth-child({place + 1})").all_text_contents()
    ]
    assert column == sorted(column, reverse=True)


def test_runs_are_tagged_deleted_and_brought_back(home: str, browse: Open, folder: Path) -> None:
    page = browse(f"{home}/runs?run=sweep/run-01&run=sweep/run-02&q=run-0")
    page.click("text=Edit…")
    page.fill("#manage-tags", "baseline night")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-run-row='sweep/run-01'] .tag >> text=baseline")
    assert read_notes(folder / "sweep" / "run-02").tags == ("baseline", "night")
    page.fill("#run-filter", "tag:baseline")
    until(page, "document.querySelectorAll('[data-run-row]').length === 2")
    page.click("text=Delete…")
    dialog = page.locator("dialog.manage")
    assert "sweep/run-01" in dialog.text_content()
    dialog.locator("text=Cancel").click()
    assert (folder / "sweep" / "run-01").exists()
    page.click("text=Delete…")
    page.click("dialog.manage button.danger")
    until(page, "document.querySelectorAll('[data-run-row]').length === 0")
    assert not (folder / "sweep" / "run-01").exists()
    page.click("text=Undo")
    until(page, "document.querySelectorAll('[data-run-row]').length === 2")
    assert (folder / "sweep" / "run-01" / "run.db").exists()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: make test fetches it")
@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("path", ["/?q=run&group=lr", "/compare?run=sweep/run-04&run=sweep/run-05"])
def test_axe_finds_no_serious_problem(home: str, browse: Open, colours: str, path: str) -> None:
    page = browse(home + path, colours=colours)
    page.evaluate(AXE.read_text("utf-8"))  # as the page's policy lets no script of others in
    found = page.evaluate(
        """() => axe.run(document, { resultTypes: ["violations"] }).then(told => told.violations
             .filter(each => ["serious", "critical"].includes(each.impact))
             .map(each => [each.id, each.nodes.slice(0, 3).map(node => node.html)]))"""
    )
    assert found == []
