from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

import gradiometer as gm
from gradiometer.errors import UnknownName, UsageError
from gradiometer_labs import faults
from gradiometer_labs.cartpole import policy, ppo
from gradiometer_labs.cartpole.model import ActorCritic
from gradiometer_labs.cartpole.train import Config, Pieces, TrainingProgress, set_up, train
from gradiometer_labs.config import configure
from gradiometer_labs.episodes import Episodes
from gradiometer_labs.weights import save_weights

SHORT = Config(total_steps=2_000)


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def collected(config: Config) -> tuple[ActorCritic, ppo.PpoRollout, dict[str, Tensor]]:
    """A rollout of a fresh model, with what the advantages were made from."""
    seen: dict[str, Tensor] = {}

    def spy(
        rewards: Tensor,
        values: Tensor,
        next_values: Tensor,
        terminated: Tensor,
        done: Tensor,
        config: Config,
    ) -> Tensor:
        seen.update(
            rewards=rewards,
            values=values,
            next_values=next_values,
            terminated=terminated,
            done=done,
        )
        return ppo.advantages_of(rewards, values, next_values, terminated, done, config)

    pieces = Pieces(config=config, advantages_of=spy)
    with set_up(pieces) as setup:
        rollout, _ = ppo.collect(setup, setup.observation, pieces)
    return setup.model, rollout, seen


def test_advantages_are_the_discounted_sum_of_the_errors_until_the_episode_ends() -> None:
    generator = torch.Generator().manual_seed(0)
    config = Config(gamma=0.9, gae_lambda=0.8)
    rewards, values, next_values = torch.randn(3, 12, 2, generator=generator, dtype=torch.float64)
    done = torch.rand(12, 2, generator=generator) < 0.3
    terminated = done & (torch.rand(12, 2, generator=generator) < 0.5)
    assert (done & ~terminated).any()
    assert terminated.any()
    expected = torch.zeros_like(rewards)
    for env in range(2):
        for start in range(12):
            weight = 1.0
            for t in range(start, 12):
                bootstrap = 0.0 if terminated[t, env] else 0.9 * next_values[t, env]
                expected[start, env] += weight * (rewards[t, env] + bootstrap - values[t, env])
                weight *= 0.9 * 0.8
                if done[t, env]:
                    break
    torch.testing.assert_close(
        ppo.advantages_of(rewards, values, next_values, terminated, done, config), expected
    )


def test_a_cut_off_episode_is_valued_at_the_state_it_was_cut_off_in() -> None:
    model, rollout, seen = collected(Config(num_envs=1, num_steps=60, max_reward=9, seed=5))
    env = gymnasium.make("CartPole-v1", max_episode_steps=9)
    observation, _ = env.reset(seed=int(np.random.SeedSequence(5).generate_state(1)[0]))
    states, ends = [], []
    for action, observed in zip(rollout.actions, rollout.observations, strict=True):
        np.testing.assert_array_equal(observation, observed.numpy())
        observation, _, terminated, truncated, _ = env.step(int(action))
        states.append(observation)
        ends.append((terminated, terminated or truncated))
        if terminated or truncated:
            observation, _ = env.reset()
    assert (False, True) in ends
    assert torch.equal(
        torch.stack([seen["terminated"][:, 0], seen["done"][:, 0]], 1), torch.tensor(ends)
    )
    with torch.no_grad():
        next_values = model.critic(torch.from_numpy(np.stack(states))).squeeze(-1)
    torch.testing.assert_close(seen["next_values"][:, 0], next_values)


def test_rewards_are_scaled_for_the_critic_and_reported_as_they_are() -> None:
    _, _, seen = collected(Config(num_envs=2, num_steps=20))
    assert torch.allclose(seen["rewards"], torch.full((20, 2), Config().reward_scale))
    episodes = Episodes(2)
    for done in ([False, True], [True, False], [False, True]):
        episodes.add(np.ones(2), np.array(done))
    assert (episodes.returns, episodes.lengths) == ([1.0, 2.0, 2.0], [1, 2, 2])
    assert episodes.news() == {"reward": 5 / 3, "episode_length": 5 / 3}
    assert episodes.news() == {}


def test_the_entropy_of_a_uniform_choice_is_log_two() -> None:
    assert torch.allclose(
        policy.entropy_of(torch.tensor([[3.0, 3.0], [60.0, -60.0]])),
        torch.tensor([np.log(2), 0.0]).float(),
    )


def test_the_surrogate_stops_paying_beyond_the_clip() -> None:
    log_ratio = torch.log(torch.tensor([1.5, 0.5, 1.5, 0.5])).requires_grad_()
    loss = ppo.policy_loss_of(log_ratio, torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2)
    assert loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)
    (grad,) = torch.autograd.grad(loss, log_ratio)
    torch.testing.assert_close(grad, torch.tensor([0.0, -0.5, 1.5, 0.0]) / 4)


