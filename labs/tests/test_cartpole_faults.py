"""Each fault changes what it says, and nothing else."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradiometer_labs import faults
from gradiometer_labs.cartpole import dqn, policy, ppo, reinforce
from gradiometer_labs.cartpole.config import DqnConfig
from gradiometer_labs.cartpole.dqn import Transitions
from gradiometer_labs.cartpole.evidence import target_distance
from gradiometer_labs.cartpole.model import ActorCritic, QNetwork, model_of
from gradiometer_labs.cartpole.train import Config, Pieces, set_up, train
from gradiometer_labs.replay import Replay

HEALTHY = Pieces(config=Config())
DQN = Config(algorithm="dqn")


def broken(name: str, config: Config = HEALTHY.config) -> Pieces:
    return faults.apply(name, "cartpole", Pieces(config=config))


def rollout_data() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of three steps of two environments: rewards, values, next values, terminated, done."""
    generator = torch.Generator().manual_seed(0)
    rewards, values, next_values = torch.randn(3, 3, 2, generator=generator)
    terminated = torch.tensor([[False, False], [True, False], [False, False]])
    done = torch.tensor([[False, True], [True, False], [False, False]])
    return rewards, values, next_values, terminated, done


@pytest.mark.parametrize("fault", faults.faults_of("cartpole"), ids=lambda fault: fault.name)
def test_a_fault_changes_its_own_piece_and_no_other(fault: faults.Fault) -> None:
    found = broken(fault.name)
    names = [field.name for field in dataclasses.fields(Pieces)]
    assert [name for name in names if getattr(found, name) is not getattr(HEALTHY, name)] == [
        fault.piece
    ]


@pytest.mark.parametrize(
    ("fault", "setting", "mild", "usual", "severe"),
    [
        ("lr_high", "learning_rate", 1e-2, 1e-1, 1.0),
        ("dqn_lr_high", "learning_rate", 1e-2, 1e-1, 1.0),
        ("lr_low", "learning_rate", 1e-3 / 30, 1e-5, 1e-6),
        ("clip_tiny", "max_grad_norm", 1e-2, 1e-3, 1e-5),
        ("entropy_coef_high", "ent_coef", 0.3, 1.0, 10.0),
        ("value_coef_high", "vf_coef", 50.0, 500.0, 5000.0),
    ],
)
def test_a_wrong_setting_is_wrong_by_its_dose_alone(
    fault: str, setting: str, mild: float, usual: float, severe: float
) -> None:
    for dose, wrong in (("mild", mild), ("usual", usual), ("severe", severe)):
        config = broken(f"{fault}:{dose}").config
        assert getattr(config, setting) == pytest.approx(wrong)
        assert dataclasses.replace(config, **{setting: getattr(Config(), setting)}) == Config()


def test_wrong_sign_turns_the_surrogate_round() -> None:
    given = torch.tensor([0.1, -0.3]), torch.tensor([1.0, -2.0]), 0.2
    assert broken("wrong_sign").policy_loss_of(*given) == -ppo.policy_loss_of(*given)


def test_without_the_done_mask_episodes_never_end() -> None:
    rewards, values, next_values, terminated, done = rollout_data()
    found = broken("no_done_mask").advantages_of(
        rewards, values, next_values, terminated, done, Config()
    )
    never = torch.zeros_like(done)
    assert torch.equal(
        found, ppo.advantages_of(rewards, values, next_values, never, never, Config())
    )
    assert not torch.equal(
        found, ppo.advantages_of(rewards, values, next_values, terminated, done, Config())
    )


