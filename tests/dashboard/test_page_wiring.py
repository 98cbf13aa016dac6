"""The tabs Wiring and Samples in a real Chromium, folds and grey tabs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradiometer.records import Row, Table
from gradiometer.store.writer import Writer

pytestmark = pytest.mark.slow

WICKED = "<img src=x onerror=alert(1)>"


def term(name: str, role: str | None, *reaches: str, **more: object) -> dict[str, object]:
    usual = {"coefficient": 1.0, "value": 0.5, "alive": True, "named_by": "variable"}
    return {"name": name, "role": role, "reaches": list(reaches), "backward": 1, **usual, **more}


@pytest.fixture(scope="module")
def address(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("wired")
    terms = [
        term("policy", "policy", "all", "actor"),
        term(WICKED, None, "all", "actor"),
        term("entropy", "entropy", alive=False, coefficient=-0.01, value=-0.007),
    ]
    with Writer(root / "ppo", facts={"started": "2026-01-01"}) as writer:
        for step in range(0, 50, 10):
            values = {
                "grad/actor/term/policy/norm": 1.0 + step,
                f"grad/actor/term/{WICKED}/norm": 0.5,
                "grad/all/term/policy/norm": 1.0 + step,
                f"grad/actor/term/policy~{WICKED}/cos": -0.9,
                "grad/all/term/policy/loss": 0.5,
                "credit/zero_share": 0.2,
                "credit/positive_share": 0.5,
            }
            writer.put(Row(step=step, wall_time=1e9 + step, values=values))
        rows = [
            {"prompt": "2+2", "completion": f"{WICKED} four", "reward": 1.0, "credit": 0.7},
            {"prompt": "toString", "completion": "five", "reward": 0.0, "credit": -0.7},
        ]
        writer.put(Table(step=10, name="samples", content={"of": 2, "rows": rows}))
        content = {"loss": 1.0, "terms": terms, "additivity_error": 0.0, "backward": 1}
        writer.put(Table(step=0, name="wiring", content=content))
    with Writer(root / "plain", facts={"started": "2025-01-01"}) as writer:
        writer.put(Row(step=0, wall_time=1e9, values={"reward": 1.0}))
    with serving(root) as served:
        yield served


def drawn(page: Any) -> str:
    return str(page.locator(".drawing svg").text_content())


def test_the_loss_is_drawn_and_the_slider_goes_through_its_steps(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/wiring?run=ppo")
    assert "entropy has no gradient: it adds −0.007 to the loss and trains nothing" in drawn(page)
    assert page.locator(".drawing tspan[text-decoration=line-through]").text_content() == "entropy"
    assert WICKED in drawn(page)
    assert "samples: 40% more likely, 40% less, 20% same" in drawn(page)
    page.get_by_role("button", name="Previous step").click()
    page.locator(".drawing svg").filter(has_text="ppo · step 30").wait_for()
    assert "step=30" in page.url
    assert "31" in drawn(page)


def test_a_line_of_the_drawing_leads_to_its_curve_by_mouse_and_by_keyboard(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/wiring?run=ppo")
    link = page.get_by_role("link", name="policy into actor: gradient norm 41; to its curve")
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#chart-norms-actor:target [data-drawn]")
    assert page.locator("#chart-norms-actor").evaluate(
        "card => card.getBoundingClientRect().top < innerHeight"
    )


def test_a_drawing_is_saved_as_svg_and_png_and_a_chart_as_svg(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/wiring?run=ppo")
    for chart, kind, begins in (
        ("wiring-0", "svg", b"<svg"),
        ("wiring-0", "png", b"\x89PNG"),
        ("wiring-0", "csv", b'"term","block"'),
        ("norms-actor", "svg", b"<svg"),
    ):
        with page.expect_download() as got:
            page.locator(f"#chart-{chart} [data-export={kind}]").click()
        content = Path(got.value.path()).read_bytes()
        assert content.startswith(begins), (chart, kind)
        assert kind == "csv" or b"<img" not in content


def test_a_phone_has_an_arrangement_of_its_own_and_nothing_hangs_over(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/wiring?run=ppo", size=(390, 844), colours="dark")
    assert page.locator(".drawing svg").get_attribute("viewBox").startswith("0 0 390 ")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_run_whose_loss_was_not_read_says_how_to_have_it_drawn(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/wiring?run=plain")
    assert "gradiometer run train.py" in page.locator("#empty").inner_text()


def test_samples_are_read_in_order_of_credit_and_found_by_a_word(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/samples?run=ppo")
    cells = page.locator("[data-chart=samples] tbody tr")
    assert f"{WICKED} four" in cells.first.inner_text()
    page.get_by_label("First", exact=True).select_option("credit-low")
    cells.first.filter(has_text="five").wait_for()
    assert cells.first.locator("td").nth(3).inner_text() == "toString"
    page.get_by_label("Find", exact=True).fill("FOUR")
    page.locator("#header").filter(has_text="1 sample, of 2").wait_for()
    assert cells.count() == 1


def test_tabs_without_data_are_grey_and_say_what_would_fill_them(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/overview?run=plain")
    bare = page.locator("#tabs a.bare")
    assert "meter.log_samples" in page.locator("#tabs a[data-tab=samples]").get_attribute("title")
    assert "Overview" not in bare.all_inner_texts()
    page = browse(f"{address}/overview?run=ppo")
    assert "Wiring" not in page.locator("#tabs a.bare").all_inner_texts()


def test_the_first_charts_are_open_and_a_fold_is_drawn_when_it_is_opened(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/terms?run=ppo")
    fold = page.locator("details.fold-section").first
    card = fold.locator("article").first
    assert not card.is_visible()
    assert fold.locator("[data-drawn]").count() == 0
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    fold.locator("[data-drawn]").first.wait_for()
    assert card.is_visible()


def test_colours_come_from_the_selection_and_the_newest_training_opens(
    address: str, browse: Callable[..., Any]
) -> None:
    page = browse(f"{address}/overview")
    # the other run is a probe of one step; names come with the list of runs, after the view
    page.wait_for_function("document.title.includes('ppo')")
    page = browse(f"{address}/overview?run=plain&run=ppo")
    marks = page.locator(".run.shown .swatch")
    colours = {mark.evaluate("each => each.style.background") for mark in marks.all()}
    assert colours == {"rgb(0, 114, 178)", "rgb(221, 138, 0)"}
