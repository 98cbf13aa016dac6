from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import gradiometer as gm
from gradiometer_labs import faults
from gradiometer_labs.pendulum import measure
from gradiometer_labs.pendulum import train as lab
from gradiometer_labs.pendulum.model import SacModel, log_normal
from gradiometer_labs.pendulum.train import Agent, Config, Pieces, SacBatch, train
from gradiometer_labs.weights import save_weights

CPU = torch.device("cpu")
SHORT = Config(num_envs=2, total_steps=800, update_every=10, batch_size=32)


def broken(fault: str) -> Pieces:
    return faults.apply(fault, "pendulum", Pieces(config=SHORT))


def updated(fault: str, updates: int = 2) -> tuple[Agent, dict[str, Tensor], dict[str, Tensor]]:
    """An agent after a few updates with that fault, what it started from, and what the last update
    logged."""
    torch.manual_seed(4)
    pieces = broken(fault)
    agent = lab.agent_of(pieces, CPU)
    before = {name: value.clone() for name, value in agent.model.state_dict().items()}
    draw = [torch.rand(64, width) * 2 - 1 for width in (3, 1, 1, 3)]
    batch = SacBatch(draw[0], draw[1], draw[2].squeeze(-1), draw[3])
    with gm.watch(agent.model, agent.optimizers, run=None, budget=None) as meter:
        for _ in range(updates):
            logged = lab.update(agent, meter, batch, pieces)
    return agent, before, logged


def moved(agent: Agent, before: dict[str, Tensor]) -> set[str]:
    return {
        name
        for name, value in agent.model.state_dict().items()
        if not torch.equal(value, before[name])
    }


def gradients(agent: Agent) -> dict[str, Tensor]:
    return {name: p.grad for name, p in agent.model.named_parameters() if p.grad is not None}


def test_every_fault_changes_one_piece_and_a_third_of_them_at_most_are_settings() -> None:
    known = faults.faults_of("pendulum")
    assert len(known) >= 9
    for each in known:
        healthy, ill = broken("none"), broken(each.name)
        changed = [
            f.name
            for f in dataclasses.fields(Pieces)
            if getattr(healthy, f.name) is not getattr(ill, f.name)
        ]
        assert changed == [each.piece]
    assert 3 * sum(each.piece == "config" for each in known) <= len(known)


def test_a_healthy_update_moves_every_weight() -> None:
    agent, before, _ = updated("none")
    assert moved(agent, before) == set(before)


@pytest.mark.parametrize(
    ("fault", "still"),
    [("frozen_layer", "actor.4"), ("critic_lr_zero", "critic"), ("critic_detached", "critic")],
)
def test_what_is_left_out_of_training_stays_as_it_was_born(fault: str, still: str) -> None:
    agent, before, _ = updated(fault)
    assert moved(agent, before) == {name for name in before if not name.startswith(still)}
    has_gradient = any(name.startswith(still) for name in gradients(agent))
    assert has_gradient == (fault != "critic_detached")


def test_with_the_wrong_sign_the_actor_learns_what_the_critics_think_worst() -> None:
    values = torch.tensor([[1.0, 4.0], [2.0, 3.0]])
    assert broken("none").policy_loss_of(values).item() == -2.0
    assert broken("wrong_sign").policy_loss_of(values).item() == 2.0


def test_the_target_is_the_critic_or_never_follows_it() -> None:
    online, before, _ = updated("target_is_online")
    assert online.target is online.model.critic
    never, before, _ = updated("target_never_updated")
    for name, weight in never.target.state_dict().items():
        assert torch.equal(weight, before[f"critic.{name}"])
    healthy, before, _ = updated("none")
    moved_too = [
        not torch.equal(w, before[f"critic.{name}"])
        for name, w in healthy.target.state_dict().items()
    ]
    assert all(moved_too)


def test_a_detached_log_prob_shows_the_same_loss_and_has_no_gradient() -> None:
    log_probs = torch.tensor([0.3, -0.7], requires_grad=True)
    healthy, ill = (
        broken(name).entropy_loss_of(log_probs, torch.tensor(0.2))
        for name in ("none", "log_prob_detached")
    )
    assert healthy.item() == ill.item()
    assert (healthy.requires_grad, ill.requires_grad) == (True, False)


