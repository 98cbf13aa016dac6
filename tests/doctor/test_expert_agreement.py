"""The three questions, their tones, the lines on routers and the doctor's rules say one thing,
whatever the experts did."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.experts.answers import TONES, Answers
from gradiometer.doctor.experts.judge import judge
from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding
from gradiometer.store.logs import Log

POINTS = 60
TIME = np.arange(POINTS)
FALL = np.geomspace(1.0, 0.01, POINTS)

WEIGHTS: dict[str, Any] = {
    "identical": 0.0,
    "half a percent": 0.005,
    "met": 1.2 * FALL,
    "nearly met": 0.02 * FALL**0.3,
    "nearing": 0.4 * FALL**0.35,
    "shrinking": 0.4 * FALL**0.2,
    "distinct": 0.3,
    "parting": 0.3 * (1 - FALL) + 1e-4,
    "not measured": None,
}
GRADIENTS: dict[str, dict[str, Any]] = {
    "one direction": {},
    "different": {"cosine": 0.3, "size": 0.4},
    "meeting": {"cosine": 1 - 0.6 * FALL, "size": 0.8 * FALL},
    "sizes meet": {"cosine": 0.3, "size": 0.8 * FALL},
}
ROUTERS = ("even", "one dead", "one starved", "one silent", "all silent", "cut", "first dead")


def history(
    planted: ModuleType, weights: str, gradients: str, router: str, *, token_routed: bool, seed: int
) -> Log:
    distance = WEIGHTS[weights]
    rows = planted.planted(
        points=POINTS,
        weights=(0.4, 0.3, 0.3),
        distance=0.3 if distance is None else distance,
        bottom=0.3 if gradients == "different" else 0.0,
        noise=0.03,
        phi=0.3,
        seed=seed,
        token_routed=token_routed,
        **GRADIENTS[gradients],
    )
    if distance is None:
        rows = planted.without(rows, "weight_distance")
    load = {"0": 0.4, "1": 0.3, "2": 0.3}
    if router in ("one dead", "one starved"):
        load = {"0": 0.5, "1": 0.5, "2": 0.0 if router == "one dead" else 0.002}
    if router == "first dead":
        load = {"0": 0.0, "1": 0.5, "2": 0.5}
    if router in ("one silent", "all silent"):
        gone = ("expert/2/",) if router == "one silent" else ("expert/1/", "expert/2/")
        for row in list(rows.values())[POINTS // 3 :]:
            for name in [n for n in row if any(e in n for e in gone)]:
                if not name.endswith(("weight_distance", "routing_weight")):
                    del row[name]
    else:
        planted.routed(rows, "moe", load=load, balance=0.95)
    planted.routed(rows, "moe", grad_task=0.0 if router == "cut" else 1e-2)
    return planted.log(rows)


def findings(log: Log) -> dict[str, list[Finding]]:
    wanted = ("experts-converged", "expert-starved", "router-untrained")
    found = {rule.id: rule(RunData(log)) for rule in rules() if rule.id in wanted}
    return {id: [] if isinstance(each, Skipped) else each for id, each in found.items()}


def disagreements(answers: Answers, found: dict[str, list[Finding]]) -> list[str]:
    """Every pair of sentences that cannot both be true."""
    waking, divergence, lasting = answers.answers
    one = found["experts-converged"]
    became = bool(one) and one[0].title.startswith("The experts have become one")
    wrong = {
        "genuine and converged": (divergence.verdict, lasting.verdict) == ("genuine", "converged"),
        "explained and lasting": divergence.verdict == "explained by routing"
        and lasting.verdict in ("lasts", "fades"),
        "not known to diverge, and lasting": divergence.verdict == "undecided"
        and lasting.verdict in ("lasts", "fades", "converged"),
        "one, and genuine": became and divergence.verdict == "genuine",
        "one, and waking up": became and waking.verdict == "waking up",
        "one, and lasting": bool(one) and lasting.verdict not in ("collapses", "converged"),
        "collapses, and the doctor is silent": lasting.verdict == "collapses" and not one,
        "the tone is not the doctor's": (lasting.tone == "bad" and lasting.verdict != "dead")
        != bool(one),
        "a good tone beside the doctor's finding": bool(one) and lasting.tone != "bad",
        "an alarm for one merge": lasting.verdict == "converged"
        and lasting.tone == "bad"
        and answers.routing != "top-k"
        and not became,
        "the tone is another verdict's": any(
            x.tone != TONES[x.verdict] for x in answers.answers if x.verdict != "converged"
        ),
        "the doctor starves nobody whom the line names": _named(answers) != _starved(found),
        "the router": ("not trained" in answers.health[2]) != bool(found["router-untrained"]),
    }
    wrong |= {
        f"expert {e}: {q2} and {q3}": (q2 == "genuine" and q3 == "converged")
        or (q2 == "explained by routing" and q3 in ("lasts", "fades"))
        or ((q2 == "dead") != (q3 == "dead") and q3 != "collapses")
        for e in divergence.experts
        for q2, q3 in [(divergence.experts[e], lasting.experts[e])]
    }
    return [what for what, is_so in wrong.items() if is_so]


def _named(answers: Answers) -> bool:
    return "none" not in answers.health[1] or "starved" in answers.health[1]


def _starved(found: dict[str, list[Finding]]) -> bool:
    return bool(found["expert-starved"])


@pytest.mark.slow
@pytest.mark.parametrize("token_routed", [False, True], ids=["soft", "top-k"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_answers_tones_and_findings_agree(
    planted: ModuleType, weights: str, token_routed: bool
) -> None:
    seeds = itertools.count()
    for gradients, router in itertools.product(GRADIENTS, ROUTERS):
        if router != "even" and gradients != "different":
            continue
        log = history(
            planted, weights, gradients, router, token_routed=token_routed, seed=next(seeds)
        )
        answers, found = judge(log), findings(log)
        said = {
            "verdicts": [answer.verdict for answer in answers.answers],
            "health": answers.health,
            "findings": [x.title for each in found.values() for x in each],
        }
        assert not disagreements(answers, found), (gradients, router, said)


def test_top_k_experts_half_a_percent_apart_are_one_in_every_answer(planted: ModuleType) -> None:
    log = history(planted, "half a percent", "different", "even", token_routed=True, seed=1)
    answers, found = judge(log), findings(log)
    assert [x.verdict for x in answers.answers][1:] == ["explained by routing", "converged"]
    assert answers.waking.verdict != "waking up"
    assert found["experts-converged"][0].title.startswith("The experts have become one")
    assert "the same function" in answers.divergence.sound_reading


def test_top_k_cosines_prove_nothing_without_the_weights(planted: ModuleType) -> None:
    log = history(planted, "not measured", "different", "even", token_routed=True, seed=1)
    divergence = judge(log).divergence
    assert divergence.verdict == "undecided"
    assert any("weight_distance" in missing for missing in divergence.missing)


def test_an_expert_with_a_hair_of_the_load_is_not_called_none(planted: ModuleType) -> None:
    starved = judge(
        history(planted, "distinct", "different", "one starved", token_routed=True, seed=1)
    )
    assert "expert 2 0.2%" in starved.health[0]
    assert (
        "starved: expert 2 (expert 2 of moe has 0.2% of the load, an even share is 33%)"
        in (starved.health[1])
    )
    dead = judge(history(planted, "distinct", "different", "one dead", token_routed=True, seed=1))
    assert dead.health[1].startswith("dead experts: expert 2")
    assert "expert 2 nothing" in dead.health[0]
    assert dead.lasting.experts["2"] == "dead"
    assert dead.divergence.verdict == "genuine"


def test_one_expert_that_met_the_first_is_not_all_of_them(planted: ModuleType) -> None:
    rows = planted.planted(points=POINTS, cosine=0.4, noise=0.03, phi=0.3)
    for place, row in enumerate(rows.values()):
        for name in [n for n in row if n.endswith("expert/2/weight_distance")]:
            row[name] = 0.3 * FALL[place]
    log = planted.log(rows)
    answers, found = judge(log), findings(log)
    assert answers.divergence.experts == {"1": "genuine", "2": "explained by routing"}
    assert answers.lasting.experts == {"1": "lasts", "2": "collapses"}
    assert found["experts-converged"][0].title.startswith("Expert 2 has become one with expert 0")


@pytest.mark.parametrize(("elsewhere", "wanted"), [(1.0, "explained by routing"), (0.4, "genuine")])
def test_a_layer_in_which_two_are_one_says_nothing_of_the_others(
    planted: ModuleType, elsewhere: float, wanted: str
) -> None:
    layers = {"layer.a.moe": (0.5, 0.5), "layer.b.moe": (0.5, 0.5)}
    rows = planted.planted(points=POINTS, layers=layers, cosine=elsewhere, noise=0.01)
    for place, row in enumerate(rows.values()):
        row["grad/layer.a.moe/expert/1/weight_distance"] = float(0.3 * FALL[place])
        row["grad/layer.a.moe/expert/1/cos_to_0"] = 0.2
    log = planted.log(rows)
    answers, found = judge(log), findings(log)
    assert not disagreements(answers, found)
    assert (answers.divergence.verdict, answers.lasting.verdict) == (wanted, "collapses")
    assert (
        "in some layers the weights of expert 1 are expert 0's" in answers.divergence.sound_reading
    )
    assert "expert 1 of a.moe" in found["experts-converged"][0].title
