"""The meter against numbers computed by hand from the same gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

import gradiometer as gm
from gradiometer.capture.watch import NullMeter
from gradiometer.errors import (
    GradiometerWarning,
    NonFiniteGradient,
    NothingToWatch,
    UnknownName,
    UsageError,
)


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.actor = nn.Linear(8, 3)
        self.critic = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.trunk(x))
        return self.actor(h), self.critic(h)


@pytest.fixture
def model() -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic()


def loss_of(model: ActorCritic) -> Tensor:
    action, value = model(torch.randn(16, 4))
    return action.square().mean() + value.square().mean()


def norm_of(*tensors: Tensor | None) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors if t is not None))


def value_at(run: gm.Run, name: str, step: int) -> float:
    steps, values = run.series(name)
    return float(values[list(steps).index(step)])


def test_raw_norms_per_block_and_layer_equal_those_of_the_gradients(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected: list[dict[str, float]] = []
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            expected.append(
                {
                    "all": norm_of(*(p.grad for p in model.parameters())),
                    "actor": norm_of(model.actor.weight.grad, model.actor.bias.grad),
                    "critic": norm_of(model.critic.weight.grad, model.critic.bias.grad),
                    "trunk": norm_of(model.trunk.weight.grad, model.trunk.bias.grad),
                    "layer.trunk": norm_of(model.trunk.weight.grad, model.trunk.bias.grad),
                }
            )
            optimizer.step()
    run = gm.load(tmp_path / "run")
    for step, norms in enumerate(expected):
        for block, norm in norms.items():
            assert value_at(run, f"grad/{block}/norm/raw", step) == pytest.approx(norm, rel=1e-6)


def test_extremes_are_those_of_the_elements(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run", tier="light"):
        loss_of(model).backward()
        expected = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
        optimizer.step()
    assert value_at(gm.load(tmp_path / "run"), "grad/all/max_abs", 0) == pytest.approx(expected)


def test_update_is_what_the_weights_did(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        before = model.actor.weight.detach().clone(), model.actor.bias.detach().clone()
        optimizer.step()
        moved = norm_of(
            model.actor.weight.detach() - before[0], model.actor.bias.detach() - before[1]
        )
    run = gm.load(tmp_path / "run")
    assert value_at(run, "grad/actor/norm/update", 0) == pytest.approx(moved, rel=1e-5)
    assert value_at(run, "grad/actor/update_ratio", 0) == pytest.approx(
        moved / norm_of(*before), rel=1e-5
    )


def _clip_by_name(model: nn.Module) -> float:
    return float(
        clip_grad_norm_(model.parameters(), 0.05)
    )  # a generator: it can be walked once only


def _clip_by_attribute(model: nn.Module) -> float:
    return float(torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.05))


def _clip_in_two_calls(model: nn.Module) -> float:
    total = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    clip_grads_with_norm_(model.parameters(), 0.05, total)
    return float(total)


@pytest.mark.parametrize("clip", [_clip_by_name, _clip_by_attribute, _clip_in_two_calls])
def test_a_clip_is_seen_however_it_is_called(
    clip: Callable[[nn.Module], float], model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        raw = clip(model)
        clipped = norm_of(*(p.grad for p in model.parameters()))
        actor = norm_of(model.actor.weight.grad, model.actor.bias.grad)
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert raw > 0.05
    assert value_at(run, "grad/all/norm/raw", 0) == pytest.approx(raw, rel=1e-6)
    assert value_at(run, "grad/all/norm/clipped", 0) == pytest.approx(clipped, rel=1e-5)
    assert value_at(run, "grad/actor/norm/clipped", 0) == pytest.approx(actor, rel=1e-5)
    assert value_at(run, "grad/all/clip/threshold", 0) == 0.05
    assert value_at(run, "grad/all/clip/active", 0) == 1.0
    assert value_at(run, "grad/all/clip/ratio", 0) == pytest.approx(0.05 / raw, rel=1e-6)


def test_a_clip_that_does_not_bite_is_inactive(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert value_at(run, "grad/all/clip/active", 0) == 0.0
    assert value_at(run, "grad/all/clip/ratio", 0) == 1.0
    assert value_at(run, "grad/all/norm/clipped", 0) == pytest.approx(
        value_at(run, "grad/all/norm/raw", 0)
    )


def test_separate_clips_of_actor_and_critic_stand_under_their_blocks(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        actor = float(clip_grad_norm_(model.actor.parameters(), 0.01))
        clip_grad_norm_(model.critic.parameters(), 1e3)
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert value_at(run, "grad/actor/clip/ratio", 0) == pytest.approx(0.01 / actor, rel=1e-6)
    assert value_at(run, "grad/critic/clip/active", 0) == 0.0
    assert "grad/all/clip/ratio" not in run.names()
    assert "grad/trunk/norm/clipped" not in run.names()


def test_a_gradient_changed_after_the_clip_is_measured_again(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        clip_grad_norm_(model.parameters(), 0.05)
        for p in model.parameters():
            assert p.grad is not None
            p.grad.mul_(3.0)
        seen = norm_of(*(p.grad for p in model.parameters()))
        optimizer.step()
    assert value_at(gm.load(tmp_path / "run"), "grad/all/norm/clipped", 0) == pytest.approx(
        seen, rel=1e-5
    )


def test_a_clip_by_value_is_measured_after_it(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        raw = norm_of(*(p.grad for p in model.parameters()))
        clip_grad_value_(model.parameters(), 0.01)
        seen = norm_of(*(p.grad for p in model.parameters()))
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert value_at(run, "grad/all/norm/raw", 0) == pytest.approx(raw, rel=1e-6)
    assert value_at(run, "grad/all/norm/clipped", 0) == pytest.approx(seen, rel=1e-6)
    assert value_at(run, "grad/all/clip/ratio", 0) == pytest.approx(seen / raw, rel=1e-6)
    assert value_at(run, "grad/all/clip/active", 0) == 1.0


def test_without_a_clip_there_is_no_clipped_row(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        optimizer.step()
    assert not [name for name in gm.load(tmp_path / "run").names() if "clip" in name]


def test_the_clip_of_another_model_is_not_ours(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = nn.Linear(2, 1)
    other(torch.ones(1, 2)).sum().backward()
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        clip_grad_norm_(other.parameters(), 0.1)
        optimizer.step()
    assert not [name for name in gm.load(tmp_path / "run").names() if "clip" in name]


def test_only_every_nth_step_is_measured_and_the_axis_stays(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run", every=3) as meter:
        for number in range(8):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            meter.log(reward=number)
    run = gm.load(tmp_path / "run")
    assert list(run.series("grad/all/norm/raw")[0]) == [0, 3, 6]
    assert list(run.series("reward")[0]) == list(range(8))
    assert list(run.series("reward")[1]) == list(range(8))


def test_several_optimizers_share_a_step(model: ActorCritic, tmp_path: Path) -> None:
    actor = torch.optim.SGD([*model.trunk.parameters(), *model.actor.parameters()], lr=0.01)
    critic = torch.optim.Adam(model.critic.parameters(), lr=0.01)
    with gm.watch(model, [actor, critic], budget=None, run=tmp_path / "run"):
        for _ in range(3):
            model.zero_grad()
            loss_of(model).backward()
            actor.step()
            critic.step()
    run = gm.load(tmp_path / "run")
    for name in ("grad/actor/norm/raw", "grad/critic/norm/update"):
        assert list(run.series(name)[0]) == [0, 1, 2]


def test_a_critic_that_steps_twice_as_often_has_rounds_of_its_own(
    model: ActorCritic, tmp_path: Path
) -> None:
    actor = torch.optim.SGD([*model.trunk.parameters(), *model.actor.parameters()], lr=0.01)
    critic = torch.optim.SGD(model.critic.parameters(), lr=0.01)
    with gm.watch(model, {"actor": actor, "critic": critic}, budget=None, run=tmp_path / "run"):
        for number in range(4):
            model.zero_grad()
            loss_of(model).backward()
            critic.step()
            if number % 2:
                actor.step()
    run = gm.load(tmp_path / "run")
    assert list(run.series("grad/critic/norm/update")[0]) == [0, 1, 2, 3]
    assert list(run.series("grad/actor/norm/update")[0]) == [1, 3]


def test_a_parameter_without_gradient_is_missing_and_a_frozen_one_frozen(tmp_path: Path) -> None:
    model = nn.ModuleDict(
        {"used": nn.Linear(3, 3), "unused": nn.Linear(3, 3), "frozen": nn.Linear(3, 3)}
    )
    model["frozen"].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        model["used"](torch.ones(2, 3)).sum().backward()
        optimizer.step()
        states = meter.states
    assert states["used.weight"] == "finite"
    assert states["unused.weight"] == "missing"
    assert states["frozen.weight"] == "frozen"
    run = gm.load(tmp_path / "run")
    assert "grad/layer.unused/norm/raw" not in run.names()
    assert run.table("states").content == states
    (event,) = run.events("missing")
    assert "unused.weight" in event.message
    assert "frozen" not in event.message


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [True, False])
def test_a_nonfinite_gradient_is_kept_and_located(
    bad: float, clip: bool, model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        loss_of(model).backward()
        assert model.actor.bias.grad is not None
        model.actor.bias.grad[1] = bad
        if clip:  # torch spreads a NaN norm to every gradient: what we name must be from before
            clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert value_at(run, "grad/actor/nonfinite", 0) == 1
    assert value_at(run, "grad/critic/nonfinite", 0) == 0
    assert not math.isfinite(value_at(run, "grad/actor/norm/raw", 0))
    assert math.isfinite(value_at(run, "grad/critic/norm/raw", 0))
    (event,) = run.events("nonfinite")
    assert event.detail["tensors"] == ["actor.bias"]


def test_huge_finite_elements_are_not_called_nonfinite(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        for p in model.parameters():
            p.grad = torch.full_like(p, 2e19)  # its float32 norm overflows
        optimizer.step()
    assert value_at(gm.load(tmp_path / "run"), "grad/all/nonfinite", 0) == 0


@pytest.mark.parametrize("clip", [True, False])
def test_on_request_a_nonfinite_gradient_stops_before_the_weights_change(
    clip: bool, model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    watched = gm.watch(
        model, optimizer, budget=None, run=tmp_path / "run", every=1000, on_nonfinite="raise"
    )
    with watched, pytest.raises(NonFiniteGradient, match=r"actor\.bias"):
        loss_of(model).backward()
        assert model.actor.bias.grad is not None
        model.actor.bias.grad[0] = math.nan
        if clip:
            clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert gm.load(tmp_path / "run").events("nonfinite")


def test_on_request_a_nonfinite_gradient_warns(model: ActorCritic) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=None, on_nonfinite="warn"):
        loss_of(model).backward()
        assert model.actor.bias.grad is not None
        model.actor.bias.grad[0] = math.nan
        with pytest.warns(GradiometerWarning, match=r"actor\.bias"):
            optimizer.step()


def test_a_skipped_step_is_seen_from_the_clip(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        for number in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            clip_grad_norm_(model.parameters(), 0.1)
            if number != 1:  # what verl and GradScaler do on a bad norm
                optimizer.step()
    run = gm.load(tmp_path / "run")
    assert list(run.series("grad/all/norm/raw")[0]) == [0, 1, 2]
    assert list(run.series("grad/all/norm/update")[0]) == [0, 2]
    assert [event.step for event in run.events("skipped-step")] == [1]


def test_gradients_made_inside_a_closure_are_read(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x = torch.randn(16, 4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        action, value = model(x)
        loss: Tensor = action.square().mean() + value.square().mean()
        loss.backward()
        clip_grad_norm_(model.parameters(), 10.0)
        return loss

    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        for _ in range(2):
            optimizer.step(closure)
            last = norm_of(*(p.grad for p in model.parameters()))
    run = gm.load(tmp_path / "run")
    assert list(run.series("grad/all/norm/raw")[0]) == [0, 1]
    assert value_at(run, "grad/all/norm/raw", 1) == pytest.approx(last, rel=1e-5)
    assert not run.events("skipped-step")


def test_coordinates_are_kept_with_the_step(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for epoch in range(2):
            meter.at(env_steps=128, rollout=0, epoch=epoch)
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    steps = gm.load(tmp_path / "run").steps()
    assert list(steps["epoch"]) == [0, 1]
    assert list(steps["env_steps"]) == [128, 128]


def test_logged_tensors_arrive_with_the_value_they_had(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run", every=5) as meter:
        running = torch.zeros(())
        for _ in range(7):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            running += 1
            meter.log({"train/running": running}, numpy=np.float32(2.0))
    run = gm.load(tmp_path / "run")
    assert list(run.series("train/running")[1]) == [1, 2, 3, 4, 5, 6, 7]
    assert set(run.series("numpy")[1]) == {2.0}


def test_what_is_not_a_number_is_refused_with_one_warning(model: ActorCritic) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, budget=None, run=None) as meter:
        with pytest.warns(GradiometerWarning, match="'name' is 'bob'"):
            meter.log(name="bob", reward=1.0)
        meter.log(name="bob")


def test_pause_and_resume(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number in range(4):
            (meter.pause if number in (1, 2) else meter.resume)()
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    assert list(gm.load(tmp_path / "run").series("grad/all/norm/raw")[0]) == [0, 3]


def test_the_step_number_can_be_said_and_a_run_resumed(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(meter: object, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        meter.step(100)
        train(meter, 5)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run", resume=101) as meter:
        train(meter, 2)
    run = gm.load(tmp_path / "run")
    assert list(run.series("grad/all/norm/raw")[0]) == [100, 101, 102, 103]
    assert run.events("resumed")


def test_weights_that_are_no_numbers_are_told_when_an_exception_ends_the_training(
    model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(ValueError, match="no number"),
        gm.watch(model, optimizer, run=tmp_path / "run", quiet=True, every=1),
    ):
        with torch.no_grad():
            next(iter(model.parameters())).view(-1)[0] = torch.nan
        raise ValueError("no number")  # before any gradient could tell
    kept = gm.load(tmp_path / "run")
    assert [event.kind for event in kept.events()] == ["exception", "nonfinite"]
    found = next(each for each in gm.diagnose(kept).findings if each.id == "nonfinite-gradient")
    assert "in the weights of" in found.title


def test_hooks_are_removed_on_close_and_on_an_exception(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clip = torch.nn.utils.clip_grad.clip_grad_value_.__closure__
    assert clip is not None
    inner = clip[0].cell_contents
    with (
        pytest.raises(RuntimeError, match="boom"),
        gm.watch(model, optimizer, budget=None, run=tmp_path / "run"),
    ):
        assert clip[0].cell_contents is not inner
        raise RuntimeError("boom")
    assert clip[0].cell_contents is inner
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    (event,) = gm.load(tmp_path / "run").events("exception")
    assert "boom" in event.message


def test_a_fault_of_ours_warns_once_and_training_goes_on(
    model: ActorCritic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        monkeypatch.setattr(meter._observer.reader, "read_full", lambda *_: 1 / 0)
        loss_of(model).backward()
        with pytest.warns(GradiometerWarning, match="your training goes on"):
            optimizer.step()
        loss_of(model).backward()
        optimizer.step()
        meter.log(reward=1.0)
    assert gm.load(tmp_path / "run").events("fault")


def test_disabled_by_the_environment_nothing_happens(
    model: ActorCritic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        meter.at(epoch=1)
        meter.step(3)
        meter.pause()
        meter.resume()
        with meter.terms(all=loss_of(model)) as loss:
            loss.backward()
        optimizer.step()
        meter.log(reward=1.0)
    assert not (tmp_path / "run").exists()
    assert not optimizer._optimizer_step_pre_hooks


def test_without_a_name_the_run_is_named_after_the_script_and_the_time(
    model: ActorCritic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/train_ppo.py", "--token", "hf_secret"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer) as meter:
        pass
    assert meter.run is not None
    assert meter.run.parent.name == "runs"
    assert meter.run.name.startswith("train_ppo-")
    assert "hf_secret" not in str(gm.load(meter.run).facts)


def test_run_none_keeps_nothing_on_disk(model: ActorCritic, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, budget=None, run=None) as meter:
        loss_of(model).backward()
        optimizer.step()
        assert meter.states["actor.weight"] == "finite"
    assert not list(tmp_path.iterdir())


def test_a_parameter_group_added_later_is_watched(tmp_path: Path) -> None:
    model = nn.ModuleDict({"first": nn.Linear(3, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run"):
        for number in range(3):
            if number == 1:
                model["second"] = nn.Linear(3, 3)
                optimizer.add_param_group({"params": list(model["second"].parameters())})
            optimizer.zero_grad()
            sum(layer(torch.ones(2, 3)).sum() for layer in model.values()).backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert list(run.series("grad/layer.first/norm/raw")[0]) == [0, 1, 2]
    assert list(run.series("grad/layer.second/norm/update")[0]) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"every": 0}, "1 or more; found 0"),
        ({"budget": 0.0}, "above 0 and at most 1"),
        ({"direction": "up"}, "found 'up'"),
        ({"pairs": {"graft": ("trunk", "nothing_here")}}, "nothing_here"),
        ({"pairs": {"graft": ("trunk",)}}, "two parts"),
        ({"tier": "heavy"}, "found 'heavy'"),
        ({"on_nonfinite": "explode"}, "found 'explode'"),
        ({"blocks": {"actor": "aktor"}}, "did you mean 'actor'"),
        ({"blocks": {"actor": "("}}, "not a regular expression"),
        ({"blocks": {"a/b": "actor"}}, "slash"),
        ({"blocks": {"other": nn.Linear(1, 1)}}, "shares no parameter"),
    ],
)
def test_wrong_arguments_are_refused_before_a_folder_is_made(
    arguments: dict[str, object], says: str, model: ActorCritic, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        gm.watch(model, optimizer, run=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_a_wrong_pattern_lists_close_names(model: ActorCritic) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(UnknownName) as problem:
        gm.watch(model, optimizer, budget=None, run=None, blocks={"head": "critc"})
    assert "critic" in problem.value.close


def test_a_model_that_cannot_learn_is_refused(model: ActorCritic) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(NothingToWatch, match="frozen"):
        gm.watch(model.requires_grad_(False), optimizer, run=None)
    with pytest.raises(NothingToWatch, match="no parameters"):
        gm.watch(nn.Tanh(), optimizer, run=None)


def test_an_optimizer_of_another_model_is_refused(model: ActorCritic) -> None:
    with pytest.raises(UsageError, match="none of the model's parameters"):
        gm.watch(model, torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), run=None)
    with pytest.raises(UsageError, match="torch optimizers"):
        gm.watch(model, "adam", run=None)  # type: ignore[arg-type]


def test_an_optimizer_of_a_copy_of_the_model_is_measured_and_found(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(copy.deepcopy(model).parameters())
    with (
        pytest.warns(GradiometerWarning, match="made from a copy"),
        gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True),
    ):
        for _ in range(8):
            model(torch.randn(16, 3)).square().mean().backward()
            optimizer.step()
    with gm.load(tmp_path / "run") as run:
        found = gm.diagnose(run).findings[0]
    assert (found.id, found.basis) == ("not-in-optimizer", "proved")


def test_the_meter_that_does_nothing_has_every_name_of_the_one_that_does() -> None:
    reports = {
        "step_measured",
        "rescanned",
        "reblocked",
        "event",
        "warn",
        "give_up",
    }  # what the observer calls, and there is none
    public = {name for name in vars(gm.Meter) if not name.startswith("_")} - reports
    assert public <= set(vars(NullMeter))


def test_an_interrupt_in_the_middle_of_a_reading_leaves_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(KeyboardInterrupt),
        gm.watch(model, optimizer, run=tmp_path / "run", budget=None) as meter,
    ):
        reader = meter._observer.reader

        def interrupted(reading: Any, *_: Any, **__: Any) -> None:
            reading.add("raw", [0], [torch.zeros(())])  # and nothing else of what belongs to it
            raise KeyboardInterrupt

        monkeypatch.setattr(reader, "read_full", interrupted)
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    assert [event.kind for event in gm.load(tmp_path / "run").events()] == ["exception"]
