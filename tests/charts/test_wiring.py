"""The diagram of a loss: what it says, and that it fits its sheets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gradiometer.charts.drawing import Element, Sheet, as_svg_file, text_width
from gradiometer.charts.wiring import LossDiagram, read_diagram
from gradiometer.charts.wiringsheets import THICK, draw_wiring
from gradiometer.records import Event, Row, Table
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

WICKED = "<script>alert(1)</script>&" + "x" * 60


def term(name: str, *reaches: str, **more: object) -> dict[str, object]:
    usual = {"role": None, "coefficient": 1.0, "value": 0.5, "alive": True, "named_by": "variable"}
    return {"name": name, "reaches": ["all", *reaches], "backward": 1, **usual, **more}


def record(folder: Path, *terms: dict[str, object], later: tuple[object, ...] = ()) -> None:
    """A run whose policy and value share a trunk, in which they are at odds from step 10 on."""
    with Writer(folder, facts={}) as writer:
        for step in (0, 10, 20):
            values = {
                "grad/actor/term/policy/norm": 1.0,
                "grad/trunk/term/policy/norm": 0.5,
                "grad/trunk/term/value/norm": 0.25 + step,
                "grad/all/term/policy/norm": 1.0,
                "grad/trunk/term/policy~value/cos": 0.3 if step == 0 else -0.8,
                "grad/all/term/value/loss": 0.5 + step,
                "grad/head/norm/raw": 0.0,
                "credit/zero_share": 0.25,
                "credit/positive_share": 0.5,
            }
            writer.put(Row(step=step, wall_time=0.0, values=values))
        for step, rows in ((0, terms), (20, later)):
            if rows:
                content = {"loss": 1.0, "terms": rows, "additivity_error": 0.0, "backward": 1}
                writer.put(Table(step=step, name="wiring", content=content))


POLICY = term("policy", "actor", "trunk", role="policy")
VALUE = term("value", "trunk", role="value", coefficient=0.5)
DEAD = term("entropy", role="entropy", coefficient=-0.01, alive=False, reaches=[], value=-0.007)


@pytest.fixture
def diagram(tmp_path: Path) -> Iterator[LossDiagram]:
    record(tmp_path / "ppo", POLICY, VALUE, DEAD, term(WICKED, "actor"))
    with load(tmp_path / "ppo") as run:
        yield read_diagram(run, "ppo", 10)


def texts(sheet: Sheet) -> list[Element]:
    return [shape for shape in sheet.shapes if shape.tag == "text"]


def test_a_part_without_a_gradient_is_struck_through_and_is_the_headline(
    diagram: LossDiagram,
) -> None:
    assert diagram.headline() == (
        "entropy has no gradient: it adds −0.007 to the loss and trains nothing"
    )
    drawing = draw_wiring(diagram)
    for sheet in (drawing.wide, drawing.narrow):
        pieces = [piece for shape in texts(sheet) for piece in (shape, *shape.inside)]
        struck = [each.text for each in pieces if "text-decoration" in each.at]
        assert "entropy" in struck
        assert "policy" not in struck


def test_a_term_that_broadcasts_says_so_with_its_line(tmp_path: Path) -> None:
    record(tmp_path / "ppo", POLICY, VALUE)
    detail = {"shapes": [[8, 1], [8]], "result": [8, 8], "file": "a/train.py", "line": 7}
    with Writer(tmp_path / "ppo", resume=21) as writer:
        told = {"message": "", "detail": {**detail, "name": "policy"}}
        writer.put(Event(step=0, kind="shapes-broadcast", **told))
    with load(tmp_path / "ppo") as run:
        diagram = read_diagram(run, "ppo", 10)
    said = "broadcasts (8, 1) against (8,) to (8, 8) (train.py:7)"
    assert [term.wrong for term in diagram.terms] == [said, ""]
    assert diagram.headline() == f"policy {said}"
    drawing = draw_wiring(diagram)
    for sheet in (drawing.wide, drawing.narrow):
        red = [each.text for each in texts(sheet) if each.at.get("fill") == "critical"]
        assert "Every sample meets every other" in " ".join(red)


def test_a_strand_is_as_wide_as_its_gradient_is_large(diagram: LossDiagram) -> None:
    norms = {(each.term, each.block): each.norm for each in diagram.strands}
    assert norms["policy", "actor"] == 1.0
    assert norms["value", "trunk"] == 10.25
    drawn = [shape for shape in draw_wiring(diagram, "norms-").wide.shapes if shape.tag == "path"]
    widths = {float(shape.at["stroke-width"]) for shape in drawn if shape.at.get("stroke") == "0"}
    assert THICK * 1.0 / 10.25 in widths
    assert {shape.go for shape in drawn if shape.go} == {"norms-actor", "norms-trunk"}


def test_only_terms_of_about_equal_size_that_point_apart_are_a_conflict(
    diagram: LossDiagram, tmp_path: Path
) -> None:
    (at_odds,) = diagram.conflicts
    assert (at_odds.block, at_odds.cosine, at_odds.strong) == ("trunk", -0.8, False)
    with load(tmp_path / "ppo") as run:
        assert read_diagram(run, "ppo", 0).conflicts == ()


def test_a_block_that_no_term_reaches_and_the_credit_are_told(diagram: LossDiagram) -> None:
    assert diagram.dead_blocks == ("head",)
    credit = diagram.credit
    assert credit is not None
    assert (credit.up, credit.down, credit.none) == (0.375, 0.375, 0.25)
    said = [shape.text for shape in texts(draw_wiring(diagram).wide)]
    assert "no term of the loss reaches it" in said
    assert "samples: 38% more likely, 38% less, 25% same" in said


def test_a_part_that_is_found_dead_later_is_drawn_at_earlier_steps(tmp_path: Path) -> None:
    record(tmp_path / "late", POLICY, VALUE, later=(POLICY, VALUE, DEAD))
    with load(tmp_path / "late") as run:
        early = read_diagram(run, "late", 0)
    assert [term.name for term in early.terms] == ["policy", "value", "entropy"]
    assert early.headline() == "entropy has no gradient: it trains nothing"


def test_terms_that_were_named_by_hand_are_drawn_too(tmp_path: Path) -> None:
    states = {
        "policy": {"all": "path", "actor": "path", "trunk": "none"},
        "entropy": {"all": "none", "actor": "none", "trunk": "none"},
    }
    with Writer(tmp_path / "hand", facts={}) as writer:
        values = {"grad/actor/term/policy/norm": 2.0, "grad/all/term/entropy/loss": -0.5}
        writer.put(Row(step=0, wall_time=0.0, values=values))
        writer.put(Table(step=0, name="terms", content=states))
    with load(tmp_path / "hand") as run:
        found = read_diagram(run, "hand")
    assert [(each.term, each.block, each.norm) for each in found.strands] == [
        ("policy", "actor", 2.0)
    ]
    assert found.headline().startswith("entropy has no gradient: it adds −0.5")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_file_is_well_formed_whatever_terms_are_called_and_stays_on_its_sheet(
    diagram: LossDiagram, theme: str
) -> None:
    drawing = draw_wiring(diagram)
    for narrow, sheet in ((False, drawing.wide), (True, drawing.narrow)):
        root = ElementTree.fromstring(as_svg_file(drawing, theme, narrow=narrow))
        assert not [each for each in root.iter() if each.tag.endswith("script")]
        for shape in texts(sheet):
            size = float(shape.at["font-size"])
            wide = text_width(shape.text, size) if shape.at.get("text-anchor") is None else 0.0
            assert 0 <= float(shape.at["x"]) + wide * 0.85 <= sheet.width
            assert 0 < float(shape.at["y"]) < sheet.height
