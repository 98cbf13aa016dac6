"""CleanRL's ppo.py, watched: `with gm.watch(...)` around the loop, `with meter.terms(...)` around
the backward.

Everything else is the script as it was: one file, read from top to bottom. Its scalars keep
CleanRL's names.

`python examples/11_cleanrl.py` prints the share that each term of the loss has in the actor's
gradient. Needs `pip install "gradiometer[labs]"`.
"""

from dataclasses import asdict, dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical

import gradiometer as gm


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    seed: int = 1
    total_timesteps: int = 8192
    learning_rate: float = 2.5e-4
    num_envs: int = 4
    num_steps: int = 128
    gamma: float = 0.99
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 4
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


def layer_init(layer, std=2**0.5, bias_const=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        size, actions = (
            np.array(envs.single_observation_space.shape).prod(),
            envs.single_action_space.n,
        )
        self.critic = nn.Sequential(
            layer_init(nn.Linear(size, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), std=1.0)
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(size, 64)), nn.Tanh(), layer_init(nn.Linear(64, actions), 0.01)
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


args = Args()
batch_size = args.num_envs * args.num_steps
minibatch_size = batch_size // args.num_minibatches
np.random.seed(args.seed)
torch.manual_seed(args.seed)
make = [
    lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))
    for _ in range(args.num_envs)
]
envs = gym.vector.SyncVectorEnv(make)
agent = Agent(envs)
optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

shape = (args.num_steps, args.num_envs)
obs = torch.zeros(shape + envs.single_observation_space.shape)
actions, logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
next_obs, _ = envs.reset(seed=args.seed)
next_obs, next_done, global_step = torch.Tensor(next_obs), torch.zeros(args.num_envs), 0

with gm.watch(
    agent, optimizer, run="runs/cleanrl", overwrite=True, config=asdict(args), seed=args.seed
) as meter:
    for iteration in range(args.total_timesteps // batch_size):
        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprobs[step], _, value = agent.get_action_and_value(next_obs)
            actions[step], values[step] = action, value.flatten()
            next_obs, reward, terminations, truncations, infos = envs.step(action.numpy())
            rewards[step], next_obs = torch.tensor(reward), torch.Tensor(next_obs)
            next_done = torch.Tensor(np.logical_or(terminations, truncations))
            if "episode" in infos:
                meter.log(
                    {"charts/episodic_return": infos["episode"]["r"][infos["_episode"]].mean()}
                )

        with torch.no_grad():
            advantages, lastgaelam = torch.zeros_like(rewards), 0.0
            for t in reversed(range(args.num_steps)):
                last = t == args.num_steps - 1
                nextnonterminal = 1.0 - (next_done if last else dones[t + 1])
                nextvalues = agent.get_value(next_obs).flatten() if last else values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = (
                    delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
                )
            returns = advantages + values

        b_obs, b_actions = obs.flatten(0, 1), actions.flatten().long()
        b_logprobs, b_advantages, b_returns = (
            logprobs.flatten(),
            advantages.flatten(),
            returns.flatten(),
        )
        for epoch in range(args.update_epochs):
            meter.at(env_steps=global_step, rollout=iteration, epoch=epoch)
            for mb in np.random.permutation(batch_size).reshape(-1, minibatch_size):
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb], b_actions[mb]
                )
                ratio = (newlogprob - b_logprobs[mb]).exp()
                a = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
                pg_loss = torch.max(
                    -a * ratio, -a * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                ).mean()
                v_loss = 0.5 * (newvalue.flatten() - b_returns[mb]).square().mean()
                optimizer.zero_grad()
                terms = {
                    "policy": pg_loss,
                    "entropy": -args.ent_coef * entropy.mean(),
                    "value": v_loss * args.vf_coef,
                }
                with meter.terms(
                    **terms
                ) as loss:  # pg_loss - ent_coef * entropy + vf_coef * v_loss, each looked at
                    loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        losses = {"value_loss": v_loss, "policy_loss": pg_loss, "entropy": entropy.mean()}
        meter.log({f"losses/{name}": x for name, x in losses.items()})

run = gm.load("runs/cleanrl")
for term in ("policy", "entropy"):
    print(
        f"{term} takes {run.series(f'grad/actor/term/{term}/share')[1].mean():.1%} of the actor's"
        " gradient"
    )
