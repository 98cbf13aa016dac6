"""Blocks that mean something: the module trees of the public libraries, and what terms reach."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.capture.blocks import find_blocks, named_parameters
from gradiometer.capture.roles import copies_among, roles_by_names, roles_by_terms

# A letter for each module, in the order of the tree: Actor, Critic, trunk, copy (x), entropy
# coefficient (e); a dot for none at all.
TREES = {
    "Spinning Up PPO": ("pi.log_std pi.mu_net.0 pi.mu_net.2 v.v_net.0 v.v_net.2", "AAACC"),
    "Spinning Up discrete": ("ac.pi.logits_net.0 ac.v.v_net.0", "AC"),
    "Spinning Up SAC": (
        "ac.pi.net.0 ac.pi.mu_layer ac.pi.log_std_layer ac.q1.q.0 ac.q2.q.0 ac_targ.pi.net.0"
        " ac_targ.q1.q.0",
        "AAACCxx",
    ),
    "minimalRL PPO": ("fc1 lstm fc_pi fc_v", "ttAC"),
    "minimalRL SAC": (
        "pi.fc1 pi.fc_mu pi.fc_std q1.fc_s q1.fc_out q2.fc_s q1_target.fc_s log_alpha",
        "AAACCCxe",
    ),
    "minimalRL DDPG": ("mu.fc1 mu_target.fc1 q.fc_s q_target.fc_s", "AxCx"),
    "CleanRL PPO": ("critic.0 critic.2 actor_mean.0 actor_mean.2 actor_logstd", "CCAAA"),
    "CleanRL Atari": ("network.0 network.2 actor critic", "ttAC"),
    "CleanRL SAC": (
        "actor.fc1 actor.fc_mean actor.fc_logstd qf1.fc1 qf2.fc1 qf1_target.fc1 log_alpha",
        "AAACCxe",
    ),
    "CleanRL DQN": ("q_network.network.0 target_network.network.0", "Cx"),
    "Q-learning": ("q_network.network.0 q_network.network.2", "CC"),
    "CleanRL DDPG": ("actor.fc_mu qf1.fc1 target_actor.fc_mu qf1_target.fc1", "ACxx"),
    "RLlib shared": ("encoder.encoder.net.mlp.0 pi.net.mlp.0 vf.net.mlp.0", "tAC"),
    "RLlib": (
        "encoder.actor_encoder.net.mlp.0 encoder.critic_encoder.net.mlp.0 pi.net.mlp.0 vf.net.mlp.0",
        "ACAC",
    ),
    "RLlib old stack": (
        "_logits._model.0 _hidden_layers.0._model.0 _value_branch._model.0 _value_branch_separate.0",
        "AtCC",
    ),
    "rsl_rl": ("std actor.0 actor.2 critic.0 critic.2", "AAACC"),
    "rsl_rl recurrent": ("std actor.0 critic.0 memory_a.rnn memory_c.rnn", "AACAC"),
    "rl_games": (
        "a2c_network.sigma a2c_network.actor_mlp.0 a2c_network.critic_mlp.0 a2c_network.value"
        " a2c_network.mu",
        "AACCA",
    ),
    "skrl shared": ("net.0 net.2 policy_layer log_std_parameter value_layer", "ttAAC"),
    "skrl": ("policy.net.0 policy.log_std_parameter value.net.0", "AAC"),
    "tianshou": ("actor.preprocess.model.0 actor.mu.model.0 critic.last.model.0", "AAC"),
    "Lightning": ("model.actor.0 model.critic.0 model.encoder.0", "ACt"),
    "torchrl PPO": (
        "actor_network_params.module.0.module.0 critic_network_params.module.0",
        "AC",
    ),
    "torchrl SAC": (
        "actor_network_params.module.0 qvalue_network_params.module.0"
        " target_qvalue_network_params.module.0 log_alpha",
        "ACxe",
    ),
    "TRL value head": (
        "pretrained_model.model.layers.0.self_attn.v_proj pretrained_model.lm_head v_head.summary",
        "tAC",
    ),
    "a policy that holds all": ("policy.features.0 policy.actor.0 policy.value_head", "tAC"),
    "PPO-PyTorch": (
        "policy.actor.0 policy.critic.0 policy_old.actor.0 policy_old.critic.0",
        "ACxx",
    ),
    "actor_critic": ("actor_critic.body.0 actor_critic.actor_head actor_critic.critic_head", "tAC"),
    # nothing to tell apart
    "a language model": ("model.embed model.layers.0.self_attn.q_proj lm_head", "..."),
    "T5": ("block.0.SelfAttention.q block.0.SelfAttention.k block.0.SelfAttention.v", "..."),
    "RWKV": ("blocks.0.att.key blocks.0.att.value blocks.0.att.receptance head", "...."),
    "NoisyNet DQN": ("features.0 value_stream.0 advantage_stream.0", "..."),
    "a plain net": ("0 2 4", "..."),
    "a classifier": ("conv1 fc1 fc2", "..."),
}
LETTERS = {
    "actor": "A",
    "critic": "C",
    "trunk": "t",
    "target": "x",
    "ent_coef": "e",
}
LOOSE = {"std", "log_alpha", "actor_logstd", "log_std_parameter", "sigma", "log_std"}


def letters(names: list[str], copies: set[str] | None = None) -> str:
    roles = roles_by_names(names, copies or set())
    return "".join(LETTERS[roles[name]] if name in roles else "." for name in names)


@pytest.mark.parametrize("library", TREES)
def test_the_names_of_a_library_give_its_roles(library: str) -> None:
    modules, wanted = TREES[library]
    names = [
        module if module.rpartition(".")[2] in LOOSE else f"{module}.weight"
        for module in modules.split()
    ]
    assert letters(names) == wanted
    wrapped = [f"module.0.module.{name}" for name in names]
    if "e" not in wanted:
        assert letters(wrapped) == wanted, "however deep it lies"


def test_parameters_of_noisy_layers_are_no_actors() -> None:
    names = ["q.0.weight_mu", "q.0.weight_sigma", "q_target.0.weight_mu"]
    assert letters(names) == "CCx"


# Real modules of installed libraries


def box() -> tuple[Any, Any]:
    spaces = pytest.importorskip("gymnasium").spaces
    return spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))


def blocks_of(model: Any) -> dict[str, set[str]]:
    named = named_parameters(model)
    names, found = list(named), find_blocks(named, None)
    return {
        block: {names[i].partition(".")[0] for i in members}
        for block, members in found.named.items()
        if block != "all"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (
            "ppo.policies:ActorCriticPolicy",
            {
                "actor": {"mlp_extractor", "action_net", "log_std"},
                "critic": {"mlp_extractor", "value_net"},
            },
        ),
        (
            "sac.policies:SACPolicy",
            {"actor": {"actor"}, "critic": {"critic"}, "target": {"critic_target"}},
        ),
        (
            "td3.policies:TD3Policy",
            {
                "actor": {"actor"},
                "critic": {"critic"},
                "target": {"actor_target", "critic_target"},
            },
        ),
        ("dqn.policies:DQNPolicy", {"critic": {"q_net"}, "target": {"q_net_target"}}),
    ],
)
def test_stable_baselines_policies(policy: str, wanted: dict[str, set[str]]) -> None:
    import importlib

    pytest.importorskip("stable_baselines3")
    module, _, name = policy.partition(":")
    kind = getattr(importlib.import_module(f"stable_baselines3.{module}"), name)
    observations, actions = box()
    if "dqn" in policy:
        actions = pytest.importorskip("gymnasium").spaces.Discrete(2)
    assert blocks_of(kind(observations, actions, lambda _: 1e-3)) == wanted


@pytest.mark.slow
def test_torchrl_losses() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchrl")
        from tensordict.nn import NormalParamExtractor, TensorDictModule
        from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
        from torchrl.objectives import ClipPPOLoss

        net = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
        actor = ProbabilisticActor(
            TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
        )
        loss = ClipPPOLoss(actor, ValueOperator(nn.Linear(3, 1), in_keys=["observation"]))
    found = blocks_of(loss)
    assert found == {"actor": {"actor_network_params"}, "critic": {"critic_network_params"}}


# Copies, by what optimizers hold


def test_a_twin_that_no_optimizer_holds_is_a_copy() -> None:
    model = nn.ModuleDict(
        {
            "pi": nn.Linear(3, 2),
            "q": nn.Linear(3, 1),
            "q_bar": nn.Linear(3, 1),
            "forgotten": nn.Linear(5, 1),
        }
    )
    parameters = named_parameters(model)
    held = {id(p) for part in ("pi", "q") for p in model[part].parameters()}
    assert copies_among(parameters, held) == {"q_bar.weight", "q_bar.bias"}
    optimizer = torch.optim.SGD([*model["pi"].parameters(), *model["q"].parameters()], lr=0.1)
    with gm.watch(model, optimizer, run=None, quiet=True) as meter:
        assert meter.blocks.named["target"] == (4, 5)
        assert meter.blocks.named["trunk"] == (6, 7)


# What terms reach


class Plain(nn.Module):
    """Nothing in its names tells."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)

    def terms(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.a(x))
        return {"pg_loss": self.b(h).square().mean(), "v_loss": self.c(h).square().mean()}


