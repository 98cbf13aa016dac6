"""Wiring: each rule fires on the smallest evidence, is silent just below it, and silent on its
healthy look-alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event, Finding, Table
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

Patient = Callable[..., Run | Log]

IDS = (
    "dead-term",
    "hidden-term",
    "dead-block",
    "not-in-optimizer",
    "score-not-zero-mean",
    "actions-ignore-policy",
    "entropy-of-wrong-distribution",
    "gradient-not-invariant",
    "kl-gradient-wrong",
    "clip-before-unscale",
    "sampler-mismatch",
)
ENTROPY, ENTROPY_LOSS = "grad/all/term/entropy/norm", "grad/all/term/entropy/loss"
KL, KL_LOSS = "grad/all/term/kl/norm", "grad/all/term/kl/loss"


def verdict(run: Run | Log, id: str) -> list[Finding] | Skipped:
    return next(rule for rule in rules() if rule.id == id)(RunData(run))


def found(run: Run | Log, id: str) -> Finding:
    result = verdict(run, id)
    assert not isinstance(result, Skipped), result.why
    assert len(result) == 1, result
    assert result[0].evidence
    assert result[0].fix
    assert result[0].confirm
    return result[0]


def silent(run: Run | Log, id: str) -> bool:
    return verdict(run, id) == []


def log(series: dict[str, Any], facts: dict[str, Any] | None = None) -> Log:
    rows: dict[int, dict[str, float]] = {}
    for name, given in series.items():
        steps, values = given if isinstance(given, tuple) else (range(len(given)), given)
        for step, value in zip(steps, values, strict=True):
            rows.setdefault(int(step), {})[name] = float(value)
    return Log("made", name="made", run_id="made", rows=rows.items(), facts=facts)


@pytest.fixture
def patient(tmp_path: Path, patients: ModuleType) -> Patient:
    """In memory where series are all there is: a run on disk takes a tenth of a second."""

    def made(series: dict[str, Any], **given: Any) -> Run | Log:
        on_disk = given.get("events") or given.get("tables")
        return (
            patients.patient(tmp_path, series, **given)
            if on_disk
            else log(series, given.get("facts"))
        )

    return made


def audit(step: int = 0, **check: Any) -> Table:
    return Table(
        step=step,
        name="audit",
        content={"checks": [{"state": "failed", "severity": "critical", **check}]},
    )


def dead_event(step: int = 0, term: str = "entropy") -> Event:
    return Event(
        step=step,
        kind="dead-term",
        message=f"the term {term!r} has no gradient path",
        detail={"term": term},
    )


# dead-term


def test_a_term_without_a_path_is_critical_at_its_first_step(patient: Patient) -> None:
    finding = found(patient({ENTROPY_LOSS: [-0.007]}, events=[dead_event(3)]), "dead-term")
    assert (finding.severity, finding.basis, finding.since_step) == ("critical", "proved", 3)
    assert "'entropy'" in finding.title
    assert "-0.007" in finding.title


def test_the_table_of_terms_alone_tells_a_dead_term_and_since_when(patient: Patient) -> None:
    rows = [
        {"entropy": {"all": "path", "actor": "path"}},
        {"entropy": {"all": "none", "actor": "none"}},
    ]
    tables = [Table(step=10 * i, name="terms", content=row) for i, row in enumerate(rows)]
    assert found(patient({"reward": [1.0]}, tables=tables), "dead-term").since_step == 10
    assert silent(patient({ENTROPY: [0.1]}, tables=tables[:1]), "dead-term")


def test_a_term_that_reaches_one_block_only_is_not_dead(patient: Patient) -> None:
    table = Table(
        step=0, name="terms", content={"value": {"all": "path", "actor": "none", "critic": "path"}}
    )
    assert silent(patient({"grad/all/term/value/norm": [0.1]}, tables=[table]), "dead-term")


def test_a_term_that_came_to_life_is_not_dead(patient: Patient) -> None:
    assert silent(patient({ENTROPY: ([1], [0.2])}, events=[dead_event(0)]), "dead-term")
    assert (
        found(patient({ENTROPY: ([0], [0.2])}, events=[dead_event(1)]), "dead-term").since_step == 1
    )


def test_a_term_that_is_switched_off_is_meant_to_be_dead(patient: Patient) -> None:
    given = {"series": {ENTROPY_LOSS: [0.0]}, "events": [dead_event()]}
    assert silent(
        patient(given["series"], events=given["events"], facts={"ent_coef": 0.0}), "dead-term"
    )
    assert (
        found(patient(given["series"], events=given["events"]), "dead-term").severity == "warn"
    )  # NeMo-RL 3792


def test_two_dead_terms_both_come_out(patient: Patient) -> None:
    run = patient({"reward": [1.0]}, events=[dead_event(0), dead_event(0, "kl")])
    result = verdict(run, "dead-term")
    assert isinstance(result, list)
    assert len(result) == 2


def test_a_stationary_kl_is_information_until_its_kl_has_not_been_zero_on_twenty_steps(
    patient: Patient,
) -> None:
    zeros, kl = np.zeros(40), np.full(40, 0.01)
    finding = found(patient({KL: zeros, KL_LOSS: kl, "kl_ref": kl}), "dead-term")
    assert (finding.severity, finding.basis, finding.since_step) == ("critical", "proved", 0)
    early = np.where(np.arange(40) < 20, 0.01, 1e-7)
    assert found(patient({KL: zeros, "kl_ref": early}), "dead-term").severity == "critical"
    early[19] = 1e-7
    assert found(patient({KL: zeros, "kl_ref": early}), "dead-term").severity == "info"


def test_a_kl_that_is_zero_at_first_is_silent_once_it_moves(patient: Patient) -> None:
    assert silent(
        patient({KL: [0.0, 1e-5, 2e-5, 3e-5], "kl_ref": [0.0, 1e-4, 2e-4, 3e-4]}), "dead-term"
    )
    assert silent(patient({KL: np.zeros(4), "kl_ref": np.zeros(4)}), "dead-term")
    assert found(patient({KL: np.zeros(5), "kl_ref": np.zeros(5)}), "dead-term").severity == "info"


def test_a_policy_term_without_gradient_is_dead_only_if_there_were_advantages(
    patient: Patient,
) -> None:
    norm = {"grad/all/term/policy/norm": np.zeros(20)}
    assert (
        found(patient(norm | {"advantages/std": np.ones(20)}), "dead-term").severity == "critical"
    )
    none = norm | {"advantages/std": np.zeros(20)}
    finding = found(patient(none), "dead-term")
    assert (finding.severity, finding.basis) == ("warn", "statistical")
    assert "The policy has had no gradient" in finding.title
    stuck = {"reward": 5.0 + 0.1 * np.sin(np.arange(200.0))}
    assert found(patient(none | stuck), "dead-term").severity == "critical"
    groups = {"zero_variance_groups": np.ones(20)}
    assert silent(patient(none | groups), "dead-term")
    began = {"grad/all/term/policy/norm": np.array([1.0, *np.zeros(20)])}
    assert found(patient(began), "dead-term").severity == "info"


def test_a_log_of_scalars_shows_an_entropy_without_gradient(patient: Patient) -> None:
    def ragen(points: int, norm: float = 0.0, loss: float = -0.002) -> dict[str, Any]:
        return {
            "actor/grad_norm/entropy": np.full(points, norm),
            "actor/loss/entropy": np.full(points, loss),
        }

    assert found(patient(ragen(20)), "dead-term").severity == "critical"
    assert found(patient(ragen(5)), "dead-term").severity == "warn"
    assert silent(patient(ragen(4)), "dead-term")
    assert silent(patient(ragen(20, norm=1e-9)), "dead-term")
    assert silent(patient(ragen(20), facts={"actor": {"entropy_coeff": 0}}), "dead-term")
    assert found(patient(ragen(20, loss=0.0)), "dead-term").severity == "info"


def test_a_reward_without_a_part_in_any_gradient_is_told(patient: Patient) -> None:
    event = Event(
        step=2, kind="dead-reward", message="no term hangs on them", detail={"reward": "format"}
    )
    assert found(patient({"reward": [1.0]}, events=[event]), "dead-term").since_step == 2


# hidden-term


def additivity(error: float, points: int = 10, seed: int = 0) -> dict[str, Any]:
    return {
        "grad/all/term/additivity_error": (
            error * np.exp(0.2 * np.random.default_rng(seed).normal(size=points))
        )
    }


def test_a_hidden_term_is_told_by_what_the_terms_leave_over(patient: Patient) -> None:
    finding = found(patient(additivity(0.16, 3)), "hidden-term")
    assert (finding.severity, finding.basis, finding.since_step) == ("warn", "proved", 0)
    late = np.where(np.arange(40) < 10, 4e-7, 0.16)
    assert found(patient({"grad/all/term/additivity_error": late}), "hidden-term").since_step == 10


def test_rounding_is_no_hidden_term_in_any_precision(patient: Patient) -> None:
    assert silent(patient(additivity(4e-7)), "hidden-term")
    assert silent(patient(additivity(5e-3)), "hidden-term")  # unknown precision: it may be bfloat16
    assert silent(patient(additivity(5e-3), facts={"bf16": True}), "hidden-term")
    assert found(patient(additivity(1.5e-2), facts={"torch_dtype": "float32"}), "hidden-term")
    assert silent(patient(additivity(1.5e-2), facts={"mixed_precision": "bf16"}), "hidden-term")


def test_a_term_that_was_hidden_once_is_not_hidden(patient: Patient) -> None:
    errors = np.full(20, 4e-7)
    errors[[3, 12, 17]] = 0.2
    assert silent(patient({"grad/all/term/additivity_error": errors}), "hidden-term")
    assert isinstance(verdict(patient(additivity(0.2, 2)), "hidden-term"), Skipped)


# dead-block


def two_blocks(points: int = 8, **more: Any) -> dict[str, Any]:
    return {"grad/all/norm/raw": np.ones(points), "grad/actor/norm/raw": np.ones(points), **more}


def reach(**rows: dict[str, str]) -> Table:
    return Table(step=0, name="terms", content=rows)


def test_a_block_that_no_term_reaches_is_dead(patient: Patient) -> None:
    table = reach(policy={"all": "path", "actor": "path", "critic": "none"})
    states = Table(
        step=0, name="states", content={"actor.weight": "finite", "critic.weight": "missing"}
    )
    finding = found(patient(two_blocks(5), tables=[table, states]), "dead-block")
    assert (finding.severity, finding.basis, finding.block, finding.since_step) == (
        "critical",
        "proved",
        "critic",
        0,
    )
    assert isinstance(
        verdict(patient(two_blocks(4), tables=[table, states]), "dead-block"), Skipped
    )


def test_a_block_in_the_optimizer_without_a_gradient_is_dead_without_terms_too(
    patient: Patient,
) -> None:
    held = {"grad/critic/norm/update": np.zeros(8), "grad/actor/norm/update": np.ones(8)}
    assert found(patient(two_blocks(**held)), "dead-block").block == "critic"  # type: ignore[arg-type]


def test_a_frozen_block_is_not_dead(patient: Patient) -> None:
    table = reach(policy={"all": "path", "actor": "path", "trunk": "none"})
    states = Table(
        step=0, name="states", content={"actor.weight": "finite", "trunk.weight": "frozen"}
    )
    assert silent(patient(two_blocks(), tables=[table, states]), "dead-block")


def test_a_target_network_inside_the_model_is_not_dead_unless_an_optimizer_holds_it(
    patient: Patient,
) -> None:
    table = reach(policy={"all": "path", "actor": "path", "target": "none"})
    states = Table(
        step=0, name="states", content={"actor.weight": "finite", "prior.weight": "missing"}
    )
    told = verdict(patient(two_blocks(), tables=[table, states]), "dead-block")
    assert all(each.severity == "info" for each in told)  # type: ignore[union-attr]
    held = {"grad/target/norm/update": np.zeros(8), "grad/actor/norm/update": np.ones(8)}
    run = patient(two_blocks(**held), tables=[table, states])  # type: ignore[arg-type]
    assert found(run, "dead-block").block == "target"


def test_a_router_is_left_to_its_own_rule(patient: Patient) -> None:
    table = reach(task={"all": "path", "actor": "path", "router": "none"})
    states = Table(
        step=0, name="states", content={"moe.router.weight": "missing", "a.weight": "finite"}
    )
    run = patient(two_blocks(**{"router/moe/load/0": np.ones(8)}), tables=[table, states])  # type: ignore[arg-type]
    assert all(finding.severity == "info" for finding in verdict(run, "dead-block"))  # type: ignore[union-attr]


def test_a_gradient_of_exactly_zero_is_dead_after_twenty_steps_on_which_others_learn(
    patient: Patient,
) -> None:
    table = reach(policy={"all": "path", "actor": "path", "critic": "zero"})
    dead = two_blocks(20, **{"grad/critic/norm/raw": np.zeros(20)})
    assert found(patient(dead, tables=[table]), "dead-block").block == "critic"
    assert silent(patient({name: x[:19] for name, x in dead.items()}, tables=[table]), "dead-block")
    idle = {name: np.zeros(20) for name in dead}  # no advantage anywhere: that is another matter
    assert silent(patient(idle, tables=[table]), "dead-block")


def test_layers_that_get_exactly_zero_are_told_and_the_policys_are_critical(
    patient: Patient,
) -> None:
    head = {"grad/layer.actor.2/norm/raw": np.zeros(20)}
    finding = found(patient(two_blocks(20, **head)), "dead-block")
    assert (finding.severity, finding.basis) == ("critical", "proved")
    assert finding.block == "layer.actor.2"
    assert "exactly zero on all of 20" in finding.title
    other = {"grad/layer.critic.0/norm/raw": np.zeros(20)}
    assert found(patient(two_blocks(20, **other)), "dead-block").severity == "warn"
    short = {name: x[:19] for name, x in two_blocks(20, **head).items()}
    assert silent(patient(short), "dead-block")
    moved = two_blocks(20, **{"grad/layer.actor.2/norm/raw": np.append(np.zeros(19), 1.0)})
    assert silent(patient(moved), "dead-block")


def test_a_block_whose_optimizer_has_not_stepped_yet_is_not_dead(patient: Patient) -> None:
    table = reach(policy={"all": "path", "actor": "path", "critic": "none"})
    names = {"actor.weight": "finite", "critic.weight": "missing"}
    states = Table(step=0, name="states", content=names)
    waiting = Table(step=0, name="waiting", content=["critic", "layer.critic"])
    assert silent(patient(two_blocks(), tables=[table, states, waiting]), "dead-block")
    begun = Table(step=5, name="waiting", content=[])
    run = patient(two_blocks(), tables=[table, states, waiting, begun])
    assert found(run, "dead-block").block == "critic"


def test_an_unused_layer_is_information_and_an_expert_without_tokens_is_nothing(
    patient: Patient,
) -> None:
    states = Table(
        step=0,
        name="states",
        content={"a.weight": "finite", "pooler.weight": "missing", "pooler.bias": "missing"},
    )
    assert found(patient(two_blocks(), tables=[states]), "dead-block").severity == "info"
    states = Table(
        step=0, name="states", content={"a.weight": "finite", "moe.experts.3.weight": "missing"}
    )
    experts = Table(
        step=0, name="experts", content={"layers": [{"layer": "layer.moe", "router": "moe"}]}
    )
    assert silent(patient(two_blocks(), tables=[states, experts]), "dead-block")


def test_a_layer_whose_gradient_is_exactly_zero_at_every_step_is_told(patient: Patient) -> None:
    dead = two_blocks(20, **{"grad/layer.trunk.2/norm/raw": np.zeros(20)})
    layer = found(patient(dead), "dead-block")
    assert (layer.severity, layer.basis, layer.block) == ("warn", "proved", "layer.trunk.2")
    assert "'trunk.2'" in layer.title
    rising = {"reward": np.linspace(0.0, 5.0, 20)}
    assert found(patient(dead | rising), "dead-block").severity == "info"
    assert silent(patient({name: x[:19] for name, x in dead.items()}), "dead-block")


def test_a_policy_head_without_a_gradient_is_never_mere_information(patient: Patient) -> None:
    rising = {"reward": np.linspace(0.0, 5.0, 20)}
    for name in ("layer.actor.4", "layer.policy_head", "layer.net.lm_head", "layer.pi.out"):
        dead = two_blocks(20, **{f"grad/{name}/norm/raw": np.zeros(20)})
        assert found(patient(dead | rising), "dead-block").severity == "critical"
    states = {"a.weight": "finite", "policy_head.weight": "missing", "pooler.weight": "missing"}
    table = Table(step=0, name="states", content=states)
    missing = found(patient(two_blocks(), tables=[table]), "dead-block")
    assert missing.severity == "warn"
    assert missing.title.endswith(": policy_head, pooler")


def test_a_dead_block_is_told_once_and_not_again_for_its_layers(patient: Patient) -> None:
    names = ("critic", "layer.critic.0", "layer.critic.2")
    dead = two_blocks(20, **{f"grad/{name}/norm/raw": np.zeros(20) for name in names})
    assert found(patient(dead), "dead-block").block == "critic"
    experts = Table(step=0, name="experts", content={"layers": [{"layer": "layer.critic"}]})
    assert silent(patient(dead, tables=[experts]), "dead-block")


# not-in-optimizer


def stepped(points: int = 6, **blocks: tuple[float, float | None]) -> dict[str, Any]:
    series = {}
    for block, (raw, update) in blocks.items():
        series[f"grad/{block}/norm/raw"] = np.full(points, raw)
        if update is not None:
            series[f"grad/{block}/norm/update"] = np.full(points, update)
    return series


def test_weights_with_a_gradient_that_never_move_are_not_in_the_optimizer(patient: Patient) -> None:
    finding = found(
        patient(stepped(5, all=(1, 0.1), actor=(1, 0.1), critic=(1, 0.0))), "not-in-optimizer"
    )
    assert (finding.severity, finding.basis, finding.block) == ("critical", "proved", "critic")
    finding = found(
        patient(stepped(5, all=(1, 0.1), actor=(1, 0.1), critic=(1, None))), "not-in-optimizer"
    )
    assert (finding.severity, finding.basis) == (
        "warn",
        "heuristic",
    )  # an optimizer that watch() was not given may hold them
    assert silent(
        patient(stepped(4, all=(1, 0.1), actor=(1, 0.1), critic=(1, 0.0))), "not-in-optimizer"
    )


def test_small_steps_and_blocks_without_gradient_are_in_order(patient: Patient) -> None:
    assert silent(
        patient(stepped(all=(1, 0.1), actor=(1, 0.1), critic=(1, 1e-12))), "not-in-optimizer"
    )
    assert silent(
        patient(stepped(all=(1, 0.1), actor=(1, 0.1), critic=(0, 0.0))), "not-in-optimizer"
    )
    assert isinstance(verdict(patient(stepped(all=(1, None))), "not-in-optimizer"), Skipped)


def test_a_delayed_actor_that_moves_now_and_then_is_in_the_optimizer(patient: Patient) -> None:
    update = np.where(np.arange(20) % 2, 0.1, 0.0)
    series = stepped(20, all=(1, 0.1), actor=(1, None)) | {"grad/actor/norm/update": update}
    assert silent(patient(series), "not-in-optimizer")


def test_a_learning_rate_of_zero_is_another_matter(patient: Patient) -> None:
    still = stepped(all=(1, 0.0), actor=(1, 0.0))
    assert silent(patient(still | {"optimizer/0/lr": np.zeros(6)}), "not-in-optimizer")
    assert (
        "No weight"
        in found(patient(still | {"optimizer/0/lr": np.full(6, 1e-3)}), "not-in-optimizer").title
    )


def test_weights_that_a_known_optimizer_holds_stand_still_for_no_proved_reason(
    patient: Patient,
) -> None:
    looked = Table(step=0, name="proofs", content={"not-in-optimizer": "ok"})
    still = stepped(5, all=(1, 0.1), actor=(1, 0.1), critic=(1, 0.0))
    finding = found(patient(still, tables=[looked]), "not-in-optimizer")
    assert (finding.severity, finding.basis, finding.block) == ("warn", "statistical", "critic")
    clipped = still | {"grad/all/clip/ratio": np.full(5, 1e-10)}
    assert silent(patient(clipped, tables=[looked]), "not-in-optimizer")


def test_layers_are_counted_and_only_warned_of(patient: Patient) -> None:
    series = stepped(all=(1, 0.1)) | stepped(
        **{"layer.a": (1, 0.0), "layer.b": (1, 0.0), "layer.c": (1, 0.1)}
    )  # type: ignore[arg-type]
    finding = found(patient(series), "not-in-optimizer")
    assert finding.severity == "warn"
    assert "2 layers" in finding.title


# entropy-of-wrong-distribution


def test_the_entropy_of_all_edges_is_not_that_of_a_row_of_eight(patient: Patient) -> None:
    facts = {"baseline": {"momentum": 0.95}, "degree": 8, "num_edges": 6836}
    finding = found(
        patient({"entropy": ([1, 10, 20], [8.8268, 0.0211, 0.0041])}, facts=facts),
        "entropy-of-wrong-distribution",
    )
    assert (finding.severity, finding.basis, finding.since_step) == ("warn", "proved", 1)
    assert "8.83" in finding.title
    assert "2.08" in finding.title
    assert "num_edges" in finding.cause


@pytest.mark.parametrize(
    ("facts", "bound"),
    [
        ({"num_actions": 4}, math.log(4)),
        ({"action_space": "Discrete(6)"}, math.log(6)),
        ({"env": {"action_space": "MultiDiscrete([3 3 2])"}}, math.log(18)),
        ({"action_space": "MultiBinary(5)"}, 5 * math.log(2)),
        ({"action_space": {"n": 5}}, math.log(5)),
        ({"degree": 8, "k": 3}, math.log(8 * 7 * 6)),
        ({"vocab_size": 1000}, math.log(1000)),
    ],
)
def test_the_bound_is_the_logarithm_of_what_can_be_chosen(
    patient: Patient, facts: dict[str, Any], bound: float
) -> None:
    assert silent(
        patient({"entropy": [bound, 0.5 * bound]}, facts=facts), "entropy-of-wrong-distribution"
    )
    assert found(
        patient({"entropy": [1.03 * bound + 0.02]}, facts=facts), "entropy-of-wrong-distribution"
    )


@pytest.mark.parametrize(
    "facts", [{}, {"action_space": "Box(-1.0, 1.0, (6,), float32)"}, {"num_actions": "many"}]
)
def test_without_a_bound_nothing_is_said(patient: Patient, facts: dict[str, Any]) -> None:
    assert isinstance(
        verdict(patient({"entropy": [8.5]}, facts=facts), "entropy-of-wrong-distribution"), Skipped
    )


def test_the_sign_of_sb3_is_turned(patient: Patient) -> None:
    assert silent(
        patient({"train/entropy_loss": [-0.69, -0.5]}, facts={"n_actions": 2}),
        "entropy-of-wrong-distribution",
    )
    assert found(
        patient({"train/entropy_loss": [-0.9]}, facts={"n_actions": 2}),
        "entropy-of-wrong-distribution",
    )


# actions-ignore-policy


def test_one_action_all_the_time_is_impossible_at_high_entropy(patient: Patient) -> None:
    def acting(share: float, points: int = 9) -> Run | Log:
        series = {"action_share": np.full(points, share), "entropy": np.full(points, 1.3)}
        return patient(series, facts={"num_actions": 4})

    assert found(acting(0.95), "actions-ignore-policy").since_step == 0
    assert silent(acting(0.4), "actions-ignore-policy")  # at most 1.33 nats are possible with it
    assert isinstance(verdict(acting(0.95, 8), "actions-ignore-policy"), Skipped)


def test_a_policy_that_prefers_one_action_as_its_entropy_says_is_in_order(patient: Patient) -> None:
    share = 0.9
    entropy = -share * math.log(share) - (1 - share) * math.log((1 - share) / 3)
    series = {"action_share": np.full(30, share), "entropy": np.full(30, entropy)}
    assert silent(patient(series, facts={"num_actions": 4}), "actions-ignore-policy")


# gradient-not-invariant


def test_a_loss_divided_twice_shows_in_the_scale_of_the_terms(patient: Patient) -> None:
    def accumulated(scale: float, count: int = 4, points: int = 3) -> dict[str, Any]:
        return {
            "grad/all/term/scale": np.full(points, scale),
            "meter/micro_batches": np.full(points, count),
        }

    assert "4 times" in found(patient(accumulated(1 / 16)), "gradient-not-invariant").title
    assert silent(
        patient(accumulated(1 / 4)), "gradient-not-invariant"
    )  # terms were given undivided
    assert silent(patient(accumulated(1.0)), "gradient-not-invariant")
    assert silent(patient(accumulated(1.0, count=1)), "gradient-not-invariant")
    assert isinstance(
        verdict(patient(accumulated(1 / 16, points=2)), "gradient-not-invariant"), Skipped
    )


# kl-gradient-wrong


def test_k1_as_a_loss_holds_the_policy_to_nothing(patient: Patient) -> None:
    kl = {"actor/kl_loss": np.linspace(0, 0.1, 12)}
    assert (
        found(
            patient(kl, facts={"kl_loss_type": "kl", "use_kl_loss": True}), "kl-gradient-wrong"
        ).severity
        == "warn"
    )
    assert silent(
        patient(kl, facts={"kl_loss_type": "kl", "use_kl_loss": False}), "kl-gradient-wrong"
    )
    assert silent(
        patient(kl, facts={"kl_loss_type": "kl", "kl_loss_coef": 0.0}), "kl-gradient-wrong"
    )
    assert silent(patient(kl, facts={"kl_loss_type": "mse"}), "kl-gradient-wrong")
    assert isinstance(verdict(patient(kl), "kl-gradient-wrong"), Skipped)


def test_k3_is_information_and_only_far_from_the_reference(patient: Patient) -> None:
    facts = {"kl_loss_type": "low_var_kl"}
    assert silent(patient({"actor/kl_loss": np.full(12, 0.9)}, facts=facts), "kl-gradient-wrong")
    assert (
        found(
            patient({"actor/kl_loss": np.full(12, 1.1)}, facts=facts), "kl-gradient-wrong"
        ).severity
        == "info"
    )


# clip-before-unscale

CLIPPED = {"grad/all/clip/ratio": np.full(4, 1e-5)}


def test_terms_prove_that_the_clip_saw_the_loss_scale(patient: Patient) -> None:
    scales = {"grad/all/term/scale": [65536.0, 65536.0, 131072.0, 131072.0]}
    finding = found(patient(scales | CLIPPED), "clip-before-unscale")
    assert (finding.severity, finding.basis, finding.since_step) == ("critical", "proved", 0)


@pytest.mark.parametrize(
    "scales", [[1.0] * 4, [0.25] * 4, [128.0] * 4, [70000.0] * 4, [1.0, 65536.0, 65536.0, 65536.0]]
)
def test_other_factors_are_no_loss_scale(patient: Patient, scales: list[float]) -> None:
    assert silent(patient({"grad/all/term/scale": scales} | CLIPPED), "clip-before-unscale")


def scaled(follows: bool, points: int = 200, sigma: float = 0.3, seed: int = 1) -> dict[str, Any]:
    """A GradScaler that doubles every 40 steps and halves at step 130; norms are log-normal."""
    scale = 2.0 ** (10 + np.arange(points) // 40 - (np.arange(points) >= 130))
    noise = np.exp(sigma * np.random.default_rng(seed).normal(size=points))
    return {"loss_scale": scale, "grad_norm": noise * (scale if follows else 1.0)}


def test_a_norm_that_follows_the_loss_scale_was_read_before_it_was_taken_out(
    patient: Patient,
) -> None:
    assert found(patient(scaled(True)), "clip-before-unscale").basis == "statistical"
    assert silent(patient(scaled(False)), "clip-before-unscale")
    assert silent(
        patient({name: x[:100] for name, x in scaled(True).items()}), "clip-before-unscale"
    )  # two changes


def test_norms_that_jump_by_factors_of_two_are_suspicious_only_where_the_clip_leaves_nothing(
    patient: Patient,
) -> None:
    norms = {"grad/all/norm/raw": scaled(True, sigma=0.05)["grad_norm"]}
    assert (
        found(
            patient(norms | {"grad/all/clip/ratio": np.full(200, 1e-4)}), "clip-before-unscale"
        ).basis
        == "heuristic"
    )
    assert silent(
        patient(norms | {"grad/all/clip/ratio": np.full(200, 0.5)}), "clip-before-unscale"
    )
    wide = {"grad/all/norm/raw": norms["grad/all/norm/raw"] ** 2}  # factors of four
    assert silent(
        patient(wide | {"grad/all/clip/ratio": np.full(200, 1e-4)}), "clip-before-unscale"
    )


# sampler-mismatch


def test_a_sampler_away_from_the_trainer_is_told(patient: Patient, patients: ModuleType) -> None:
    noise = patients.ar1(60, 0.5, 0.001, seed=1)
    finding = found(patient({"rollout_corr/kl": 0.02 + noise}), "sampler-mismatch")
    assert (finding.severity, finding.basis, finding.since_step) == ("warn", "statistical", 0)
    assert silent(patient({"rollout_corr/kl": 0.0095 + noise}), "sampler-mismatch")
    assert isinstance(
        verdict(patient({"sampler_kl": np.full(8, 0.5)}), "sampler-mismatch"), Skipped
    )


def test_weights_that_degenerate_later_are_stale_data_and_not_another_sampler(
    patient: Patient,
) -> None:
    ess = {"ess": np.full(40, 0.2)}
    assert found(patient(ess), "sampler-mismatch")
    assert silent(patient({"ess": np.linspace(0.95, 0.1, 40)}), "sampler-mismatch")
    assert silent(patient({"ess": np.full(40, 0.35)}), "sampler-mismatch")
    assert found(patient({"importance_weight": np.full(40, 2.5)}), "sampler-mismatch")
    assert silent(patient({"importance_weight": np.full(40, 1.9)}), "sampler-mismatch")


def test_a_negative_kl_needs_other_samples_than_the_policys(patient: Patient) -> None:
    assert found(patient({"objective/kl": np.full(20, -0.5)}), "sampler-mismatch")
    assert silent(patient({"objective/kl": np.full(20, -0.005)}), "sampler-mismatch")
    assert silent(
        patient({"train/kl": np.full(20, -0.5)}), "sampler-mismatch"
    )  # k3 as logged: not a mean of log ratios


# The audit, and whatever a log may hold


@pytest.mark.parametrize("id", IDS)
def test_a_failed_check_of_the_audit_is_a_finding_of_its_id(patient: Patient, id: str) -> None:
    check = {
        "id": id,
        "message": "it is off by 4",
        "numbers": {"ratio": 4.0},
        "fix": ["divide once"],
        "block": "actor",
    }
    finding = found(patient({"reward": [1.0]}, tables=[audit(7, **check)]), id)
    assert (finding.severity, finding.basis, finding.since_step, finding.block) == (
        "critical",
        "proved",
        7,
        "actor",
    )
    assert finding.title == "It is off by 4"
    assert finding.fix == ("divide once",)
    assert "ratio 4" in finding.evidence[0].reading


@pytest.mark.parametrize("id", IDS)
def test_a_passed_check_is_an_answer_and_a_skipped_one_is_none(patient: Patient, id: str) -> None:
    assert verdict(patient({"reward": [1.0]}, tables=[audit(id=id, state="ok")]), id) == []
    assert isinstance(
        verdict(patient({"reward": [1.0]}, tables=[audit(id=id, state="skipped")]), id), Skipped
    )


def test_a_newer_audit_replaces_the_older_one(patient: Patient) -> None:
    tables = [audit(0, id="dead-term", message="dead"), audit(5, id="dead-term", state="ok")]
    assert silent(patient({ENTROPY: [0.1]}, tables=tables), "dead-term")


def test_what_log_and_audit_both_say_is_said_once_and_what_one_says_alone_is_kept(
    patient: Patient,
) -> None:
    same = audit(id="dead-term", message="entropy is dead", numbers={"term": "entropy"})
    other = audit(id="dead-term", message="kl is dead", numbers={"term": "kl"})
    assert (
        len(verdict(patient({"reward": [1.0]}, events=[dead_event()], tables=[same]), "dead-term"))
        == 1
    )  # type: ignore[arg-type]
    assert (
        len(verdict(patient({"reward": [1.0]}, events=[dead_event()], tables=[other]), "dead-term"))
        == 2
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        "x",
        {"checks": None},
        {"checks": [3, {}, {"id": "dead-term", "state": "failed", "fix": 3}]},
    ],
)
def test_a_broken_audit_breaks_nothing(patient: Patient, content: Any) -> None:
    run = patient({ENTROPY: [0.1]}, tables=[Table(step=0, name="audit", content=content)])
    for id in IDS:
        verdict(run, id)


WILD = {
    "nan": [math.nan] * 30,
    "inf": [math.inf, -math.inf] * 15,
    "one": [1.0],
    "zero": [0.0] * 60,
    "constant": [1e30] * 60,
    "mixed": [math.nan, 0.0, -1.0, math.inf, 1e-300, 1e100] * 10,
}
SERIES = (
    *(
        "entropy",
        "action_share",
        "sampler_kl",
        "importance_weight",
        "ess",
        "ratio/mean",
        "objective/kl",
        "loss_scale",
    ),
    *(
        ENTROPY,
        ENTROPY_LOSS,
        KL,
        "advantages/std",
        "actor/grad_norm/kl",
        "actor/loss/kl",
        "meter/micro_batches",
    ),
    *(
        "grad/all/norm/raw",
        "grad/actor/norm/raw",
        "grad/actor/norm/update",
        "grad/all/norm/update",
        "grad/all/clip/ratio",
    ),
    *("grad/all/term/scale", "grad/all/term/additivity_error"),
)


@pytest.mark.parametrize("kind", WILD)
def test_no_series_however_wild_raises(patient: Patient, kind: str) -> None:
    values = WILD[kind]
    steps = range(-5, len(values) - 5)
    facts = {"num_actions": 4, "kl_loss_type": "k3", "gradient_accumulation_steps": 4}
    run = patient(dict.fromkeys(SERIES, (steps, values)), facts=facts)
    for id in IDS:
        verdict(run, id)


@pytest.mark.parametrize(("phi", "points"), [(0.0, 50), (0.5, 50), (0.9, 50), (0.9, 500)])
def test_healthy_samplers_with_autocorrelated_noise_are_left_alone(
    patients: ModuleType, phi: float, points: int
) -> None:
    alarms = 0
    for seed in range(40):
        noise = [patients.ar1(points, phi, 1.0, seed=10 * seed + i) for i in range(4)]
        series = {
            "sampler_kl": 0.006 + 0.002 * noise[0],
            "importance_weight": 1 + 0.2 * noise[1],
            "ess": 0.6 + 0.1 * noise[2],
            "objective/kl": 0.05 + 0.03 * noise[3],
        }
        alarms += verdict(log(series), "sampler-mismatch") != []
    assert alarms == 0


def test_healthy_norms_with_autocorrelated_noise_do_not_follow_the_loss_scale(
    patients: ModuleType,
) -> None:
    alarms = 0
    for seed in range(40):
        series = scaled(False, 200) | {
            "grad_norm": np.exp(0.5 * patients.ar1(200, 0.9, 1.0, seed=seed))
        }
        alarms += verdict(log(series), "clip-before-unscale") != []
    assert alarms <= 1


def test_scores_far_from_zero_are_told_after_three_batches() -> None:
    finding = found(log({"score_z": [9.0, 12.0, 8.0]}), "score-not-zero-mean")
    assert finding.severity == "critical"
    assert finding.since_step == 0


def test_scores_that_only_chance_moves_are_silent() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 60)
    assert silent(log({"score_z": noise}), "score-not-zero-mean")
    noise[:3] = 30.0  # a warm-up that went by
    assert silent(log({"score_z": noise}), "score-not-zero-mean")
    noise[:3], noise[40:] = 0.0, noise[40:] + 10  # wrong from here on
    assert silent(log({"score_z": noise[:40]}), "score-not-zero-mean")
    assert found(log({"score_z": noise}), "score-not-zero-mean").since_step == 30


def test_without_scores_the_audit_is_recommended() -> None:
    answer = verdict(log({"score_z": [9.0, 12.0]}), "score-not-zero-mean")
    assert isinstance(answer, Skipped)
    assert "gm.audit" in answer.why


def test_layers_below_a_cut_are_dead_and_an_unused_head_is_information(patient: Patient) -> None:
    def said(states: dict[str, str]) -> Finding:
        table = Table(step=0, name="states", content=states)
        return found(patient({"grad/all/norm/raw": [1.0] * 8}, tables=[table]), "dead-block")

    below = {f"{name}.weight": "missing" for name in ("embed", "layers.0", "layers.1")}
    cut = said({**below, "layers.2.weight": "ok", "head.weight": "ok"})
    assert cut.severity == "critical"
    assert "nothing below 'layers.2'" in cut.title
    assert (
        said({"embed.weight": "ok", "layers.0.weight": "ok", "pooler.weight": "missing"}).severity
        == "info"
    )
