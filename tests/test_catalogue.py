"""Telemetry that nobody produces is dead: every metric comes out of some run, and every series of a
run is known."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from nvml import nvml_with_cards
from torch import nn

import gradiometer as gm
from gradiometer.cli.main import run as run_command
from gradiometer.metrics import CATALOGUE, resolve
from gradiometer_labs import find
from gradiometer_labs.config import configure

pytestmark = pytest.mark.slow


def lab_run(folder: Path) -> list[str]:
    """A real PPO training, with two losses and a clip."""
    lab = find("cartpole")
    lab.train(
        configure(lab.config(), [f"run={folder}", "total_steps=1500", "every=1", "tier=deep"])
    )
    return gm.load(folder).names()


def accumulating_run(folder: Path) -> list[str]:
    """Micro-batches, pairs, ratios and advantages, with a gradient that oscillates and, in the
    critic, only noise."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"actor": nn.Linear(20, 1, bias=False), "critic": nn.Linear(300, 1, bias=False)}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    watched = gm.watch(
        model,
        optimizer,
        run=folder,
        budget=None,
        direction="sketch",
        pairs={"graft": ("critic", "actor")},
    )
    with watched as meter:
        for step in range(121):
            optimizer.param_groups[0]["lr"] = 1e-9 * (1 + step % 7)
            level = 10 ** (0.5 * math.sin(2 * math.pi * step / 12))
            optimizer.zero_grad()
            for _ in range(2):
                signal, noise = (
                    model["actor"](torch.ones(20) + 0.1 * torch.randn(20)),
                    model["critic"](torch.randn(300)),
                )
                (level * (signal + noise).sum()).backward()
            optimizer.step()
            meter.log(ratio=torch.ones(8), advantages=torch.randn(8) * level)
    return gm.load(folder).names()


def rewarded_run(folder: Path) -> list[str]:
    """A policy term that is a function of two rewards' advantages; vectors too large to keep, so
    sketched."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=folder, budget=None, terms_memory=0) as meter:
        for _ in range(2):
            optimizer.zero_grad()
            log_probs = model(torch.randn(8, 6)).log_softmax(-1)[:, 0]
            rewards = {"correct": torch.randn(8), "format": torch.randn(8)}
            policy = lambda advantages, log_probs=log_probs: -(advantages * log_probs).mean()  # noqa: E731
            with meter.terms(
                policy=policy, entropy=0.1 * log_probs.mean(), advantages=rewards
            ) as loss:
                loss.backward()
            optimizer.step()
    return gm.load(folder).names()


def sokoban_runs(folder: Path) -> list[str]:
    """A language model that plays, trained with a null beside its analysis, and one that stops
    after it."""
    lab = find("sokoban")
    small = [
        *SMALL_SOKOBAN,
        "trainer.gradient_analysis_null=true",
        "trainer.gradient_analysis_every=1",
    ]
    lab.train(
        configure(
            lab.config(), [f"run={folder / 'trained'}", *small, "trainer.total_training_steps=2"]
        )
    )
    stopped = [
        *small,
        "trainer.total_training_steps=1",
        "trainer.exit_after_gradient_analysis=true",
    ]
    lab.train(configure(lab.config(), [f"run={folder / 'stopped'}", *stopped]))
    return gm.load(folder / "trained").names() + gm.load(folder / "stopped").names()


def tsp_runs(folder: Path) -> list[str]:
    """A training, and replicates of the gradient of what it trained."""
    lab = find("tsp")
    small = [
        "steps=2",
        "batch_size=4",
        "num_loc=6",
        "embed_dim=16",
        "num_layers=1",
        "num_heads=2",
        "val_size=4",
    ]
    lab.train(configure(lab.config(), [f"run={folder / 'trained'}", *small]))
    checkpoint = str(folder / "trained" / "last.ckpt")
    asked = [
        "--ckpt_path",
        checkpoint,
        "--num_loc",
        "6",
        "--num_instances",
        "8",
        "--num_replicates",
        "2",
    ]
    assert run_command(["variance", *asked, "--run", str(folder / "replicates"), "--json"]) == 0
    return gm.load(folder / "trained").names() + gm.load(folder / "replicates").names()


def prismatic_run(folder: Path) -> list[str]:
    """A language model with experts that are routed to, and a loss that balances them."""
    lab = find("prismatic")
    small = [
        "steps=12",
        "router_type=topk",
        "width=16",
        "num_layers=2",
        "num_heads=2",
        "context=32",
        "batch_size=4",
    ]
    lab.train(
        configure(
            lab.config(),
            [f"run={folder}", *small, "every=1", "tier=deep", "val_every=5", "val_size=8"],
        )
    )
    return gm.load(folder).names()


# What users and other trainers log: a name here is one that `meter.log` was seen to keep.
LOGGED = {
    "reward_std": 0.3,
    "rewards/format/mean": 0.5,
    "truncated_fraction": 0.1,
    "clip_fraction_low": 0.1,
    "clip_fraction_high": 0.1,
    "q_value": 1.0,
    "value_mean": 1.0,
    "target_distance": 0.1,
    "exploration_rate": 0.5,
    "entropy_coef": 0.2,
    "dormant_fraction": 0.1,
    "action_share": 0.6,
    "ess": 0.9,
    "importance_weight": 1.0,
    "sampler_kl": 0.001,
    "explained_variance_before": 0.1,
    "mutual_information": 1.0,
    "terminal_correlation": 0.9,
    "penultimate_correlation": 0.9,
    "step/predicted": -0.1,
    "step/realised": -0.1,
    "reward_lag": 0.0,
    "loss_scale": 65536.0,
    "score_z": 0.3,
    "reward_gain": 0.1,
    "total_grad_norm": 1.0,
    "part_grad_norm/policy": 0.5,
}
# Other trainers' quantities, which `meter.log` keeps under our names like any other.
LOGGED |= {
    name.replace("<function>", "format").replace("<statistic>", "mean"): 0.5
    for name, metric in CATALOGUE.items()
    if metric.origin == "logged"
    if metric.aliases or name.startswith("val/") or f"val/{name}" in CATALOGUE
}


def logged_run(folder: Path) -> list[str]:
    """What only a user can know, given to the meter."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=folder, budget=None) as meter:
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        meter.log(LOGGED, returns=torch.randn(8), observation=torch.randn(8, 3))
    return gm.load(folder).names()


