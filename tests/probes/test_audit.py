"""The audit against the published bugs in miniature, each beside its healthy twin."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer.probes.audit import Audit, audit
from gradiometer.probes.auditcheck import Check

ROWS, ACTIONS = 12, 5


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.actor = nn.Linear(16, ACTIONS)
        self.critic = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h)


@pytest.fixture
def model() -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic()


def batch_of() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(ROWS, 6, generator=generator),
        "actions": torch.randint(0, ACTIONS, (ROWS,), generator=generator),
        "advantages": torch.randn(ROWS, generator=generator),
    }


def terms_of(model: nn.Module, *, entropy_no_grad: bool = False) -> Callable[[], dict[str, Tensor]]:
    batch = batch_of()

    def terms() -> dict[str, Tensor]:
        logits, value = model(batch["x"])
        policy = torch.distributions.Categorical(logits=logits)
        with torch.set_grad_enabled(not entropy_no_grad):
            entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
        return {
            "policy": -(policy.log_prob(batch["actions"]) * batch["advantages"]).mean(),
            "value": 0.5 * (value.squeeze(-1) - batch["advantages"]).square().mean(),
            "entropy": -0.01 * entropy,
        }

    return terms


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def of(result: Audit, id: str, name: str = "") -> Check:
    """The one check of that id, or of that id and name."""
    (check,) = [check for check in result.checks if check.id == id and name in check.name]
    return check


# The wiring.


def test_a_healthy_actor_critic_fails_nothing_and_says_what_else_could_be_checked(
    model: ActorCritic,
) -> None:
    result = audit(terms_of(model), model, adam(model))
    assert result.failed == ()
    assert result.worst is None
    assert result.findings() == []
    skipped = [check for check in result.checks if check.state == "skipped"]
    assert {check.id for check in skipped} == {
        "hidden-term",
        "score-not-zero-mean",
        "actions-ignore-policy",
        "entropy-of-wrong-distribution",
        "baseline-leak",
        "clip-before-unscale",
        "gradient-not-invariant",
    }
    assert all("pass " in check.message or "give " in check.message for check in skipped)


def test_the_reach_matrix_is_that_of_backward(model: ActorCritic) -> None:
    result = audit(terms_of(model), model, adam(model))
    for term, row in result.reach.items():
        model.zero_grad()
        terms_of(model)()[term].backward()
        for block, module in (
            ("actor", model.actor),
            ("critic", model.critic),
            ("trunk", model.trunk),
        ):
            grads = [p.grad for p in module.parameters()]
            if grads[0] is None:
                assert (row[block].state, row[block].norm) == ("none", None)
            else:
                norm = math.sqrt(sum(float(g.square().sum()) for g in grads if g is not None))
                assert row[block].norm == pytest.approx(norm, rel=1e-5)
                assert row[block].state == "path"
    assert result.reach["value"]["actor"].state == "none"
    assert result.reach["value"]["layer.critic"].state == "path"


def test_an_entropy_under_no_grad_is_dead_and_critical(model: ActorCritic) -> None:
    result = audit(terms_of(model, entropy_no_grad=True), model, adam(model))
    (dead,) = result.failed
    assert (dead.id, dead.severity, dead.basis) == ("dead-term", "critical", "proved")
    assert "'entropy'" in dead.message
    assert "no_grad" in dead.fix[0]
    assert result.reach["entropy"]["all"] == result.reach["entropy"]["actor"]
    (finding,) = result.findings()
    assert (finding.id, finding.severity, finding.basis) == ("dead-term", "critical", "proved")


def test_a_policy_term_that_is_constant_is_dead_while_the_kl_still_moves_weights(
    model: ActorCritic,
) -> None:
    """The ratio is taken between two detached log-probs: mlx-lm-lora #50."""
    batch, reference = batch_of(), torch.full((ROWS,), -1.5)

    def terms(broken: bool) -> dict[str, Tensor]:
        logp = torch.distributions.Categorical(logits=model(batch["x"])[0]).log_prob(
            batch["actions"]
        )
        new = logp.detach() if broken else logp
        ratio = (new - logp.detach()).exp()
        d = reference - logp
        return {
            "policy": -(ratio * batch["advantages"]).mean(),
            "kl": 0.1 * (d.exp() - d - 1).mean(),
        }

    optimizer = adam(model)
    broken, healthy = (
        audit(lambda flag=flag: terms(flag), model, optimizer) for flag in (True, False)
    )  # type: ignore[misc]
    assert [check.id for check in broken.failed if check.severity == "critical"] == [
        "dead-term",
        "dead-block",
    ]
    assert "'policy'" in of(broken, "dead-term").message
    assert of(broken, "dead-block", "reached").block == "critic"  # no value term here
    assert [check.id for check in healthy.failed] == ["dead-block"]


