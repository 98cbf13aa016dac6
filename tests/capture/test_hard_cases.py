"""Loops that broke an earlier version of the meter; each stays mended."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.checkpoint import checkpoint

import gradiometer as gm
from gradiometer.errors import NonFiniteGradient, UsageError


def values(folder: Path, name: str) -> list[float]:
    return list(gm.load(folder).series(name)[1])


def norm_of(model: nn.Module) -> float:
    return math.sqrt(
        sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None)
    )


def constant_gradients(model: nn.Module, level: float = 1.0) -> None:
    for p in model.parameters():
        p.grad = torch.full_like(p, level)


def test_a_matrix_with_as_many_columns_as_the_sample_is_seen_whole(tmp_path: Path) -> None:
    model = nn.Linear(1024, 1024, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        model.weight.grad = torch.ones(1024, 1024)
        model.weight.grad[:, 0] = 0.0
        optimizer.step()
    assert values(tmp_path / "run", "grad/all/zero_fraction")[0] < 0.01


def actor_and_critic() -> tuple[nn.Linear, nn.Linear, torch.optim.Optimizer, torch.optim.Optimizer]:
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 1), nn.Linear(4, 1)
    return (
        actor,
        critic,
        torch.optim.SGD(actor.parameters(), lr=0.01),
        torch.optim.SGD(critic.parameters(), lr=0.01),
    )


@pytest.mark.parametrize("delay", [1, 2])
def test_separate_clips_of_two_optimizers_skip_nothing_and_share_rounds(
    delay: int, tmp_path: Path
) -> None:
    actor, critic, actor_optimizer, critic_optimizer = actor_and_critic()
    both = {"actor": actor, "critic": critic}
    with gm.watch(both, [critic_optimizer, actor_optimizer], run=tmp_path / "run", budget=None):
        for number in range(6):
            x = torch.randn(8, 3)
            critic_optimizer.zero_grad()
            critic(torch.cat([x, torch.randn(8, 1)], 1)).square().mean().backward()
            clip_grad_norm_(critic.parameters(), 0.1)
            critic_optimizer.step()
            if number % delay == delay - 1:
                actor_optimizer.zero_grad()
                critic_optimizer.zero_grad()
                (-critic(torch.cat([x, actor(x)], 1)).mean()).backward()
                clip_grad_norm_(actor.parameters(), 0.1)
                actor_optimizer.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("skipped-step")
    assert run.newest_step == 5
    assert list(run.series("grad/critic/norm/update")[0]) == list(range(6))
    assert "meter/micro_batches" not in run.names()
    assert len(run.events("missing")) == 0  # an actor that waits for its turn is not missing


def test_the_weights_of_every_optimizer_are_measured_anew(tmp_path: Path) -> None:
    actor, critic, actor_optimizer, critic_optimizer = actor_and_critic()
    both = nn.ModuleDict({"actor": actor, "critic": critic})
    with gm.watch(both, [critic_optimizer, actor_optimizer], run=tmp_path / "run", budget=None):
        for _ in range(31):
            constant_gradients(both)
            before = [
                math.sqrt(sum(float(p.detach().square().sum()) for p in part.parameters()))
                for part in (actor, critic)
            ]
            critic_optimizer.step()
            actor_optimizer.step()
            with torch.no_grad():
                for p in both.parameters():
                    p.mul_(1.1)
    for block, size in zip(("actor", "critic"), before, strict=True):
        ratio, update = (
            values(tmp_path / "run", f"grad/{block}/{name}")[-1]
            for name in ("update_ratio", "norm/update")
        )
        assert update / ratio == pytest.approx(size, rel=0.01)  # step 30 is a multiple of ten


@pytest.mark.slow
def test_saying_the_step_at_every_iteration_keeps_the_budget_and_the_lag(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None) as meter:
        for number in range(5):
            meter.step(2048 * number)
            constant_gradients(model)
            optimizer.step()
    steps, cosines = gm.load(tmp_path / "run").series("grad/all/cos_prev")
    assert list(steps) == [2048, 4096, 6144, 8192]
    assert cosines == pytest.approx([1.0] * 4)
    with gm.watch(model, optimizer, run=None, budget=0.001) as meter:
        measured = 0
        for number in range(1500):
            meter.step(number)
            constant_gradients(model)
            optimizer.step()
            measured += meter._measured_step == number
        assert measured < 1000


def test_the_step_may_be_said_between_clip_and_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None) as meter:
        constant_gradients(model)
        raw = norm_of(model)
        clip_grad_norm_(model.parameters(), 0.5)
        meter.step(10)
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert list(run.series("grad/all/norm/raw")[0]) == [10]
    assert values(tmp_path / "run", "grad/all/norm/raw") == pytest.approx([raw])
    assert values(tmp_path / "run", "grad/all/norm/clipped") == pytest.approx([0.5], rel=1e-4)


def test_cosines_of_a_fused_optimizer_under_a_scaler_stay_cosines(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(8, 5)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert all(abs(cosine) <= 1.001 for cosine in values(tmp_path / "run", "grad/all/cos_prev"))


class Meddling(torch.optim.SGD):
    """Changes the gradients inside its step, as Muon does."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(5.0).add_(1.0)
        return None