def played_run(folder: Path) -> list[str]:
    """A policy gradient on an environment, and sequences of several lengths beside it."""
    torch.manual_seed(0)
    env = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda r: r + 0.1)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=folder, budget=None):
        state, _ = env.reset(seed=0)
        for _ in range(2):
            rows = []
            for _ in range(64):
                action = int(torch.randint(2, ()))
                after, reward, ended, cut, _ = env.step(action)
                rows.append((state, action, float(reward) * torch.rand(()).item()))
                state = env.reset()[0] if ended or cut else after
            states, actions, paid = (torch.tensor(np.array(x)) for x in zip(*rows, strict=True))
            old = None
            for _ in range(2):
                out = model(states.float())
                policy = torch.distributions.Categorical(logits=out[:, :2])
                new = policy.log_prob(actions)
                old = new.detach() if old is None else old
                value = (out[:, 2] - paid.float()).square().mean()
                first = torch.zeros(10, 6, 1).long()
                tokens = model(torch.randn(10, 6, 4)).log_softmax(-1).gather(-1, first)
                mask = torch.rand(10, 6, 1).round()
                loss = -((new - old).exp() * paid.float()).mean() + value
                loss = loss - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                (loss - (tokens * mask).mean()).backward()
                optimizer.step()
    return gm.load(folder).names()


def system_run(folder: Path) -> list[str]:
    """Processor and memory, and a graphics card as NVML tells of it."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", nvml_with_cards(1))
        meter = gm.watch(model, optimizer, run=folder, budget=None, system=True)
    with meter:
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    return gm.load(folder).names()


SMALL_SOKOBAN = [
    "model.hidden_size=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.intermediate_size=16",
    "warm_start.steps=2",
    "warm_start.num_levels=8",
    "warm_start.batch_size=8",
    "env.max_turns=3",
    "es_manager.train.env_groups=8",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=2",
    "actor_rollout_ref.rollout.rollout_filter_value=1.0",
    "actor_rollout_ref.rollout.gradient_analysis_num_buckets=2",
    "every=1",
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    runs = {
        "lab": lab_run,
        "accumulating": accumulating_run,
        "rewarded": rewarded_run,
        "sokoban": sokoban_runs,
    }
    runs |= {"tsp": tsp_runs, "prismatic": prismatic_run, "logged": logged_run}
    runs |= {"played": played_run, "system": system_run}
    return [name for key, run in runs.items() for name in run(folder / key)]


def test_every_metric_of_the_catalogue_is_produced(names: list[str]) -> None:
    produced = {found[0].name for name in names if (found := resolve(name))}
    assert set(CATALOGUE) - produced == set()


def test_every_series_of_a_run_is_in_the_catalogue(names: list[str]) -> None:
    assert [name for name in names if resolve(name) is None] == []


def test_a_name_of_the_catalogue_means_one_thing() -> None:
    concrete = {"bucket": "bucket_1", "number": "0"}
    for name, metric in CATALOGUE.items():
        name = re.sub(r"<([a-z_]+)>", lambda found: concrete.get(found[1], "policy"), name)
        found = resolve(name)
        assert found is not None
        assert found[0] is metric
        assert np.isscalar(found[0].unit)
