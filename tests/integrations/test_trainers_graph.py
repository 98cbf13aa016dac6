"""Other people's trainers, unchanged, by `gradiometer run`: what the graph says of their losses.

Terms add up to the gradient and have names and roles, credit is there or the table says why not,
and nothing is claimed to be proved of a healthy training. Each trainer is trained once.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import gradiometer as gm
from gradiometer.cli.main import run
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.replayed import replayed_groups
from gradiometer.doctor.rundata import RunData

pytestmark = pytest.mark.slow

LANGUAGE = """
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(0)
words = ["<pad>", "<end>", "<unk>", *"abcdefghij"]
level = models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>")
letters = Tokenizer(level)
letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=letters, pad_token="<pad>", eos_token="<end>", unk_token="<unk>",
    padding_side="left",
)
shape = dict(vocab_size=13, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
heads = dict(num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64)
model = Qwen2ForCausalLM(Qwen2Config(eos_token_id=1, pad_token_id=0, **shape, **heads))
model.save_pretrained("model")
prompts = [a + b for a in "abcd" for b in "efgh"]
base = dict(
    output_dir="out", max_steps=8, logging_steps=4, learning_rate=1e-2, report_to="none",
    save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True, gradient_checkpointing=False,
    per_device_train_batch_size=8,
)
sampled = dict(num_generations=4, max_completion_length=8, beta=0.05)


def reward(completions, **_):
    return [float(sum(letter in "abc" for letter in text)) for text in completions]
"""
GRPO = """
from trl import GRPOConfig, GRPOTrainer
GRPOTrainer(
    model="model", reward_funcs=reward, args=GRPOConfig(**base, **sampled),
    train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=tokenizer,
).train()
"""
RLOO = GRPO.replace("GRPO", "RLOO")
SIGN = GRPO.replace("GRPOTrainer(\n", "Mine(\n").replace(
    "Mine(",
    """
class Mine(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {**inputs, "advantages": -inputs["advantages"]})


Mine(""",
    1,
)
DPO = """
from trl import DPOConfig, DPOTrainer
pairs = {"prompt": prompts, "chosen": [p[0] * 4 for p in prompts], "rejected": prompts}
DPOTrainer(
    model="model", args=DPOConfig(**base), train_dataset=Dataset.from_dict(pairs),
    processing_class=tokenizer,
).train()
"""
SFT = """
from trl import SFTConfig, SFTTrainer
SFTTrainer(
    model="model", args=SFTConfig(**base), processing_class=tokenizer,
    train_dataset=Dataset.from_dict({"text": [p + p[0] * 4 for p in prompts]}),
).train()
"""
TORCHRL_PPO = """
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
env = GymEnv("CartPole-v1", categorical_action_encoding=True)
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
actor = ProbabilisticActor(
    TensorDictModule(net, ["observation"], ["logits"]), in_keys=["logits"],
    distribution_class=torch.distributions.Categorical, return_log_prob=True,
)
critic = ValueOperator(
    nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), in_keys=["observation"]
)
estimate = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
losses = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
optimizer = torch.optim.Adam(losses.parameters(), 3e-4)
for data in Collector(env, actor, frames_per_batch=128, total_frames=512):
    estimate(data)
    for rows in torch.randperm(128).split(64) * 2:
        said = losses(data.reshape(-1)[rows])
        optimizer.zero_grad()
        (said["loss_objective"] + said["loss_critic"] + said["loss_entropy"]).backward()
        optimizer.step()
"""
TORCHRL_SAC = """
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

torch.manual_seed(0)
env = GymEnv("Pendulum-v1")
net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2), NormalParamExtractor())
actor = ProbabilisticActor(
    TensorDictModule(net, ["observation"], ["loc", "scale"]), in_keys=["loc", "scale"],
    spec=env.action_spec, distribution_class=TanhNormal,
    distribution_kwargs={"low": -2.0, "high": 2.0},
)