def test_the_trunk_is_what_both_terms_reach() -> None:
    names = ["a.weight", "b.weight", "c.weight", "log_alpha"]
    told = roles_by_terms({"policy": {0, 1}, "value": {0, 2}, "entropy": {0, 1}}, names)
    assert told == {"a.weight": "trunk", "b.weight": "actor", "c.weight": "critic"}


@pytest.mark.parametrize(
    "reached",
    [
        {"policy": {0, 1}, "value": {1}},  # SAC: the policy's loss goes through the critic
        {"policy": {0, 1}},
        {"alpha": {0}, "beta": {1}},
        {},
    ],
)
def test_terms_that_do_not_tell_leave_it_to_the_names(reached: dict[str, set[int]]) -> None:
    assert roles_by_terms(reached, ["actor.weight", "critic.weight"]) == {}


def test_blocks_come_from_the_terms_and_are_the_same_from_the_first_step_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True) as meter:
        assert set(meter.blocks.named) == {"all"}
        for _ in range(6):
            optimizer.zero_grad()
            with meter.terms(**model.terms(torch.randn(8, 3))) as loss:
                loss.backward()
            true = {
                block: torch.cat([p.grad.flatten() for p in part.parameters()]).norm().item()
                for block, part in (("trunk", model.a), ("actor", model.b), ("critic", model.c))
                if all(p.grad is not None for p in part.parameters())
            }
            optimizer.step()
    with gm.load(tmp_path / "run") as run:
        for block, norm in true.items():
            steps, values = run.series(f"grad/{block}/norm/raw")
            assert steps.tolist() == list(range(6))
            assert values[-1] == pytest.approx(norm, rel=1e-5)
        assert run.series("grad/critic/term/v_loss/norm")[0][0] == 0
        assert not run.events("rescanned")


def test_terms_overrule_names_that_are_wrong_before_anything_is_measured() -> None:
    """rl_games' and tianshou's shared trunk is called after the actor."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
            self.critic = nn.Linear(4, 1)

    model = Shared()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=None, budget=None, quiet=True) as meter:
        assert set(meter.blocks.named) == {"all", "actor", "critic"}
        h = torch.tanh(model.actor["body"](torch.randn(8, 3)))
        policy, value = model.actor["head"](h).square().mean(), model.critic(h).square().mean()
        with meter.terms(policy=policy, value=value) as loss:
            loss.backward()
        optimizer.step()
        assert meter.blocks.named["trunk"] == (0, 1)
        assert meter.gradient_health("trunk").gradient_norm == pytest.approx(
            torch.cat([p.grad.flatten() for p in model.actor["body"].parameters()]).norm().item()  # type: ignore[union-attr]
        )
