"""Facts of credit and environment in unchanged scripts: each is found in broken programs, and none
in their healthy twins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gradiometer as gm
from gradiometer.cli.main import run
from gradiometer.doctor.diagnosis import diagnose

pytestmark = pytest.mark.slow

CLEANRL = (Path(__file__).parent / "scripts" / "cleanrl_ppo.py").read_text(encoding="utf-8")

BY_HAND = """
import gymnasium as gym, numpy as np, torch
from torch import nn
torch.manual_seed(0)
env = gym.make("CartPole-v1")
body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
actor, critic = nn.Linear(32, 2), nn.Linear(32, 1)
optimizer = torch.optim.Adam([*body.parameters(), *actor.parameters(), *critic.parameters()], 1e-3)
state, _ = env.reset(seed=0)
score = 0.0
for update in range(12):
    rows = []
    for _ in range(64):
        with torch.no_grad():
            p = torch.softmax(actor(body(torch.from_numpy(state).float())), 0)
        a = int(torch.multinomial(p, 1))
        after, reward, done, cut, _ = env.step(a)
        score += reward
        rows.append((state, a, reward, after, done or cut, float(p[a])))
        state = after
        if done or cut:
            print("n_episode", update, "score", score)
            score, (state, _) = 0.0, env.reset()
    s, a, r, n, d, old = (torch.tensor(np.array(each)) for each in zip(*rows))
    s, n, a = s.float(), n.float(), a[:, None]
    for epoch in range(3):
        v = critic(body(s)).squeeze(1)
        with torch.no_grad():
            paid, ahead = torch.zeros(64), critic(body(n[-1:])).item()
            for t in reversed(range(64)):
                paid[t] = ahead = float(r[t]) + 0.98 * ahead * (1 - float(d[t]))
            advantage = paid - v
        p = torch.softmax(actor(body(s)), 1)
        ratio = torch.exp(torch.log(p.gather(1, a).squeeze(1)) - torch.log(old.float()))
        entropy = -(p * torch.log(p)).sum(1).mean()
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = -surrogate.mean() + 0.5 * nn.functional.smooth_l1_loss(v, paid) - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
"""PPO as minimalRL writes it: no distribution, a gather out of a softmax."""

EPISODES = """
import gymnasium as gym, torch
from torch import nn
from torch.distributions import Categorical
torch.manual_seed(0)
env = gym.make("CartPole-v1")
policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
for episode in range(30):
    state, _ = env.reset(seed=episode)
    log_probs, rewards = [], []
    for _ in range(60):
        m = Categorical(logits=policy(torch.from_numpy(state)[None]))
        action = m.sample()
        log_probs.append(m.log_prob(action))
        state, reward, done, cut, _ = env.step(action.item())
        rewards.append(reward)
        if done or cut:
            break
    paid, ahead = [], 0.0
    for r in reversed(rewards):
        ahead = r + 0.99 * ahead
        paid.insert(0, ahead)
    paid = torch.tensor(paid)
    paid = (paid - paid.mean()) / (paid.std() + 1e-8)
    loss = torch.cat([-l * g for l, g in zip(log_probs, paid)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
"""REINFORCE as PyTorch's examples write it: the graph of a whole episode."""