class Worth(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, seen, action):
        return self.net(torch.cat([seen, action], -1))


losses = SACLoss(actor, ValueOperator(Worth(), in_keys=["observation", "action"]))
losses.make_value_estimator(gamma=0.99)
follow = SoftUpdate(losses, tau=0.005)
optimizers = [
    torch.optim.Adam(losses.actor_network_params.flatten_keys().values(), 3e-4),
    torch.optim.Adam(losses.qvalue_network_params.flatten_keys().values(), 3e-4),
    torch.optim.Adam([losses.log_alpha], 3e-4),
]
kept = TensorDictReplayBuffer(storage=LazyTensorStorage(500), batch_size=32)
for data in Collector(env, actor, frames_per_batch=32, total_frames=320):
    kept.extend(data.reshape(-1))
    for _ in range(3):
        said = losses(kept.sample())
        for each in optimizers:
            each.zero_grad()
        (said["loss_actor"] + said["loss_qvalue"] + said["loss_alpha"]).backward()
        for each in optimizers:
            each.step()
        follow.step()
"""
CONTRIB = """
from sb3_contrib import {name}
{name}("{policy}", "{env}", seed=0, device="cpu", policy_kwargs={small}, {more}).learn({steps})
"""
RECURRENT = CONTRIB.format(
    name="RecurrentPPO",
    policy="MlpLstmPolicy",
    env="CartPole-v1",
    small={"lstm_hidden_size": 8, "net_arch": [8]},
    more="n_steps=64, batch_size=32, n_epochs=2",
    steps=384,
)
TRPO = CONTRIB.format(
    name="TRPO",
    policy="MlpPolicy",
    env="CartPole-v1",
    small={"net_arch": [8]},
    more="n_steps=64, batch_size=32",
    steps=640,
)
OFF = {"small": {"net_arch": [8]}, "more": "learning_starts=50, batch_size=32"}
QRDQN = CONTRIB.format(name="QRDQN", policy="MlpPolicy", env="CartPole-v1", steps=300, **OFF)
TQC = CONTRIB.format(name="TQC", policy="MlpPolicy", env="Pendulum-v1", steps=120, **OFF)
COMPILED = """
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], 1e-3)
quick = torch.compile(policy, backend="aot_eager")
for step in range(12):
    seen = torch.randn(32, 4)
    choices = torch.distributions.Categorical(logits=quick(seen))
    actions = torch.randint(0, 3, (32,))
    worth, paid = critic(seen).squeeze(1), (actions == 1).float()
    policy_loss = -(choices.log_prob(actions) * (paid - worth.detach())).mean()
    value_loss = (worth - paid).square().mean()
    loss = policy_loss + 0.5 * value_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Trainer:
    """A script, and the terms of its loss with their roles."""

    script: str
    terms: dict[str, str | None]
    needs: str = "torch"
    credit: bool = True
    """Whether samples have credit; else the reason must be in the table of proofs."""
    replayed: str | None = None
    found: list[str] = field(default_factory=list)
    measured: bool = True
    """Whether terms have gradients of their own; else the run says why not."""