def gradient_of_one_update(config: Config, fault: str = "none") -> tuple[Tensor, dict[str, float]]:
    """On a rollout of a policy that is not uniform, where the entropy would be flat."""
    pieces = faults.apply(fault, "cartpole", Pieces(config=config))
    with set_up(pieces) as setup:
        with torch.no_grad():
            setup.model.actor[-1].weight.mul_(100)
        rollout, _ = ppo.collect(setup, setup.observation, pieces)
        scaler = torch.amp.GradScaler("cpu", enabled=config.amp)
        logged = ppo.update(setup, scaler, rollout, torch.arange(config.batch_size), pieces)
        gradient = torch.cat(
            [p.grad.flatten() for p in setup.model.parameters() if p.grad is not None]
        )
    return gradient, {
        name: float(np.mean([float(each[name]) for each in logged])) for name in logged[0]
    }


def test_entropy_no_grad_cuts_the_path_from_the_entropy_and_leaves_its_value() -> None:
    healthy, broken = (
        faults.apply(name, "cartpole", Pieces(config=SHORT)) for name in ("none", "entropy_no_grad")
    )
    logits = torch.tensor([[0.3, -0.4], [1.0, 2.0]], requires_grad=True)
    assert healthy.entropy_of(logits).requires_grad
    assert not broken.entropy_of(logits).requires_grad
    assert torch.equal(healthy.entropy_of(logits), broken.entropy_of(logits))
    changed = [
        f.name
        for f in dataclasses.fields(Pieces)
        if getattr(healthy, f.name) is not getattr(broken, f.name)
    ]
    assert changed == ["entropy_of"]


def test_with_entropy_no_grad_the_update_is_that_of_a_loss_without_the_bonus() -> None:
    with_bonus = Config(num_envs=2, num_steps=64, ent_coef=1.0, max_grad_norm=1e9)
    without_bonus = dataclasses.replace(with_bonus, ent_coef=0.0)
    healthy, healthy_log = gradient_of_one_update(with_bonus, "none")
    broken, broken_log = gradient_of_one_update(with_bonus, "entropy_no_grad")
    no_bonus, _ = gradient_of_one_update(without_bonus, "none")
    assert torch.equal(broken, no_bonus)
    assert (healthy - broken).norm() > 0.1 * healthy.norm()
    assert healthy_log == broken_log


def test_micro_batches_add_up_to_the_gradient_of_the_whole_minibatch() -> None:
    whole = Config(num_envs=2, num_steps=64, max_grad_norm=1e9)
    gradient, _ = gradient_of_one_update(whole)
    added, _ = gradient_of_one_update(dataclasses.replace(whole, accumulate=4))
    torch.testing.assert_close(added, gradient)


def test_the_loss_scale_is_out_of_the_gradient_before_it_is_clipped() -> None:
    config = Config(num_envs=2, num_steps=64, max_grad_norm=0.01)
    gradient, _ = gradient_of_one_update(config)
    scaled, _ = gradient_of_one_update(dataclasses.replace(config, amp=True))
    assert gradient.norm() == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(scaled, gradient)


def test_a_gradient_that_is_not_finite_changes_no_weight() -> None:
    pieces = Pieces(
        config=SHORT, value_loss_of=lambda values, returns: (values - values).sqrt().mean()
    )
    with set_up(pieces) as setup:
        before = weights(setup.model)
        rollout, _ = ppo.collect(setup, setup.observation, pieces)
        ppo.update(
            setup, torch.amp.GradScaler("cpu", enabled=False), rollout, torch.arange(100), pieces
        )
        assert setup.model.critic[-1].weight.grad.isnan().all()
    assert torch.equal(weights(setup.model), before)


def test_a_shared_trunk_is_trained_by_both_heads() -> None:
    model = ActorCritic(4, 2, shared_trunk=True)
    observations = torch.randn(7, 4)
    logits, values = model(observations)
    torch.testing.assert_close(logits, model.logits(observations))
    torch.testing.assert_close(values, model.values(observations))
    assert {name.partition(".")[0] for name, _ in model.named_parameters()} == {
        "trunk",
        "actor",
        "critic",
    }
    trunk = list(model.trunk.parameters())
    for head in (logits.sum(), values.sum()):
        assert all(
            grad.abs().sum() > 0 for grad in torch.autograd.grad(head, trunk, retain_graph=True)
        )


