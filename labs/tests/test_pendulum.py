from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer_labs.config import configure
from gradiometer_labs.episodes import Episodes
from gradiometer_labs.pendulum import train as lab
from gradiometer_labs.pendulum.model import SacModel, log_prob_of
from gradiometer_labs.pendulum.train import Agent, Config, Pieces, SacBatch, TrainingProgress, train
from gradiometer_labs.replay import Replay
from gradiometer_labs.weights import save_weights

CPU = torch.device("cpu")
SHORT = Config(num_envs=2, total_steps=1_200, update_every=10, batch_size=32)
"""Two rounds of 20 updates each, after the one that fills the replay."""


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def batch_of(size: int) -> SacBatch:
    generator = torch.Generator().manual_seed(3)
    draw = [torch.rand(size, width, generator=generator) * 2 - 1 for width in (3, 1, 1, 3)]
    return SacBatch(draw[0], draw[1], draw[2].squeeze(-1), draw[3])


@pytest.fixture
def agent() -> Agent:
    torch.manual_seed(4)
    return lab.agent_of(Pieces(config=SHORT), CPU)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -1.0), (-0.7, 0.8)])
def test_the_density_of_a_squeezed_gaussian_integrates_to_one(mean: float, log_std: float) -> None:
    u = torch.linspace(-25, 25, 200_001, dtype=torch.float64).unsqueeze(-1)
    policy = torch.full_like(u, mean), torch.full_like(u, log_std)
    density, action = log_prob_of(u, policy).exp(), u.tanh().squeeze(-1)
    assert float(torch.trapezoid(density, action)) == pytest.approx(1.0, abs=1e-5)


def test_the_log_prob_is_that_of_torch_distributions() -> None:
    u = torch.tensor([[-3.0], [0.1], [4.0]], dtype=torch.float64)
    mean, log_std = (
        torch.tensor([[-1.0], [0.3], [2.0]]).double(),
        torch.tensor([[0.5], [-2.0], [0.0]]).double(),
    )
    squeezed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(
        log_prob_of(u, (mean, log_std)), squeezed.log_prob(u.tanh()).squeeze(-1)
    )


def test_the_log_prob_and_its_gradient_are_finite_where_the_action_rounds_to_one() -> None:
    u = torch.tensor([[30.0]], requires_grad=True)
    assert torch.isinf((1 - u.tanh().square()).log())
    log_prob = log_prob_of(u, (torch.tensor([[29.0]]), torch.tensor([[0.0]])))
    # log N(30; 29, 1) - log(4 e^-60)
    assert log_prob.item() == pytest.approx(
        -0.5 - 0.5 * math.log(2 * math.pi) + 60 - 2 * math.log(2)
    )
    (grad,) = torch.autograd.grad(log_prob.sum(), u)
    assert grad.item() == pytest.approx(-1.0 + 2.0)


def test_a_fresh_policy_acts_nearly_uniformly_everywhere() -> None:
    torch.manual_seed(0)
    mean, log_std = SacModel(0.1).policy(batch_of(500).observations)
    assert mean.abs().max() < 0.05
    assert log_std.abs().max() < 0.05


def test_the_targets_follow_by_tau_of_the_way() -> None:
    torch.manual_seed(0)
    target, critic = SacModel(0.1).critic, SacModel(0.1).critic
    before, online = weights(target), weights(critic)
    lab.follow(target, critic, 0.1)
    torch.testing.assert_close(weights(target), 0.9 * before + 0.1 * online)
    assert torch.equal(weights(critic), online)


def test_the_target_starts_as_a_copy_that_training_does_not_touch(agent: Agent) -> None:
    assert torch.equal(weights(agent.target), weights(agent.model.critic))
    assert not any(parameter.requires_grad for parameter in agent.target.parameters())
    pieces = Pieces(config=SHORT, follow=lambda target, critic, tau: None)
    one_update(agent, pieces)
    assert not torch.equal(weights(agent.target), weights(agent.model.critic))


def test_the_temperature_falls_while_there_is_more_entropy_than_asked_for() -> None:
    log_alpha = torch.tensor(0.3, requires_grad=True)
    for entropy, sign in ((-0.2, 1.0), (-1.7, -1.0)):
        (grad,) = torch.autograd.grad(
            lab.temperature_loss_of(log_alpha, torch.tensor(entropy), -1.0), log_alpha
        )
        assert math.copysign(1.0, float(grad)) == sign
        assert float(grad) == pytest.approx(entropy + 1.0)