@pytest.mark.parametrize("why", ["at the reference", "no advantage"])
def test_a_gradient_that_is_zero_for_a_reason_is_not_dead(model: ActorCritic, why: str) -> None:
    batch = batch_of()
    scale = 0.0 if why == "no advantage" else 1.0

    def terms() -> dict[str, Tensor]:
        logits, value = model(batch["x"])
        logp = torch.distributions.Categorical(logits=logits).log_prob(batch["actions"])
        d = logp.detach() - logp
        return {
            "policy": -(logp * batch["advantages"] * scale).mean(),
            "value": value.square().mean(),
            "kl": 0.1 * (d.exp() - d - 1).mean(),
        }

    result = audit(terms, model, adam(model))
    assert result.failed == ()
    still = of(result, "dead-term", "stationary")
    assert (still.state, still.severity) == ("ok", "info")
    expected = ["policy", "kl"] if why == "no advantage" else ["kl"]
    assert still.numbers["terms"] == expected
    assert result.reach["kl"]["actor"].state == "zero"
    assert result.reach["kl"]["actor"].norm == 0.0


def test_a_hidden_term_is_found_and_its_healthy_twin_and_a_scaled_loss_are_not(
    model: ActorCritic,
) -> None:
    terms, optimizer = terms_of(model), adam(model)

    def summed() -> Tensor:
        return sum(terms().values())  # type: ignore[return-value]

    def with_penalty() -> Tensor:
        return summed() + 1e-2 * sum(p.square().sum() for p in model.parameters())

    hidden = of(audit(terms, model, optimizer, loss=with_penalty), "hidden-term")
    assert (hidden.state, hidden.severity) == ("failed", "warn")
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(f(), list(model.parameters()))])
        for f in (summed, with_penalty)
    ]
    along = gradients[1] @ gradients[0] / gradients[0].square().sum()
    left = (gradients[1] - along * gradients[0]).norm() / gradients[1].norm()
    assert hidden.numbers["additivity_error"] == pytest.approx(float(left), rel=1e-3)
    for factor in (1.0, 0.25, 1024.0):
        fine = of(audit(terms, model, optimizer, loss=lambda f=factor: f * summed()), "hidden-term")  # type: ignore[misc]
        assert fine.state == "ok"
        assert fine.numbers["scale"] == pytest.approx(factor, rel=1e-4)
    turned = of(audit(terms, model, optimizer, loss=lambda: -summed()), "hidden-term")
    assert (turned.state, turned.severity) == ("failed", "critical")