TRAINERS = {
    "grpo": Trainer(
        LANGUAGE + GRPO,
        {"policy": "policy", "kl": "kl"},
        "trl",
        replayed="group-normalised",
    ),
    "rloo": Trainer(LANGUAGE + RLOO, {"loss": "policy"}, "trl", replayed="group-centred"),
    "grpo, sign flipped": Trainer(
        LANGUAGE + SIGN,
        {"policy": "policy", "kl": "kl"},
        "trl",
        replayed="group-normalised",
        found=["recipe-mismatch"],
    ),
    "dpo": Trainer(LANGUAGE + DPO, {"term-1": None}, "trl"),
    "sft": Trainer(LANGUAGE + SFT, {"loss": None}, "trl"),
    "torchrl ppo": Trainer(
        TORCHRL_PPO,
        {"loss_objective": "policy", "loss_critic": "value", "loss_entropy": "entropy"},
        "torchrl",
    ),
    "torchrl sac": Trainer(
        TORCHRL_SAC,
        {"loss_actor": "policy", "loss_qvalue": "q", "loss_alpha": "temperature"},
        "torchrl",
        credit=False,
    ),
    "recurrent ppo": Trainer(
        RECURRENT,
        {"policy_loss": "policy", "entropy_loss": "entropy", "value_loss": "value"},
        "sb3_contrib",
    ),
    "trpo": Trainer(TRPO, {"value_loss": "value"}, "sb3_contrib", credit=False),
    "qrdqn": Trainer(QRDQN, {"loss": None}, "sb3_contrib", credit=False),
    "tqc": Trainer(
        TQC,
        {"ent_coef_loss": "temperature", "critic_loss": "q", "log_prob": None, "qf_pi": None},
        "sb3_contrib",
        credit=False,
    ),
    "compiled": Trainer(COMPILED, {"policy_loss": "policy", "value_loss": "value"}, measured=False),
}


@pytest.fixture(autouse=True)
def _as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    yield
    sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_read_off_its_graph(tmp_path: Path, name: str) -> None:
    trainer = TRAINERS[name]
    if importlib.util.find_spec(trainer.needs) is None:
        pytest.skip(f"{trainer.needs} is not installed")
    (tmp_path / "train.py").write_text(trainer.script, encoding="utf-8")
    assert run(["run", "--no-doctor", "--budget", "none", "--run", "kept", "train.py"]) == 0

    with gm.load("kept") as kept:
        rows = {row["name"]: row for row in kept.tables("wiring")[-1].content["terms"]}
        assert {row: each["role"] for row, each in rows.items()} == trainer.terms
        assert all(each["alive"] for each in rows.values())
        errors = [table.content["additivity_error"] for table in kept.tables("wiring")]
        assert all(error is None or error < 1e-5 for error in errors)
        events = [event.kind for event in kept.events()]
        assert not {"fault", "terms-not-additive"} & set(events)
        assert ("terms-unmeasurable" in events) != trainer.measured
        assert ("credit/zero_share" in kept.names()) == trainer.credit
        if trainer.credit:
            assert np.isfinite(kept.series("credit/ess")[1]).all()
        proofs = kept.tables("proofs")[-1].content
        assert all(re.match(r"ok|unmeasurable: \w+", state) for state in proofs.values())
        findings = diagnose(kept).findings
        assert [each.id for each in findings if each.basis == "proved"] == trainer.found
        groups = replayed_groups(RunData(kept))
    assert (None if groups is None else groups.right.recipe.name) == trainer.replayed
    assert groups is None or groups.checked != bool(trainer.found)


BY_HAND = """
import torch
from torch import nn

torch.manual_seed(0)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters())
for step in range(64):
    seen = torch.randn(16, 4)
    if {moves}:
        with torch.no_grad():
            for weight in agent.actor.parameters():
                weight.add_(0.01 * torch.randn_like(weight))
    value_loss = (agent.critic(seen).squeeze(1) - seen[:, 0]).square().mean()
    optimizer.zero_grad()
    value_loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("moves", "dead"), [("step % 4 == 3", False), ("False", True)])
def test_a_block_that_the_script_steps_by_hand_is_not_dead(
    tmp_path: Path, moves: str, dead: bool
) -> None:
    (tmp_path / "train.py").write_text(BY_HAND.replace("{moves}", moves), encoding="utf-8")
    assert run(["run", "--no-doctor", "--run", "kept", "train.py"]) == 0
    with gm.load("kept") as kept:
        found = [each.id for each in diagnose(kept).findings if each.id == "dead-block"]
        moved = [event for event in kept.events() if event.kind == "moved-by-hand"]
    assert bool(found) == dead
    assert bool(moved) != dead
