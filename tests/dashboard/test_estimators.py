"""The tab Estimators shows the numbers of the records that `gradiometer variance` keeps, with their
intervals."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gradiometer as gm
from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import parse_query
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.errors import UnknownName, UsageError
from gradiometer.records import Row, Table
from gradiometer.store.writer import Writer

Json = dict[str, Any]
FIXTURES = Path(__file__).parents[1] / "fixtures"


def load_bandits() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "bandits", Path(__file__).parents[1] / "plots" / "bandits.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BANDITS = load_bandits()
NAMES = ["plain", "loo", "again"]
VALUES = (32, 2, 8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real studies of a small policy: a comparison, two sweeps, and one with gaps in it; and a
    training."""
    folder = tmp_path_factory.mktemp("runs")
    BANDITS.keep_comparison(
        folder / "compared",
        [BANDITS.study("pomo"), BANDITS.study("rloo"), BANDITS.study("pomo", seed=5)],
        NAMES,
    )
    for name, algorithm in (("swept", "pomo"), ("other", "rloo")):
        studies = [BANDITS.study(algorithm, rollouts=n, controls=False) for n in VALUES]
        BANDITS.keep_curve(folder / name, "rollouts", VALUES, studies)
    long = {"k": 3, "baseline": "sample_loo_scaled"}
    BANDITS.keep(
        folder / "gaps",
        [
            BANDITS.study("pomo"),
            BANDITS.study("rloo", num_replicates=1),
            BANDITS.study("maxk", options=long, extended=False),
            BANDITS.study("grpo", num=3),
        ],
    )
    with Writer(folder / "training") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"reward": 1.0}))
    return folder


def looked(folder: Path, *runs: str, **options: str) -> Json:
    """The view as the page gets it."""
    index = RunIndex(folder)
    pairs = [*(("run", run) for run in runs), *options.items()]
    found: Json = json.loads(
        encode(answer(index, Diagnoses(index), "estimators", parse_query(pairs)))
    )
    return found


def charts(view: Json) -> dict[str, Json]:
    by_id = {chart["id"]: chart for chart in view["charts"]}
    assert len(by_id) == len(view["charts"]), "every chart has an id of its own"
    return by_id


def table(folder: Path, name: str = "replicates") -> Any:
    with gm.load(folder) as run:
        return run.table(name).content


def ends(of: Json, *found: list[Any]) -> bool:
    return [of["low"], of["high"]] == list(map(list, zip(*found, strict=True)))


@pytest.mark.slow
def test_ratios_are_the_comparisons_with_their_intervals_on_a_log_axis(root: Path) -> None:
    view, kept = looked(root, "compared"), table(root / "compared", "comparison")
    chart = charts(view)["ratio"]
    (marks,) = chart["marks"]
    ratios = [row["variance_ratio"] for row in kept["rows"]]
    assert marks["x"] == NAMES
    assert [
        list(each) for each in zip(marks["y"], marks["low"], marks["high"], strict=True)
    ] == ratios
    assert chart["y"]["scale"] == "log"
    assert [level["value"] for level in chart["levels"]] == [1]
    assert chart["subtitle"] == " ".join(kept["sentences"])
    assert view["header"][: len(kept["sentences"])] == kept["sentences"]
    assert len(kept["sentences"]) == 2
    assert marks["notes"][2] == "may be chance: the interval includes 1"


def test_variance_signal_and_controls_are_the_records(root: Path) -> None:
    found, records = charts(looked(root, "compared")), table(root / "compared")
    (trace,) = found["trace"]["marks"]
    assert trace["y"] == [record["extended"]["trace"]["value"] for record in records]
    assert ends(
        trace, *([r["extended"]["trace"]["low"], r["extended"]["trace"]["high"]] for r in records)
    )
    assert found["trace"]["y"]["scale"] == "log"
    own, *controls = found["snr"]["bars"]
    numbers = {"as measured": [record["extended"]["snr"] for record in records]}
    for name in ("shuffled_rewards", "random_policy"):
        numbers[f"with {name.replace('_', ' ')}"] = [
            r["extended"]["controls"][name]["snr"] for r in records
        ]
    assert [bars["label"] for bars in (own, *controls)] == list(numbers)
    for bars in (own, *controls):
        assert bars["categories"] == NAMES
        for end in ("value", "low", "high"):
            shown = bars["values" if end == "value" else end]
            assert shown == [each[end] for each in numbers[bars["label"]]]