def test_without_the_correction_the_log_prob_is_that_of_the_gaussian() -> None:
    u, policy = torch.tensor([[0.0], [2.0]]), (torch.zeros(2, 1), torch.zeros(2, 1))
    missing = broken("log_prob_no_correction").log_prob_of(u, policy) - broken("none").log_prob_of(
        u, policy
    )
    torch.testing.assert_close(missing, (1 - u.tanh().square()).log().squeeze(-1))
    assert missing[0] == 0.0


def test_the_slope_in_bfloat16_is_nearly_right_until_it_is_nan() -> None:
    log_prob_of, policy = broken("nan_layer").log_prob_of, (torch.zeros(1, 1), torch.zeros(1, 1))
    near = torch.full((1, 1), 2.0, requires_grad=True)
    torch.testing.assert_close(
        log_prob_of(near, policy), lab.log_prob_of(near, policy), atol=0.1, rtol=0
    )
    far = torch.full((1, 1), 4.0, requires_grad=True)
    (grad,) = torch.autograd.grad(log_prob_of(far, policy).sum(), far)
    assert grad.isnan().all()
    assert log_normal(far, policy).isfinite().all()


def test_no_unit_fires_where_biases_start_far_below() -> None:
    agent, before, _ = updated("dead_relus")
    hidden = agent.model.actor[1](agent.model.actor[0](torch.rand(100, 3) * 2 - 1))
    assert hidden.abs().max() == 0.0
    assert moved(agent, before) == {
        "actor.4.bias",
        "critic.first.4.bias",
        "critic.second.4.bias",
        "log_alpha",
    }


def test_observations_are_a_thousand_times_as_large() -> None:
    seen = np.array([[0.6, 0.8, 4.0]], dtype=np.float32)
    np.testing.assert_allclose(broken("none").observed(seen), [[0.6, 0.8, 0.5]])
    np.testing.assert_allclose(broken("observations_unscaled").observed(seen), [[600, 800, 500]])


def test_without_exploration_the_policy_acts_with_its_mean() -> None:
    policy = torch.tensor([[0.2], [-1.0]]), torch.zeros(2, 1)
    assert torch.equal(broken("exploration_off").act(policy), policy[0])
    assert not torch.equal(broken("none").act(policy), policy[0])


def test_each_reward_goes_to_the_environment_beside_it() -> None:
    assert broken("rewards_misaligned").kept_rewards(np.array([1.0, 2.0, 3.0])).tolist() == [
        3.0,
        1.0,
        2.0,
    ]


def test_batches_come_from_what_was_there_at_the_first_update() -> None:
    places_of = broken("stale_batches").places_of
    assert places_of(10, 500, CPU).max() == 9
    assert places_of(1_000, 500, CPU).max() == 9
    assert broken("none").places_of(1_000, 500, CPU).max() > 900


def test_the_temperature_goes_the_wrong_way() -> None:
    for fault, falls in (("none", True), ("temperature_wrong_sign", False)):
        agent, before, logged = updated(fault)
        assert logged["entropy"] > SHORT.target_entropy
        assert bool(agent.model.log_alpha < before["log_alpha"]) == falls


def test_settings_are_changed_by_their_dose() -> None:
    assert broken("reward_x100").config.reward_scale == pytest.approx(100 * SHORT.reward_scale)
    for dose, factor in (("mild", 10), ("usual", 100), ("severe", 1000)):
        assert broken(f"lr_high:{dose}").config.learning_rate == pytest.approx(
            factor * SHORT.learning_rate
        )
    assert broken("lr_low").config.learning_rate == pytest.approx(SHORT.learning_rate / 100)
    assert broken("clip_tiny").config.max_grad_norm == 1e-3


def logged_by(fault: str, place: Path) -> dict[str, float]:
    """The last value of every number of a short run."""
    train(dataclasses.replace(SHORT, fault=fault, run=str(place)))
    with gm.load(place) as run:
        return {name: float(run.series(name)[1][-1]) for name in run.names()}


