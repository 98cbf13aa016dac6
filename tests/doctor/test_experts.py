"""The three questions on runs whose answers are known, and how often a verdict is wrong where
nothing is there."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.experts.judge import Answers, Number, judge
from gradiometer.errors import UsageError
from gradiometer.store.importers import open_log
from gradiometer.store.reader import load

INSIDE = "log bottom/middle rms over expert 0's"
SIZE = "log norm_per_weight over expert 0's"
TIME = np.arange(200)
OLD = ("top_norm", "bottom_norm", "middle_norm", "norm", "divergence")


def number(answers: Answers, name: str, expert: str) -> Number:
    (found,) = [
        n for a in answers.answers for n in a.numbers if (n.name, n.expert) == (name, expert)
    ]
    return found


def verdicts(answers: Answers) -> tuple[str, ...]:
    return tuple(answer.verdict for answer in answers.answers)


# Planted truths, through a real run on disk


def test_a_merged_router_with_collinear_gradients_is_explained_by_routing(
    tmp_path: Path, planted: ModuleType
) -> None:
    with load(planted.write(tmp_path / "run", planted.planted())) as run:
        answers = judge(run)
    assert verdicts(answers) == ("not waking up", "explained by routing", "converged")
    assert answers.routing == "merged"
    assert number(answers, "divergence", "2").value > 1.0
    assert "meaningful (above 0.05)" in answers.divergence.source_reading
    assert number(answers, SIZE, "1").value == pytest.approx(0.0, abs=1e-9)
    assert number(answers, "log bottom_norm over expert 0's", "1").value == pytest.approx(
        math.log(0.3 / 0.5)
    )
    assert "per sample" in answers.next[0]
    assert answers.divergence.missing == ()


def test_layers_that_route_differently_are_still_explained_by_routing(planted: ModuleType) -> None:
    layers = {"layer.a.moe": (0.6, 0.2, 0.2), "layer.b.moe": (0.1, 0.6, 0.3)}
    rows = planted.planted(layers=layers)
    # What the meter writes over all layers: the joined vectors are not collinear, for each layer
    # has its own weights.
    shares = np.array(list(layers.values()))
    sizes = np.sqrt((shares**2).sum(axis=0))
    for row in rows.values():
        for e in ("1", "2"):
            row[f"grad/expert/{e}/cos_to_0"] = float(
                shares[:, 0] @ shares[:, int(e)] / sizes[0] / sizes[int(e)]
            )
        for e in ("0", "1", "2"):
            row[f"grad/expert/{e}/norm"] = float(sizes[int(e)])
            row[f"grad/expert/{e}/routing_weight"] = float(shares[:, int(e)].mean())
    assert row["grad/expert/1/cos_to_0"] < 0.5
    answers = judge(planted.log(rows))
    assert answers.layers == tuple(layers)
    assert number(answers, "cos_to_0", "1").value == pytest.approx(1.0)
    assert answers.divergence.verdict == "explained by routing"
    assert answers.waking.verdict == "not waking up"


def test_one_layer_of_two_that_differs_is_seen(planted: ModuleType) -> None:
    rows = planted.planted(layers={"layer.a.moe": (0.5, 0.5), "layer.b.moe": (0.5, 0.5)})
    for row in rows.values():
        row["grad/layer.b.moe/expert/1/cos_to_0"] = 0.2
    answers = judge(planted.log(rows))
    assert answers.divergence.verdict == "genuine"
    assert number(answers, "cos_to_0", "1").value == pytest.approx(0.6)


def test_a_bottom_tier_three_times_as_large_is_recovered(
    tmp_path: Path, planted: ModuleType
) -> None:
    rows = planted.planted(bottom=math.log(3), noise=0.1, phi=0.5, cosine=0.6)
    with load(planted.write(tmp_path / "run", rows)) as run:
        answers = judge(run)
    assert verdicts(answers) == ("waking up", "genuine", "lasts")
    for name in (INSIDE, "log bottom_rms per routing weight over expert 0's"):
        for expert in ("1", "2"):
            found = number(answers, name, expert)
            assert found.low is not None
            assert found.high is not None
            assert found.low < math.log(3) < found.high
            assert found.high - found.low < 0.2
    assert answers.next == ()


def test_a_difference_in_size_alone_is_genuine_too(planted: ModuleType) -> None:
    answers = judge(planted.log(planted.planted(size=0.5, noise=0.05, phi=0.5)))
    assert answers.divergence.verdict == "genuine"
    assert number(answers, SIZE, "1").value == pytest.approx(0.5, abs=0.05)
    assert number(answers, "cos_to_0", "1").value > 0.99


def test_a_decaying_divergence_collapses(tmp_path: Path, planted: ModuleType) -> None:
    fading = np.exp(-TIME / 40)
    rows = planted.planted(
        size=1.5 * fading,
        cosine=1 - 0.5 * fading,
        distance=0.3 * fading**0.35,
        noise=0.05,
        phi=0.5,
    )
    facts = {"config": {"router": {"perturbation_scale": 1.0, "sparsity": 0.1}}}
    with load(planted.write(tmp_path / "run", rows, facts)) as run:
        answers = judge(run)
    assert answers.lasting.verdict == "collapses"
    assert answers.lasting.experts == {"1": "collapses", "2": "collapses"}
    trend = number(answers, "trend of 1 - cosine", "1")
    assert trend.value < -1.0
    assert trend.p_value is not None
    assert trend.p_value < 1e-6
    assert (
        "perturbation_scale to 2.0 or higher (now 1), or adjust sparsity (now 0.1)"
        in answers.next[0]
    )


def test_directions_that_meet_collapse_although_sizes_never_differed(planted: ModuleType) -> None:
    rows = planted.planted(cosine=1 - 0.5 * np.exp(-TIME / 40), noise=0.03, phi=0.5)
    answers = judge(planted.log(planted.without(rows, "weight_distance")))
    assert (
        number(answers, "trend of log_ratio_routed", "1").value > -0.3
    )  # noise above its floor, and steady
    assert answers.lasting.verdict == "collapses"


def test_gradients_that_meet_while_the_weights_stay_apart_fade(planted: ModuleType) -> None:
    rows = planted.planted(cosine=1 - 0.5 * np.exp(-TIME / 40), noise=0.03, phi=0.5, distance=0.3)
    lasting = judge(planted.log(rows)).lasting
    assert (lasting.verdict, lasting.tone) == ("fades", "warn")


def test_sizes_that_meet_while_directions_stay_apart_are_no_collapse(planted: ModuleType) -> None:
    answers = judge(
        planted.log(planted.planted(size=1.5 * np.exp(-TIME / 40), cosine=0.4, noise=0.05, phi=0.5))
    )
    assert number(answers, "trend of log_ratio_routed", "1").value < -0.3
    assert answers.lasting.verdict == "lasts"


def test_weights_that_meet_are_a_collapse_whatever_the_gradients_do(planted: ModuleType) -> None:
    answers = judge(
        planted.log(
            planted.planted(cosine=0.4, distance=0.3 * np.exp(-TIME / 60), noise=0.05, phi=0.5)
        )
    )
    assert answers.lasting.verdict == "collapses"
    assert "weight_distance x0.0" in answers.lasting.sound_reading


def test_one_expert_of_many_that_collapses_is_named(planted: ModuleType) -> None:
    rows = planted.planted(weights=(0.25,) * 4, cosine=0.5, noise=0.05, phi=0.5)
    for place, row in enumerate(rows.values()):
        for name in row:
            if name.endswith("expert/3/weight_distance"):
                row[name] = 0.3 * math.exp(-place / 50)
    answers = judge(planted.log(rows))
    assert answers.lasting.verdict == "collapses"
    assert answers.lasting.experts == {"1": "lasts", "2": "lasts", "3": "collapses"}
    assert answers.lasting.sound_reading.startswith("expert 3:")
    assert "lasts in experts 1 and 2" in answers.lasting.sound_reading


# What is not there


def test_too_few_steps_are_undecided_and_say_how_many_more(planted: ModuleType) -> None:
    answers = judge(planted.log(planted.planted(points=9, noise=0.1, cosine=0.5, bottom=1.0)))
    assert verdicts(answers) == ("undecided",) * 3
    assert all("more steps" in answer.missing[-1] for answer in answers.answers)
    assert all(n.low is None for a in answers.answers for n in a.numbers)
    assert "Train on" in answers.next[0]


def test_as_many_more_steps_as_it_asks_for_are_enough(planted: ModuleType) -> None:
    short = judge(planted.log(planted.planted(points=9, cosine=0.5)))
    steps = int(short.lasting.missing[-1].split()[1])
    longer = judge(planted.log(planted.planted(points=9 + steps // 10, cosine=0.5)))
    assert steps == 70  # 8 blocks of 2, every 10th step
    assert longer.lasting.verdict == "lasts"


def test_nan_and_zeros_are_left_out_and_counted(planted: ModuleType) -> None:
    clean, spoiled = (
        planted.planted(bottom=1.0, cosine=0.5),
        planted.planted(bottom=1.0, cosine=0.5),
    )
    for place, row in enumerate(spoiled.values()):
        if place % 10 == 3:
            row.update({name: math.nan for name in row if "expert/1/" in name})
        if place % 10 == 4:
            row.update({name: 0.0 for name in row if name.endswith("expert/2/bottom_rms")})
    answers = judge(planted.log(spoiled))
    assert verdicts(answers) == verdicts(judge(planted.log(clean)))
    assert number(answers, INSIDE, "1").value == pytest.approx(1.0)
    assert (number(answers, INSIDE, "1").points, number(answers, INSIDE, "2").points) == (180, 180)
    assert "20 norms were NaN" in answers.notes[0]


def test_without_routing_weights_directions_can_still_be_genuine(planted: ModuleType) -> None:
    unrouted = ("routing_weight", "norm_per_weight", "log_ratio_routed")
    apart = judge(planted.log(planted.without(planted.planted(cosine=0.5), *unrouted)))
    alike = judge(planted.log(planted.without(planted.planted(), *unrouted)))
    assert apart.routing == "unknown"
    assert apart.divergence.verdict == "genuine"
    assert apart.lasting.verdict == "lasts"
    assert alike.divergence.verdict == "undecided"
    assert "grad/expert/1/routing_weight" in alike.divergence.missing[0]
    assert alike.waking.verdict == "not waking up"  # there routing cancels without being known


def test_an_expert_that_appears_later_is_compared_from_there_on(planted: ModuleType) -> None:
    rows = planted.planted(cosine=0.5, bottom=1.0)
    for step, row in rows.items():
        for name in [name for name in row if "expert/2/" in name and step < 1000]:
            del row[name]
    answers = judge(planted.log(rows))
    assert verdicts(answers) == ("waking up", "genuine", "lasts")
    assert number(answers, INSIDE, "2").points == 100
    assert "expert 2 first seen at step 1000" in answers.notes[0]


def test_since_leaves_out_what_came_before(planted: ModuleType) -> None:
    rows = planted.planted(cosine=1 - 0.5 * (TIME < 100), size=1.0 * (TIME < 100))
    answers = judge(planted.log(rows), since=1000)
    assert (answers.first_step, answers.points) == (1000, 100)
    assert answers.divergence.verdict == "explained by routing"
    assert judge(planted.log(rows)).divergence.verdict == "genuine"
    with pytest.raises(UsageError, match=r"from step 5000 on: they end at step 1990"):
        judge(planted.log(rows), since=5000)


def test_an_old_log_gets_the_sources_readings_and_hears_what_is_missing(
    planted: ModuleType,
) -> None:
    answers = judge(planted.log(planted.only(planted.planted(bottom=1.0), *OLD)))
    assert verdicts(answers) == ("undecided",) * 3
    assert "higher" in answers.waking.source_reading
    assert "2.718 [2.718, 2.718] times expert 0's, from norms" in answers.waking.sound_reading
    assert "meaningful" in answers.divergence.source_reading
    assert "divergence" in answers.lasting.source_reading
    asked = " ".join(text for answer in answers.answers for text in answer.missing)
    for name in ("bottom_rms", "middle_rms", "routing_weight", "cos_to_0", "log_ratio_routed"):
        assert f"grad/expert/1/{name}" in asked


@pytest.mark.parametrize("form", ["expert_{}_{}", "expert_gradients/expert_{}/{}"])
def test_the_sources_own_column_names_are_understood(planted: ModuleType, form: str) -> None:
    rows: dict[int, dict[str, float]] = {}
    for step, row in planted.only(planted.planted(bottom=1.0), *OLD).items():
        rows[step] = {}
        for name, value in row.items():
            _, _, expert, quantity = name.split("/")
            called = {"norm": "clean_norm" if expert == "0" else "perturbed_norm"}.get(
                quantity, quantity
            )
            nested = (
                form
                if quantity != "divergence"
                else form.replace("gradients/expert_{}/", "gradients/expert_{}_")
            )
            nested = (
                nested.replace("expert_gradients", "divergence_scores")
                if quantity == "divergence"
                else nested
            )
            rows[step][nested.format(expert, called)] = value
    answers = judge(planted.log(rows))
    expected = judge(planted.log(planted.only(planted.planted(bottom=1.0), *OLD)))
    assert answers == expected


def test_an_exported_dynamics_db_reads_like_the_log_it_came_from(
    tmp_path: Path, planted: ModuleType
) -> None:
    import sqlite3

    rows = planted.only(
        planted.planted(points=60, weights=(0.6, 0.4)), "top_norm", "bottom_norm", "middle_norm"
    )
    with sqlite3.connect(tmp_path / "dynamics.db") as db:
        columns = [
            f"expert_{e}_{tier}_norm" for e in (0, 1) for tier in ("top", "bottom", "middle")
        ]
        db.execute(
            "CREATE TABLE dynamics (step INTEGER PRIMARY KEY,"
            f" {', '.join(f'{c} REAL' for c in columns)})"
        )
        for step, row in rows.items():
            values = [row[f"grad/expert/{c.split('_')[1]}/{c.split('_', 2)[2]}"] for c in columns]
            db.execute(f"INSERT INTO dynamics VALUES ({', '.join('?' * 7)})", [step, *values])
    db.close()
    with open_log(tmp_path / "dynamics.db") as log:
        answers = judge(log)
    assert verdicts(answers) == ("undecided",) * 3
    assert number(answers, "log bottom_norm over expert 0's", "1").value == pytest.approx(
        math.log(2 / 3)
    )
    assert "no divergence was logged" in answers.divergence.source_reading


def test_a_run_without_experts_says_what_it_has_and_how_to_get_them(planted: ModuleType) -> None:
    with pytest.raises(
        UsageError, match=r"found 2 others: grad/all/norm/raw, reward.*experts_every.*zero_grad\(\)"
    ):
        judge(planted.log({0: {"reward": 1.0, "grad/all/norm/raw": 2.0}}))
    with pytest.raises(UsageError, match="found nothing at all"):
        judge(planted.log({}))


def test_one_expert_alone_cannot_be_compared(planted: ModuleType) -> None:
    with pytest.raises(UsageError, match=r"only expert 0 was logged.*every expert"):
        judge(planted.log(planted.planted(weights=(1.0,))))
    lost = {
        step: {name: value for name, value in row.items() if "expert/0/" not in name}
        for step, row in planted.planted().items()
    }
    with pytest.raises(
        UsageError, match="expert 0, which the others are compared with, was not logged; found 1, 2"
    ):
        judge(planted.log(lost))


def test_norms_that_are_all_zero_were_logged_at_the_wrong_time(planted: ModuleType) -> None:
    rows = {
        step: dict.fromkeys(row, 0.0) for step, row in planted.only(planted.planted(), *OLD).items()
    }
    with pytest.raises(
        UsageError,
        match=r"exactly zero: they were logged before backward\(\) or after zero_grad\(\)",
    ):
        judge(planted.log(rows))


# Routing by tokens, and the router


def test_top_k_routing_has_no_clean_expert_and_is_judged_by_all_cosines(
    planted: ModuleType,
) -> None:
    rows = planted.planted(
        weights=(0.125,) * 8, cosine=0.3, noise=0.1, phi=0.5, size=0.7, token_routed=True
    )
    for row in rows.values():
        row.update({name: 0.999 for name in row if name.endswith("cos_to_0")})
    answers = judge(planted.log(rows))
    assert answers.routing == "top-k"
    assert "no expert is the clean one" in answers.reference
    assert answers.divergence.verdict == "genuine"  # by cos_mean: expert 0 is nobody special
    assert set(answers.divergence.experts) == {str(e) for e in range(1, 8)}
    assert number(answers, "cos_mean", "0").value == pytest.approx(0.3, abs=0.01)
    assert "its own tokens" in answers.divergence.sound_reading


def test_sizes_alone_prove_nothing_where_tokens_are_routed(planted: ModuleType) -> None:
    sized = {"size": 0.7, "noise": 0.02}
    assert judge(planted.log(planted.planted(**sized))).divergence.verdict == "genuine"
    assert (
        judge(planted.log(planted.planted(**sized, token_routed=True))).divergence.verdict
        == "explained by routing"
    )


def test_advice_for_routed_tokens_is_not_that_for_merged_weights(planted: ModuleType) -> None:
    alike = judge(planted.log(planted.planted(noise=0.02, token_routed=True)))
    assert alike.divergence.verdict == "explained by routing"
    assert not [
        advice
        for advice in alike.next
        if "Merge per sample" in advice or "perturbation_scale" in advice
    ]
    assert any("their weights differ and their gradients do not" in x for x in alike.next)
    copies = judge(planted.log(planted.planted(distance=0.001, noise=0.02, token_routed=True)))
    assert any("from different weights" in advice for advice in copies.next)
    near = planted.planted(
        cosine=0.4, distance=0.3 * np.exp(-TIME / 60), noise=0.05, phi=0.5, token_routed=True
    )
    answers = judge(planted.log(near))
    assert answers.lasting.verdict == "collapses"
    assert not [
        advice for advice in answers.next if "Raise the coefficient of the balance loss" in advice
    ]
    assert any("draws experts 1 and 2 to expert 0" in advice for advice in answers.next)


def test_an_even_load_over_a_router_the_task_does_not_train_is_said(planted: ModuleType) -> None:
    load_ = {"0": 0.34, "1": 0.33, "2": 0.33}
    rows = planted.routed(planted.planted(), "all", balance=0.99, dead_share=0.0, load=load_)
    broken = judge(planted.log(planted.routed(rows, "all", grad_task=7e-10, grad_aux=1e-3)))
    assert "balance 0.99" in broken.health[0]
    assert "not trained by the task" in broken.health[2]
    assert "minimind issue 858" in broken.health[2]
    assert broken.next[0].startswith("Let the task reach the router")
    healthy = judge(planted.log(planted.routed(rows, "all", grad_task=1e-2, grad_aux=1e-3)))
    assert "not trained" not in healthy.health[2]
    assert not any("router" in advice for advice in healthy.next)


def test_an_auxiliary_loss_above_the_task_is_said(planted: ModuleType) -> None:
    rows = planted.routed(
        planted.planted(), "blocks.0.moe", balance=0.95, grad_task=1e-2, grad_aux=5e-2
    )
    answers = judge(planted.log(rows))
    assert "the auxiliary loss leads the router" in answers.health[2]
    assert any(
        advice.startswith("Lower the coefficient of the balance loss") for advice in answers.next
    )


def test_a_starved_expert_is_named_and_an_uneven_load_too(planted: ModuleType) -> None:
    load_ = {"0": 0.9, "1": 0.1, "2": 0.0}
    rows = planted.routed(planted.planted(), "all", balance=0.46, dead_share=1 / 3, load=load_)
    answers = judge(planted.log(rows))
    assert answers.health[0].endswith("expert 0 has 90%, expert 2 nothing: uneven")
    assert answers.health[1].startswith("dead experts: expert 2 (at a typical step 33%")
    assert any(
        "Raise the coefficient" in advice and "expert 2" in advice for advice in answers.next
    )


def test_an_expert_that_stopped_getting_gradients_is_dead(planted: ModuleType) -> None:
    rows = planted.planted()
    for step, row in rows.items():
        for name in [name for name in row if "expert/1/" in name and step > 800]:
            del row[name]
    assert judge(planted.log(rows)).health[1].startswith("dead experts: expert 1")


# Wrong verdicts


def verdict_counts(planted: ModuleType, count: int, **truth: Any) -> tuple[Counter[str], ...]:
    found = [
        verdicts(judge(planted.log(planted.planted(seed=seed, **truth)))) for seed in range(count)
    ]
    return tuple(Counter(column) for column in zip(*found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_noise_without_an_effect_hardly_ever_gets_a_verdict_of_one(
    planted: ModuleType, phi: float
) -> None:
    waking, divergence, lasting = verdict_counts(planted, 40, points=100, noise=0.15, phi=phi)
    assert waking["waking up"] <= 4
    assert divergence["genuine"] <= 4
    assert lasting["collapses"] <= 4
    assert lasting["lasts"] <= 4


@pytest.mark.slow
def test_at_the_margin_itself_each_side_is_rarely_claimed(planted: ModuleType) -> None:
    waking, divergence, _ = verdict_counts(
        planted, 40, points=120, noise=0.1, phi=0.5, bottom=0.05, size=0.05
    )
    assert waking["waking up"] <= 5
    assert waking["not waking up"] <= 5
    assert divergence["genuine"] <= 5
    assert divergence["explained by routing"] <= 5


@pytest.mark.slow
def test_a_steady_divergence_in_red_noise_lasts(planted: ModuleType) -> None:
    waking, divergence, lasting = verdict_counts(
        planted, 30, points=200, noise=0.15, phi=0.5, bottom=0.5, size=0.5, cosine=0.6
    )
    assert waking["waking up"] == 30
    assert divergence["genuine"] == 30
    assert lasting["lasts"] >= 28
    assert lasting["collapses"] <= 2


def test_answers_are_plain_and_frozen(planted: ModuleType) -> None:
    answers = judge(planted.log(planted.planted(points=20)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        answers.routing = "top-k"  # type: ignore[misc]
    assert answers.answers == (answers.waking, answers.divergence, answers.lasting)