def test_the_clouds_are_every_replicate(root: Path) -> None:
    found, records = charts(looked(root, "compared")), table(root / "compared")
    for marks, name, record in zip(found["cloud"]["marks"], NAMES, records, strict=True):
        assert marks["label"] == name
        assert marks["x"] == record["per_replicate"]["grad_norm"]
        assert marks["y"] == record["per_replicate"]["grad_proj"]
        assert len(marks["x"]) == len(marks["notes"]) == 3
    for id, quantity in (("replicate-norm", "grad_norm"), ("replicate-projection", "grad_proj")):
        *each, means = found[id]["marks"]
        assert [marks["y"] for marks in each] == [
            record["per_replicate"][quantity] for record in records
        ]
        assert [marks["x"] for marks in each] == [[name] * 3 for name in NAMES]
        mean = [record["metrics"][f"{quantity}_mean"] for record in records]
        std = [record["metrics"][f"{quantity}_std"] for record in records]
        assert means["y"] == mean
        np.testing.assert_allclose(
            [means["low"], means["high"]], [np.subtract(mean, std), np.add(mean, std)], rtol=1e-12
        )
    variances = [record["extended"]["projections"]["variance"] for record in records]
    assert [marks["y"] for marks in found["projections"]["marks"]] == variances
    assert len(variances[0]) == 64


def test_weights_are_the_records(root: Path) -> None:
    found, records = charts(looked(root, "compared")), table(root / "compared")
    absolute, signed = found["ess"]["bars"]
    assert absolute["values"] == [
        record["extended"]["concentration"]["ess_abs"] for record in records
    ]
    assert signed["values"] == [record["metrics"]["ess_mean_mean"] for record in records]
    assert [level["value"] for level in found["ess"]["levels"]] == [6]
    (top,) = found["top-share"]["bars"]
    assert top["values"] == [record["extended"]["concentration"]["top_share"] for record in records]
    cells = found["numbers"]["table"]["cells"]
    assert [row[0] for row in cells] == NAMES
    assert [row[1] for row in cells] == [3, 3, 3]


def test_a_sweep_is_a_curve_in_order_with_its_answer(root: Path) -> None:
    view, kept, records = (
        looked(root, "swept"),
        table(root / "swept", "curve"),
        table(root / "swept"),
    )
    found = charts(view)
    chart = found["curve-snr"]
    (marks,) = chart["marks"]
    order = sorted(range(3), key=VALUES.__getitem__)
    assert marks["x"] == [2, 8, 32]
    assert [list(each) for each in zip(marks["y"], marks["low"], marks["high"], strict=True)] == [
        kept["snr"][place] for place in order
    ]
    assert marks["joined"]
    assert (chart["x"]["scale"], chart["subtitle"], view["header"][0]) == (
        "log",
        kept["answer"],
        kept["answer"],
    )
    assert found["curve-trace"]["marks"][0]["y"] == [
        records[place]["extended"]["trace"]["value"] for place in order
    ]
    ess = [records[place]["extended"]["concentration"]["ess_abs"] for place in order]
    assert found["curve-ess"]["marks"][0]["y"] == ess
    assert "ratio" not in found


def test_curves_of_several_runs_lie_on_one_chart_and_a_control_says_whose_study_it_is(
    root: Path,
) -> None:
    view = looked(root, "training", "compared", "swept", "other")
    (control,) = view["controls"]
    assert (control["name"], control["value"]) == ("study", "compared")
    assert [option["value"] for option in control["options"]] == ["compared", "swept", "other"]
    assert "curve-snr" not in charts(view)
    chosen = charts(looked(root, "training", "compared", "swept", "other", study="other"))[
        "curve-snr"
    ]
    assert [(marks["run"], marks["label"]) for marks in chosen["marks"]] == [
        ("other", "other"),
        ("swept", "swept"),
    ]
    assert chosen["subtitle"] == table(root / "other", "curve")["answer"]
    for marks in chosen["marks"]:
        kept = table(root / marks["run"], "curve")
        assert sorted(marks["y"]) == sorted(snr[0] for snr in kept["snr"])
    assert looked(root, "swept")["controls"] == []


def test_a_study_that_is_not_there_is_an_error_that_says_where_they_are(root: Path) -> None:
    with pytest.raises(UnknownName, match=r"replicates are in compared, swept"):
        looked(root, "compared", "swept", study="training")