@pytest.mark.slow
def test_a_training_can_start_from_weights_in_a_file(tmp_path: Path) -> None:
    trained = train(SHORT)
    save_weights(trained.model, tmp_path / "trained.pt")
    again = train(dataclasses.replace(SHORT, start=str(tmp_path / "trained.pt"), learning_rate=0.0))
    assert torch.equal(weights(again.model), weights(trained.model))
    with pytest.raises(UsageError, match="does not hold weights of this lab's model"):
        train(dataclasses.replace(SHORT, start=str(tmp_path / "trained.pt"), algorithm="dqn"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm=pp"], "unknown algorithm 'pp'; did you mean 'ppo'"),
        (["num_actions=3"], "num_actions=3: a cart is pushed left or right"),
        (["max_reward=0"], "max_reward=0 cuts episodes off"),
        (["accumulate=0"], "accumulate=0 leaves nothing to train on"),
        (["accumulate=300"], "accumulate=300 is too many for a minibatch of 250"),
        (["dqn.target_every=0"], r"dqn\.target_every=0 leaves nothing"),
        (
            ["dqn.learning_starts=30000"],
            "dqn.learning_starts=30000 is never reached with dqn.buffer_size=20000",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_answered_in_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises((UsageError, UnknownName), match=said):
        configure(Config, overrides)


@pytest.mark.parametrize(
    ("fault", "changes", "said"),
    [
        (
            "wrong_sign",
            {"algorithm": "dqn"},
            "fault=wrong_sign needs algorithm=ppo; found algorithm=dqn",
        ),
        ("clip_before_unscale", {}, "fault=clip_before_unscale needs amp=true; found amp=False"),
        (
            "entropy_no_grad",
            {"algorithm": "dqn"},
            "changes entropy_of, which algorithm=dqn does not have",
        ),
    ],
)
def test_a_fault_that_would_change_nothing_is_refused(
    fault: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        train(dataclasses.replace(SHORT, fault=fault, **changes))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_whatever_the_global_state() -> None:
    first = train(SHORT)
    torch.manual_seed(99)
    np.random.seed(99)
    again, other = train(SHORT), train(dataclasses.replace(SHORT, seed=2))
    assert torch.equal(weights(first.model), weights(again.model))
    assert (first.mean_return, first.episodes) == (again.mean_return, again.episodes)
    assert not torch.equal(weights(first.model), weights(other.model))


@pytest.mark.slow
def test_training_leaves_the_settings_of_torch_alone() -> None:
    def settings() -> tuple[Any, ...]:
        return (
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        )

    before = settings()
    train(SHORT)
    assert settings() == before


@pytest.mark.slow
def test_a_short_training_leaves_the_same_policy_untrained_far_behind() -> None:
    """A random policy's mean over 100 episodes is 22 ± 1.2: half as much again is 9 standard errors
    away."""
    untrained = train(Config(total_steps=8_000, every=1_000, learning_rate=0.0))
    trained = train(Config(total_steps=8_000, every=1_000))
    assert 15 < untrained.mean_return < 30
    assert trained.mean_return > 1.5 * untrained.mean_return
    assert trained.entropy < untrained.entropy < np.log(2)


@pytest.mark.slow
def test_progress_is_told_after_each_rollout() -> None:
    told: list[TrainingProgress] = []
    result = train(dataclasses.replace(SHORT, total_steps=3_500), told.append)
    assert [each.done for each in told] == [1_000, 2_000, 3_000]
    assert {each.total for each in told} == {3_500}
    assert told[-1].mean_return == result.mean_return
    assert result.env_steps == 3_000


@pytest.mark.slow
def test_the_run_keeps_the_gradients_and_the_scalars_under_their_canonical_names(
    tmp_path: Path,
) -> None:
    result = train(dataclasses.replace(SHORT, run=str(tmp_path / "run"), every=1))
    assert result.run == tmp_path / "run"
    with gm.load(tmp_path / "run") as run:
        logged = {
            "reward",
            "episode_length",
            "entropy",
            "policy_loss",
            "value_loss",
            "approx_kl",
            "clip_fraction",
        }
        logged |= {
            "explained_variance",
            "learning_rate",
            "action_share",
            "value_mean",
            "score_z",
            "reward_gain",
        }
        logged |= {
            "returns/std",
            "advantages/std",
            "observation/std",
            "ratio/max",
            "terminal_correlation",
            "ess",
        }
        assert logged <= set(run.names())
        assert {"grad/actor/norm/raw", "grad/critic/norm/raw", "grad/actor/norm/clipped"} <= set(
            run.names()
        )
        assert run.series("entropy")[0].tolist() == [39, 79]
        assert run.series("learning_rate")[1].tolist() == [1e-3, 5e-4]
        assert len(run.series("grad/actor/norm/raw")[0]) == 80
        assert run.series("ess")[1].tolist() == pytest.approx([1.0, 1.0])
        assert run.facts["config"]["max_reward"] == 500.0
        assert run.facts["config"]["num_actions"] == 2


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_to_balance_the_pole_within_100_000_steps(seed: int) -> None:
    result = train(Config(seed=seed))
    assert result.env_steps <= 100_000
    assert result.mean_return >= 400