@pytest.mark.slow
def test_what_is_logged_tells_these_faults_from_health(tmp_path: Path) -> None:
    healthy = logged_by("none", tmp_path / "healthy")
    assert abs(healthy["score_z"]) < 4
    assert abs(healthy["sampler_kl"]) < 1e-4
    assert healthy["reward_lag"] == 0.0
    assert healthy["dormant_fraction"] < 0.2
    assert 0.0 < healthy["target_distance"] < 0.5
    still = logged_by("exploration_off", tmp_path / "still")
    assert still["score_z"] > 10
    assert still["entropy"] == pytest.approx(healthy["entropy"], abs=0.1)
    both = logged_by("log_prob_no_correction+target_is_online", tmp_path / "both")
    assert both["sampler_kl"] > 0.1
    assert both["target_distance"] == 0.0
    assert logged_by("dead_relus", tmp_path / "dead")["dormant_fraction"] == 1.0


@pytest.mark.slow
def test_a_training_whose_numbers_are_not_finite_goes_on_to_its_end_and_says_so(
    tmp_path: Path,
) -> None:
    model = SacModel(0.1)
    with torch.no_grad():
        model.actor[2].weight[0, 0] = torch.nan
    save_weights(model, tmp_path / "nan.pt")
    train(dataclasses.replace(SHORT, start=str(tmp_path / "nan.pt"), run=str(tmp_path / "run")))
    with gm.load(tmp_path / "run") as run:
        for name in (
            "reward",
            "entropy",
            "q_value",
            "score_z",
            "reward_gain",
            "reward_lag",
            "dormant_fraction",
        ):
            assert np.isnan(run.series(name)[1]).all(), name
        assert run.series("grad/actor/nonfinite")[1].min() > 0


def played(lag: int = 0) -> measure.Step:
    """Actions of a fresh policy in made-up states, with a reward of the environment's form kept
    `lag` steps late."""
    generator = torch.Generator().manual_seed(0)
    noise, speed = (torch.randn(200, 4, 1, generator=generator) for _ in range(2))
    angle = 3 * torch.rand(200, 4, 1, generator=generator) - 1.5
    zeros = torch.zeros(200, 4, 1)
    observations = torch.cat([angle.cos(), angle.sin(), 0.2 * speed], dim=-1)
    rewards = -(angle.square() + 0.1 * speed.square() + 0.01 * noise.tanh().square()).squeeze(-1)
    return measure.Step(observations, noise, zeros, zeros, rewards.roll(lag, 0), rewards)


@pytest.mark.parametrize("lag", [0, 1, -2])
def test_the_lag_of_kept_rewards_is_found(lag: int) -> None:
    assert measure.reward_lag(played(lag)) == lag


def test_the_gain_is_positive_where_what_earned_more_became_likelier_and_only_at_equal_states() -> (
    None
):
    """Rewards here follow the action, next to a large part of the state's own; the policy moves
    towards it, or away."""
    torch.manual_seed(0)
    step = played()
    rewards = 20 * step.observations[..., 0] + step.u.squeeze(-1)
    for towards, sign in ((0.5, 1.0), (-0.5, -1.0)):
        model = SacModel(0.1)
        with torch.no_grad():
            model.actor[4].weight.zero_()
            model.actor[4].bias.copy_(torch.tensor([towards, 0.0]))
        gain = measure.reward_gain(step._replace(rewards=rewards), model, gamma=0.0)
        assert sign * gain > 0.9


def test_a_critic_that_knows_the_returns_explains_all_of_them() -> None:
    class Knows(torch.nn.Module):
        def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
            return observations[..., :1].squeeze(-1).expand(2, *observations.shape[:-1])

    step = played()
    knows = Knows()
    explained = measure.explained_variance(
        step._replace(rewards=step.observations[..., 0]), knows, 0.0
    )  # type: ignore[arg-type]
    assert explained == pytest.approx(1.0)
    fooled = measure.explained_variance(
        step._replace(rewards=step.observations[..., 2]), knows, 0.0
    )  # type: ignore[arg-type]
    assert fooled < 0