def test_what_is_undefined_has_no_mark_and_a_reason(root: Path) -> None:
    found, records = charts(looked(root, "gaps")), table(root / "gaps")
    names = [record["config"]["label"] for record in records]
    (trace,) = found["trace"]["marks"]
    assert trace["x"] == names
    assert [value is None for value in trace["y"]] == [False, True, True, False]
    assert [value is None for value in trace["low"]] == [False, True, True, True]
    said = found["trace"]["subtitle"]
    assert f"{names[1]}: undefined: 1 replicate" in said
    assert f"{names[2]}: not measured" in said
    assert f"No interval, too few units: {names[3]}" in said
    *_, means = found["replicate-norm"]["marks"]
    assert [value is None for value in means["low"]] == [False, True, False, False]
    assert means["y"] == [record["metrics"]["grad_norm_mean"] for record in records]
    cells = found["numbers"]["table"]["cells"]
    assert cells[1][3] == "undefined: 1 replicate"
    assert cells[2][3] == "not measured"


def test_bias_and_what_was_measured_stand_in_the_header(root: Path) -> None:
    view, records = looked(root, "compared"), table(root / "compared")
    said = "\n".join(view["header"])
    assert (
        "12 instances · 6 rollouts · 3 replicates · mean reduction · 95 % intervals over 12 units"
        " of instances" in said
    )
    for source in records[0]["extended"]["bias"]:
        assert f"Biased (plain, again): {source}." in view["header"]
    assert records[0]["extended"]["bias"]


def test_a_training_without_replicates_says_how_to_take_them(root: Path) -> None:
    for folder, run in ((root, "training"), (FIXTURES, "sb3_ppo")):
        view = looked(folder, run)
        assert view["charts"] == view["controls"] == []
        assert "gradiometer variance --ckpt_path" in view["empty"]["code"]
        assert "--curve rollouts" in view["empty"]["code"]


def test_a_log_that_has_only_the_series_shows_those(root: Path, tmp_path: Path) -> None:
    """As after `gradiometer export` to another tool: records are gone, numbers are not."""
    with gm.load(root / "compared") as run:
        read = {name: run.series(name) for name in run.names()}
    rows: dict[int, Json] = {}
    for name, (steps, values) in read.items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            rows.setdefault(step, {"step": step})[name] = value if math.isfinite(value) else "NaN"
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "metrics.jsonl").write_text(
        "\n".join(json.dumps(rows[step]) for step in sorted(rows)) + "\n"
    )
    found = charts(looked(tmp_path))
    records = {record["config"]["label"]: record for record in table(root / "compared")}
    assert len(records) == 2, "two of the three are of one algorithm and share their series"
    last = {record["config"]["label"]: record for record in table(root / "compared")}
    (trace,) = found["trace"]["marks"]
    assert dict(zip(trace["x"], trace["y"], strict=True)) == {
        label: record["extended"]["trace"]["value"] for label, record in last.items()
    }
    assert {marks["label"]: marks["y"] for marks in found["cloud"]["marks"]} == {
        label: record["per_replicate"]["grad_proj"] for label, record in last.items()
    }
    assert "ratio" not in found


def test_records_of_another_shape_are_an_error_and_a_table_of_that_name_in_a_training_is_not(
    tmp_path: Path,
) -> None:
    for run, values in (("study", {"variance/pomo/grad_norm": 1.0}), ("training", {"reward": 1.0})):
        with Writer(tmp_path / run) as writer:
            writer.put(Row(step=0, wall_time=0.0, values=values))
            writer.put(Table(step=0, name="replicates", content=[{"mine": 1}]))
    with pytest.raises(UsageError, match="is not what `gradiometer variance` keeps"):
        looked(tmp_path, "study")
    assert looked(tmp_path, "training")["empty"] is not None


@pytest.mark.slow
def test_a_gradient_that_does_not_vary_is_nan_and_not_missing(tmp_path: Path) -> None:
    still = [
        BANDITS.study("pomo", kind=BANDITS.Still, random_policy=None),
        BANDITS.study("rloo", kind=BANDITS.Still),
    ]
    BANDITS.keep_comparison(tmp_path / "still", still)
    found = charts(looked(tmp_path, "still"))
    assert found["snr"]["bars"][0]["values"] == ["NaN", "NaN"]
    assert found["ratio"]["marks"][0]["y"] == ["NaN", "NaN"]