def test_an_optimizer_that_changes_gradients_does_not_make_cosines_up(tmp_path: Path) -> None:
    model = nn.Linear(6, 6, bias=False)
    optimizer = Meddling(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(4):
            model.weight.grad = torch.randn(6, 6)
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert all(abs(cosine) <= 1.0 for cosine in run.series("grad/all/cos_prev")[1])
    assert "grad/all/cos_update" not in run.names()


def test_a_replaced_parameter_is_noticed(tmp_path: Path) -> None:
    model = nn.Linear(3, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for level in (1.0, 2.0, 3.0):
            if level == 2.0:
                model.weight = nn.Parameter(torch.zeros(3, 3))
                optimizer.param_groups[0]["params"] = [model.weight]
            constant_gradients(model, level)
            optimizer.step()
    assert values(tmp_path / "run", "grad/all/norm/raw") == pytest.approx([3.0, 6.0, 9.0])


def test_data_of_another_shape_does_not_stop_the_measuring(tmp_path: Path) -> None:
    model = nn.Linear(3, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for size in (3, 5, 5):
            model.weight.grad = None
            model.weight.data = torch.zeros(size, size)
            constant_gradients(model)
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert values(tmp_path / "run", "grad/all/norm/raw") == pytest.approx([3.0, 5.0, 5.0])


def test_a_clip_by_value_and_then_by_norm_are_both_in_what_the_optimizer_sees(
    tmp_path: Path,
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        constant_gradients(model, 1e3)
        clip_grad_value_(model.parameters(), 0.01)
        clip_grad_norm_(model.parameters(), 1.0)
        seen = norm_of(model)
        optimizer.step()
    assert values(tmp_path / "run", "grad/all/norm/clipped") == pytest.approx([seen], rel=1e-5)


def test_a_gradient_that_was_replaced_after_backward_is_the_one_that_is_sketched(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(20, 20, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, direction="sketch"):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(1, 20)).sum().backward()
            model.weight.grad = torch.ones(20, 20)
            optimizer.step()
    assert gm.load(tmp_path / "run").cosine(0, 1).value == pytest.approx(1.0, abs=1e-4)


def test_a_nan_made_inside_a_closure_stops_before_the_weights_change() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum() * math.nan
        loss.backward()
        return loss

    with (
        gm.watch(model, optimizer, run=None, on_nonfinite="raise"),
        pytest.raises(NonFiniteGradient),
    ):
        optimizer.step(closure)
    assert torch.equal(model.weight, before)


def test_while_paused_a_nan_does_not_raise() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=None, on_nonfinite="raise") as meter:
        meter.pause()
        constant_gradients(model, math.nan)
        optimizer.step()


def test_a_fault_never_reaches_close_and_hooks_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meter = gm.watch(model, optimizer, run=None, budget=None)
    constant_gradients(model)
    clip_grad_norm_(model.parameters(), 1.0)  # a round is open
    monkeypatch.setattr(meter._analysis, "analyse", lambda *_, **__: 1 / 0)
    with pytest.warns(gm.GradiometerWarning, match="your training goes on"):
        meter.close()
    assert not optimizer._optimizer_step_pre_hooks
    meter.resume()
    assert meter._observer.paused  # what is broken stays off


def test_health_after_a_step_that_was_skipped_first(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=None, budget=None) as meter:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
        assert meter.gradient_health().gradient_norm is None
        meter.load_state_dict({})


def test_a_checkpoint_of_other_sketches_or_loaded_twice_does_no_harm(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=None, budget=None, sketch_size=64) as meter:
        for _ in range(5):
            constant_gradients(model)
            optimizer.step()
        saved = meter.state_dict()
        meter.load_state_dict(saved)
        assert len(meter._analysis._history._tensors) == 5
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, sketch_size=128) as meter:
        meter.load_state_dict(saved)
        for _ in range(9):
            constant_gradients(model)
            optimizer.step()
    assert not gm.load(tmp_path / "run").events("fault")


def test_logged_tensors_keep_the_coordinates_of_their_moment(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, every=5) as meter:
        for number in range(12):
            meter.at(rollout=number)
            constant_gradients(model)
            optimizer.step()
            meter.log(x=torch.tensor(1.0))
    assert list(gm.load(tmp_path / "run").steps()["rollout"]) == list(range(12))


@pytest.mark.parametrize("moment", ["between backward and step", "after the step"])
def test_advantages_belong_to_their_step_whenever_they_are_logged(
    moment: str, tmp_path: Path
) -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    generator = np.random.default_rng(0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None) as meter:
        for _ in range(61):
            spread = float(np.exp(generator.normal()))
            optimizer.zero_grad()
            (spread * model(torch.ones(1, 4)).sum()).backward()
            if moment.startswith("between"):
                meter.log({"advantages/std": spread})
            optimizer.step()
            if moment.startswith("after"):
                meter.log({"advantages/std": spread})
    assert values(tmp_path / "run", "grad/all/advantage_response")[-1] > 0.95


def test_frozen_parameters_of_an_optimizer_are_not_copied() -> None:
    model = nn.ModuleDict({"base": nn.Linear(200, 200), "adapter": nn.Linear(4, 4)})
    model["base"].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=None, budget=None) as meter:
        for _ in range(3):
            constant_gradients(model["adapter"])
            optimizer.step()
        assert sum(kept.numel() for kept in meter._observer.reader._scratch.values()) == 20


def test_an_unused_first_parameter_does_not_hide_the_backward(tmp_path: Path) -> None:
    model = nn.ModuleDict({"unused": nn.Linear(3, 3), "used": nn.Linear(3, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(5):
            optimizer.zero_grad()
            for _ in range(2):
                model["used"](torch.randn(2, 3)).sum().backward()
            optimizer.step()
    assert set(values(tmp_path / "run", "meter/micro_batches")) == {2.0}


def test_each_block_answers_to_the_rate_of_its_own_optimizer(tmp_path: Path) -> None:
    actor, critic, actor_optimizer, critic_optimizer = actor_and_critic()
    both = nn.ModuleDict({"actor": actor, "critic": critic})
    generator = np.random.default_rng(0)
    with gm.watch(both, [actor_optimizer, critic_optimizer], run=tmp_path / "run", budget=None):
        for _ in range(61):
            for optimizer in (actor_optimizer, critic_optimizer):
                optimizer.param_groups[0]["lr"] = 10.0 ** generator.uniform(-8, -5)
            constant_gradients(both)
            actor_optimizer.step()
            critic_optimizer.step()
    for block in ("actor", "critic"):
        assert values(tmp_path / "run", f"grad/{block}/lr_response")[-1] > 0.7


def test_features_keep_what_is_measured_less_often() -> None:
    model = nn.Linear(5, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=None, budget=None) as meter:
        for _ in range(11):
            constant_gradients(model)
            optimizer.step()
        assert meter.features()[8] == pytest.approx(
            1.0, abs=0.01
        )  # cos_ema, last taken at the ninth measured step


def test_blocks_may_be_generators_and_sketches_may_not_be_too_large(tmp_path: Path) -> None:
    actor, critic, actor_optimizer, _ = actor_and_critic()
    both = nn.ModuleDict({"actor": actor, "critic": critic})
    with gm.watch(both, actor_optimizer, run=None, blocks={"head": actor.parameters()}) as meter:
        assert "head" in meter.blocks.names
    with pytest.raises(UsageError, match="sketch_size is at most 4096"):
        gm.watch(both, actor_optimizer, run=tmp_path / "run", sketch_size=8192)
    assert not (tmp_path / "run").exists()


def test_terms_leave_the_statistics_of_a_checkpointed_batch_norm_alone() -> None:
    def train(watched: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        meter = gm.watch(model, optimizer, run=None, budget=None) if watched else None
        for _ in range(3):
            optimizer.zero_grad()
            out = model[3](checkpoint(model[:3], torch.randn(16, 4), use_reentrant=False))
            terms = {"policy": out[:, 0].mean(), "value": out[:, 1].square().mean()}
            if meter is None:
                (terms["policy"] + terms["value"]).backward()
            else:
                with meter.terms(**terms) as loss:
                    loss.backward()
            optimizer.step()
        if meter is not None:
            meter.close()
        return dict(model.state_dict())

    bare, watched = train(watched=False), train(watched=True)
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_two_clips_over_the_same_block_are_kept_apart(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        constant_gradients(model)
        clip_grad_norm_(model.parameters(), 1.0)
        clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    assert values(tmp_path / "run", "grad/all/clip/threshold") == [1.0]
    assert values(tmp_path / "run", "grad/clip.1/clip/threshold") == [0.25]
    assert values(tmp_path / "run", "grad/clip.1/clip/ratio") == pytest.approx([0.25], rel=1e-4)
    assert values(tmp_path / "run", "grad/all/norm/clipped") == pytest.approx([0.25], rel=1e-4)