RECURRENT = """
import gymnasium as gym, torch
from torch import nn
from torch.distributions import Categorical
torch.manual_seed(0)
envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4)
body, cell = nn.Sequential(nn.Linear(4, 32), nn.Tanh()), nn.LSTM(32, 32)
actor, critic = nn.Linear(32, 2), nn.Linear(32, 1)
parts = nn.ModuleList([body, cell, actor, critic])
optimizer = torch.optim.Adam(parts.parameters(), 1e-3)
def forward(x, state, begun):
    hidden = []
    for h, b in zip(body(x).split(4), begun):
        state = tuple((1.0 - b)[None, :, None] * each for each in state)
        h, state = cell(h[None], state)
        hidden.append(h[0])
    hidden = torch.cat(hidden)
    return Categorical(logits=actor(hidden)), critic(hidden).squeeze(-1), state
state = (torch.zeros(1, 4, 32), torch.zeros(1, 4, 32))
x, begun = torch.from_numpy(envs.reset(seed=0)[0]), torch.zeros(4)
for update in range(12):
    first, held = state, [[] for _ in range(6)]
    for t in range(48):
        with torch.no_grad():
            policy, value, state = forward(x, state, begun[None])
            a = policy.sample()
        after, reward, done, cut, _ = envs.step(a.numpy())
        r, over = torch.from_numpy(reward).float(), torch.from_numpy(done | cut).float()
        for kept, one in zip(held, (x, begun, a, policy.log_prob(a), r, value)):
            kept.append(one)
        x, begun = torch.from_numpy(after), over
    xs, bs, acts, old, rs, vs = (torch.stack(each) for each in held)
    ends = torch.cat([bs[1:], begun[None]])
    paid, ahead = torch.zeros(48, 4), vs[-1]
    for t in reversed(range(48)):
        paid[t] = ahead = rs[t] + 0.98 * ahead * (1 - ends[t])
    advantage = (paid - vs).reshape(-1)
    advantage = (advantage - advantage.mean()) / advantage.std()
    for epoch in range(3):
        policy, value, _ = forward(xs.reshape(-1, 4), first, bs)
        new = policy.log_prob(acts.reshape(-1))
        ratio = (new - old.reshape(-1)).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        wrong = nn.functional.mse_loss(value, paid.reshape(-1))
        loss = -surrogate.mean() + 0.01 * wrong - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
"""PPO with an LSTM as CleanRL writes it: a graph of many nodes over few weights."""

HEALTHY = {
    "cleanrl": CLEANRL,
    "by_hand": BY_HAND,
    "episodes": EPISODES,
    "recurrent": RECURRENT,
}

BROKEN: list[tuple[str, str, str, str]] = [
    (
        "score-not-zero-mean",
        "cleanrl",
        "b_obs[mb], b_actions.long()[mb]",
        "b_obs[mb]",
    ),
    (
        "score-not-zero-mean",
        "by_hand",
        "actor(body(s))",
        "actor(body(n))",
    ),
    (
        "score-not-zero-mean",
        "episodes",
        "log_probs.append(m.log_prob(action))",
        "log_probs.append(m.log_prob(m.sample()))",
    ),
    (
        "ratio-always-one",
        "cleanrl",
        "logratio = newlogprob - b_logprobs[mb]",
        "logratio = newlogprob - newlogprob.detach()",
    ),
    (
        "ratio-always-one",
        "by_hand",
        "torch.log(old.float())",
        "torch.log(p.gather(1, a).squeeze(1)).detach()",
    ),
    (
        "entropy-sign",
        "cleanrl",
        "pg_loss - 0.01 * entropy.mean()",
        "pg_loss + 0.01 * entropy.mean()",
    ),
    ("entropy-sign", "by_hand", "- 0.01 * entropy", "+ 0.01 * entropy"),
    (
        "sampler-mismatch",
        "cleanrl",
        "actions[step], logprobs[step] = value.flatten(), action, logprob",
        "actions[step], logprobs[step] = value.flatten(), action, 1.3 * logprob",
    ),
    ("sampler-mismatch", "by_hand", "float(p[a]))", "float(p[1 - a]) + 0.2)"),
    ("ratio-always-one", "recurrent", "new - old.reshape(-1)", "new - new.detach()"),
    ("sampler-mismatch", "recurrent", "old.reshape(-1)).exp", "old.T.reshape(-1)).exp"),
]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    yield
    sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


Ran = Callable[[str], gm.Run]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    monkeypatch.chdir(tmp_path)

    def go(script: str) -> gm.Run:
        folder = f"kept-{len(list(tmp_path.glob('kept-*')))}"
        (tmp_path / "train.py").write_text(script.replace("default=1024", "default=1536"))
        code = run(
            ["run", "--run", folder, "--budget", "none", "--no-doctor", "train.py", "weights.pt"]
        )
        assert code == 0
        return gm.load(tmp_path / folder)

    return go


@pytest.mark.parametrize(
    ("id", "program", "right", "wrong"), BROKEN, ids=[f"{b[0]}-{b[1]}" for b in BROKEN]
)
def test_a_wrong_line_is_proved(id: str, program: str, right: str, wrong: str, ran: Ran) -> None:
    assert right in HEALTHY[program]
    with ran(HEALTHY[program].replace(right, wrong)) as kept:
        assert [event.kind for event in kept.events() if event.kind == "fault"] == []
        assert kept.tables("proofs")[-1].content[id] == "found"
        (event,) = kept.events(id)
        found = {each.id: each for each in diagnose(kept).findings}
    assert found[id].basis == "proved"
    assert event.message in " ".join(each.reading for each in found[id].evidence)


@pytest.mark.parametrize("program", HEALTHY)
def test_a_healthy_program_is_checked_and_told_nothing(program: str, ran: Ran) -> None:
    with ran(HEALTHY[program]) as kept:
        states = kept.tables("proofs")[-1].content
        assert states["score-not-zero-mean"] == "ok"
        assert "found" not in states.values()
        assert kept.events("fault") == []
        _, paid = kept.series("credit/corr_return")
        assert len(paid) > 5
        assert float(paid.min()) > 0.2
        ended = kept.series("env/episodes")[1].sum()
        totals, counts = kept.series("env/return")[1], kept.series("env/episodes")[1]
        if program == "episodes":
            assert ended == 30
        # each step of CartPole pays 1
        assert float(totals @ counts) <= float(kept.series("env/steps")[1][-1])


def test_an_optimizer_that_never_steps_is_told(ran: Ran) -> None:
    with ran(BY_HAND.replace("        optimizer.step()\n", "")) as kept:
        (event,) = kept.events("never-trained")
        found = {each.id: each for each in diagnose(kept).findings}
    assert "never stepped" in event.message
    assert found["never-trained"].severity == "critical"


def test_one_of_two_optimizers_that_never_steps_is_told(ran: Ran) -> None:
    script = """
