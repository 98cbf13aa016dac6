"""The tab Terms shows the run's own numbers: every bar, cell, point and line is a value of its
series or tables."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradiometer as gm
from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import parse_query
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.errors import UnknownName
from gradiometer.records import Row, Table
from gradiometer.store.writer import Writer

FIXTURES = Path(__file__).parents[1] / "fixtures"
KINDS = {
    "norm as measured": "{bucket}/{term}",
    "signal, noise taken off": "{bucket}/signal/{term}",
    "noise": "{bucket}/noise/{term}",
    "norm, rewards shuffled": "{bucket}/null/{term}",
    "signal, rewards shuffled": "{bucket}/null_signal/{term}",
}
ENDS = {
    "signal": ("signal_low", "signal_high"),
    "null_signal": ("null_signal_low", "null_signal_high"),
}
BY_TERM = ("snr", "share", "per_sample", "per_token", "per_sample_sum", "per_token_sum")

Json = dict[str, Any]


def beside(name: str) -> ModuleType:
    """A file of tests/plots; tests are no package."""
    spec = importlib.util.spec_from_file_location(
        name, Path(__file__).parents[1] / "plots" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SYNTHETIC = beside("synthetic")


def looked(folder: Path, *runs: str, **options: str) -> Json:
    """The view as the page gets it."""
    index = RunIndex(folder)
    pairs = [("run", run) for run in runs] + [
        (name.rstrip("_"), value) for name, value in options.items()
    ]
    found: Json = json.loads(encode(answer(index, Diagnoses(index), "terms", parse_query(pairs))))
    return found


def charts(view: Json) -> dict[str, Json]:
    by_id = {chart["id"]: chart for chart in view["charts"]}
    assert len(by_id) == len(view["charts"]), "every chart has an id of its own"
    return by_id


def control(view: Json, name: str) -> Json:
    (found,) = [each for each in view["controls"] if each["name"] == name]
    return dict(found)


def at_step(folder: Path, step: int) -> dict[str, float]:
    """Every series that has a value at the step."""
    with gm.load(folder) as run:
        read = {name: run.series(name) for name in run.names()}
    return {
        name: float(values[steps == step][0])
        for name, (steps, values) in read.items()
        if step in steps
    }


def check_lines(folder: Path, chart: Json) -> set[str]:
    """Each line is its series, to the last bit; which series those are."""
    seen = set()
    for line in chart["lines"]:
        with gm.load(folder / line["run"]) as run:
            steps, values = run.series(line["name"])
        assert line["points"]["steps"] == steps.tolist()
        spoken = [value if math.isfinite(value) else "NaN" for value in values.tolist()]
        assert line["points"]["values"] == spoken, line["name"]
        seen.add(line["name"])
    return seen


@pytest.fixture
def analysed(tmp_path: Path) -> Path:
    SYNTHETIC.write_run(tmp_path / "soko", steps=(1, 11, 21))
    return tmp_path


def bar_names(view: Json) -> Iterator[tuple[str, Any]]:
    """What each number of the bar charts should be called in the run, with the number."""
    for id, chart in charts(view).items():
        for bars in chart["bars"]:
            for place, category in enumerate(bars["categories"]):
                bucket = category.replace(" ", "_")
                name = bar_name(id, bars["label"], bucket)
                yield f"grad_norm/{name}", bars["values"][place]
                kind = name.split("/")[1]
                for end, ends in zip(("low", "high"), ENDS.get(kind, ()), strict=False):
                    yield (
                        f"grad_norm/{name.replace(f'/{kind}/', f'/{ends}/')}",
                        (bars[end] or [None] * 99)[place],
                    )
                if id == "reward-std":
                    yield f"grad_norm/{bucket}/reward_std_min", bars["low"][place]
                    yield f"grad_norm/{bucket}/reward_std_max", bars["high"][place]


def bar_name(id: str, label: str, bucket: str) -> str:
    if id == "norm":
        return f"{bucket}/{label}"
    if id.startswith("signal-"):
        return KINDS[label].format(bucket=bucket, term=id.removeprefix("signal-"))
    if id.startswith("loss-"):
        return f"{bucket}/loss/{label}"
    if id in BY_TERM:
        return f"{bucket}/{id}/{label}"
    return f"{bucket}/{ {'reward-std': 'reward_std_mean', 'groups': 'group_rv_count'}[id] }"


@pytest.mark.parametrize("step", [1, 11, 21])
def test_every_bar_is_the_analysis_own_number_and_nothing_measured_is_left_out(
    analysed: Path, step: int
) -> None:
    values = at_step(analysed / "soko", step)
    shown: set[str] = set()
    for name, number in bar_names(looked(analysed, "soko", step=str(step))):
        assert number == values.get(name), name
        shown |= {name} if number is not None else set()
    elsewhere = ("sample_count", "sample_pct", "token_count")
    wanted = {
        name
        for name in values
        if name.startswith("grad_norm/")
        and not {"cos", "cos_signal", "between", "p_value"} & set(name.split("/"))
        and not name.endswith(elsewhere)
        and not (name.endswith("/total") and "per_" in name)
    }
    assert shown == wanted
    assert len(shown) > 300


def test_a_missing_bar_is_null_and_the_note_says_what_a_bar_rests_on(analysed: Path) -> None:
    found = charts(looked(analysed, "soko", step="1"))
    kl = next(bars for bars in found["norm"]["bars"] if bars["label"] == "kl")
    assert kl["categories"][1] == "bucket 2"
    assert kl["values"][1] is None
    values = at_step(analysed / "soko", 1)
    task = next(bars for bars in found["snr"]["bars"] if bars["label"] == "task")
    assert (
        task["notes"][0]
        == f"192 samples, 12 groups, sign-flip p = {values['grad_norm/bucket_1/p_value/task']:.3g}"
    )
    assert found["signal-task"]["subtitle"] == "No interval, fewer than 4 groups: bucket 6"
    assert found["norm"]["y"]["scale"] == "log"
    assert found["signal-task"]["y"]["scale"] == "linear"


def test_counts_and_groups_are_those_of_the_tables(analysed: Path) -> None:
    found = charts(looked(analysed, "soko", step="11"))
    values = at_step(analysed / "soko", 11)
    columns = (
        "sample_count",
        "sample_pct",
        "group_rv_count",
        "token_count",
        *(f"reward_std_{e}" for e in ("mean", "min", "max")),
    )
    for cells in found["counts"]["table"]["cells"]:
        bucket = cells[0].replace(" ", "_")
        assert cells[1:] == [values[f"grad_norm/{bucket}/{column}"] for column in columns]
    assert len(found["counts"]["table"]["cells"]) == 7
    (marks,) = found["group-scatter"]["marks"]
    tables = SYNTHETIC.group_tables(11)
    wanted = [row for table in tables.values() for row in table["data"]]
    drawn = zip(marks["x"], marks["notes"], marks["y"], strict=True)
    assert [
        [x.replace(" ", "_"), int(note.removeprefix("group ")), y] for x, note, y in drawn
    ] == wanted


def test_cosine_matrices_are_the_series_and_symmetric(analysed: Path) -> None:
    values = at_step(analysed / "soko", 21)
    for bucket in ("all", "bucket_2", "bucket_4"):
        found = charts(looked(analysed, "soko", bucket=bucket))
        for id, kind in (("cosines", "cos"), ("cosines-signal", "cos_signal")):
            matrix = found[id]["matrix"]
            assert (matrix["low"], matrix["high"], matrix["colours"], matrix["written"]) == (
                -1,
                1,
                "diverging",
                True,
            )
            for (i, a), (j, b) in combinations(enumerate(matrix["rows"]), 2):
                wanted = values.get(f"grad_norm/{bucket}/{kind}/{a}~{b}")
                assert matrix["cells"][i][j] == matrix["cells"][j][i] == wanted
            assert [matrix["cells"][i][i] for i in range(3)] == [1, 1, 1]
    matrix = found["cosines-buckets"]["matrix"]
    for pair, row in zip(matrix["rows"], matrix["cells"], strict=True):
        names = [
            f"grad_norm/{b.replace(' ', '_')}/cos/{pair.replace(' ', '')}"
            for b in matrix["columns"]
        ]
        assert row == [values.get(name) for name in names]


def test_cosines_between_buckets_are_of_the_chosen_term(analysed: Path) -> None:
    values = at_step(analysed / "soko", 21)
    for term in ("task", "kl"):
        view = looked(analysed, "soko", term=term)
        assert control(view, "term")["value"] == term
        matrix = charts(view)["between"]["matrix"]
        for (i, a), (j, b) in combinations(enumerate(matrix["rows"]), 2):
            name = f"grad_norm/between/{term}/{a}~{b}".replace(" ", "_")
            assert matrix["cells"][i][j] == matrix["cells"][j][i] == values.get(name)


def test_the_slider_goes_over_analysis_steps_and_starts_at_the_last(analysed: Path) -> None:
    view = looked(analysed, "soko")
    slider = control(view, "step")
    assert (slider["kind"], slider["value"]) == ("slider", "21")
    assert [option["value"] for option in slider["options"]] == ["1", "11", "21"]
    assert "step 21" in charts(view)["norm"]["section"]
    assert view["header"] == [
        "Analysis at step 21: the unit is the group · token-mean · quantile buckets · exact"
        " gradients"
    ]


def test_analyses_in_a_row_are_lines_of_all_runs_while_pictures_are_of_the_first(
    analysed: Path,
) -> None:
    SYNTHETIC.write_run(analysed / "other", steps=(3, 13), null=False)
    view = looked(analysed, "other", "soko", bucket="bucket_3")
    found = charts(view)
    seen = check_lines(analysed, found["analysis-norm"])
    assert seen == {f"grad_norm/bucket_3/{term}" for term in (*SYNTHETIC.TERMS, "total")}
    assert {line["run"] for line in found["analysis-norm"]["lines"]} == {"other", "soko"}
    assert found["analysis-norm"]["lines"][0]["label"] == "other · task"
    assert found["analysis-norm"]["lines"][0]["role"] == "term:task"
    assert check_lines(analysed, found["analysis-snr"]) == {
        f"grad_norm/bucket_3/snr/{t}" for t in SYNTHETIC.TERMS
    }
    assert check_lines(analysed, found["analysis-signal"]) == {
        f"grad_norm/bucket_3/signal/{t}" for t in SYNTHETIC.TERMS
    }
    assert [option["value"] for option in control(view, "step")["options"]] == ["3", "13"]
    assert found["norm"]["section"] == "Analysis at step 13 of other"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("step", "12", "(there are 1, 11, 21)"),
        ("step", "last", "(there are 1, 11, 21)"),
        ("bucket", "bucket_9", "bucket_1"),
        ("term", "policy", "task"),
    ],
)
def test_what_the_analysis_does_not_have_is_an_error_that_says_what_there_is(
    analysed: Path, option: str, value: str, said: str
) -> None:
    with pytest.raises(UnknownName, match=value) as problem:
        looked(analysed, "soko", **{option: value})
    assert said in str(problem.value)


def test_a_group_table_of_another_shape_is_explained_in_its_place(analysed: Path) -> None:
    with Writer(analysed / "odd") as writer:
        writer.put(Row(step=1, wall_time=0.0, values=SYNTHETIC.metrics(1)))
        writer.put(
            Table(
                step=1,
                name="grad_norm/all/group_rv_table",
                content={"columns": ["bucket"], "data": [["all"]]},
            )
        )
    scatter = charts(looked(analysed, "odd"))["group-scatter"]
    assert scatter["marks"] == []
    assert "grad_norm/all/group_rv_table" in scatter["empty"]["cause"]


def test_a_zero_norm_that_a_log_axis_cannot_show_is_said(tmp_path: Path) -> None:
    values = {"grad_norm/all/sample_count": 8.0, "grad_norm/all/task": 0.5, "grad_norm/all/kl": 0.0}
    with Writer(tmp_path / "r") as writer:
        writer.put(Row(step=4, wall_time=0.0, values=values))
    norm = charts(looked(tmp_path, "r"))["norm"]
    assert norm["subtitle"] == "entropy: no such term in this analysis; kl is exactly 0 in all"
    assert {bars["label"]: bars["values"] for bars in norm["bars"]} == {"task": [0.5], "kl": [0.0]}


def test_a_log_of_somebody_else_with_the_source_keys_is_shown(tmp_path: Path) -> None:
    keys = {
        f"grad_norm/{b}/{t}": 0.1 * i
        for i, b in enumerate(("all", "bucket_1"))
        for t in ("task", "entropy")
    }
    keys |= {"grad_norm/all/sample_count": 9.0, "grad_norm/bucket_1/sample_count": 3.0}
    rows = [
        {"step": 1, **keys},
        {"step": 2, "reward": 1.0},
        {"step": 51, **keys, "grad_norm/all/task": math.nan},
    ]
    lines = "\n".join(json.dumps(row).replace("NaN", '"NaN"') for row in rows)
    (tmp_path / "ragen").mkdir()
    (tmp_path / "ragen" / "metrics.jsonl").write_text(lines + "\n")
    (id,) = RunIndex(tmp_path).ids()
    view = looked(tmp_path, id)
    assert [option["value"] for option in control(view, "step")["options"]] == ["1", "51"]
    norm = charts(view)["norm"]
    assert {bars["label"]: bars["values"] for bars in norm["bars"]} == {
        "task": [0.1, "NaN"],
        "entropy": [0.1, 0.0],
    }
    assert norm["bars"][0]["categories"] == ["bucket 1", "all"]
    assert "signal-task" not in charts(view)


@pytest.mark.parametrize("log", ["sb3_ppo", "cleanrl_ppo", "trl_grpo"])
def test_a_log_without_terms_says_how_to_get_them(log: str) -> None:
    view = looked(FIXTURES, next(id for id in RunIndex(FIXTURES).ids() if id.startswith(log)))
    assert view["charts"] == view["controls"] == []
    assert "meter.terms(policy=" in view["empty"]["code"]
    assert "gradiometer analyze" in view["empty"]["code"]


def meter_values(step: int) -> dict[str, float]:
    """As the meter writes them: policy and entropy reach the actor, value the critic; the bonus is
    dead later."""
    rng = np.random.default_rng(step)
    reached = {
        "all": ("policy", "entropy", "value"),
        "actor": ("policy", "entropy"),
        "layer.actor.0": ("policy", "entropy"),
    }
    values: dict[str, float] = {}
    for block, terms in reached.items():
        for term in terms:
            values[f"grad/{block}/term/{term}/norm"] = float(rng.uniform(0.1, 1))
            values[f"grad/{block}/term/{term}/share"] = float(rng.normal())
        for a, b in combinations(terms, 2):
            values[f"grad/{block}/term/{a}~{b}/cos"] = float(np.tanh(rng.normal()))
    values |= {
        f"grad/all/term/{term}/loss": float(rng.normal()) for term in ("policy", "entropy", "value")
    }
    values |= {"grad/actor/term/policy/norm": math.nan} if step == 20 else {}
    if step == 40:
        del values["grad/all/term/entropy~value/cos"]
    return values | {"grad/all/term/additivity_error": 4e-7, "grad/all/term/scale": 1.0}


def write_meter(folder: Path, steps: range = range(0, 50, 10)) -> Path:
    states = {
        term: {"all": "path", "actor": "path", "critic": "none"} for term in ("policy", "entropy")
    }
    states |= {"value": {"all": "path", "actor": "none", "critic": "path"}}
    with Writer(folder, facts={"started": "2026-01-01T00:00:00+00:00"}) as writer:
        writer.put(Table(step=0, name="terms", content=states))
        for step in range(steps.stop):
            values = {"reward": float(step)} | (meter_values(step) if step in steps else {})
            writer.put(Row(step=step, wall_time=float(step), values=values))
    return folder


def test_what_the_meter_split_is_shown_line_by_line_on_the_chosen_block(tmp_path: Path) -> None:
    write_meter(tmp_path / "ppo")
    for block, terms in (("actor", ("policy", "entropy")), ("all", ("policy", "entropy", "value"))):
        view = looked(tmp_path, "ppo", **({} if block == "actor" else {"block": block}))
        assert control(view, "block")["value"] == block
        assert [o["value"] for o in control(view, "block")["options"]] == [
            "all",
            "actor",
            "layer.actor.0",
        ]
        found = charts(view)
        for quantity in ("norm", "share"):
            wanted = {f"grad/{block}/term/{term}/{quantity}" for term in terms}
            assert check_lines(tmp_path, found[f"term-{quantity}"]) == wanted
        pairs = {f"grad/{block}/term/{a}~{b}/cos" for a, b in combinations(terms, 2)}
        assert check_lines(tmp_path, found["term-cos"]) == pairs
        losses = {f"grad/all/term/{term}/loss" for term in ("policy", "entropy", "value")}
        assert check_lines(tmp_path, found["term-loss"]) == losses
        assert check_lines(tmp_path, found["additivity"]) == {"grad/all/term/additivity_error"}
    assert found["term-norm"]["y"]["scale"] == found["additivity"]["y"]["scale"] == "log"
    assert [line["label"] for line in found["term-norm"]["lines"]] == ["policy", "entropy", "value"]
    assert found["term-norm"]["info"][0]["name"] == "grad/<block>/term/<term>/norm"


def test_the_latest_cosines_are_of_the_last_measured_step_and_a_missing_pair_is_missing(
    tmp_path: Path,
) -> None:
    write_meter(tmp_path / "ppo")
    for options, step in (({}, 40), ({"to": "35"}, 30)):
        chart = charts(looked(tmp_path, "ppo", block="all", **options))["term-cosines"]
        assert chart["title"].endswith(f"step {step}")
        matrix, values = chart["matrix"], at_step(tmp_path / "ppo", step)
        assert matrix["rows"] == ["policy", "entropy", "value"]
        for (i, a), (j, b) in combinations(enumerate(matrix["rows"]), 2):
            assert (
                matrix["cells"][i][j]
                == matrix["cells"][j][i]
                == values.get(f"grad/all/term/{a}~{b}/cos")
            )
    assert at_step(tmp_path / "ppo", 40).get("grad/all/term/entropy~value/cos") is None


def test_a_block_nobody_has_is_an_error_that_says_which_there_are(tmp_path: Path) -> None:
    write_meter(tmp_path / "ppo")
    with pytest.raises(UnknownName, match="did you mean 'actor'"):
        looked(tmp_path, "ppo", block="actr")


def test_several_runs_overlay_and_the_dead_term_of_each_is_named(tmp_path: Path) -> None:
    write_meter(tmp_path / "a")
    write_meter(tmp_path / "b")
    dead = {"policy": {"all": "path", "actor": "path"}, "entropy": {"all": "none", "actor": "none"}}
    with Writer(tmp_path / "b", resume=True) as writer:
        writer.put(Table(step=49, name="terms", content=dead))
    view = looked(tmp_path, "a", "b")
    lines = charts(view)["term-norm"]["lines"]
    check_lines(tmp_path, charts(view)["term-norm"])
    assert [line["label"] for line in lines] == [
        "a · policy",
        "a · entropy",
        "b · policy",
        "b · entropy",
    ]
    assert view["header"][0].startswith("entropy has no gradient path in b.")
    first = charts(looked(tmp_path, "b", "a"))["reach"]
    assert first["section"] == "Reach of the terms of b"
    assert first["table"]["cells"][0][:3] == ["entropy", "none", "none"]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(3, 2), nn.Linear(3, 1)


def train(folder: Path, *, detached: bool) -> Path:
    torch.manual_seed(0)
    model, states = Pair(), torch.randn(16, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(
        model, optimizer, run=folder, blocks={"actor": "actor", "critic": "critic"}, budget=None
    ) as meter:
        for _ in range(4):
            logs = model.actor(states).log_softmax(-1)
            entropy = 0.01 * (logs.exp() * logs).sum(-1).mean()
            value = (model.critic(states) - 1).square().mean()
            with meter.terms(
                policy=-logs[:, 0].mean(),
                value=value,
                entropy=entropy.detach() if detached else entropy,
            ) as loss:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def test_a_real_entropy_bonus_without_a_path_stands_first(tmp_path: Path) -> None:
    train(tmp_path / "broken", detached=True)
    train(tmp_path / "healthy", detached=False)
    view = looked(tmp_path, "broken")
    found = charts(view)
    assert view["charts"][0]["id"] == "reach"
    assert found["reach"]["title"] == "entropy: no gradient path"
    table = found["reach"]["table"]
    assert table["columns"] == ["term", "all", "actor", "critic", "in words"]
    assert table["cells"] == [
        [
            "entropy",
            "none",
            "none",
            "none",
            "no gradient path: in the loss, but it trains no weight",
        ],
        ["policy", "path", "path", "none", ""],
        ["value", "path", "none", "path", ""],
    ]
    assert (
        found["term-norm"]["subtitle"]
        == "entropy has no gradient path: it is in the loss, but it trains no weight. No path to"
        " actor: value."
    )
    assert view["header"][0].startswith("entropy has no gradient path. ")
    assert check_lines(tmp_path, found["term-norm"]) == {"grad/actor/term/policy/norm"}
    assert check_lines(tmp_path, found["term-loss"]) == {
        f"grad/all/term/{t}/loss" for t in ("policy", "entropy", "value")
    }
    well = looked(tmp_path, "healthy")
    assert well["header"] == []
    assert charts(well)["term-norm"]["subtitle"] == "No path to actor: value."
    assert check_lines(tmp_path, charts(well)["term-norm"]) == {
        f"grad/actor/term/{t}/norm" for t in ("policy", "entropy")
    }
    assert "grad/actor/term/policy~entropy/cos" in check_lines(tmp_path, charts(well)["term-cos"])


def test_a_real_analysis_is_shown_with_its_dead_term(tmp_path: Path) -> None:
    beside("test_real").probe(tmp_path / "probed")
    view = looked(tmp_path, "probed")
    values = at_step(tmp_path / "probed", 1)
    numbers = list(bar_names(view))
    assert [number for _, number in numbers] == [values.get(name) for name, _ in numbers]
    assert sum(number is not None for _, number in numbers) > 150
    assert charts(view)["norm"]["subtitle"] == "entropy: no gradient path in this analysis"
    assert "no gradient path: entropy" in view["header"][0]


def test_rewards_of_their_own_are_shown_like_terms(tmp_path: Path) -> None:
    values = {
        f"grad/all/reward/{name}/{what}": 0.5
        for name in ("correct", "format")
        for what in ("norm", "share")
    }
    values |= {"grad/all/reward/correct~format/cos": -0.25}
    with Writer(tmp_path / "r") as writer:
        writer.put(Row(step=0, wall_time=0.0, values=values))
    found = charts(looked(tmp_path, "r"))
    assert check_lines(tmp_path, found["reward-norm"]) | check_lines(
        tmp_path, found["reward-cos"]
    ) == {
        "grad/all/reward/correct/norm",
        "grad/all/reward/format/norm",
        "grad/all/reward/correct~format/cos",
    }


def test_an_additivity_error_of_exactly_zero_gets_an_axis_that_shows_it(tmp_path: Path) -> None:
    for run, errors in (("zero", (0.0, 0.0)), ("one", (0.0, 1e-7))):
        with Writer(tmp_path / run) as writer:
            for step, error in enumerate(errors):
                values = {"grad/all/term/additivity_error": error, "grad/all/term/task/norm": 1.0}
                writer.put(Row(step=step, wall_time=0.0, values=values))
    scales = {
        run: charts(looked(tmp_path, run))["additivity"]["y"]["scale"] for run in ("zero", "one")
    }
    assert scales == {"zero": "linear", "one": "log"}


def test_a_tick_brings_new_points_and_a_new_analysis_only(tmp_path: Path) -> None:
    index = RunIndex(tmp_path)
    diagnoses = Diagnoses(index)

    def tick(after: str) -> Json:
        told: Json = json.loads(
            encode(answer(index, diagnoses, "terms", parse_query([("run", "r"), ("after", after)])))
        )
        return told

    def put(step: int, values: Mapping[str, float]) -> None:
        writer.put(Row(step=step, wall_time=float(step), values=values))
        writer.flush()

    with Writer(tmp_path / "r", facts={"started": "then"}) as writer:
        put(0, meter_values(0) | SYNTHETIC.metrics(0))
        whole = tick("")
        still = tick(whole["cursor"])
        assert (still["delta"], still["charts"], still["parts"]) == (True, [], [])
        put(1, meter_values(1))
        more = tick(still["cursor"])
        assert more["delta"]
        fresh = {
            line["name"]: line["points"]["steps"]
            for chart in more["charts"]
            for line in chart["lines"]
        }
        assert fresh["grad/actor/term/policy/norm"] == [1]
        assert set(map(tuple, fresh.values())) == {(1,)}
        put(2, SYNTHETIC.metrics(2))
        last = tick(more["cursor"])
        assert "controls" in last["parts"]
        assert "step 2" in charts(last)["norm"]["section"]
        assert charts(last)["norm"]["bars"] == charts(tick(""))["norm"]["bars"]


def test_neither_tab_imports_torch_or_matplotlib() -> None:
    script = (
        "import sys; import gradiometer.dashboard.views.terms,"
        " gradiometer.dashboard.views.estimators; print(sorted({'torch', 'matplotlib'} &"
        " set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
