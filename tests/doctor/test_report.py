"""A diagnosis said in four ways: everything is there, nothing is run together, and a page needs
nothing from elsewhere."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.charts.page import as_page
from gradiometer.doctor.diagnosis import Diagnosis, OutcomeRecord, diagnose
from gradiometer.doctor.report import (
    as_markdown,
    as_text,
    plain,
    plain_of_several,
    several_as_markdown,
    several_as_text,
)
from gradiometer.doctor.rule import Skipped
from gradiometer.doctor.several import JudgedRun, RunsDiagnosis, runs_diagnosis
from gradiometer.records import Evidence, Finding
from gradiometer.store.logs import Log
from gradiometer.store.strictjson import to_json
from gradiometer.store.thinning import bucket_edges, thin, whole

DEAD = Finding(
    id="dead-term",
    title="The term 'entropy' has no gradient path to any weight",
    severity="critical",
    basis="proved",
    since_step=0,
    block="all",
    evidence=(
        Evidence(series="entropy", reading="falls from 0.69 to 0.01", first_step=0, last_step=99),
    ),
    cause="It is computed under torch.no_grad() & <friends>.",
    fix=("Compute the entropy outside torch.no_grad().", "Do not call .item() on it."),
    confirm="Set its coefficient to 0: the weights stay the same to the bit.",
    suppressed=("entropy-collapse", "reward-plateau"),
    references=("TRL pull request 5595",),
)
MILD = [
    Finding(
        id=f"mild-{number}", title=f"something | mild {number}", severity="info", basis="heuristic"
    )
    for number in range(4)
]


def diagnosis(*findings: Finding, run: str = "runs/broken") -> Diagnosis:
    return Diagnosis(
        state="concern",
        run=Path(run),
        verdict="concern: the reward rose. The term 'entropy' has no gradient path to any weight.",
        findings=findings,
        folded=(dataclasses.replace(DEAD, id="entropy-collapse", severity="warn"),),
        skipped=tuple(
            Skipped(
                rule=f"rule-{number}",
                why="no ess in this log: log it: meter.log(ess=...)",
                metric="ess",
            )
            for number in range(5)
        ),
        unknown_keys=tuple(f"mystery/{number}" for number in range(9)),
        looked=("reward-hacking",),
        curves={
            "entropy": whole(
                np.arange(100), np.array([np.nan, *(1.0 / (i + 1) for i in range(99))])
            )
        },
    )


def test_the_text_fits_a_screen_and_its_width() -> None:
    said = as_text(diagnosis(DEAD, *MILD), width=80)
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert (
        lines[0]
        == "concern: the reward rose. The term 'entropy' has no gradient path to any weight."
    )
    assert lines[1] == "  runs/broken"
    assert "7 of 12 checks could run; 5 skipped: missing data." in lines
    assert "CRITICAL dead-term · proved · since step 0 · block all" in lines
    for words in (
        "falls from 0.69 to 0.01 (steps 0 to 99)",
        "1. Compute",
        "2. Do not",
        "explains",
        "TRL pull request 5595",
    ):
        assert words in said
    assert "--verbose" in said
    assert said.count("rule-") == 1  # one rule speaks for the metric they all lack
    assert "mystery/5 and 3 more" in said


def test_verbose_leaves_nothing_out() -> None:
    said = as_text(diagnosis(DEAD, *MILD), verbose=True)
    assert all(finding.title in said for finding in (DEAD, *MILD))
    assert all(f"rule-{number}" in said for number in range(5))
    assert all(f"mystery/{number}" in said for number in range(9))


def test_json_has_the_promised_keys_and_survives_a_round_trip() -> None:
    content = json.loads(to_json(plain(diagnosis(DEAD, *MILD))))
    assert {"run", "verdict", "findings", "skipped", "unknown_keys"} <= set(content)
    keys = {
        "id",
        "title",
        "severity",
        "basis",
        "since_step",
        "block",
        "evidence",
        "cause",
        "fix",
        "confirm",
    }
    assert keys | {"suppressed", "references", "clinic"} == set(content["findings"][0])
    assert content["findings"][0]["evidence"][0]["series"] == "entropy"
    assert content["folded"][0]["id"] == "entropy-collapse"


def test_markdown_keeps_tables_whole() -> None:
    said = as_markdown(diagnosis(DEAD, *MILD))
    assert "| `entropy` | falls from 0.69 to 0.01 | 0 to 99 |" in said
    assert "1. Compute the entropy" in said
    several = several_as_markdown(both(diagnosis(DEAD), diagnosis(*MILD, run="runs/fine")))
    assert "| dead-term | 1 |" in several
    assert "| fine | concern |" in several


class Page(html.parser.HTMLParser):
    """Checks that tags close, and collects what could be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_stands_alone_and_escapes() -> None:
    page = as_page(diagnosis(DEAD, *MILD))
    read = Page()
    read.feed(page)
    assert read.open == []
    assert read.fetched == []
    assert "http" not in page
    assert "torch.no_grad() & <friends>." in read.words
    assert "<friends>" not in page