import torch
from torch import nn
a, b = nn.Linear(4, 4), nn.Linear(4, 1)
first, second = torch.optim.SGD(a.parameters(), 1e-3), torch.optim.SGD(b.parameters(), 1e-3)
for _ in range(120):
    first.zero_grad(), second.zero_grad()
    b(a(torch.randn(8, 4)).tanh()).square().mean().backward()
    first.step()
"""
    with ran(script) as kept:
        assert "optimizer 1" in kept.events("never-trained")[0].message
    with ran(script.replace("    first.step()", "    first.step(), second.step()")) as kept:
        assert kept.events("never-trained") == []


def test_an_optimizer_whose_parameters_no_backward_reaches_is_told(ran: Ran) -> None:
    script = """
import torch
from torch import nn
a, b = nn.Linear(4, 4), nn.Linear(4, 1)
first, second = torch.optim.SGD(a.parameters(), 1e-3), torch.optim.SGD(b.parameters(), 1e-3)
for _ in range(120):
    first.zero_grad(), second.zero_grad()
    b(torch.randn(8, 4)).square().mean().backward()
    second.step()
"""
    with ran(script) as kept:
        (event,) = kept.events("never-trained")
    assert "optimizer 0" in event.message
    assert event.detail["how"] == "no-gradient"


def test_a_loss_that_never_goes_backward_is_told(
    ran: Ran, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import torch\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
    )
    assert run(["run", "--run", "kept", "train.py"]) == 0
    assert "never-trained" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_of_many_values_printed_within_a_step_the_mean_is_kept_and_they_are_counted(
    ran: Ran,
) -> None:
    script = """
import torch
m = torch.nn.Linear(2, 1)
o = torch.optim.SGD(m.parameters(), 0.1)
for i in range(4):
    m(torch.randn(4, 2)).square().mean().backward()
    o.step()
    for k in range(3):
        print(f"reward={10 * i + k}")
"""
    with ran(script) as kept:
        assert kept.series("reward")[1].tolist() == [1.0, 11.0, 21.0, 31.0]
        assert kept.tables("overheard")[-1].content == {"reward": 12}


def test_a_policy_that_is_certain_of_its_actions_has_no_ratio_to_judge(ran: Ran) -> None:
    """Its ratio is 1 however it moves: a learning rate that is too high ends so."""
    right = "Categorical(logits=self.actor(x))"
    assert right in CLEANRL
    wrong = "Categorical(logits=self.actor(x) + 200 * torch.tensor([1.0, -1.0]))"
    with ran(CLEANRL.replace(right, wrong)) as kept:
        assert set(kept.series("credit/ratio_error")[1]) == {0.0}
        assert kept.events("ratio-always-one") == []