def test_value_targets_are_reward_and_discounted_soft_value_of_the_smaller_target_critic(
    agent: Agent,
) -> None:
    batch, pieces = batch_of(16), Pieces(config=dataclasses.replace(SHORT, gamma=0.9))
    for layer, value in ((agent.target.first[-1], 2.0), (agent.target.second[-1], 1.5)):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, value)
    torch.manual_seed(7)
    policy = agent.model.policy(batch.next_observations)
    log_probs = log_prob_of(lab.sampled(policy), policy)
    torch.manual_seed(7)
    expected = batch.rewards + 0.9 * (1.5 - SHORT.alpha * log_probs)
    torch.testing.assert_close(lab.targets_of(agent, batch, pieces), expected.detach())


def one_update(agent: Agent, pieces: Pieces, batch: SacBatch | None = None) -> dict[str, Tensor]:
    with gm.watch(agent.model, agent.optimizers, run=None, budget=None) as meter:
        return lab.update(agent, meter, batch or batch_of(32), pieces)


def test_one_update_moves_the_actor_up_the_critics_and_not_the_critics_to_the_actor(
    agent: Agent,
) -> None:
    """The actor's gradient is that of -min Q + α log π alone, and the critics' that of the squared
    errors alone."""
    config = dataclasses.replace(SHORT, max_grad_norm=1e9)
    state = {name: value.clone() for name, value in agent.model.state_dict().items()}
    batch, pieces = batch_of(32), Pieces(config=config)
    torch.manual_seed(9)
    one_update(agent, pieces, batch)
    found = {
        name: p.grad.clone() for name, p in agent.model.named_parameters() if p.grad is not None
    }
    agent.model.load_state_dict(state)
    agent.target.load_state_dict(agent.model.critic.state_dict())
    torch.manual_seed(9)
    targets, policy = lab.targets_of(agent, batch, pieces), agent.model.policy(batch.observations)
    u = lab.sampled(policy)
    own, values = (
        agent.model.critic(batch.observations, action) for action in (u.tanh(), batch.actions)
    )
    actor_loss = -torch.minimum(*own).mean() + SHORT.alpha * log_prob_of(u, policy).mean()
    value_loss = 0.5 * (
        (values[0] - targets).square().mean() + (values[1] - targets).square().mean()
    )
    for name, parameters, loss in (
        ("actor", dict(agent.model.actor.named_parameters()), actor_loss),
        ("critic", dict(agent.model.critic.named_parameters()), value_loss),
    ):
        grads = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True)
        for key, grad in zip(parameters, grads, strict=True):
            torch.testing.assert_close(found[f"{name}.{key}"], grad)
    assert float(found["log_alpha"]) == pytest.approx(
        float(-log_prob_of(u, policy).mean().detach()) - SHORT.target_entropy, rel=1e-5
    )


def test_the_replay_keeps_what_belongs_together_and_forgets_the_oldest() -> None:
    replay = Replay(5, SacBatch)
    for number in range(4):
        rows = torch.tensor([[2.0 * number], [2.0 * number + 1]])
        seen, rewards = rows.expand(2, 3), 10 * rows.squeeze(-1)
        replay.add(SacBatch(seen, -rows, rewards, seen + 0.5))
    assert len(replay) == 5
    held = replay.at(torch.arange(5))
    assert sorted(held.observations[:, 0].tolist()) == [3.0, 4.0, 5.0, 6.0, 7.0]
    torch.testing.assert_close(held.actions, -held.observations[:, :1])
    torch.testing.assert_close(held.rewards, 10 * held.observations[:, 0])
    torch.testing.assert_close(held.next_observations, held.observations + 0.5)


def collected(num_steps: int, pieces: Pieces) -> tuple[Replay[SacBatch], list[Any], Episodes]:
    """Steps of a fresh policy in two environments, seeds 5 and 6."""
    torch.manual_seed(5)
    model, replay, episodes = SacModel(0.1), Replay(2 * num_steps, SacBatch), Episodes(2)
    envs = SyncVectorEnv([lab.make_env] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    observation, _ = envs.reset(seed=[5, 6])
    steps = []
    for _ in range(num_steps):
        step, observation = lab.collect(envs, model, replay, observation, episodes, pieces)
        steps.append(step)
    envs.close()
    return replay, steps, episodes


def test_what_is_kept_is_what_the_environment_did_also_where_an_episode_is_cut_off() -> None:
    replay, steps, episodes = collected(203, Pieces(config=SHORT))
    kept = replay.at(torch.arange(1, 406, 2))  # of the second environment
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=6)
    total = 0.0
    for t, action in enumerate(kept.actions):
        np.testing.assert_allclose(kept.observations[t].numpy(), observation / [1, 1, 8], rtol=1e-6)
        observation, reward, _, done, _ = env.step(2 * action.numpy())
        np.testing.assert_allclose(
            kept.next_observations[t].numpy(), observation / [1, 1, 8], rtol=1e-6
        )
        assert kept.rewards[t].item() == pytest.approx(SHORT.reward_scale * float(reward), rel=1e-5)
        total += float(reward)
        if done:
            assert t == 199
            assert episodes.returns[1] == pytest.approx(total)
            observation, _ = env.reset()
    assert kept.observations.abs().max() <= 1.0
    assert len(steps) == 203


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
def test_progress_is_told_after_each_round_of_episodes() -> None:
    told: list[TrainingProgress] = []
    result = train(dataclasses.replace(SHORT, total_steps=1_300), told.append)
    assert [each.done for each in told] == [400, 800, 1_200]
    assert {each.total for each in told} == {1_300}
    assert told[-1].mean_return == result.mean_return
    assert (result.env_steps, result.episodes) == (1_200, 6)