def test_dropout_and_half_precision_hide_no_term_and_invent_none(model: ActorCritic) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    x = torch.randn(32, 6)

    def terms() -> dict[str, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return {
                "policy": body(x)[:, 0].mean().float(),
                "value": body(x)[:, 1].square().mean().float(),
            }

    result = audit(terms, body, adam(body), loss=lambda: sum(reversed(terms().values())))  # type: ignore[arg-type,return-value]
    assert of(result, "hidden-term").state == "ok"
    assert of(result, "hidden-term").numbers["limit"] == pytest.approx(0.05)


def test_terms_that_draw_a_new_batch_are_not_compared(model: ActorCritic) -> None:
    rng = np.random.default_rng(0)

    def terms() -> dict[str, Tensor]:
        logits, value = model(torch.from_numpy(rng.standard_normal((4, 6))).float())
        return {"policy": logits[:, 0].mean(), "value": value.square().mean()}

    check = of(audit(terms, model, adam(model), loss=lambda: sum(terms().values())), "hidden-term")  # type: ignore[arg-type,return-value]
    assert check.state == "skipped"
    assert "one batch" in check.message


def test_parameters_in_no_optimizer_in_two_and_frozen_ones_are_told_apart(
    model: ActorCritic,
) -> None:
    actor_only = torch.optim.Adam([*model.trunk.parameters(), *model.actor.parameters()])
    missing = audit(terms_of(model), model, actor_only)
    (lost,) = missing.failed
    assert (lost.id, lost.severity, lost.block) == ("not-in-optimizer", "critical", "critic")
    assert lost.numbers["parameters"] == 2

    critic = torch.optim.SGD([*model.trunk.parameters(), *model.critic.parameters()], lr=0.1)
    (twice,) = audit(terms_of(model), model, [actor_only, critic]).failed
    assert (twice.id, twice.name, twice.severity) == (
        "not-in-optimizer",
        "one optimizer each",
        "warn",
    )
    assert twice.numbers["parameters"] == 2

    alone = torch.optim.SGD(model.critic.parameters(), lr=0.1)
    assert audit(terms_of(model), model, {"actor": actor_only, "critic": alone}).failed == ()

    everything = adam(model)
    model.actor.weight.requires_grad_(False)
    some = audit(terms_of(model), model, everything)
    assert some.failed == ()
    assert of(some, "dead-block", "frozen").numbers["parameters"] == 1
    model.actor.bias.requires_grad_(False)
    frozen = of(audit(terms_of(model), model, everything), "dead-block", "frozen")
    assert (frozen.state, frozen.severity, frozen.block) == ("failed", "warn", "actor")


def test_one_layer_in_no_optimizer_is_a_warning(model: ActorCritic) -> None:
    held = [p for name, p in model.named_parameters() if name != "actor.bias"]
    (lost,) = audit(terms_of(model), model, torch.optim.Adam(held)).failed
    assert (lost.severity, lost.block) == ("warn", None)
    assert "actor.bias" in lost.message


def test_a_block_that_no_term_reaches_is_dead_and_a_zero_gradient_is_not(
    model: ActorCritic,
) -> None:
    terms = terms_of(model)
    optimizer = adam(model)
    without = audit(lambda: {k: v for k, v in terms().items() if k != "value"}, model, optimizer)
    (dead,) = without.failed
    assert (dead.id, dead.severity, dead.block) == ("dead-block", "critical", "critic")
    with (
        torch.no_grad()
    ):  # a head of zeros, as LoRA begins: the trunk has a path and a gradient of exactly zero
        model.actor.weight.zero_()
        model.critic.weight.zero_()
    assert audit(terms, model, optimizer).failed == ()


def test_a_layer_that_nothing_uses_is_worth_a_word_only(model: ActorCritic) -> None:
    whole = nn.ModuleDict({"policy": model, "pooler": nn.Linear(2, 2)})
    (unused,) = audit(terms_of(model), whole, adam(whole), blocks={"policy": "^policy"}).failed
    assert (unused.id, unused.severity) == ("dead-block", "info")
    assert "pooler" in unused.message


def test_a_parameter_outside_the_model_keeps_its_term_alive(model: ActorCritic) -> None:
    alpha = nn.Parameter(torch.zeros(()))
    terms = terms_of(model)

    def with_alpha() -> dict[str, Tensor]:
        return {**terms(), "alpha": alpha.exp()}

    held = audit(with_alpha, model, [adam(model), torch.optim.Adam([alpha])])
    assert held.failed == ()
    assert of(held, "dead-term", "other parameters").state == "ok"
    lost = audit(with_alpha, model, adam(model))
    assert [check.id for check in lost.failed] == ["not-in-optimizer"]


def test_a_nan_is_located(model: ActorCritic) -> None:
    batch = batch_of()

    def terms() -> dict[str, Tensor]:
        logits, value = model(batch["x"])
        return {"policy": (logits - logits).sum().sqrt(), "value": value.mean()}

    bad = of(audit(terms, model, adam(model)), "nonfinite-gradient")
    assert (bad.state, bad.severity) == ("failed", "critical")
    assert "policy" in bad.message


# The baseline.


class Ema:
    """A moving average, subtracted before or after it has seen the reward."""

    def __init__(self, beta: float = 0.95, *, leaks: bool = False) -> None:
        self.beta, self.leaks, self.mean = beta, leaks, 0.0

    def value(self) -> float:
        return self.mean

    def update(self, reward: Tensor) -> None:
        self.mean = self.beta * self.mean + (1 - self.beta) * float(reward)


class Used(Ema):
    def __call__(self, reward: Tensor) -> float:
        before = self.mean
        Ema.update(self, reward)
        return self.mean if self.leaks else before

    value = update = None  # type: ignore[assignment]


def test_a_baseline_that_holds_its_own_reward_leaks_seven_percent(model: ActorCritic) -> None:
    optimizer, terms = adam(model), terms_of(model)
    leak = of(audit(terms, model, optimizer, baseline=Used(leaks=True)), "baseline-leak")
    assert (leak.state, leak.severity, leak.basis) == ("failed", "warn", "proved")
    assert leak.numbers["own_weight"] == pytest.approx(0.05, rel=1e-3)
    assert leak.numbers["explained_variance"] == pytest.approx(0.0744, abs=0.008)
    healthy = of(audit(terms, model, optimizer, baseline=Used()), "baseline-leak")
    assert healthy.state == "ok"
    assert healthy.numbers["own_weight"] == 0.0
    assert healthy.numbers["explained_variance"] == pytest.approx(-0.026, abs=0.008)


def test_an_object_with_value_and_update_reads_both_and_is_left_alone(model: ActorCritic) -> None:
    mine = Ema()
    mine.mean = 3.0
    check = of(audit(terms_of(model), model, adam(model), baseline=mine), "baseline-leak")
    assert check.state == "ok"
    assert check.numbers["explained_variance"] == pytest.approx(-0.026, abs=0.008)
    assert check.numbers["explained_variance_after"] == pytest.approx(0.0744, abs=0.008)
    assert mine.mean == 3.0


def test_a_function_of_the_reward_is_not_fed_but_one_that_makes_a_baseline_is(
    model: ActorCritic,
) -> None:
    terms, optimizer, mine = terms_of(model), adam(model), Used(leaks=True)
    refused = of(
        audit(terms, model, optimizer, baseline=lambda reward: mine(reward)), "baseline-leak"
    )
    assert refused.state == "skipped"
    assert mine.mean == 0.0
    assert (
        of(audit(terms, model, optimizer, baseline=lambda: Used(leaks=True)), "baseline-leak").state
        == "failed"
    )


# Half precision.


@pytest.mark.parametrize("order", ["clip first", "unscale first"])
@pytest.mark.parametrize("told", [True, False])
def test_a_clip_before_unscale_is_seen_with_and_without_the_scaler(
    model: ActorCritic, order: str, told: bool
) -> None:
    optimizer, terms = adam(model), terms_of(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    state = {"step": 0}

    def update() -> None:
        optimizer.zero_grad()
        scaler.scale(sum(terms().values())).backward()  # type: ignore[union-attr]
        if order == "unscale first":
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        state["step"] += 1

    before = {name: p.clone() for name, p in model.state_dict().items()}
    scaler.scale(torch.ones(()))
    result = audit(terms, model, optimizer, update=update, scaler=scaler if told else None)
    check = of(result, "clip-before-unscale")
    assert check.state == ("failed" if order == "clip first" else "ok")
    if order == "clip first":
        assert check.numbers["scale"] == pytest.approx(2.0**16)
    assert state["step"] == 1
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert not optimizer.state
    assert "step" not in vars(optimizer)
    update()  # and the training goes on
    assert not all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert scaler.get_scale() == 2.0**16


# Errors, output, stillness.


def test_mistakes_are_told(model: ActorCritic) -> None:
    terms, optimizer = terms_of(model), adam(model)
    with pytest.raises(UsageError, match="called again"):
        audit(terms(), model, optimizer)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="mapping of names"):
        audit(lambda: terms()["policy"], model, optimizer)  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match="reduce it"):
        audit(lambda: {"policy": model.actor.weight}, model, optimizer)
    with pytest.raises(UsageError, match="batch="):
        audit(lambda rows: terms(), model, optimizer)
    with pytest.raises(UsageError, match="empty list"):
        audit(terms, model, [])
    with pytest.raises(UsageError, match="samples"):
        audit(terms, model, optimizer, samples=2)
    with pytest.raises(UsageError, match="inference_mode"), torch.inference_mode():
        audit(terms, model, optimizer)

    def stepping() -> dict[str, Tensor]:
        with torch.no_grad():
            model.actor.bias.add_(1.0)
        return terms()

    with pytest.raises(UsageError, match=r"changed the weights \(actor.bias\)"):
        audit(stepping, model, optimizer)


