"""Shares, cosines and additivity of loss terms and rewards, against gradients made one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import gradiometer as gm
from gradiometer.capture.watch import NullMeter
from gradiometer.errors import GradiometerWarning, UsageError

TERMS = ("policy", "value", "entropy")


class ActorCritic(nn.Module):
    def __init__(self, *, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Dropout(dropout))
        self.actor = nn.Linear(width, 3)
        self.critic = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.actor(h).log_softmax(-1), self.critic(h)[:, 0]


def losses(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    log_probs, value = model(x)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return {
        "policy": -(log_probs[:, 0] * x[:, 0]).mean(),
        "value": (value - x[:, 1]).square().mean(),
        "entropy": -entropy,
    }


def flat(model: nn.Module, loss: Tensor, block: str = "") -> np.ndarray:
    """The gradient of a loss by its own backward, of the parameters whose name starts with
    `block`."""
    model.zero_grad()
    loss.backward()
    parts = [
        torch.zeros_like(p) if p.grad is None else p.grad
        for n, p in model.named_parameters()
        if n.startswith(block)
    ]
    model.zero_grad()
    return torch.cat([part.reshape(-1).double() for part in parts]).numpy()


@pytest.fixture
def model() -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic()


def batches(count: int = 1, seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(32, 6, generator=generator) for _ in range(count)]


def measure(
    model: nn.Module,
    run: Path,
    calls: list[Tensor],
    *,
    backward: Callable[[Tensor], None] = Tensor.backward,
    **options: Any,
) -> gm.Run:
    """One step whose gradient is made by one `terms` call a batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=run, **options) as meter:
        for x in calls:
            with meter.terms(**losses(model, x)) as loss:
                backward(loss)
        optimizer.step()
    return gm.load(run)


def last(run: gm.Run, name: str) -> float:
    return float(run.series(name)[1][-1])


@pytest.mark.parametrize("num_calls", [1, 3])
def test_norm_share_and_cosine_of_every_block_are_those_of_separate_backwards(
    num_calls: int, model: ActorCritic, tmp_path: Path
) -> None:
    calls = batches(num_calls)
    run = measure(model, tmp_path / "run", calls)
    for block, prefix in {
        "all": "",
        "trunk": "trunk",
        "actor": "actor",
        "layer.trunk.0": "trunk.0",
    }.items():
        g = {
            name: sum(flat(model, losses(model, x)[name], prefix) for x in calls) for name in TERMS
        }
        total = sum(g.values())
        for name in TERMS:
            if not g[name].any():
                assert f"grad/{block}/term/{name}/norm" not in run.names()
                continue
            assert last(run, f"grad/{block}/term/{name}/norm") == pytest.approx(
                np.linalg.norm(g[name]), rel=1e-5
            )
            share = g[name] @ total / (total @ total)
            assert last(run, f"grad/{block}/term/{name}/share") == pytest.approx(
                share, rel=1e-4, abs=1e-6
            )
        cosine = (
            g["policy"]
            @ g["entropy"]
            / (np.linalg.norm(g["policy"]) * np.linalg.norm(g["entropy"]))
        )
        assert last(run, f"grad/{block}/term/policy~entropy/cos") == pytest.approx(cosine, abs=1e-5)
    assert "grad/actor/term/policy~value/cos" not in run.names()
    losses_given = [float(losses(model, x)["value"].detach()) for x in calls]
    assert last(run, "grad/all/term/value/loss") == pytest.approx(sum(losses_given), rel=1e-6)
    assert last(run, "grad/all/term/additivity_error") < 5e-6
    assert last(run, "grad/all/term/scale") == pytest.approx(1.0, abs=1e-6)
    assert run.facts["meter"]["terms_vectors"] == "exact"
    assert "grad/all/term/cos_error" not in run.names()