@pytest.mark.slow
def test_a_fixed_temperature_stays(tmp_path: Path) -> None:
    result = train(
        dataclasses.replace(SHORT, learn_alpha=False, alpha=0.3, run=str(tmp_path / "run"))
    )
    assert float(result.model.log_alpha.exp()) == pytest.approx(0.3)
    with gm.load(tmp_path / "run") as run:
        assert run.series("entropy_coef")[1].tolist() == pytest.approx([0.3, 0.3])


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
            "q_value",
            "entropy_coef",
        }
        logged |= {
            "target_distance",
            "explained_variance",
            "learning_rate",
            "score_z",
            "reward_gain",
            "reward_lag",
        }
        logged |= {"sampler_kl", "dormant_fraction", "returns/mean", "observation/max_abs"}
        assert logged <= set(run.names())
        assert {"grad/actor/norm/raw", "grad/critic/norm/raw", "grad/actor/norm/clipped"} <= set(
            run.names()
        )
        assert run.series("entropy")[0].tolist() == [19, 39]
        assert len(run.series("grad/actor/norm/raw")[0]) == 40
        own = {block: set(terms_of(run, block)) for block in ("actor", "critic")}
        assert own == {"actor": {"policy", "entropy"}, "critic": {"value"}}
        assert run.series("grad/all/term/additivity_error")[1].max() < 1e-5


def terms_of(run: Any, block: str) -> list[str]:
    prefix = f"grad/{block}/term/"
    return [
        name.split("/")[3]
        for name in run.names()
        if name.startswith(prefix) and name.endswith("/norm")
    ]


@pytest.mark.slow
def test_a_training_goes_on_from_the_weights_of_another(tmp_path: Path) -> None:
    torch.manual_seed(8)
    model = SacModel(0.07)
    save_weights(model, tmp_path / "weights.pt")
    agent = lab.agent_of(
        Pieces(config=dataclasses.replace(SHORT, start=str(tmp_path / "weights.pt"))), CPU
    )
    assert torch.equal(weights(agent.model), weights(model))
    assert torch.equal(weights(agent.target), weights(model.critic))
    assert train(dataclasses.replace(SHORT, start=str(tmp_path / "weights.pt"))).episodes == 6
    with pytest.raises(UsageError, match="there is no such file"):
        train(dataclasses.replace(SHORT, start=str(tmp_path / "other.pt")))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("total_steps=1600", r"total_steps=1600 is too short: .* num_envs=8 .* use 3200 or more"),
        ("num_envs=0", "num_envs=0 leaves nothing to train on"),
        ("update_every=201", "update_every=201 is longer than an episode of 200 steps"),
        ("buffer_size=100", r"buffer_size=100 does not hold one episode .* use 1600 or more"),
        ("gamma=1.0", "gamma=1.0: episodes that never end need a discount"),
        ("alpha=0", "alpha=0.0 is no temperature"),
        ("tau=1.5", "tau=1.5 is no share"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_words(override: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        configure(Config, [override])


@pytest.mark.slow
def test_a_short_training_leaves_its_start_far_behind() -> None:
    """An untrained policy's mean over 20 episodes is -1250 ± 60, and this one's last 20 are on the
    way up."""
    quick = Config(
        num_envs=4,
        total_steps=8_000,
        update_every=3,
        batch_size=32,
        learning_rate=4e-3,
        tau=0.1,
        every=1000,
    )
    told: list[TrainingProgress] = []
    result = train(quick, told.append)
    assert -1700 < told[1].mean_return < -950
    assert result.mean_return > -850
    assert result.entropy < 0.0


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_to_swing_the_pendulum_up_and_to_hold_it(seed: int) -> None:
    assert train(Config(seed=seed)).mean_return > -250
