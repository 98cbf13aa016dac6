"""What the figures are drawn from is the same, whichever log it comes out of."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from types import ModuleType

import pytest

import gradiometer
from gradiometer.charts.analysis import AnalysisStep, from_flat, read_analysis
from gradiometer.errors import UsageError
from gradiometer.metrics import CATALOGUE
from gradiometer.records import Row, Table
from gradiometer.store.importers import open_log
from gradiometer.store.writer import Writer

ROOMS = [Path(gradiometer.__file__).parent / room for room in ("charts", "plots")]


def test_no_metric_key_is_born_in_charts_or_plots() -> None:
    found = set()
    for file in (file for room in ROOMS for file in room.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= (
                    {node.value}
                    if node.value.startswith(("grad_norm/", "actor/", "trainer/"))
                    else set()
                )
    assert len(found) > 20
    assert found <= set(CATALOGUE)


def test_every_key_of_an_analysis_is_of_the_catalogue(synthetic: ModuleType) -> None:
    analysis = from_flat(synthetic.metrics(), step=1)
    assert dict(analysis.metrics) == pytest.approx(synthetic.metrics())


def test_the_steps_of_a_run_are_those_with_a_bucket(tmp_path: Path, synthetic: ModuleType) -> None:
    with open_log(synthetic.write_run(tmp_path / "run", (1, 11))) as run:
        found = read_analysis(run)
    assert list(found) == [1, 11]
    assert found[11].metrics == pytest.approx(synthetic.metrics(11))
    assert found[1].buckets == (*synthetic.BUCKETS, "all")
    assert found[1].terms == ("task", "entropy", "kl")
    assert found[1].losses == ("policy", "entropy", "kl", "total")
    assert found[1].circumstances["unit"] == "group"
    assert len(found[1].groups) == 2 * (5 * synthetic.GROUPS_EACH + 3)
    assert found[1].groups[0].bucket == "bucket_1"
    assert found[1].groups[-1].bucket == "all"


def test_a_jsonl_log_gives_the_same_analysis_as_a_run(
    tmp_path: Path, synthetic: ModuleType
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(
        json.dumps({"step": 1, "data": {**synthetic.metrics(1), **synthetic.group_tables(1)}})
    )
    from_log = read_analysis(open_log(file))[1]
    with open_log(synthetic.write_run(tmp_path / "run", (1,))) as run:
        from_run = read_analysis(run)[1]
    assert from_log.metrics == pytest.approx(dict(from_run.metrics))
    assert from_log.groups == from_run.groups


def test_missing_is_none_and_nan_is_nan() -> None:
    values = {"grad_norm/all/sample_count": 4.0, "grad_norm/all/task": math.nan}
    analysis = AnalysisStep(step=1, metrics=values)
    assert math.isnan(analysis.value("grad_norm/<bucket>/<term>", bucket="all", term="task") or 0.0)
    assert analysis.value("grad_norm/<bucket>/<term>", bucket="all", term="kl") is None
    assert analysis.measured_terms == ("task",)
    with pytest.raises(KeyError, match="not in the catalogue"):
        analysis.value("grad_norm/<bucket>/made_up", bucket="all")


def test_a_count_is_no_term_and_other_gradient_norms_are_no_analysis(tmp_path: Path) -> None:
    analysis = from_flat(
        {"grad_norm/all/sample_count": 4, "grad_norm/all/policy": 1, "grad_norm/all/value": 2},
        step=1,
    )
    assert analysis.terms == ("policy", "value")
    with Writer(tmp_path / "run") as writer:
        writer.put(
            Row(
                step=3,
                wall_time=0.0,
                values={"grad_norm": 1.0, "actor/grad_norm": 1.0, "actor/loss/policy": 1.0},
            )
        )
    with open_log(tmp_path / "run") as run:
        assert read_analysis(run) == {}


def test_ten_buckets_are_in_the_order_of_their_numbers() -> None:
    values = {
        f"grad_norm/{bucket}/sample_count": 1.0
        for bucket in ("bucket_10", "all", "bucket_9", "bucket_1")
    }
    assert AnalysisStep(step=1, metrics=values).buckets == (
        "bucket_1",
        "bucket_9",
        "bucket_10",
        "all",
    )


def test_a_group_table_of_other_columns_is_an_error(tmp_path: Path) -> None:
    with Writer(tmp_path / "run") as writer:
        content = {"columns": ["group", "std"], "data": [[1, 2.0]]}
        writer.put(Table(step=1, name="grad_norm/all/group_rv_table", content=content))
        writer.put(Row(step=1, wall_time=0.0, values={"grad_norm/all/sample_count": 4.0}))
    with (
        open_log(tmp_path / "run") as run,
        pytest.raises(UsageError, match="columns bucket, group_id, reward_std"),
    ):
        read_analysis(run)