def test_misaligned_rewards_and_ends_belong_to_other_states() -> None:
    rewards = torch.tensor([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
    terminated = done = torch.tensor([[True, False], [False, False], [False, True]])
    zero = torch.zeros(3, 2)
    config = Config(gamma=0.0)  # an advantage is its reward
    found = broken("rewards_misaligned").advantages_of(
        rewards, zero, zero, terminated, done, config
    )
    assert found.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    config = Config(gamma=1.0, gae_lambda=0.0)  # and now the next value, where the episode goes on
    found = broken("rewards_misaligned").advantages_of(
        zero, zero, zero + 1, terminated, done, config
    )
    assert found.tolist() == [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]


def test_advantages_normalised_twice_have_lost_their_unit_before_returns_are_made() -> None:
    given = (*rollout_data(), Config())
    found = broken("normalised_twice").advantages_of(*given)
    torch.testing.assert_close(found, policy.normalised(ppo.advantages_of(*given)))
    assert found.std() == pytest.approx(1.0)


def test_rewards_are_a_hundred_times_as_large() -> None:
    assert broken("reward_x100").scaled(torch.tensor([1.0]), Config()).item() == pytest.approx(2.0)


def test_a_detached_critic_has_the_same_loss_and_no_path() -> None:
    values, returns = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([0.0, 4.0])
    found = broken("critic_detached").value_loss_of(values, returns)
    assert found == policy.value_loss_of(values, returns)
    assert not found.requires_grad


@pytest.mark.parametrize("shared_trunk", [False, True])
@pytest.mark.parametrize(
    ("fault", "still"), [("critic_lr_zero", "critic"), ("frozen_layer", "actor")]
)
def test_what_the_optimizer_does_not_move_stays(fault: str, still: str, shared_trunk: bool) -> None:
    model = ActorCritic(4, 2, shared_trunk=shared_trunk)
    left = list(getattr(model, still)[-1 if still == "actor" else 0].parameters())
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.Adam(broken(fault).parameters_of(model), lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.2  # as the schedule does
    logits, values = model(torch.randn(8, 4))
    (logits.sum() + values.sum()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    moved = {
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    still_there = {
        name for name, value in model.named_parameters() if any(value is each for each in left)
    }
    if fault == "critic_lr_zero":
        still_there = {name for name, _ in model.named_parameters() if name.startswith("critic")}
    assert moved == set(before) - still_there


def test_one_layer_gets_a_gradient_of_nan_after_a_tenth_of_the_training() -> None:
    config = Config(
        total_steps=10_000, update_epochs=1, num_minibatches=1
    )  # ten updates: the second one is broken
    torch.manual_seed(3)
    model = broken("nan_layer", config).model_of(config)
    following = torch.rand(1)
    torch.manual_seed(3)
    healthy = model_of(config)
    assert torch.equal(following, torch.rand(1)), "the fault drew random numbers of its own"
    assert set(model.state_dict()) == set(healthy.state_dict())
    assert isinstance(model, ActorCritic)
    observations = torch.randn(5, 4)
    for calls in (1, 2):
        model.zero_grad()
        with torch.no_grad():
            model.logits(observations)  # sampling does not count
        logits = model.logits(observations)
        torch.testing.assert_close(logits, healthy.logits(observations))  # type: ignore[operator]
        logits.sum().backward()
        bad = {
            name for name, each in model.actor.named_parameters() if not each.grad.isfinite().all()
        }  # type: ignore[union-attr]
        assert bad == ({"4.weight"} if calls == 2 else set())


def test_the_log_prob_is_that_of_the_other_action() -> None:
    log_policy = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    assert broken("log_prob_wrong_action").log_prob_of(
        log_policy, torch.tensor([0, 1])
    ).tolist() == [-2.0, -3.0]


def test_a_sampler_that_ignores_logits_draws_with_even_odds() -> None:
    torch.manual_seed(0)
    sure = torch.tensor([[100.0, -100.0]]).repeat(1000, 1).log_softmax(-1)
    assert policy.sample(sure).sum() == 0
    assert 430 < broken("sampler_ignores_logits").sample(sure).sum() < 570


def test_the_entropy_over_the_wrong_axis_is_that_of_choosing_a_sample() -> None:
    found = broken("entropy_wrong_axis").entropy_of(torch.zeros(50, 2))
    assert found.tolist() == pytest.approx([math.log(50)] * 2)


def test_stale_batches_are_older_by_so_many_rollouts() -> None:
    numbers = iter(range(10))
    piece = faults.FAULTS["cartpole", "stale_batches"].broken(lambda: (next(numbers), None), "mild")
    assert [piece()[0] for _ in range(6)] == [0, 0, 0, 0, 1, 2]


def test_observations_come_in_other_units() -> None:
    healthy = HEALTHY.observed(torch.ones(1, 4).numpy(), torch.device("cpu"))
    found = broken("observations_unscaled").observed(torch.ones(1, 4).numpy(), torch.device("cpu"))
    assert torch.equal(found, 1000 * healthy)


def test_a_clip_before_unscaling_cuts_what_still_holds_the_scale() -> None:
    norms = {}
    for name in ("none", "clip_before_unscale"):
        model = nn.Linear(3, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(model(torch.tensor([[0.0, 3.0, 4.0]])).sum()).backward()
        norm = broken(name).clip(model, optimizer, scaler, 1.0)
        before = model.weight.detach().clone()
        scaler.step(optimizer)
        norms[name] = (norm.item(), (model.weight - before).norm().item())
    assert norms["none"] == pytest.approx((5.0, 1.0), rel=1e-4)
    assert norms["clip_before_unscale"] == pytest.approx((5.0 * 1024, 1 / 1024), rel=1e-4)


def test_a_loss_divided_twice_is_a_sixteenth_for_four_micro_batches() -> None:
    assert broken("divided_twice").divided(torch.tensor(16.0), 4) == 1.0


def test_a_target_that_is_never_updated_drifts_away_and_one_that_is_the_network_never_leaves() -> (
    None
):
    online = QNetwork(4, 2)
    for name, apart in (("target_never_updated", True), ("target_is_online", False)):
        pieces = broken(name, DQN)
        target = pieces.target_of(online)
        with torch.no_grad():
            online.first[0].weight.add_(1.0)  # type: ignore[operator]
        pieces.renew(target, online)
        assert (target_distance(online, target) > 0) is apart


def test_without_exploration_epsilon_is_zero() -> None:
    rates = [
        broken("exploration_off", DQN).exploration_rate_at(DQN, share) for share in (1e-4, 0.1, 1.0)
    ]
    assert rates == [0.0, 0.0, 0.0]


def test_dqn_without_the_done_mask_bootstraps_from_an_ended_episode() -> None:
    given = torch.tensor([1.0, 1.0]), torch.tensor([4.0, 4.0]), torch.tensor([True, False]), 0.5
    assert dqn.td_targets_of(*given).tolist() == [1.0, 3.0]
    assert broken("dqn_no_done_mask", DQN).td_targets_of(*given).tolist() == [3.0, 3.0]


def test_dqn_learns_the_value_of_the_other_action() -> None:
    found = broken("dqn_wrong_action", DQN).q_of(
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])
    )
    assert found.tolist() == [2.0, 3.0]


def test_a_frozen_memory_keeps_its_first_steps() -> None:
    replay, marks = Replay(100, Transitions), torch.zeros(1, dtype=torch.bool)
    for number in range(30):
        zero = torch.zeros(1, 4)
        step = Transitions(
            zero,
            torch.zeros(1, dtype=torch.long),
            torch.tensor([float(number)]),
            zero,
            marks,
            marks,
        )
        broken("replay_frozen", DQN).keep(replay, step)
    assert replay.newest(50).rewards.flatten().tolist() == [0.0, 1.0, 2.0]


def test_units_of_the_first_layer_never_fire() -> None:
    torch.manual_seed(0)
    model = broken("dead_relus", DQN).model_of(DQN)
    assert isinstance(model, QNetwork)
    first, _ = model.activations(3 * torch.randn(1000, 4))
    assert first.abs().max() == 0
    torch.manual_seed(0)
    healthy = model_of(DQN)
    assert isinstance(healthy, QNetwork)
    assert torch.equal(model.first[0].weight, healthy.first[0].weight)  # type: ignore[arg-type]


def test_reinforce_with_the_wrong_sign_and_without_a_path() -> None:
    log_probs, advantages = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([1.0, 3.0])
    healthy = reinforce.reinforce_loss_of(log_probs, advantages)
    assert broken("reinforce_wrong_sign").reinforce_loss_of(log_probs, advantages) == -healthy
    detached = broken("log_prob_detached").reinforce_loss_of(log_probs, advantages)
    assert detached == healthy
    assert not detached.requires_grad


def test_rewards_that_are_not_carried_back_are_their_own_returns() -> None:
    rewards = torch.tensor([[1.0], [2.0], [3.0]])
    assert torch.equal(broken("no_discount_back").returns_of(rewards, Config()), rewards)


def test_a_leaking_baseline_knows_the_returns_it_is_subtracted_from() -> None:
    torch.manual_seed(0)
    model, observations, returns = ActorCritic(4, 2), torch.randn(30, 4), torch.randn(30)
    actor = [each.detach().clone() for each in model.actor.parameters()]
    before = reinforce.baseline_of(model, observations, returns)
    leaked = broken("baseline_leak").baseline_of(model, observations, returns)
    assert policy.explained_variance(before, returns) < 0.1
    assert policy.explained_variance(leaked, returns) > 0.5
    assert not leaked.requires_grad
    assert all(
        torch.equal(now, then) for now, then in zip(model.actor.parameters(), actor, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults.faults_of("cartpole"), ids=lambda fault: fault.name)
def test_a_broken_training_runs_to_its_end(fault: faults.Fault) -> None:
    needs = dict(need.split("=") for need in fault.needs)
    given: dict[str, Any] = {key: {"true": True}.get(value, value) for key, value in needs.items()}
    given |= {"accumulate": int(needs.get("accumulate", 1))}
    small = Config(
        total_steps=160, num_steps=10, update_epochs=1, dqn=DqnConfig(learning_starts=100), **given
    )
    assert train(dataclasses.replace(small, fault=fault.name)).env_steps >= 160


def test_two_faults_at_once_are_both_there() -> None:
    pieces = broken("wrong_sign+reward_x100")
    assert pieces.policy_loss_of is not HEALTHY.policy_loss_of
    assert pieces.scaled(torch.tensor([1.0]), Config()).item() == pytest.approx(2.0)


def test_the_gradient_of_a_loss_divided_twice_is_a_quarter() -> None:
    sizes = []
    for name in ("none", "divided_twice"):
        config = Config(num_steps=16, accumulate=4, max_grad_norm=1e9)
        pieces = broken(name, config)
        with set_up(pieces) as setup:
            rollout, _ = ppo.collect(setup, setup.observation, pieces)
            scaler = torch.amp.GradScaler("cpu", enabled=False)
            ppo.update(setup, scaler, rollout, torch.arange(128), pieces)
            sizes.append(
                torch.cat([each.grad.flatten() for each in setup.model.parameters()]).norm().item()
            )
    assert sizes[1] == pytest.approx(sizes[0] / 4, rel=1e-5)