def test_a_common_factor_is_fitted(model: ActorCritic, tmp_path: Path) -> None:
    scaled = measure(
        model, tmp_path / "scaled", batches(), backward=lambda loss: (65536 * loss).backward()
    )
    assert last(scaled, "grad/all/term/scale") == pytest.approx(65536, rel=1e-6)
    assert last(scaled, "grad/all/term/additivity_error") < 5e-6
    model.zero_grad()
    divided = measure(
        model, tmp_path / "divided", batches(4), backward=lambda loss: (loss / 4).backward()
    )
    assert last(divided, "grad/all/term/scale") == pytest.approx(0.25, rel=1e-6)
    assert last(divided, "grad/all/term/additivity_error") < 5e-6


def test_a_term_behind_the_meters_back_is_seen(model: ActorCritic, tmp_path: Path) -> None:
    hidden = 0.1 * model(batches()[0])[1].mean()
    run = measure(
        model, tmp_path / "run", batches(), backward=lambda loss: (loss + hidden).backward()
    )
    g = flat(model, sum(losses(model, batches()[0]).values())) + flat(
        model, 0.1 * model(batches()[0])[1].mean()
    )
    h = flat(model, 0.1 * model(batches()[0])[1].mean())
    assert last(run, "grad/all/term/additivity_error") > 0.2 * np.linalg.norm(h) / np.linalg.norm(g)
    assert last(run, "grad/all/term/additivity_error") > 1e-2


def test_clipping_does_not_matter_to_additivity(model: ActorCritic, tmp_path: Path) -> None:
    def clipped(loss: Tensor) -> None:
        loss.backward()
        clip_grad_norm_(model.parameters(), 1e-3)

    run = measure(model, tmp_path / "run", batches(), backward=clipped)
    assert last(run, "grad/all/term/scale") == pytest.approx(1.0, abs=1e-6)
    assert last(run, "grad/all/term/additivity_error") < 5e-6