def evidence_of(page: str) -> str:
    """Without the time line, which shows the same curve."""
    return page[page.index("<section") :]


def test_the_page_draws_the_curve_with_its_nan_and_the_step_it_began() -> None:
    page = evidence_of(as_page(diagnosis(dataclasses.replace(DEAD, since_step=50))))
    (points,) = re.findall(r'<polyline class="curve" points="([^"]+)"', page)
    assert len(points.split()) == 99
    assert page.count('class="nan"') == 1
    (mark,) = re.findall(r'<line class="since warn" x1="([\d.]+)"', page)
    xs = [float(point.split(",")[0]) for point in points.split()]
    assert float(mark) == pytest.approx(
        xs[49], abs=0.2
    )  # the first point is the NaN, so the fiftieth step is the 49th
    assert "every value is NaN" not in page


def test_a_curve_without_a_finite_value_is_said_not_drawn() -> None:
    sick = dataclasses.replace(
        diagnosis(DEAD), curves={"entropy": whole(np.arange(2), np.full(2, np.nan))}
    )
    assert "every value is NaN or infinite" in as_page(sick)


def both(*diagnoses: Diagnosis) -> RunsDiagnosis:
    return runs_diagnosis([JudgedRun(diagnosis=each, facts={}, rows=1) for each in diagnoses])


def test_several_runs_show_what_most_share_first_and_the_worst_run_before_the_others() -> None:
    found = both(
        diagnosis(*MILD, run="runs/c"),
        diagnosis(DEAD, run="runs/a"),
        diagnosis(DEAD, *MILD, run="runs/b"),
    )
    said = several_as_text(found, width=90)
    assert said.startswith("3 runs: 3 concern\n")
    assert said.index("2 of 3  dead-term") < said.index("\na  concern") < said.index("\nc  concern")
    assert max(map(len, said.splitlines())) <= 90
    assert len(plain_of_several(found)["runs"]) == 3
    assert "2 of 3" in as_page(found)


def test_two_causes_fit_a_screen_and_the_second_still_has_its_evidence_and_its_fix() -> None:
    wordy: dict[str, Any] = {
        "cause": "because " * 40,
        "confirm": "try " * 40,
        "references": ("a paper",) * 4,
    }
    evidence = tuple(
        Evidence(series=f"series/{i}", reading="a long reading " * 6) for i in range(4)
    )
    first = dataclasses.replace(DEAD, evidence=evidence, fix=("change this " * 12,) * 3, **wordy)
    second = dataclasses.replace(
        first, id="critic-diverges", fix=("change the other", "or that"), suppressed=()
    )
    said = as_text(diagnosis(first, second), width=80)
    assert len(said.splitlines()) <= 60
    brief = said[said.index("critic-diverges") :]
    assert "evidence  series/0" in brief
    assert "fix       change the other" in brief
    assert "confirm" not in brief
    assert as_text(diagnosis(first, second), width=80, verbose=True).count("confirm ") == 2


def test_a_long_curve_keeps_its_spike_and_its_nan_on_the_page() -> None:
    values = np.ones(10_000)
    values[[1_234, 5_678]] = 900.0, np.nan
    long = thin(np.arange(10_000), values, bucket_edges(0, 9_999, 200))
    page = evidence_of(as_page(dataclasses.replace(diagnosis(DEAD), curves={"entropy": long})))
    assert '<text x="' in page
    assert ">900</text>" in page
    assert page.count('class="nan"') == 1


def test_signs_are_told_in_the_order_in_which_they_began_with_the_best_between() -> None:
    later = dataclasses.replace(MILD[0], since_step=70)
    outcome = OutcomeRecord(
        series="reward", course="fell", start=1.0, best=9.0, best_step=40, end=2.0, lost=0.9
    )
    known = dataclasses.replace(diagnosis(DEAD, later), outcome=outcome, folded=())
    lines = as_text(known, width=70).splitlines()
    place = lines.index("what happened, in order:")
    assert [line.split()[1:3] for line in lines[place + 1 : place + 4]] == [
        ["0", "dead-term:"],
        ["40", "best"],
        ["70", "mild-0:"],
    ]
    assert max(map(len, lines)) <= 70
    assert "| 40 | best of reward: 9; 2 at the end |" in as_markdown(known)
    one = dataclasses.replace(known, findings=(DEAD,))
    assert "in order" not in as_text(one) + as_markdown(one)


def test_a_notebook_shows_the_report() -> None:
    shown = diagnosis(DEAD)._repr_html_()
    assert shown.startswith("<pre>")
    assert "torch.no_grad() &amp; &lt;friends&gt;" in shown


def test_of_supervised_training_the_outcome_in_the_json_is_the_loss() -> None:
    rows = [(step, {"loss": 4.0 - step / 20 + 0.01 * (step % 3)}) for step in range(60)]
    found = diagnose(Log("x", name="x", run_id="x", rows=rows, facts={}))
    assert found.state == "healthy"
    assert found.outcome is not None
    assert (found.outcome.series, found.outcome.course) == ("loss", "gained")
    assert found.verdict.endswith("1 check could run.")
    assert len(found.looked) == 1
