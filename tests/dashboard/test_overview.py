"""The tab Overview: the doctor's verdict, the few curves that matter under whatever name, health,
events and facts."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import Query
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.shape import RunCard
from gradiometer.dashboard.views.findings import card_of, verdict_of
from gradiometer.dashboard.views.overview import shortened
from gradiometer.dashboard.views.series import best, is_turned, named, reward_of, said
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.records import Event, Evidence, Finding, Row
from gradiometer.store.logs import Log
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer
from gradiometer.words import natural

FIXTURES = Path(__file__).parents[1] / "fixtures"


def write(
    folder: Path,
    series: Mapping[str, Sequence[float]],
    *,
    facts: Mapping[str, Any] | None = None,
    events: Sequence[Event] = (),
) -> None:
    """A finished run; a shorter series begins later."""
    longest = max(map(len, series.values()), default=0)
    with Writer(folder, facts={"started": folder.name, **(facts or {})}) as writer:
        for step in range(longest):
            places = {name: step - longest + len(values) for name, values in series.items()}
            values = {
                name: float(series[name][place]) for name, place in places.items() if place >= 0
            }
            writer.put(Row(step=step, wall_time=float(step), values=values))
        for event in events:
            writer.put(event)


def seen(
    root: Path, *runs: str, after: str = "", view: str = "overview", **more: Any
) -> dict[str, Any]:
    index = RunIndex(root)
    made = answer(index, Diagnoses(index), view, Query(runs=runs, after=after, **more))
    told: dict[str, Any] = json.loads(encode(made))
    return told


def charts(view: dict[str, Any]) -> dict[str, Any]:
    assert len({chart["id"] for chart in view["charts"]}) == len(view["charts"]), (
        "an id names one chart"
    )
    return {chart["id"]: chart for chart in view["charts"]}


def assert_true_to(line: dict[str, Any], root: Path) -> None:
    """A line that was not thinned holds exactly what the run holds."""
    with RunIndex(root).open(line["run"]) as log:
        steps, values = log.series(line["name"])
    assert line["points"]["steps"] == steps.tolist()
    assert [float(value) for value in line["points"]["values"]] == pytest.approx(
        values.tolist(), rel=0, nan_ok=True
    )


def opened(*names: str) -> OpenRun:
    card = RunCard(
        id="r",
        name="r",
        colour=0,
        state="still",
        newest_step=1,
        started="",
        changed=0.0,
        kind="run",
    )
    log = Log(Path("r"), name="r", run_id="r", rows=[], facts={})
    return OpenRun(card=card, log=log, names=frozenset(names))


def test_the_few_curves_are_the_runs_own_numbers(tmp_path: Path) -> None:
    write(
        tmp_path / "r",
        {
            "reward": [1, 2, 3],
            "entropy": [0.7, math.nan, 0.5],
            "approx_kl": [0.01, 0.02, 0.01],
            "value_loss": [1, 1, 1],
            "grad/all/norm/raw": [5, 6, math.inf],
            "grad/all/norm/clipped": [0.5, 0.5],
            "grad/all/norm/update": [0.1, 0.1, 0.1],
            "grad/all/clip/rate": [0, 0.5, 1],
            "grad/all/clip/active": [0, 1, 1],
        },
    )
    found = charts(seen(tmp_path, "r"))
    assert [id for id in found if found[id]["kind"] == "lines"] == [
        "reward",
        "norm",
        "entropy",
        "clip",
        "kl",
    ]
    for chart in found.values():
        for line in chart["lines"]:
            assert_true_to(line, tmp_path)
    assert [(line["name"], line["role"]) for line in found["norm"]["lines"]] == [
        (f"grad/all/norm/{stage}", stage) for stage in ("raw", "clipped", "update")
    ]
    assert found["norm"]["y"]["scale"] == "log"
    assert found["norm"]["lines"][0]["points"]["nans"] == [2]
    assert [line["name"] for line in found["clip"]["lines"]] == ["grad/all/clip/rate"], (
        "the rate says more than the flag"
    )
    assert [info["name"] for info in found["norm"]["info"]] == [
        f"grad/<block>/norm/{s}" for s in ("raw", "clipped", "update")
    ]


def test_a_run_without_a_reward_shows_its_loss(tmp_path: Path) -> None:
    write(tmp_path / "a", {"loss": [3, 2], "val/loss": [4.0], "reward_std": [1, 1]})
    write(tmp_path / "b", {"policy_loss": [1, 2], "value_loss": [3, 4]})
    write(tmp_path / "c", {"reward": [1, 2], "loss": [3, 4]})
    found = charts(seen(tmp_path, "a", "b", "c"))
    drawn = {
        id: [(line["run"], line["name"]) for line in chart["lines"]] for id, chart in found.items()
    }
    assert drawn == {
        "reward": [("c", "reward")],
        "loss": [("a", "loss")],
        "val_loss": [("a", "val/loss")],
        "policy_loss": [("b", "policy_loss")],
        "value_loss": [("b", "value_loss")],
        "norm": [],
    }


def test_a_run_without_the_whole_model_shows_its_blocks(tmp_path: Path) -> None:
    write(
        tmp_path / "r",
        {
            "grad/actor/norm/raw": [1, 1],
            "grad/critic/norm/raw": [2, 2],
            "grad/layer.x/norm/raw": [3, 3],
            "grad/actor/clip/active": [0, 1],
        },
    )
    found = charts(seen(tmp_path, "r"))
    assert [line["role"] for line in found["norm"]["lines"]] == ["block:actor", "block:critic"]
    assert [line["name"] for line in found["clip"]["lines"]] == ["grad/actor/clip/active"]


def test_logs_of_other_tools_show_the_same_curves_under_their_names() -> None:
    found = charts(seen(FIXTURES, "sb3_ppo"))
    assert [line["name"] for line in found["reward"]["lines"]] == ["rollout/ep_rew_mean"]
    (entropy,) = found["entropy"]["lines"]
    assert entropy["name"] == "train/entropy_loss"
    assert entropy["label"] == "entropy (train/entropy_loss)"
    assert min(entropy["points"]["values"]) > 0, "SB3 logs minus the entropy"
    assert "is logged as minus this" in found["entropy"]["subtitle"]
    assert found["norm"]["lines"] == []
    assert "callback=GradiometerCallback(" in found["norm"]["empty"]["code"], "as SB3 has it"
    assert re.search(r"lets \d+ more checks run", found["norm"]["empty"]["fix"])
    assert [line["name"] for line in found["policy_loss"]["lines"]] == [
        "train/policy_gradient_loss"
    ]
    assert [line["name"] for line in found["value_loss"]["lines"]] == ["train/value_loss"]
    assert "health" not in found


def test_trl_and_cleanrl_logs_too(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "trl_grpo" / "checkpoint-30", tmp_path / "trl")
    shutil.copytree(FIXTURES / "cleanrl_ppo", tmp_path / "cleanrl")
    found = charts(seen(tmp_path, "trl", "cleanrl"))
    drawn = {
        id: [(line["run"], line["name"]) for line in chart["lines"]] for id, chart in found.items()
    }
    wanted = {
        "reward": [("trl", "reward"), ("cleanrl", "charts/episodic_return")],
        "loss": [("trl", "loss")],
        "val_loss": [("trl", "eval_loss")],
        "policy_loss": [("cleanrl", "losses/policy_loss")],
        "value_loss": [("cleanrl", "losses/value_loss")],
        "norm": [("trl", "grad_norm")],
        "entropy": [("trl", "entropy"), ("cleanrl", "losses/entropy")],
        "kl": [("cleanrl", "losses/approx_kl")],
        "kl_ref": [("trl", "kl")],
    }
    assert {id: drawn.get(id) for id in wanted} == wanted
    for chart in found.values():
        for line in chart["lines"]:
            assert_true_to(line, tmp_path)


def test_of_a_log_with_unknown_names_the_first_series_are_shown(tmp_path: Path) -> None:
    write(tmp_path / "r", {"wobble": [1, 2], "fizz/buzz": [3, 4]})
    found = charts(seen(tmp_path, "r"))
    assert {id: [line["name"] for line in chart["lines"]] for id, chart in found.items()} == {
        "series-fizz/buzz": ["fizz/buzz"],
        "series-wobble": ["wobble"],
    }


def test_a_run_with_nothing_in_it_says_how_to_begin(tmp_path: Path) -> None:
    write(tmp_path / "r", {})
    view = seen(tmp_path, "r")
    assert view["charts"] == []
    assert view["empty"]["title"] == "Nothing was recorded yet"
    assert view["verdicts"][0]["severity"] == "unknown"


def test_the_strip_has_named_blocks_or_else_layers(tmp_path: Path) -> None:
    health = [1, 0.5, 0]
    write(
        tmp_path / "named",
        {f"grad/{block}/health": health for block in ("all", "critic", "actor", "layer.0")}
        | {"grad/late/norm/raw": [1.0]},
    )
    write(
        tmp_path / "layers",
        {f"grad/{block}/health": health for block in ("layer.10", "layer.9", "all")},
    )
    strip = charts(seen(tmp_path, "named"))["health"]
    assert (strip["kind"], strip["colours"], strip["reduce"]) == ("map", "health", "min")
    assert [line["label"] for line in strip["lines"]] == ["Whole model", "actor", "critic"]
    assert strip["lines"][1]["points"]["values"] == health
    assert strip["subtitle"] == "No health yet, because there is no gradient: late"
    strip = charts(seen(tmp_path, "layers"))["health"]
    assert [line["label"] for line in strip["lines"]] == ["Whole model", "9", "10"]


def test_more_layers_than_a_strip_can_show_are_left_to_the_other_tab(tmp_path: Path) -> None:
    write(
        tmp_path / "r",
        {f"grad/layer.{place}/health": [1] for place in range(100)} | {"grad/all/health": [1]},
    )
    strip = charts(seen(tmp_path, "r"))["health"]
    assert [line["name"] for line in strip["lines"]] == ["grad/all/health"]
    assert "100 layers are on the tab Gradients" in strip["subtitle"]


def test_a_run_of_a_lower_tier_is_told_which_tier_has_health(tmp_path: Path) -> None:
    write(tmp_path / "r", {"grad/all/norm/raw": [1, 2]}, facts={"meter": {"tier": "light"}})
    empty = charts(seen(tmp_path, "r"))["health"]["empty"]
    assert "'standard'" in empty["cause"]
    assert "'light'" in empty["cause"]
    assert 'tier="standard"' in empty["code"]


def test_the_verdict_is_the_doctors(tmp_path: Path) -> None:
    raw = [1.0] * 20 + [math.nan] * 10
    write(
        tmp_path / "bad",
        {"grad/all/norm/raw": raw, "grad/all/nonfinite": [0] * 20 + [1] * 10, "reward": [1] * 30},
    )
    write(tmp_path / "good", {"grad/all/norm/raw": [1.0] * 30})
    view = seen(tmp_path, "bad", "good")
    with load(tmp_path / "bad") as run:
        diagnosis = diagnose(run)
    verdict = view["verdicts"][0]
    assert (verdict["run"], verdict["text"], verdict["severity"]) == (
        "bad",
        diagnosis.verdict,
        "critical",
    )
    assert verdict["step"] == 29
    assert verdict["finding"]["id"] == diagnosis.findings[0].id == "nonfinite-gradient"
    assert sum(verdict["counts"].values()) == len(diagnosis.findings)
    assert view["verdicts"][1]["severity"] in ("fine", "unknown", "info")
    spans = {chart["id"]: chart["spans"] for chart in view["charts"] if chart["spans"]}
    assert spans == {
        "norm": [{"first": 20, "last": None, "label": "nonfinite-gradient", "severity": "critical"}]
    }


def test_every_run_has_a_verdict_and_the_focus_comes_first(tmp_path: Path) -> None:
    for name in "abcdef":
        write(tmp_path / name, {"grad/all/norm/raw": [1, 2], "grad/all/norm/update": [1, 2]})
    view = seen(tmp_path, *"fedcba")
    assert [verdict["run"] for verdict in view["verdicts"]] == list("fedcba")
    norm = charts(view)["norm"]
    assert [(line["run"], line["role"]) for line in norm["lines"]] == [
        (name, "raw") for name in "fedcba"
    ]


def test_a_card_tells_the_consequences_it_explains() -> None:
    cause = Finding(
        id="dead-term",
        title="dead",
        severity="critical",
        basis="proved",
        since_step=3,
        block="actor",
        evidence=(Evidence(series="s", reading="0", first_step=1),),
        fix=("do",),
        suppressed=("entropy-collapse", "other"),
    )
    consequence = Finding(
        id="entropy-collapse", title="it fell", severity="warn", basis="statistical"
    )
    unrelated = Finding(id="reward-plateau", title="flat", severity="warn", basis="statistical")
    card = card_of(cause, "r", folded=(consequence, unrelated), charts=("c",))
    assert card.folded == ["entropy-collapse: it fell", "other"]
    assert card.evidence == [{"series": "s", "reading": "0", "first_step": 1, "last_step": None}]
    assert (card.run, card.since_step, card.block, card.fix, card.charts) == (
        "r",
        3,
        "actor",
        ["do"],
        ["c"],
    )


def test_verdict_of_an_empty_run_is_unknown_not_fine(tmp_path: Path) -> None:
    write(tmp_path / "r", {})
    index = RunIndex(tmp_path)
    with ViewRequest(index, Diagnoses(index), Query(runs=("r",))) as request:
        verdict = verdict_of(request, request.focus)
    assert (verdict.severity, verdict.finding) == ("unknown", None)
    assert verdict.counts == {"critical": 0, "warn": 0, "info": 0}


def test_events_that_repeat_are_counted_and_routine_ones_left_out(tmp_path: Path) -> None:
    events = [
        Event(step=step, kind="skipped-step", message=f"step {step}\nmore") for step in range(60)
    ]
    write(
        tmp_path / "r",
        {"loss": [1, 2]},
        events=[*events, Event(step=61, kind="experts", message="found")],
    )
    write(
        tmp_path / "s",
        {"loss": [1, 2]},
        events=[Event(step=70, kind="dead-term", message="<b>x</b>")],
    )
    table = charts(seen(tmp_path, "r"))["events"]["table"]
    assert table["columns"] == ["first", "last", "times", "event", "what happened"]
    assert table["cells"] == [[0, 59, 60, "skipped-step", "step 59"]]
    both = charts(seen(tmp_path, "s", "r"))["events"]["table"]
    assert both["columns"][0] == "run"
    assert [row[:4] for row in both["cells"]] == [["r", 0, 59, 60], ["s", 70, 70, 1]]
    assert both["cells"][-1][-1] == "<b>x</b>"


def test_facts_of_all_runs_stand_side_by_side_and_tell_where_they_differ(tmp_path: Path) -> None:
    shared = {
        "versions": {"torch": "2"},
        "python": "3.11",
        "hardware": {"cores": 2},
        "git": {"commit": "abc"},
        "argv": ["python", "a.py"],
    }
    write(
        tmp_path / "a",
        {"loss": [1]},
        facts={**shared, "config": {"seed": 1, "optim": {"lr": 0.1, "betas": [0.9, 1]}}},
    )
    write(
        tmp_path / "b", {"loss": [1]}, facts={**shared, "config": {"seed": 2, "optim": {"lr": 0.1}}}
    )
    facts = seen(tmp_path, "a", "b")["facts"]
    told = {(fact["group"], fact["name"]): (fact["values"], fact["differs"]) for fact in facts}
    assert told["Config", "seed"] == ({"a": "1", "b": "2"}, True)
    assert told["Config", "optim.lr"] == ({"a": "0.1", "b": "0.1"}, False)
    assert told["Config", "optim.betas"] == ({"a": "[0.9, 1]"}, True)
    assert told["Versions", "torch"][0] == {"a": "2", "b": "2"}
    assert told["Git", "commit"][1] is False
    assert told["Hardware", "cores"][0]["a"] == "2"
    assert told["Run", "argv"][0]["a"] == "python a.py"
    groups = list(dict.fromkeys(fact["group"] for fact in facts))
    assert groups == ["Run", "Config", "Versions", "Hardware", "Git"]


def test_of_a_long_value_both_ends_are_kept() -> None:
    assert shortened("short") == "short"
    cut = shortened("/home/somebody/" + "x" * 500 + "/last.py")
    assert len(cut) <= 160
    assert cut.startswith("/home/somebody/")
    assert cut.endswith("/last.py")


def test_a_name_of_the_catalogue_is_found_under_ours_before_aliases_in_their_order() -> None:
    run = opened(
        "reward",
        "critic/score/mean",
        "rollout/ep_rew_mean",
        "actor/grad_norm",
        "grad/b/norm/raw",
        "grad/all/norm/raw",
    )
    assert named(run, "reward") == ["reward", "rollout/ep_rew_mean", "critic/score/mean"]
    assert named(run, "grad/<block>/norm/raw") == [
        "grad/all/norm/raw",
        "grad/b/norm/raw",
        "actor/grad_norm",
    ]
    assert best(run, "reward") == "reward"
    assert best(run, "entropy") is None
    with pytest.raises(KeyError):
        named(run, "no such name")


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("reward", "my_return"), "reward"),
        (("eval/mean_reward", "my_return"), "eval/mean_reward"),
        (("my_return", "train/episode_return", "x"), "train/episode_return"),
        (("my_return", "x"), "my_return"),
        (("reward_std", "reward_scale", "returns/std", "advantages/mean"), None),
        (("score",), "score"),
        (("scored", "rewarding"), None),
    ],
)
def test_the_reward_of_a_run(names: tuple[str, ...], wanted: str | None) -> None:
    assert reward_of(opened(*names)) == wanted


def test_a_turned_sign_is_known_and_numbers_sort_as_numbers() -> None:
    assert said("train/entropy_loss") == "entropy (train/entropy_loss)"
    assert is_turned("train/entropy_loss")
    assert not is_turned("losses/entropy")
    assert said("losses/entropy") == "entropy (losses/entropy)"
    assert said("mine") == "mine"
    assert sorted(["l.10", "l.9", "l.9.b", "l.a"], key=natural) == ["l.9", "l.9.b", "l.10", "l.a"]


def test_a_tick_of_a_live_run_brings_only_new_points(tmp_path: Path) -> None:
    with Writer(tmp_path / "r", facts={"started": "then"}) as writer:

        def put(step: int) -> None:
            values = {"reward": 1.0, "grad/all/norm/raw": 1.0 + step, "grad/all/health": 1.0}
            writer.put(Row(step=step, wall_time=float(step), values=values))

        for step in range(20):
            put(step)
        writer.flush()
        whole = seen(tmp_path, "r")
        put(20)
        writer.flush()
        tick = seen(tmp_path, "r", after=whole["cursor"])
    assert tick["delta"]
    assert {
        line["name"]: line["points"]["steps"] for chart in tick["charts"] for line in chart["lines"]
    } == {
        "reward": [20],
        "grad/all/norm/raw": [20],
        "grad/all/health": [20],
    }
    # the verdict names the last step, so that words are sent again; without news of them none are
    assert "verdicts" in tick["parts"]
    assert seen(tmp_path, "r", after=tick["cursor"])["facts"] == []


def test_what_the_machine_gave_is_drawn_below_where_it_was_recorded(tmp_path: Path) -> None:
    told = {"system/cpu": [1.2, 1.3], "system/memory": [300.0, 310.0]}
    cards = {f"system/gpu/{card}/busy": [0.4, 0.5] for card in range(2)}
    write(tmp_path / "with", {"reward": [1.0, 2.0], **told, **cards})
    write(tmp_path / "without", {"reward": [1.0, 2.0]})
    both = charts(seen(tmp_path, "with", "without"))
    drawn = {name: chart for name, chart in both.items() if chart["section"] == "System"}
    assert list(drawn) == ["system-cpu", "system-memory", "system-gpu-busy"]
    assert [line["name"] for line in drawn["system-gpu-busy"]["lines"]] == list(cards)
    assert {line["run"] for chart in drawn.values() for line in chart["lines"]} == {"with"}
    alone = charts(seen(tmp_path, "without"))
    assert not [chart for chart in alone.values() if chart["section"] == "System"]