def test_terms_may_take_the_batch(model: ActorCritic) -> None:
    batch = batch_of()
    result = audit(
        lambda rows: {"policy": model(rows["x"])[0].mean(), "value": model(rows["x"])[1].mean()},
        model,
        adam(model),
        batch=batch,
    )
    assert result.failed == ()


def test_it_prints_a_table_with_marks_and_what_to_change(
    model: ActorCritic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = str(audit(terms_of(model, entropy_no_grad=True), model, adam(model)))
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["gradient", "of", "all", "actor", "critic", "trunk"]
    assert lines[4].split()[0] == "entropy"
    assert lines[4].count("no path") == 4
    assert any(line.startswith("✗ every term has a gradient") for line in lines)
    assert any("→ compute 'entropy' outside torch.no_grad()" in line for line in lines)
    assert any(line.startswith("✓ ") for line in lines)
    assert any(line.startswith("– ") for line in lines)
    assert lines[-1] == "1 failed, 8 ok, 10 skipped: begin with dead-term"


def test_the_graph_proves_to_the_audit_what_it_proves_to_the_meter(model: ActorCritic) -> None:
    x, returns = torch.randn(8, 6), torch.randn(8)

    def terms(*, column: bool, twice: bool, detached: bool) -> dict[str, Tensor]:
        logits, values = model.actor(model.trunk(x)), model.critic(model.trunk(x))
        values = values if column else values.squeeze(-1)
        policy = Categorical(logits=logits.softmax(-1) if twice else logits)
        log_prob = policy.log_prob(torch.zeros(8, dtype=torch.long))
        baseline = values.reshape(-1)
        advantages = returns - (baseline.detach() if detached else baseline)
        return {
            "policy": -(log_prob * advantages).mean(),
            "value": (values - returns).pow(2).mean(),
        }

    graph = {"shapes-broadcast", "double-softmax", "leak-between-terms"}
    well = {"column": False, "twice": False, "detached": True}
    for change, id in (
        ({}, None),
        ({"column": True}, "shapes-broadcast"),
        ({"twice": True}, "double-softmax"),
        ({"detached": False}, "leak-between-terms"),
    ):
        result = audit(partial(terms, **{**well, **change}), model, adam(model))
        states = {check.id: check.state for check in result.checks if check.id in graph}
        assert states == {each: "failed" if each == id else "ok" for each in graph}
        assert all(check.fix for check in result.failed)


def test_the_result_is_json_and_lands_in_a_run(model: ActorCritic, tmp_path: Any) -> None:
    optimizer = adam(model)
    with gm.watch(model, optimizer, run=tmp_path / "run") as meter:
        result = audit(terms_of(model, entropy_no_grad=True), model, optimizer, meter=meter)
        for _ in range(2):
            sum(terms_of(model)().values()).backward()  # type: ignore[union-attr]
            optimizer.step()
    plain = result.plain()
    assert json.loads(json.dumps(plain)) == plain
    assert set(plain["checks"][0]) >= {"id", "state", "severity", "message", "numbers", "fix"}
    with gm.load(tmp_path / "run") as run:
        table = run.table("audit")
        assert table.step == 0
        assert table.content["checks"][0]["id"] == "dead-term"
        assert table.content["checks"][0]["state"] == "failed"
        assert table.content["reach"]["entropy"]["actor"] == {"state": "none", "norm": None}


class Restless(nn.Module):
    """Dropout draws, batch norm counts, a buffer is bound anew."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, ACTIONS)
        )
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return self.body(x)  # type: ignore[no-any-return]


def trained(*, audited: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = Restless()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    batch = batch_of()

    def terms() -> dict[str, Tensor]:
        policy = torch.distributions.Categorical(
            logits=model(batch["x"] + 0.1 * torch.randn(ROWS, 6))
        )
        return {
            "policy": (
                -(policy.log_prob(batch["actions"]) * batch["advantages"]).mean()
                * float(np.random.random())
            ),
            "entropy": -0.01 * policy.entropy().mean() * random.random(),
        }

    def backward() -> None:
        optimizer.zero_grad()
        scaler.scale(sum(terms().values())).backward()  # type: ignore[union-attr]
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    def update() -> None:
        backward()
        scaler.step(optimizer)
        scaler.update()

    def sample() -> tuple[Tensor, Tensor]:
        policy = torch.distributions.Categorical(logits=model(batch["x"]))
        actions = policy.sample()
        return actions, policy.log_prob(actions)

    def loss_of(rows: dict[str, Tensor]) -> Tensor:
        return model(rows["x"]).square().mean()  # type: ignore[no-any-return]

    for step in range(6):
        if audited and step % 2 == 0:
            if step:  # between backward and step, so that there is something to lose in .grad
                backward()
            result = audit(
                terms,
                model,
                optimizer,
                loss=lambda: sum(terms().values()),  # type: ignore[arg-type,return-value]
                batch=batch,
                policy=SimpleNamespace(sample=sample),
                micro_batches=loss_of,
                pad=lambda rows: rows,
                baseline=Ema(),
                update=update,
                scaler=scaler,
                samples=8,
            )
            assert all(check.state != "failed" for check in result.checks), str(result)
        elif step and step % 2 == 0:
            backward()
        if step and step % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
        else:
            update()
    grads = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    streams = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.random(),
        "python": random.random(),
    }
    modes = {f"{name}.training": part.training for name, part in model.named_modules()}
    moments = {
        f"{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()
    }
    return {
        **model.state_dict(),
        **grads,
        **streams,
        **modes,
        **moments,
        "scale": scaler.get_scale(),
    }


def test_training_after_an_audit_is_the_same_bits_as_without() -> None:
    bare, audited = trained(audited=False), trained(audited=True)
    assert bare.keys() == audited.keys()
    for name, value in bare.items():
        other = audited[name]
        assert torch.equal(value, other) if isinstance(value, Tensor) else value == other, name


def test_the_guard_fails_when_nothing_is_held_still(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = trained(audited=False)
    monkeypatch.setattr("gradiometer.probes.audit.held_still", lambda model: nullcontext())
    disturbed = trained(audited=True)
    assert not all(
        (
            torch.equal(value, disturbed[name])
            if isinstance(value, Tensor)
            else value == disturbed[name]
        )
        for name, value in bare.items()
    )
