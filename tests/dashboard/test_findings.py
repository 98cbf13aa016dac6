"""The tab Findings: what the real doctor says of runs that are ill in known ways, with the curves
at the right steps."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gradiometer.charts.model import Chart
from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import Query
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.shape import View
from gradiometer.dashboard.views import VIEWS
from gradiometer.dashboard.views.findings import _linked
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.report import checks_run
from gradiometer.errors import UnknownName
from gradiometer.records import Evidence, Finding, Row
from gradiometer.store.importers import open_log
from gradiometer.store.writer import Writer

FIXTURES = Path(__file__).parents[1] / "fixtures"
SICK_FROM = 200


def row(step: int, rng: np.random.Generator, *, ill: bool) -> Row:
    values = {
        "grad/all/norm/raw": math.exp(rng.normal(0, 0.1)),
        "grad/actor/norm/raw": math.exp(rng.normal(0, 0.1)),
        "grad/all/nonfinite": 0.0,
        "grad/actor/nonfinite": 0.0,
        "grad/all/clip/threshold": 0.5,
        "reward": float(rng.normal()) if ill else step / 10 + float(rng.normal()),
    }
    if ill:
        values |= {
            "entropy": 0.7 * math.exp(-step / 20),
            "explained_variance": float(rng.normal(0, 0.05)),
        }
        if step >= SICK_FROM:
            values |= {
                "grad/all/norm/raw": math.nan,
                "grad/all/nonfinite": 1.0,
                "grad/actor/nonfinite": 1.0,
            }
    return Row(step=step, wall_time=float(step), values=values)


def write(folder: Path, *, ill: bool, live: Sequence[Finding] = (), steps: int = 300) -> None:
    rng = np.random.default_rng(0)
    with Writer(folder, facts={"started": "2026-01-01T00:00:00+00:00"}) as writer:
        for step in range(steps):
            writer.put(row(step, rng, ill=ill))
        for finding in live:
            writer.put(finding)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "ill", ill=True)
    write(folder / "well", ill=False)
    return folder


def see(root: Path, runs: Sequence[str], after: str = "", **options: str) -> View:
    index = RunIndex(root)
    query = Query(
        runs=tuple(runs), after=after, options={name: (value,) for name, value in options.items()}
    )
    made = answer(index, Diagnoses(index), "findings", query)
    assert json.loads(encode(made))["view"] == "findings"
    return made


def charts_of(view: View, id: str) -> list[Chart]:
    card = next(card for card in view.findings if card.id == id)
    charts = {chart.id: chart for chart in view.charts}
    return [charts[name] for name in card.charts]


LINKS = {
    "TRL issue 6702": "https://github.com/huggingface/trl/issues/6702",
    "OneTrainer issue 1147": "https://github.com/Nerogar/OneTrainer/issues/1147",
}


def test_issues_of_known_repositories_become_links() -> None:
    trl = "https://github.com/huggingface/trl/issues"
    assert _linked("TRL pull requests 5595 and 5596") == f"{trl}/5595 and {trl}/5596"
    assert _linked("TRL issue 6024: ×0.5 and ×4") == f"{trl}/6024: ×0.5 and ×4"
    assert _linked("arXiv 1707.06347") == "https://arxiv.org/abs/1707.06347"
    assert _linked("nobody issue 1") == "nobody issue 1"


def test_every_finding_of_the_doctor_is_told_whole_and_in_its_order(root: Path) -> None:
    view = see(root, ["ill"])
    with open_log(root / "ill") as run:
        diagnosis = diagnose(run)
    assert [card.id for card in view.findings] == [finding.id for finding in diagnosis.findings]
    assert {"nonfinite-gradient", "critic-explains-nothing", "entropy-collapse"} <= {
        card.id for card in view.findings
    }
    for card, finding in zip(view.findings, diagnosis.findings, strict=True):
        assert (card.title, card.severity, card.cause) == (
            finding.title,
            finding.severity,
            finding.cause,
        )
        assert (card.fix, card.confirm, card.references) == (
            [*finding.fix],
            finding.confirm,
            [
                LINKS.get(each, re.sub(r"arXiv (\d{4}\.\d{5})", r"https://arxiv.org/abs/\1", each))
                for each in finding.references
            ],
        )
        assert [each["reading"] for each in card.evidence] == [
            each.reading for each in finding.evidence
        ]
    assert view.verdicts[0].text == diagnosis.verdict
    assert view.header == [f"3 findings to act on. {checks_run(diagnosis)}"]


def test_the_charts_of_a_finding_show_its_series_at_the_steps_it_speaks_of(root: Path) -> None:
    charts = charts_of(see(root, ["ill"]), "nonfinite-gradient")
    assert [chart.id for chart in charts] == [
        f"finding-0-nonfinite-gradient-actor-{place}" for place in range(3)
    ]
    assert [chart.title for chart in charts] == [
        "grad/actor/nonfinite",
        "grad/all/nonfinite",
        "grad/all/norm/raw",
    ]
    for chart in charts:
        with open_log(root / "ill") as run:
            steps, values = run.series(chart.title)
        points = chart.lines[0].points
        assert points.steps == steps.tolist()
        assert points.values == ["NaN" if math.isnan(value) else value for value in values.tolist()]
        assert [(span.first, span.last, span.severity) for span in chart.spans] == [
            (SICK_FROM, 299, "critical")
        ]
    norm = charts[-1]
    assert (norm.y.scale, norm.info[0].name) == ("log", "grad/<block>/norm/raw")
    assert [(level.value, level.label) for level in norm.levels] == [(0.5, "clip threshold")]
    assert norm.lines[0].points.nans == list(range(SICK_FROM, 300))


def test_since_when_is_marked_where_the_evidence_was_read_over_more(
    root: Path, tmp_path: Path
) -> None:
    evidence = Evidence(series="entropy", reading="fell", first_step=0, last_step=299)
    said = dataclasses.replace(live_finding(), since_step=47, evidence=(evidence,))
    write(tmp_path / "ill", ill=True, live=[said])
    spans = charts_of(see(tmp_path, ["ill"]), said.id)[0].spans
    assert [(span.first, span.last, span.label) for span in spans] == [
        (0, 299, "steps 0 to 299"),
        (47, None, "since step 47"),
    ]
    explained = charts_of(see(root, ["ill"]), "critic-explains-nothing")[0]
    assert [level.value for level in explained.levels] == [0.0]


def test_a_healthy_run_is_told_calmly(root: Path) -> None:
    view = see(root, ["well"])
    assert "Nothing wrong was found: " in view.header[0]
    assert not [card for card in view.findings if card.severity != "info"]
    assert view.verdicts[0].severity == "fine"


def test_a_run_that_did_not_learn_is_not_shown_as_fine_where_no_finding_says_why(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    with Writer(tmp_path / "flat") as writer:
        for step in range(300):
            values = {"reward": float(rng.normal()), "entropy": 1.0}
            writer.put(Row(step=step, wall_time=float(step), values=values))
    (verdict,) = see(tmp_path, ["flat"]).verdicts
    assert (verdict.state, verdict.severity) == ("not-learning", "warn")
    assert verdict.text.startswith("not-learning: ")


@pytest.mark.parametrize(
    ("at_least", "left"), [("all", 3), ("info", 3), ("warn", 3), ("critical", 1)]
)
def test_findings_are_filtered_by_severity(root: Path, at_least: str, left: int) -> None:
    view = see(root, ["ill"], severity=at_least)
    assert len(view.findings) == left
    assert view.controls[0].value == at_least
    assert [option.value for option in view.controls[0].options] == [
        "all",
        "info",
        "warn",
        "critical",
    ]
    shown = {name for card in view.findings for name in card.charts}
    lines = {chart.id for chart in view.charts if chart.kind == "lines"}
    assert lines == {"timeline-0", *shown}
    assert ("2 findings of lower severity not shown." in view.header) == (left == 1)


def test_the_time_line_comes_first_with_a_lane_for_each_sign_that_began(root: Path) -> None:
    chart = see(root, ["ill"]).charts[0]
    with open_log(root / "ill") as run:
        diagnosis = diagnose(run)
        steps, _ = run.series("reward")
    assert chart.id == "timeline-0"
    assert chart.lines[0].points.steps == steps.tolist()
    began = {
        each.id: each.since_step
        for each in (*diagnosis.findings, *diagnosis.folded)
        if each.since_step is not None
    }
    assert sorted(began.values()) == [onset.step for onset in chart.onsets]
    assert (SICK_FROM, "critical") in [(each.step, each.severity) for each in chart.onsets]
    assert chart.spans[0].first == (diagnosis.outcome and diagnosis.outcome.best_step)
    both = see(root, ["ill", "well"])
    assert [each.title for each in both.charts if each.onsets] == ["What happened, in order: ill"]


def test_an_unknown_severity_says_which_there_are(root: Path) -> None:
    with pytest.raises(
        UnknownName, match=r"unknown severity 'bad' \(there are all, info, warn, critical\)"
    ):
        see(root, ["ill"], severity="bad")


def test_of_several_runs_the_one_in_focus_comes_first(root: Path) -> None:
    view = see(root, ["well", "ill"])
    runs = [card.run for card in view.findings]
    assert runs == sorted(runs, key=["well", "ill"].index)
    assert [verdict.run for verdict in view.verdicts] == ["well", "ill"]
    assert view.header[0].startswith("well: healthy: ")
    assert view.header[1].startswith("ill: 3 findings to act on")
    ill = charts_of(view, "nonfinite-gradient")
    assert ill[0].id == "finding-1-nonfinite-gradient-actor-0"
    assert ill[0].lines[0].label == "ill"


def test_rules_that_could_not_look_are_listed_by_the_metric_they_lack(root: Path) -> None:
    view = see(root, ["ill"])
    table = next(chart for chart in view.charts if chart.id == "skipped").table
    assert table is not None
    with open_log(root / "ill") as run:
        skipped = diagnose(run).skipped
    told = [rule for cell in table.cells for rule in str(cell[1]).split(", ")]
    assert sorted(told) == sorted(each.rule for each in skipped)
    sizes = [len(str(cell[1]).split(", ")) for cell in table.cells]
    assert sizes == sorted(sizes, reverse=True)
    terms = next(cell for cell in table.cells if cell[0] == "grad/<block>/term/<term>/norm")
    assert "meter.terms(" in str(terms[2])
    several = next(
        chart for chart in see(root, ["ill", "well"]).charts if chart.id == "skipped"
    ).table
    assert several is not None
    explained = next(cell for cell in several.cells if cell[0] == "explained_variance")
    assert "critic-explains-nothing" in str(explained[1])
    assert explained[2] == "1 of 2"


def live_finding(id: str = "gradient-spikes", title: str = "Spikes") -> Finding:
    evidence = (
        Evidence(series="grad/all/norm/raw", reading="8 spikes", first_step=40, last_step=60),
    )
    return Finding(
        id=id,
        title=title,
        severity="warn",
        basis="statistical",
        since_step=40,
        block="all",
        evidence=evidence,
    )


def test_what_only_the_live_doctor_said_is_shown_last_and_marked(tmp_path: Path) -> None:
    again = live_finding(title="More spikes")
    known = Finding(
        id="nonfinite-gradient", title="NaN", severity="critical", basis="proved", block="actor"
    )
    write(tmp_path / "ill", ill=True, live=[live_finding(), again, known])
    view = see(tmp_path, ["ill"])
    assert [card.id for card in view.findings].count("nonfinite-gradient") == 1
    card = view.findings[-1]
    assert (card.id, card.title) == ("gradient-spikes", "More spikes")
    assert (
        card.basis == "statistical, reported during the training; the complete run does not show it"
    )
    assert charts_of(view, "gradient-spikes")[0].spans[0].first == 40
    assert any("1 finding reported during the training" in line for line in view.header)


def test_a_log_of_another_library_is_judged_and_drawn_under_its_own_names(tmp_path: Path) -> None:
    (tmp_path / "sb3").mkdir()
    shutil.copy(FIXTURES / "sb3_ppo" / "progress.csv", tmp_path / "sb3")
    view = see(tmp_path, ["sb3"])
    with open_log(tmp_path / "sb3") as log:
        there = set(log.names())
        assert [card.id for card in view.findings] == [
            finding.id for finding in diagnose(log).findings
        ]
    assert {chart.title for chart in view.charts if chart.kind == "lines"} <= there


def test_charts_are_bounded_and_the_header_says_where_the_others_are(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VIEWS["findings"].__globals__, "MOST_CHARTS", 3)
    view = see(root, ["ill"])
    assert len([chart for chart in view.charts if chart.id.startswith("finding-")]) == 3
    assert [bool(card.charts) for card in view.findings] == [True, False, False]
    assert "2 findings have no charts here: put their run in focus to see them." in view.header


def test_while_a_run_grows_only_new_points_come(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with Writer(tmp_path / "ill", facts={"started": "2026-01-01T00:00:00+00:00"}) as writer:
        for step in range(300):
            writer.put(row(step, rng, ill=True))
        writer.flush()
        index = RunIndex(tmp_path)
        diagnoses = Diagnoses(index)
        first = answer(index, diagnoses, "findings", Query(runs=("ill",)))
        for step in range(300, 303):
            writer.put(row(step, rng, ill=True))
        writer.flush()
        news = answer(index, diagnoses, "findings", Query(runs=("ill",), after=first.cursor))
    assert news.delta
    lines = [line for chart in news.charts for line in chart.lines]
    assert lines
    assert {tuple(line.points.steps) for line in lines} == {(300, 301, 302)}
    assert news.parts == ()


def test_a_run_before_its_first_step_says_so(tmp_path: Path) -> None:
    write(tmp_path / "new", ill=False, steps=0)
    view = see(tmp_path, ["new"])
    assert view.header[0].startswith("too-early: no data was recorded yet.")
    assert view.findings == []