@pytest.mark.parametrize("how", ["bfloat16", "autocast", "float64"])
def test_additivity_follows_the_precision(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    dtype = {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(how, torch.float32)
    model = ActorCritic(width=64).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
            terms = losses(model, batches()[0].to(dtype))
        with meter.terms(**terms) as loss:
            loss.backward()
        optimizer.step()
    error = last(gm.load(tmp_path / "run"), "grad/all/term/additivity_error")
    assert error < (1e-7 if how == "float64" else 2e-2)


def test_beyond_the_memory_limit_sketches_stand_in_and_say_how_far_off_they_are(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = ActorCritic(width=200)
    exact = measure(model, tmp_path / "exact", batches(2))
    model.zero_grad()
    sketched = measure(model, tmp_path / "sketch", batches(2), terms_memory=1000, sketch_size=4096)
    assert sketched.facts["meter"]["terms_vectors"] == "sketch"
    assert sketched.facts["meter"]["terms_memory"] == 1000
    error = last(sketched, "grad/all/term/cos_error")
    assert error == pytest.approx(1 / 64)
    assert "grad/all/term/additivity_error" not in sketched.names()
    assert "grad/all/term/scale" not in sketched.names()
    for a, b in (("policy", "value"), ("policy", "entropy"), ("value", "entropy")):
        name = f"grad/all/term/{a}~{b}/cos"
        assert last(sketched, name) == pytest.approx(last(exact, name), abs=4 * error)
    for name in TERMS:
        norm = f"grad/all/term/{name}/norm"
        assert last(sketched, norm) == pytest.approx(last(exact, norm), rel=4 * error)
    assert last(sketched, "grad/all/term/value/loss") == last(exact, "grad/all/term/value/loss")


def test_the_limit_counts_one_vector_more_than_there_are_terms(
    model: ActorCritic, tmp_path: Path
) -> None:
    size = 4 * sum(p.numel() for p in model.parameters()) * 4
    assert (
        measure(model, tmp_path / "a", batches(), terms_memory=size).facts["meter"]["terms_vectors"]
        == "exact"
    )
    assert (
        measure(model, tmp_path / "b", batches(), terms_memory=size - 1).facts["meter"][
            "terms_vectors"
        ]
        == "sketch"
    )
    with pytest.raises(UsageError, match="terms_memory is a whole number of bytes"):
        measure(model, tmp_path / "c", batches(), terms_memory=-1)


def test_the_vectors_are_released_when_the_round_ends(model: ActorCritic) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=None) as meter:
        with meter.terms(**losses(model, batches()[0])) as loss:
            loss.backward()
        assert meter._observer._terms._vectors is not None
        optimizer.step()
        assert meter._observer._terms._vectors is None


def test_a_skipped_step_keeps_its_own_terms_and_leaves_the_next_ones_alone(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    first, second = batches(2)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for x in (first, second):
            optimizer.zero_grad()
            with meter.terms(**losses(model, x)) as loss:
                loss.backward()
            if x is second:
                optimizer.step()
    run = gm.load(tmp_path / "run")
    assert [event.step for event in run.events("skipped-step")] == [0]
    steps, norms = run.series("grad/all/term/value/norm")
    expected = [np.linalg.norm(flat(model, losses(model, x)["value"])) for x in (first, second)]
    assert dict(zip(steps.tolist(), norms, strict=True)) == pytest.approx(
        dict(enumerate(expected)), rel=1e-5
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_is_the_scale_and_the_step_it_skips_keeps_its_terms(
    fused: bool, unscale: bool, model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number, x in enumerate(batches(4)):
            optimizer.zero_grad()
            terms = losses(model, x)
            terms["value"] = terms["value"] * (math.inf if number == 1 else 1.0)
            with meter.terms(**terms) as loss:
                scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
    run = gm.load(tmp_path / "run")
    assert [event.step for event in run.events("skipped-step")] == [1]
    steps, norms = run.series("grad/all/term/value/norm")
    assert steps.tolist() == [0, 1, 2, 3]
    assert np.isfinite(norms).tolist() == [True, False, True, True]
    steps, scale = run.series("grad/all/term/scale")
    found = {int(step): x for step, x in zip(steps, scale, strict=True) if step != 1}
    factors = (
        (2.0**16, 2.0**15, 2.0**15) if fused and not unscale else (1.0, 1.0, 1.0)
    )  # a fused step unscales inside
    assert found == pytest.approx(dict(zip((0, 2, 3), factors, strict=True)), rel=1e-6)
    assert np.nanmax(run.series("grad/all/term/additivity_error")[1]) < 5e-6


@pytest.mark.parametrize("zero_inside", [False, True])
def test_a_skipped_step_never_mixes_the_terms_of_two_steps(
    zero_inside: bool, model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    calls = batches(4)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number, x in enumerate(calls):
            if not zero_inside:
                optimizer.zero_grad()
            with meter.terms(**losses(model, x)) as loss:
                optimizer.zero_grad()
                loss.backward()
            if number != 1:
                optimizer.step()
    expected = [np.linalg.norm(flat(model, losses(model, x)["value"])) for x in calls]
    steps, norms = gm.load(tmp_path / "run").series("grad/all/term/value/norm")
    for step, norm in zip(steps, norms, strict=True):
        assert norm == pytest.approx(expected[step], rel=1e-5)
    assert {0, 3} <= set(steps.tolist())


def test_a_closure_that_runs_several_times_gives_the_terms_of_its_last_run(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    evaluated: list[dict[str, float]] = []

    def evaluate() -> Tensor:
        terms = losses(model, batches()[0])
        evaluated.append(
            {
                name: float(np.linalg.norm(flat(model, losses(model, batches()[0])[name])))
                for name in TERMS
            }
        )
        optimizer.zero_grad()
        with meter.terms(**terms) as loss:
            loss.backward()
        return loss

    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        optimizer.step(evaluate)
    run = gm.load(tmp_path / "run")
    assert len(evaluated) > 1
    assert not run.events("fault")
    assert last(run, "grad/all/term/value/norm") == pytest.approx(evaluated[-1]["value"], rel=1e-5)
    assert last(run, "grad/all/term/additivity_error") < 5e-6


def test_a_critic_ahead_of_its_actor_has_terms_of_its_own_rounds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"actor": nn.Linear(6, 3), "critic": nn.Linear(6, 1)})
    actor, critic = (
        torch.optim.SGD(model[name].parameters(), lr=0.0) for name in ("actor", "critic")
    )
    calls = batches(4)
    with gm.watch(model, [actor, critic], budget=None, run=tmp_path / "run") as meter:
        for number, x in enumerate(calls):
            critic.zero_grad()
            with meter.terms(value=model["critic"](x).square().mean()) as loss:
                loss.backward()
            critic.step()
            if number % 2:
                actor.zero_grad()
                with meter.terms(policy=model["actor"](x).square().mean()) as loss:
                    loss.backward()
                actor.step()
    run = gm.load(tmp_path / "run")
    expected = [np.linalg.norm(flat(model, model["critic"](x).square().mean())) for x in calls]
    assert list(run.series("grad/critic/term/value/norm")[1]) == pytest.approx(expected, rel=1e-5)
    assert run.series("grad/actor/term/policy/norm")[0].tolist() == [1, 3]
    assert run.series("grad/all/term/additivity_error")[1].max() < 5e-6


def test_a_clip_after_every_micro_batch_leaves_the_terms_the_sum_over_the_micro_batches(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for x in batches(2):
            with meter.terms(**losses(model, x)) as loss:
                loss.backward()
            clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    run = gm.load(tmp_path / "run")
    whole = sum(flat(model, losses(model, x)["value"]) for x in batches(2))
    assert last(run, "grad/all/term/value/norm") == pytest.approx(np.linalg.norm(whole), rel=1e-5)
    assert "grad/all/term/additivity_error" not in run.names()  # the gradient is no sum of terms


@pytest.mark.parametrize("carried", [False, True])
def test_a_shared_loss_stepped_at_two_cadences_has_its_terms_once_the_rounds_are_known(
    carried: bool, model: ActorCritic, tmp_path: Path
) -> None:
    """The actor waits for every other round; what it has by then may be of both (`carried`)."""
    actor = torch.optim.SGD([*model.trunk.parameters(), *model.actor.parameters()], lr=0.0)
    critic = torch.optim.SGD(model.critic.parameters(), lr=0.0)
    calls = batches(6)
    with gm.watch(model, [actor, critic], budget=None, run=tmp_path / "run") as meter:
        for number, x in enumerate(calls):
            critic.zero_grad()
            if number % 2 == 0 or not carried:
                actor.zero_grad()
            with meter.terms(**losses(model, x)) as loss:
                loss.backward()
            clip_grad_norm_(model.parameters(), 0.1)
            critic.step()
            if number % 2:
                actor.step()
    run = gm.load(tmp_path / "run")
    assert len(run.events("terms-mixed")) == 1
    assert run.newest_step == 5
    expected = [np.linalg.norm(flat(model, losses(model, x)["value"])) for x in calls]
    steps, norms = run.series("grad/all/term/value/norm")
    assert set(steps.tolist()) >= {2, 3, 4}
    assert list(norms) == pytest.approx([expected[step] for step in steps], rel=1e-5)
    assert np.nanmax(run.series("grad/all/term/additivity_error")[1]) < 5e-6


def test_pausing_inside_a_round_leaves_no_half_of_its_terms(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number, x in enumerate(batches(2)):
            if number:
                meter.pause()
            with meter.terms(**losses(model, x)) as loss:
                loss.backward()
        meter.resume()
        optimizer.step()
    assert not [name for name in gm.load(tmp_path / "run").names() if "/term/" in name]


HOOKS: dict[str, Callable[[Tensor, list[Any]], Any]] = {
    "tensor": lambda h, calls: h.register_hook(calls.append),
    "node": lambda h, calls: h.grad_fn.register_hook(lambda *a: calls.append(a)),  # type: ignore[union-attr]
    "node before": lambda h, calls: h.grad_fn.register_prehook(calls.append),  # type: ignore[union-attr]
    "several": lambda h, calls: torch.autograd.graph.register_multi_grad_hook([h], calls.append),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_on_an_activation_is_called_once_and_that_step_has_no_terms(
    kind: str, model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[Any] = []
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number, x in enumerate(batches(5)):
            optimizer.zero_grad()
            terms = losses(model, x)
            if number in (1, 3):
                h = model(x)[1]
                HOOKS[kind](h, calls)
                terms["value"] = h.square().mean()
                del h
            with meter.terms(**terms) as loss:
                loss.backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert len(calls) == 2
    assert run.series("grad/all/term/value/norm")[0].tolist() == [0, 2, 4]
    assert len(run.events("terms-hooked")) == 1
    assert not run.events("fault")


def test_hooks_that_no_second_backward_calls_do_not_cost_the_terms(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        model.actor.register_forward_hook(lambda *_: None)
        model.actor.weight.register_post_accumulate_grad_hook(lambda _: None)
        optimizer.register_step_pre_hook(lambda *_: None)
        terms = losses(model, batches()[0])
        terms["value"].register_hook(print).remove()
        for _ in range(2):
            with meter.terms(**losses(model, batches()[0])) as loss:
                loss.backward()
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert "grad/all/term/value/norm" in run.names()
    assert not run.events("terms-hooked")


def test_a_hook_from_before_the_other_optimizers_step_is_seen(tmp_path: Path) -> None:
    model = nn.ModuleDict({"actor": nn.Linear(6, 3), "critic": nn.Linear(6, 1)})
    actor, critic = (
        torch.optim.SGD(model[name].parameters(), lr=0.1) for name in ("actor", "critic")
    )
    calls: list[Tensor] = []
    with gm.watch(model, [actor, critic], budget=None, run=None) as meter:
        for x in batches(2):
            policy, value = model["actor"](x), model["critic"](x)
            value.register_hook(calls.append)
            with meter.terms(policy=policy.square().mean()) as loss:
                loss.backward()
            actor.step()
            with meter.terms(value=value.square().mean()) as loss:
                loss.backward()
            critic.step()
    assert len(calls) == 2


@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_a_step_of_which_one_loss_never_went_backward_has_no_terms(
    skipped: int, model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for step in range(3):
            optimizer.zero_grad()
            for number, x in enumerate(batches(3)):
                terms = losses(model, x)
                if step == 1 and number == skipped:
                    terms["value"] = terms["value"] * math.nan
                with meter.terms(**terms) as loss:
                    if torch.isfinite(loss):
                        loss.backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    for name in [name for name in run.names() if "/term/" in name]:
        steps, found = run.series(name)
        assert steps.tolist() == [0, 2], name
        assert np.isfinite(found).all(), name
    assert "grad/all/term/additivity_error" in run.names()
    assert [event.step for event in run.events("terms-unused")] == [1]
    assert not run.events("nonfinite")


@pytest.mark.parametrize("when", ["before backward", "inside backward"])
def test_a_body_that_raised_and_is_tried_again_counts_once(
    when: str, model: ActorCritic, tmp_path: Path
) -> None:
    def fail(_: Tensor) -> None:
        raise MemoryError

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    terms = losses(model, batches()[0])
    handle = (
        model.critic.bias.register_post_accumulate_grad_hook(fail)
        if when == "inside backward"
        else None
    )
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with pytest.raises(MemoryError), meter.terms(**terms) as loss:
            if when == "before backward":
                raise MemoryError
            loss.backward()
        if handle is not None:
            handle.remove()
        optimizer.zero_grad()
        with meter.terms(**losses(model, batches()[0])) as loss:
            loss.backward()
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert last(run, "grad/all/term/scale") == pytest.approx(1.0, abs=1e-6)
    assert last(run, "grad/all/term/value/loss") == pytest.approx(
        float(terms["value"].detach()), rel=1e-6
    )
    assert not run.events("terms-unused")


def test_losses_of_two_calls_that_go_backward_together_are_both_used(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    first, second = batches(2)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with (
            meter.terms(**losses(model, first)) as one,
            meter.terms(**losses(model, second)) as other,
        ):
            ((one + other) / 2).backward()
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert last(run, "grad/all/term/scale") == pytest.approx(0.5, abs=1e-6)
    assert last(run, "grad/all/term/additivity_error") < 5e-6


def test_a_nan_in_one_term_is_a_nan_in_its_block_and_nowhere_else(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"actor": nn.Linear(6, 3), "critic": nn.Linear(6, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = batches()[0]
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with meter.terms(
            policy=model["actor"](x).mean(),
            value=model["critic"](x).mean() * math.nan,
            kl=model["actor"](x).square().mean(),
        ) as loss:
            loss.backward()
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert math.isnan(last(run, "grad/critic/term/value/norm"))
    assert math.isnan(last(run, "grad/all/term/policy/share"))
    assert math.isnan(last(run, "grad/all/term/additivity_error"))
    assert math.isfinite(last(run, "grad/actor/term/policy/share"))
    assert math.isfinite(last(run, "grad/all/term/policy~kl/cos"))
    assert run.events("nonfinite")[0].detail["terms"] == ["value"]


def test_sparse_and_complex_gradients_have_terms_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"words": nn.Embedding(20, 4, sparse=True), "head": nn.Linear(4, 2)})
    wave = nn.Parameter(torch.randn(4, dtype=torch.complex64))
    model.register_parameter("wave", wave)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def make() -> dict[str, Tensor]:
        h = model["words"](torch.tensor([1, 1, 7]))
        return {
            "policy": model["head"](h).square().mean(),
            "value": (h[0] * wave).abs().square().sum(),
        }

    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with meter.terms(**make()) as loss:
            loss.backward()
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    model.zero_grad()
    make()["value"].backward()
    assert wave.grad is not None
    length = float(torch.linalg.vector_norm(wave.grad))
    assert last(run, "grad/layer.wave/term/value/norm") == pytest.approx(length, rel=1e-5)
    assert last(run, "grad/all/term/additivity_error") < 5e-6


# Rewards.


def advantages(seed: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "correct": torch.randn(32, generator=generator),
        "format": 0.3 * torch.randn(32, generator=generator),
    }


def ratio_of(model: ActorCritic, x: Tensor, *, stale: float) -> Tensor:
    """π/π_old of action 0; `stale` moves the old policy away, which sets PPO's clip to work."""
    log_probs = model(x)[0][:, 0]
    generator = torch.Generator().manual_seed(9)
    return (log_probs - log_probs.detach() + stale * torch.randn(len(x), generator=generator)).exp()


def ppo(ratio: Tensor, advantage: Tensor) -> Tensor:
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def measure_rewards(
    model: ActorCritic, run: Path, *, form: str, stale: float, dropout: bool = False
) -> gm.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x, by_reward = batches()[0], advantages()
    with gm.watch(model, optimizer, budget=None, run=run) as meter:
        ratio = ratio_of(model, x, stale=stale)
        policy: Any = lambda summed: ppo(ratio, summed)  # noqa: E731
        if form == "graph":
            by_reward = {name: a.requires_grad_() for name, a in by_reward.items()}
            policy = ppo(ratio, by_reward["correct"] + by_reward["format"])
        with meter.terms(
            policy=policy, value=losses(model, x)["value"], advantages=by_reward
        ) as loss:
            loss.backward()
        optimizer.step()
    return gm.load(run)


@pytest.mark.parametrize("form", ["function", "graph"])
def test_on_policy_a_reward_contributes_the_gradient_of_its_own_loss(
    form: str, model: ActorCritic, tmp_path: Path
) -> None:
    run = measure_rewards(model, tmp_path / "run", form=form, stale=0.0)
    for block, prefix in {"all": "", "actor": "actor", "layer.trunk.0": "trunk.0"}.items():
        g = {
            name: flat(model, ppo(ratio_of(model, batches()[0], stale=0.0), a), prefix)
            for name, a in advantages().items()
        }
        total = sum(g.values())
        for name in g:
            assert last(run, f"grad/{block}/reward/{name}/norm") == pytest.approx(
                np.linalg.norm(g[name]), rel=1e-6
            )
            share = g[name] @ total / (total @ total)
            assert last(run, f"grad/{block}/reward/{name}/share") == pytest.approx(share, abs=1e-6)
        cosine = g["correct"] @ g["format"] / np.prod([np.linalg.norm(part) for part in g.values()])
        assert last(run, f"grad/{block}/reward/correct~format/cos") == pytest.approx(
            cosine, abs=1e-6
        )
    assert "grad/critic/reward/correct/norm" not in run.names()
    assert not run.events("rewards-not-additive")
    assert last(run, "grad/all/term/additivity_error") < 5e-6


@pytest.mark.parametrize("form", ["function", "graph"])
def test_with_the_clip_at_work_the_contributions_add_up_to_the_policy_gradient(
    form: str, model: ActorCritic, tmp_path: Path
) -> None:
    run = measure_rewards(model, tmp_path / "run", form=form, stale=0.5)
    ratio, by_reward = ratio_of(model, batches()[0], stale=0.5), advantages()
    summed = by_reward["correct"] + by_reward["format"]
    open_ = (
        ratio * summed <= ratio.clamp(0.8, 1.2) * summed
    ).detach()  # not held by the clip of the whole loss
    assert 3 < int(open_.sum()) < 29
    g = {}
    for name, a in by_reward.items():
        g[name] = flat(model, -(ratio_of(model, batches()[0], stale=0.5) * a * open_).mean())
        assert last(run, f"grad/all/reward/{name}/norm") == pytest.approx(
            np.linalg.norm(g[name]), rel=1e-5
        )
    total = flat(model, ppo(ratio_of(model, batches()[0], stale=0.5), summed))
    assert np.allclose(sum(g.values()), total, atol=1e-6 * np.linalg.norm(total))
    assert sum(last(run, f"grad/all/reward/{name}/share") for name in g) == pytest.approx(
        1.0, abs=1e-6
    )
    assert last(run, "grad/all/term/policy/norm") == pytest.approx(np.linalg.norm(total), rel=1e-5)
    assert not run.events("rewards-not-additive")


def test_advantages_normalised_inside_the_loss_are_said_not_to_add_up(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def normalised(a: Tensor) -> Tensor:
        return -(ratio_of(model, batches()[0], stale=0.0) * (a - a.mean()) / a.std()).mean()

    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for _ in range(2):
            with meter.terms(policy=normalised, advantages=advantages()) as loss:
                loss.backward()
            optimizer.step()
    (event,) = gm.load(tmp_path / "run").events("rewards-not-additive")
    assert event.detail["error"] > 0.5


def test_a_reward_that_no_term_hangs_on_is_named(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    by_reward = {name: a.requires_grad_() for name, a in advantages().items()}
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        ratio = ratio_of(model, batches()[0], stale=0.0)
        with meter.terms(policy=ppo(ratio, by_reward["correct"]), advantages=by_reward) as loss:
            loss.backward()
        optimizer.step()
    run = gm.load(tmp_path / "run")
    (event,) = run.events("dead-reward")
    assert event.detail["reward"] == "format"
    assert "grad/all/reward/correct/norm" in run.names()
    assert "grad/all/reward/format/norm" not in run.names()


def test_a_function_that_fails_the_second_time_costs_only_the_rewards(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    ratio = ratio_of(model, batches()[0], stale=0.0)

    def picky(a: Tensor) -> Tensor:
        if a.requires_grad:
            raise ValueError("not with a gradient")
        return ppo(ratio, a)

    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with (
            pytest.warns(GradiometerWarning, match="does not measure rewards") as caught,
            meter.terms(policy=picky, advantages=advantages()) as loss,
        ):
            loss.backward()
        optimizer.step()
    assert caught[0].filename == __file__
    run = gm.load(tmp_path / "run")
    assert "not with a gradient" in run.events("rewards-unmeasurable")[0].message
    assert last(run, "grad/all/term/policy/share") == pytest.approx(1.0)
    assert not [name for name in run.names() if "/reward/" in name]
    assert not run.events("fault")


@pytest.mark.parametrize("kind", ["measured", "every third", "disabled"])
def test_a_policy_given_as_a_function_trains_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    def train(watched: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = ActorCritic(dropout=0.2)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        options = {"measured": {"tier": "deep"}, "every third": {"every": 3}}.get(kind, {})
        opened: Any = nullcontext()
        if watched:
            opened = (
                NullMeter()
                if kind == "disabled"
                else gm.watch(model, optimizer, budget=None, run=None, **options)
            )
        with opened as meter:
            for number in range(12):
                optimizer.zero_grad()
                for x in batches(2, seed=number):
                    by_reward = advantages(number)

                    def policy(a: Tensor, x: Tensor = x) -> Tensor:
                        return ppo(
                            ratio_of(model, x, stale=0.1), a
                        )  # a forward of its own, which draws a dropout mask

                    if watched:
                        with meter.terms(
                            policy=policy, value=losses(model, x)["value"], advantages=by_reward
                        ) as loss:
                            loss.backward()
                    else:
                        value = losses(model, x)["value"]
                        (policy(by_reward["correct"] + by_reward["format"]) + value).backward()
                optimizer.step()
        return {**model.state_dict(), "random": torch.get_rng_state()}

    bare, watched = train(watched=False), train(watched=True)
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


# Results of probes.


def test_a_probes_result_is_kept_on_the_step_axis(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number in range(3):
            losses(model, batches()[0])["value"].backward()
            optimizer.step()
            if number == 1:
                meter.at(epoch=4)
                meter.record(
                    {"grad_norm/all/task": 2.0, "grad_norm/all/kl": math.nan},
                    tables={"anatomy": {"unit": "group"}},
                )
        meter.record({"grad_norm/all/task": 3.0}, step=40)
        meter.record({}, tables={"anatomy": {"unit": "sample"}})
    with pytest.warns(gm.GradiometerWarning, match="after meter.close"):
        meter.record({"after": 1.0})
    run = gm.load(tmp_path / "run")
    steps, values = run.series("grad_norm/all/task")
    assert (steps.tolist(), values.tolist()) == ([2, 40], [2.0, 3.0])
    assert math.isnan(last(run, "grad_norm/all/kl"))
    assert [(table.step, table.content) for table in run.tables("anatomy")] == [
        (2, {"unit": "group"}),
        (3, {"unit": "sample"}),
    ]
    assert "after" not in run.names()


def test_the_null_meter_records_nothing_and_evaluates_functions_alike() -> None:
    meter = NullMeter()
    meter.record({"x": 1.0}, tables={"t": []}, step=3)
    by_reward = advantages()
    with meter.terms(policy=lambda a: a.sum(), advantages=by_reward) as loss:
        assert torch.equal(loss, (by_reward["correct"] + by_reward["format"]).sum())


class Waits(torch.overrides.TorchFunctionMode):
    """Notes the calls that wait for a device; a copy to the host, and its view as an array, are one
    transfer."""

    METHODS = (
        "item",
        "tolist",
        "cpu",
        "numpy",
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "nonzero",
        "equal",
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in self.METHODS:
            self.calls.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"terms_memory": 0}])
@pytest.mark.usefixtures("as_on_a_device")
def test_splitting_by_terms_and_rewards_waits_for_the_device_once(
    options: dict[str, Any], model: ActorCritic
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(
        model, optimizer, run=None, budget=None, every=2, terms_every=1, **options
    ) as meter:
        for number in range(6):
            with Waits() as waits:
                optimizer.zero_grad()
                for x in batches(2):
                    ratio = ratio_of(model, x, stale=0.1)
                    terms: dict[str, Any] = {
                        **losses(model, x),
                        "policy": lambda a, r=ratio: ppo(r, a),
                    }
                    with meter.terms(**terms, advantages=advantages()) as loss:
                        loss.backward()
                clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
            assert waits.calls == (["cpu", "numpy"] if number % 2 == 0 else [])
