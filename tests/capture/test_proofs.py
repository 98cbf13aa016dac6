"""What the structure proves: each mistake in at least two programs, at the first step that can show
it, and none in their healthy twins."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Normal
from torch.utils.checkpoint import checkpoint

import gradiometer as gm
from gradiometer.capture import twins
from gradiometer.capture.proofs import (
    ProofLog,
    broadcasts,
    normalised_elsewhere,
    normalised_twice,
)
from gradiometer.capture.twins import TargetNetworks, aliased, twins_among
from gradiometer.capture.untrained import IdleOptimizers, held_by
from gradiometer.records import Event
from gradiometer.store.reader import Run

STEPS = 4
ROWS = 8


class Agent(nn.Module):
    """An actor and a critic on nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(4, 3)
        self.critic = nn.Linear(4, 1)


Step = Callable[[Agent, dict[str, torch.optim.Optimizer]], None]


def run_of(
    folder: Path, step: Step, *, apart: bool = False, steps: int = STEPS, **options: Any
) -> Run:
    torch.manual_seed(0)
    agent = Agent()
    optimizers: dict[str, torch.optim.Optimizer] = {"all": torch.optim.SGD(agent.parameters(), 0.1)}
    if apart:
        optimizers = {
            name: torch.optim.Adam(getattr(agent, name).parameters())
            for name in ("actor", "critic")
        }
    with gm.watch(agent, optimizers, run=folder, quiet=True, **options):
        for _ in range(steps):
            step(agent, optimizers)
    return Run(folder / "run.db")


def facts(run: Run) -> tuple[dict[str, int], dict[str, str]]:
    """When each fact was found, and what became of all checks."""
    states = run.tables("proofs")[-1].content
    return {e.kind: e.step for e in run.events() if e.kind in states}, states


def loss_of(agent: Agent) -> Tensor:
    x, returns = torch.randn(ROWS, 4), torch.randn(ROWS)
    values = agent.critic(x).squeeze(-1)
    log_prob = Categorical(logits=agent.actor(x)).log_prob(torch.zeros(ROWS, dtype=torch.long))
    return F.mse_loss(values, returns) - (log_prob * (returns - values.detach())).mean()


# gradients-not-cleared


def never_cleared(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    loss_of(agent).backward()
    optimizers["all"].step()


def accumulated_and_never_cleared(
    agent: Agent, optimizers: dict[str, torch.optim.Optimizer]
) -> None:
    for _ in range(2):
        (loss_of(agent) / 2).backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizers["all"].step()


def closure_never_cleared(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    def closure() -> float:
        loss = loss_of(agent)
        loss.backward()
        return float(loss.detach())

    optimizers["all"].step(closure)


def actor_never_cleared(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    optimizers["critic"].zero_grad()
    loss_of(agent).backward()
    for each in optimizers.values():
        each.step()


@pytest.mark.parametrize(
    ("step", "apart"),
    [
        (never_cleared, False),
        (accumulated_and_never_cleared, False),
        (closure_never_cleared, False),
        (actor_never_cleared, True),
    ],
)
def test_gradients_that_no_step_clears_are_seen_at_the_second_step(
    tmp_path: Path, step: Step, apart: bool
) -> None:
    run = run_of(tmp_path / "run", step, apart=apart)
    assert facts(run)[0] == {"gradients-not-cleared": 1}
    (event,) = run.events("gradients-not-cleared")
    assert Path(event.detail["file"]).name == "test_proofs.py"
    assert "optimizer" in event.detail


def test_they_are_seen_on_steps_that_are_not_measured(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", never_cleared, every=10)
    assert facts(run)[0] == {"gradients-not-cleared": 1}


def cleared_first(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    optimizers["all"].zero_grad()
    loss_of(agent).backward()
    optimizers["all"].step()


def set_to_zero_last(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    loss_of(agent).backward()
    optimizers["all"].step()
    optimizers["all"].zero_grad(set_to_none=False)


def zeroed_by_hand(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    loss = loss_of(agent)
    for p in agent.parameters():
        if p.grad is not None:
            p.grad.data.zero_()
    loss.backward()
    optimizers["all"].step()


def accumulated(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    for _ in range(3):
        (loss_of(agent) / 3).backward()
    optimizers["all"].step()
    agent.zero_grad()


def momentum_by_hand(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    for p in agent.parameters():
        if p.grad is not None:
            p.grad.mul_(0.9)
    loss_of(agent).backward()
    optimizers["all"].step()


def set_by_hand(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    """As PCGrad, natural gradients and A3C do: no backward adds to a gradient."""
    parameters = list(agent.parameters())
    for p, g in zip(parameters, torch.autograd.grad(loss_of(agent), parameters), strict=True):
        p.grad = g
    optimizers["all"].step()


def actor_through_critic(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    """SAC, TD3, DDPG: the actor's loss adds to the critic's gradients, which are cleared later."""
    x = torch.randn(ROWS, 4)
    optimizers["critic"].zero_grad()
    F.mse_loss(agent.critic(x), torch.randn(ROWS, 1)).backward()
    optimizers["critic"].step()
    optimizers["actor"].zero_grad()
    (-agent.critic(torch.cat([agent.actor(x), x[:, :1]], -1)).mean()).backward()
    optimizers["actor"].step()


def slow_critic() -> Step:
    """The critic steps every other time, with the gradients of both."""
    count = 0

    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        nonlocal count
        count += 1
        optimizers["actor"].zero_grad()
        loss_of(agent).backward()
        optimizers["actor"].step()
        if count % 2 == 0:
            optimizers["critic"].step()
            optimizers["critic"].zero_grad()

    return step


def closure(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    def evaluate() -> float:
        optimizers["all"].zero_grad()
        loss = loss_of(agent)
        loss.backward()
        return float(loss.detach())

    optimizers["all"].step(evaluate)


@pytest.mark.parametrize(
    ("step", "apart"),
    [
        (cleared_first, False),
        (set_to_zero_last, False),
        (zeroed_by_hand, False),
        (accumulated, False),
        (momentum_by_hand, False),
        (closure, False),
        (actor_through_critic, True),
        (slow_critic(), True),
    ],
)
def test_gradients_that_are_cleared_anywhere_are_well(
    tmp_path: Path, step: Step, apart: bool
) -> None:
    found, states = facts(run_of(tmp_path / "run", step, apart=apart, steps=9))
    assert found == {}
    assert states["gradients-not-cleared"] == "ok"


def test_gradients_that_are_set_by_hand_are_not_judged(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", set_by_hand, steps=6)
    assert run.events("gradients-not-cleared") == []


# shapes-broadcast

torch.manual_seed(1)
X, RETURNS, TABLE = torch.randn(ROWS, 4), torch.randn(ROWS), torch.randn(ROWS, ROWS)
COLUMN, ACTIONS = RETURNS[:, None].clone(), torch.zeros(ROWS, dtype=torch.long)
CRITIC, WIDE, ACTOR = nn.Linear(4, 1), nn.Linear(4, ROWS), nn.Linear(4, 3)
WEIGHTS = nn.Parameter(torch.randn(ROWS))


def flat() -> Tensor:
    return CRITIC(X).squeeze(-1)


def log_prob() -> Tensor:
    return Categorical(logits=ACTOR(X)).log_prob(ACTIONS)


MIXED_UP: dict[str, Callable[[], Tensor]] = {
    "square": lambda: ((CRITIC(X) - RETURNS) ** 2).mean(),
    "half square, sum": lambda: 0.5 * (RETURNS - CRITIC(X)).pow(2).sum(),
    "mse_loss": lambda: F.mse_loss(CRITIC(X), RETURNS),
    "mse_loss, other way": lambda: F.mse_loss(flat(), COLUMN),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(CRITIC(X), RETURNS),
    "huber_loss": lambda: F.huber_loss(CRITIC(X), RETURNS),
    "l1_loss": lambda: F.l1_loss(CRITIC(X), RETURNS),
    "abs": lambda: (RETURNS - CRITIC(X)).abs().mean(),
    "column of returns": lambda: (flat() - COLUMN).pow(2).mean(),
    "advantages": lambda: -(log_prob() * COLUMN).mean(),
    "ratio": lambda: ((log_prob() - COLUMN).exp() * RETURNS).mean(),
    "clipped": lambda: torch.min(CRITIC(X) * RETURNS, CRITIC(X).clamp(0, 1) * RETURNS).mean(),
    "among others": lambda: (flat() - COLUMN).pow(2).mean() - log_prob().mean(),
    "both trained": lambda: (CRITIC(X) - log_prob()).square().mean(),
}


@pytest.mark.parametrize("name", MIXED_UP)
def test_a_column_against_a_row_is_found_in_the_graph(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says it too, of some of them
        loss = MIXED_UP[name]()
    found = next(broadcasts([loss.grad_fn]))
    assert {found.first, found.second} == {(ROWS, 1), (ROWS,)}
    assert found.result == (ROWS, ROWS)


def test_a_table_that_was_mixed_up_before_the_loss_is_found() -> None:
    targets = COLUMN + 0.9 * RETURNS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = F.smooth_l1_loss(CRITIC(X), targets)
    found = next(broadcasts([loss.grad_fn]))
    assert (found.first, found.second) == ((ROWS, 1), (ROWS, ROWS))


ON_PURPOSE: dict[str, Callable[[], Tensor]] = {
    "rows with rows": lambda: (flat() - RETURNS).pow(2).mean(),
    "columns with columns": lambda: F.mse_loss(CRITIC(X), COLUMN),
    "all pairs": lambda: (flat()[:, None] - flat()[None, :]).pow(2).mean(),
    "all pairs, transposed": lambda: (CRITIC(X) - CRITIC(X).T).pow(2).mean(),
    "all pairs with a constant": lambda: (flat().unsqueeze(1) - RETURNS).abs().mean(),
    "outer": lambda: torch.outer(flat(), RETURNS).pow(2).mean(),
    "batch as wide as the layer": lambda: (WIDE(X) - COLUMN).pow(2).mean(),
    "a table of targets": lambda: (CRITIC(X) - TABLE).pow(2).mean(),
    "contrastive": lambda: F.cross_entropy(WIDE(X) @ WIDE(X).T, torch.arange(ROWS)),
    "attention": lambda: (WIDE(X).softmax(-1) @ CRITIC(X)).pow(2).mean(),
    "normalised": lambda: (WIDE(X) / WIDE(X).norm(dim=-1, keepdim=True)).pow(2).mean(),
    "learned weights": lambda: (CRITIC(X) * WEIGHTS).pow(2).mean(),
    "learned frequencies": lambda: (COLUMN * WEIGHTS).sin().pow(2).mean(),
    "quantiles": lambda: F.huber_loss(
        WIDE(X).unsqueeze(2) - TABLE.unsqueeze(1), torch.zeros(ROWS, ROWS, ROWS)
    ),
    "gaussian": lambda: -Normal(WIDE(X), 1.0).log_prob(TABLE).sum(-1).mean(),
    "a sum of means": lambda: (CRITIC(X) + log_prob()).mean(),
}


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_tables_on_purpose_are_no_finding(name: str) -> None:
    assert list(broadcasts([ON_PURPOSE[name]().grad_fn])) == []


def test_the_line_and_the_variable_are_told(tmp_path: Path) -> None:
    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        optimizers["all"].zero_grad()
        value_loss = (agent.critic(X) - RETURNS).pow(2).mean()
        loss = value_loss - Categorical(logits=agent.actor(X)).log_prob(ACTIONS).mean()
        loss.backward()
        optimizers["all"].step()

    run = run_of(tmp_path / "run", step)
    assert facts(run)[0] == {"shapes-broadcast": 0}
    (event,) = run.events("shapes-broadcast")
    assert event.detail["name"] == "value_loss"
    assert event.detail["shapes"] == [[ROWS, 1], [ROWS]]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "value_loss = (agent" in source[event.detail["line"] - 1]


@pytest.mark.parametrize("column", [True, False])
def test_torch_s_warning_is_heard_where_the_graph_shows_nothing_and_still_shown(
    tmp_path: Path, column: bool
) -> None:
    def value_loss(values: Tensor) -> Tensor:
        return F.mse_loss(values, RETURNS if column else COLUMN)

    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        optimizers["all"].zero_grad()
        loss = checkpoint(value_loss, agent.critic(X), use_reentrant=False)
        assert isinstance(loss, Tensor)
        (loss + agent.actor(X).square().mean()).backward()
        optimizers["all"].step()

    shown: list[str] = []

    def showwarning(message: Any, *_: Any) -> None:
        shown.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = showwarning
        run = run_of(tmp_path / "run", step)
        assert warnings.showwarning is showwarning
    assert facts(run)[0] == ({"shapes-broadcast": 0} if column else {})
    assert any("Using a target size" in message for message in shown) == column


def test_a_checkpoint_is_not_run_again_by_a_look() -> None:
    calls = []

    def difference(x: Tensor) -> Tensor:
        calls.append(1)
        return (CRITIC(x) - RETURNS).pow(2).mean()

    loss = checkpoint(difference, X, use_reentrant=False)
    assert isinstance(loss, Tensor)
    list(broadcasts([loss.grad_fn]))
    list(normalised_twice([loss.grad_fn]))
    assert calls == [1]


# double-softmax

TWICE: dict[str, Callable[[], Tensor]] = {
    "categorical": lambda: Categorical(logits=ACTOR(X).softmax(-1)).log_prob(ACTIONS).mean(),
    "entropy": lambda: Categorical(logits=F.softmax(ACTOR(X), dim=1)).entropy().mean(),
    "cross entropy": lambda: F.cross_entropy(ACTOR(X).softmax(-1), ACTIONS),
    "log_softmax": lambda: F.nll_loss(ACTOR(X).softmax(1).log_softmax(1), ACTIONS),
    "softmax": lambda: ACTOR(X).softmax(-1).softmax(-1)[:, 0].log().mean(),
    "of a chosen row": lambda: ACTOR(X).softmax(-1)[ACTIONS].softmax(-1)[:, 0].log().mean(),
    "relu": lambda: Categorical(logits=ACTOR(X).relu()).entropy().mean(),
    "with a temperature": lambda: F.cross_entropy(ACTOR(X).softmax(-1) / 0.5, ACTIONS),
    "over the samples": lambda: F.cross_entropy(ACTOR(X).log_softmax(0), ACTIONS),
    "over the samples, categorical": lambda: (
        Categorical(logits=ACTOR(X).softmax(0)).log_prob(ACTIONS).mean()
    ),
    "sigmoid": lambda: F.binary_cross_entropy_with_logits(flat().sigmoid(), RETURNS.sigmoid()),
    "bernoulli": lambda: Bernoulli(logits=flat().sigmoid()).log_prob(torch.ones(ROWS)).mean(),
}


@pytest.mark.parametrize("name", TWICE)
def test_probabilities_taken_for_logits_are_found(name: str) -> None:
    assert list(normalised_twice([TWICE[name]().grad_fn]))


ONCE: dict[str, Callable[[], Tensor]] = {
    "logits": lambda: Categorical(logits=ACTOR(X)).log_prob(ACTIONS).mean(),
    "probabilities": lambda: Categorical(probs=ACTOR(X).softmax(-1)).log_prob(ACTIONS).mean(),
    "relu of scores": lambda: (WIDE(X) @ WIDE(X).T).relu().softmax(-1).square().mean(),
    "log of a softmax": lambda: ACTOR(X).softmax(-1).log()[:, 0].mean(),
    "log_softmax twice": lambda: F.cross_entropy(ACTOR(X).log_softmax(-1), ACTIONS),
    "log-probs as logits": lambda: Categorical(logits=ACTOR(X).log_softmax(-1)).entropy().mean(),
    "softmax of log-probs": lambda: ACTOR(X).log_softmax(-1).softmax(-1)[:, 0].mean(),
    "attention": lambda: F.cross_entropy(
        WIDE(X).softmax(-1) @ torch.ones(ROWS, 3) * CRITIC(X), ACTIONS
    ),
    "rows and columns of similarities": lambda: F.cross_entropy(
        (WIDE(X) @ WIDE(X).T).log_softmax(0), torch.arange(ROWS)
    ),
    "rows and columns": lambda: WIDE(X).softmax(0).softmax(1).square().mean(),
    "a gate": lambda: F.cross_entropy(
        (ACTOR(X).softmax(-1)[..., None] * X[:, None]).sum(1), ACTIONS
    ),
    "sigmoid": lambda: F.binary_cross_entropy(flat().sigmoid(), RETURNS.sigmoid()),
}


def choice(x: Tensor) -> Tensor:
    return x.gather(1, ACTIONS[:, None])


def words(x: Tensor) -> Tensor:
    return x.gather(-1, ACTIONS.reshape(2, -1, 1))


ELSEWHERE: dict[str, Callable[[], Tensor]] = {
    "softmax": lambda: choice(ACTOR(X).softmax(0)).log().mean(),
    "log_softmax": lambda: choice(ACTOR(X).log_softmax(0)).mean(),
    "log of a softmax": lambda: choice(F.softmax(ACTOR(X), dim=-2).log()).mean(),
    "categorical": lambda: Categorical(ACTOR(X).softmax(0)).log_prob(ACTIONS).mean(),
    "words along the tokens": lambda: words(ACTOR(X).reshape(2, -1, 3).log_softmax(1)).mean(),
    "words along the rows": lambda: words(ACTOR(X).reshape(2, -1, 3).log_softmax(dim=-3)).mean(),
}
OVER_ACTIONS: dict[str, Callable[[], Tensor]] = {
    "softmax": lambda: choice(ACTOR(X).softmax(1)).log().mean(),
    "log_softmax": lambda: choice(ACTOR(X).log_softmax(-1)).mean(),
    "categorical": lambda: Categorical(ACTOR(X).softmax(-1)).log_prob(ACTIONS).mean(),
    "columns of samples": lambda: ACTOR(X).T.softmax(0).gather(0, ACTIONS[None]).log().mean(),
    "words": lambda: words(ACTOR(X).reshape(2, -1, 3).log_softmax(2)).mean(),
    "rows of a table": lambda: ACTOR(X).softmax(0)[ACTIONS].log().mean(),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_probabilities_over_the_samples_are_found(name: str) -> None:
    assert list(normalised_elsewhere([ELSEWHERE[name]().grad_fn]))


@pytest.mark.parametrize("name", OVER_ACTIONS)
def test_probabilities_over_the_actions_are_well(name: str) -> None:
    assert list(normalised_elsewhere([OVER_ACTIONS[name]().grad_fn])) == []


def test_a_softmax_over_the_samples_is_told_at_step_0(tmp_path: Path) -> None:
    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        agent.zero_grad()
        (-choice(agent.actor(X).softmax(0)).log().mean() + agent.critic(X).mean()).backward()
        for each in optimizers.values():
            each.step()

    run = run_of(tmp_path / "run", step)
    (found,) = [each for each in gm.diagnose(run).findings if each.id == "score-not-zero-mean"]
    assert (found.basis, found.severity) == ("proved", "critical")
    assert "over the samples" in found.title


@pytest.mark.parametrize("name", ONCE)
def test_what_is_normalised_once_is_no_finding(name: str) -> None:
    assert list(normalised_twice([ONCE[name]().grad_fn])) == []


def test_a_policy_with_two_softmaxes_is_told_at_step_0(tmp_path: Path) -> None:
    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        optimizers["all"].zero_grad()
        policy = Categorical(logits=agent.actor(X).softmax(-1))
        (agent.critic(X).pow(2).mean() - policy.log_prob(ACTIONS).mean()).backward()
        optimizers["all"].step()

    run = run_of(tmp_path / "run", step)
    assert facts(run)[0] == {"double-softmax": 0}
    assert run.events("double-softmax")[0].detail["below"].startswith("Softmax")


# The log


class Events:
    def __init__(self) -> None:
        self.kept: list[Event] = []

    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        self.kept.append(Event(step=step or 0, kind=kind, message=message, detail=detail))


def test_a_fact_is_told_once_for_each_subject_and_stays() -> None:
    events = Events()
    log = ProofLog(events)
    log.unmeasurable("a-b", "why")
    assert log.news() == {"a-b": "unmeasurable: why"}
    log.ok("a-b")
    log.unmeasurable("a-b", "why")
    assert log.news() == {"a-b": "ok"}
    for subject in ("x", "x", "y"):
        log.found("a-b", "it is", subject=subject, step=3)
    log.ok("a-b")
    assert log.news() == {"a-b": "found"}
    assert log.news() is None
    assert [event.detail["subject"] for event in events.kept] == ["x", "y"]
    log.withdraw("a-b")
    assert log.state("a-b") == "ok"


def test_a_fault_of_a_look_ends_the_looking_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("gradiometer.capture.structure.walk", broken)
    run = run_of(tmp_path / "run", cleared_first)
    assert len(run.events("fault")) == 1
    assert run.series("grad/all/norm/raw")[0].tolist() == list(range(STEPS))


# target-network


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


class Learner:
    """Q-learning on noise; `update` says what becomes of the target after each step."""

    def __init__(self, target: Callable[[nn.Module], nn.Module], update: str, lr: float) -> None:
        self.q_net = Net()
        self.q_target = target(self.q_net)
        self.update, self.count = update, 0
        self.optimizer = torch.optim.Adam(self.q_net.parameters(), lr)

    def learn(self) -> None:
        self.count += 1
        asked = self.q_net if self.update == "ignored" else self.q_target
        with torch.no_grad():
            wanted = torch.rand(32) + 0.9 * asked(torch.randn(32, 4)).max(1).values
        loss = F.mse_loss(self.q_net(torch.randn(32, 4))[:, 0], wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.update.isdigit() and self.count % int(self.update) == 0:
            self.q_target.load_state_dict(self.q_net.state_dict())
        if self.update in ("soft", "ignored"):
            for p, q in zip(self.q_target.parameters(), self.q_net.parameters(), strict=True):
                p.data.mul_(0.995).add_(0.005 * q.data)
        if self.update == "exchanged":
            for p, q in zip(self.q_target.parameters(), self.q_net.parameters(), strict=True):
                p.data.mul_(0.005).add_(0.995 * q.data)


def learned(
    folder: Path,
    target: Callable[[nn.Module], nn.Module],
    update: str,
    steps: int,
    lr: float = 1e-2,
) -> Run:
    torch.manual_seed(0)
    learner = Learner(target, update, lr)
    with gm.watch(learner.q_net, learner.optimizer, run=folder, quiet=True):
        for _ in range(steps):
            learner.learn()
    return Run(folder / "run.db")


def itself(network: nn.Module) -> nn.Module:
    return network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "update", "steps", "how", "step"),
    [
        (itself, "never", 3, "alias", 0),
        (copy.copy, "never", 3, "alias", 0),
        (copy.deepcopy, "1", 12, "equal", 7),
        (copy.deepcopy, "exchanged", 200, "close", None),
        (copy.deepcopy, "ignored", 400, "ignored", None),
        pytest.param(copy.deepcopy, "never", 1100, "never", 1099, marks=pytest.mark.slow),
    ],
)
def test_a_target_that_is_no_copy_or_does_not_follow_is_told(
    tmp_path: Path,
    target: Callable[[nn.Module], nn.Module],
    update: str,
    steps: int,
    how: str,
    step: int | None,
) -> None:
    run = learned(tmp_path / "run", target, update, steps)
    (event,) = run.events("target-network")
    assert (event.detail["how"], event.detail["target"]) == (how, "q_target")
    assert step is None or event.step == step
    assert facts(run)[1]["target-network"] == "found"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("update", "steps", "lr", "state"),
    [
        ("soft", 40, 1e-2, "ok"),
        ("2", 40, 1e-2, "ok"),
        pytest.param("300", 1100, 1e-2, "ok", marks=pytest.mark.slow),
        ("never", 300, 1e-2, None),  # an interval may be as long
        # nothing has moved
        pytest.param("never", 1100, 1e-7, None, marks=pytest.mark.slow),
    ],
)
def test_a_target_that_follows_or_may_still_follow_is_well(
    tmp_path: Path, update: str, steps: int, lr: float, state: str | None
) -> None:
    run = learned(tmp_path / "run", copy.deepcopy, update, steps, lr)
    assert run.events("target-network") == []
    assert facts(run)[1].get("target-network") == state


@pytest.mark.parametrize(("played", "told"), [(6_000, True), (2_000, False)])
def test_steps_of_the_environment_count_where_the_optimizer_steps_rarely(
    monkeypatch: pytest.MonkeyPatch, played: int, told: bool
) -> None:
    trained = Net()
    target = copy.deepcopy(trained)
    log = ProofLog(Events())
    targets = TargetNetworks(log)
    targets.find([{"net": trained, "net_target": target}], {id(p) for p in trained.parameters()}, 0)
    with torch.no_grad():
        for p in trained.parameters():
            p.mul_(2.0)
    monkeypatch.setattr(twins, "steps_so_far", lambda: played)
    targets.finish(400)
    assert (log.state("target-network") == "found") is told


class Both(nn.Module):
    """Actor and critic in one, as Spinning Up has them: nobody calls the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.pi, self.q = Net(), Net()


@pytest.mark.parametrize("asks", [True, False])
def test_a_target_that_is_asked_in_part_is_asked(asks: bool) -> None:
    trained = Both()
    target = copy.deepcopy(trained)
    log = ProofLog(Events())
    targets = TargetNetworks(log)
    held = {id(p) for p in trained.parameters()}
    targets.find([{"ac": trained, "ac_targ": target}], held, 0)
    for number in range(250):
        for one, other in zip(target.parameters(), trained.parameters(), strict=True):
            other.data.add_(0.01)
            one.data.lerp_(other.data, 0.1)
        if asks:
            target.q(torch.randn(8, 4))
        targets.look(number, number)
    targets.finish(250)
    assert log.state("target-network") == ("ok" if asks else "found")
    if asks:
        layers = [each for each in target.modules() if isinstance(each, nn.Linear)]
        assert not any(each._forward_hooks for each in layers)


@pytest.mark.parametrize(("rate", "state"), [(0.995, "found"), (1.0, "found"), (0.005, "ok")])
def test_the_target_of_an_actor_that_learns_at_every_second_step_is_known(
    rate: float, state: str
) -> None:
    """As TD3 has it; measured rounds are those in which the actor learns."""
    trained = Net()
    target = copy.deepcopy(trained)
    log = ProofLog(Events())
    targets = TargetNetworks(log)
    held = {id(p) for p in trained.parameters()}
    targets.find([{"actor": trained, "actor_target": target}], held, 0)
    for number in range(0, 200, 2):
        targets.look(number, number)
        target(torch.randn(8, 4))
        with torch.no_grad():
            for one, other in zip(target.parameters(), trained.parameters(), strict=True):
                other.add_(0.01 * torch.randn_like(other))
                one.lerp_(other, rate)
    targets.finish(200)
    assert log.state("target-network") == state


def test_a_target_of_one_word_is_one_too() -> None:
    one, other = Net(), Net()
    held = {id(p) for p in one.parameters()}
    assert list(aliased([{"online": one, "target": one}], held)) == [("target", "online")]
    assert list(aliased([{"online": one, "target": other}], held)) == []
    assert list(aliased([{"online": one}, {"target": one}], held)) == []


def test_a_reference_an_old_policy_and_a_random_target_stay_as_they_are() -> None:
    """A frozen twin by another name, and the target of random network distillation."""
    trained, frozen = Net(), Net()
    held = {id(p) for p in trained.parameters()}
    for name in ("ref_model", "policy_old", "teacher", "net2"):
        assert twins_among([{"policy": trained, name: frozen}], held) == []
    (twin,) = twins_among([{"q1": trained, "q1_target": frozen}], held)
    assert twin[0] == "q1_target"
    log = ProofLog(Events())
    targets = TargetNetworks(log)
    targets.find([{"predictor": trained, "target": frozen}], held, 0)
    for number in range(20):
        targets.look(number, number)
    targets.finish(10_000)
    assert log.state("target-network") is None


# not-in-optimizer


def test_a_critic_in_no_optimizer_is_proved_at_the_first_step(tmp_path: Path) -> None:
    agent = Agent()
    optimizer = torch.optim.Adam(agent.actor.parameters())
    with gm.watch(agent, optimizer, run=tmp_path / "run", quiet=True):
        for _ in range(6):
            agent.zero_grad()
            loss_of(agent).backward()
            optimizer.step()
    run = Run(tmp_path / "run" / "run.db")
    assert facts(run)[0] == {"not-in-optimizer": 0}
    assert run.events("not-in-optimizer")[0].detail["blocks"] == ["critic"]
    found = [each for each in gm.diagnose(run).findings if each.id == "not-in-optimizer"]
    assert [(each.severity, each.basis, each.block) for each in found] == [
        ("critical", "proved", "critic")
    ]


def test_a_critic_whose_loss_goes_backward_after_the_first_step_is_told_too(tmp_path: Path) -> None:
    agent = Agent()
    optimizers = [torch.optim.Adam(agent.actor.parameters()) for _ in range(2)]
    with gm.watch(agent, optimizers, run=tmp_path / "run", quiet=True):
        for _ in range(3):
            optimizers[0].zero_grad()
            (-Categorical(logits=agent.actor(X)).log_prob(ACTIONS).mean()).backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            F.mse_loss(agent.critic(X), COLUMN).backward()
            optimizers[1].step()
    run = Run(tmp_path / "run" / "run.db")
    assert run.events("not-in-optimizer")[0].detail["blocks"] == ["critic"]


@pytest.mark.parametrize("both", [True, False])
def test_one_of_two_critics_that_no_optimizer_holds_is_told(tmp_path: Path, both: bool) -> None:
    """Nobody watches it: `gradiometer run` finds networks by their optimizers."""
    first, second = nn.Linear(4, 1), nn.Linear(4, 1)
    held = [*first.parameters(), *(second.parameters() if both else ())]
    optimizer = torch.optim.Adam(held)
    with gm.watch(first, optimizer, run=tmp_path / "run", quiet=True, budget=None):
        for _ in range(12):
            optimizer.zero_grad()
            (F.mse_loss(first(X), COLUMN) + F.mse_loss(second(X), COLUMN)).backward()
            optimizer.step()
    run = Run(tmp_path / "run" / "run.db")
    assert facts(run)[1]["not-in-optimizer"] == ("ok" if both else "found")
    told = [each for each in gm.diagnose(run).findings if each.id == "not-in-optimizer"]
    assert [each.basis for each in told] == ([] if both else ["proved"])


@pytest.mark.parametrize(
    ("pretrained", "stepped", "state"),
    [(True, None, "found"), (True, 50, "ok"), (True, 3, "ok"), (False, None, "ok")],
)
def test_a_policy_that_only_the_optimizer_of_an_earlier_phase_holds_is_told(
    tmp_path: Path, *, pretrained: bool, stepped: int | None, state: str
) -> None:
    """It is held and not stepped. One that is stepped, now and then too, is well; the turn of one
    that never stepped at all may come."""
    policy, critic = nn.Linear(4, 3), nn.Linear(4, 1)
    earlier = torch.optim.Adam(policy.parameters())
    optimizer = torch.optim.Adam(critic.parameters())
    if pretrained:
        policy(X).square().mean().backward()
        earlier.step()
    with gm.watch(critic, optimizer, run=tmp_path / "run", quiet=True, budget=None):
        for number in range(60):
            optimizer.zero_grad()
            loss = -Categorical(logits=policy(X)).log_prob(ACTIONS).mean()
            (loss + F.mse_loss(critic(X), COLUMN)).backward()
            optimizer.step()
            if stepped and number % stepped == 2:
                earlier.step()
    run = Run(tmp_path / "run" / "run.db")
    assert facts(run)[1]["not-in-optimizer"] == state
    told = [each for each in gm.diagnose(run).findings if each.id == "not-in-optimizer"]
    assert [each.severity for each in told] == ([] if state == "ok" else ["critical"])


def test_a_replaced_layer_is_in_no_optimizer(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model[2] = nn.Linear(8, 1)
    with gm.watch(model, optimizer, run=tmp_path / "run", quiet=True):
        model(X).square().mean().backward()
        optimizer.step()
    assert facts(Run(tmp_path / "run" / "run.db"))[0] == {"not-in-optimizer": 0}


@pytest.mark.parametrize("cut", [True, False])
def test_an_optimizer_of_another_model_is_told_after_three_empty_steps(
    tmp_path: Path, cut: bool
) -> None:
    used, held = Net(), Net()
    optimizer = torch.optim.Adam(held.parameters())
    with gm.watch(held, optimizer, run=tmp_path / "run", quiet=True):
        for _ in range(5):
            optimizer.zero_grad()
            out = used(X)
            out = out.detach().requires_grad_() if cut else out
            out.square().mean().backward()
            optimizer.step()
    run = Run(tmp_path / "run" / "run.db")
    assert facts(run)[0] == {"not-in-optimizer": 2}
    (found,) = [each for each in gm.diagnose(run).findings if each.id == "not-in-optimizer"]
    assert (found.severity, found.basis) == ("critical", "proved")


@pytest.mark.parametrize("late", [True, False])
def test_a_late_start_and_gradients_set_by_hand_are_no_empty_steps(
    tmp_path: Path, late: bool
) -> None:
    used, held = Net(), Net()
    optimizer = torch.optim.Adam(held.parameters())
    with gm.watch(held, optimizer, run=tmp_path / "run", quiet=True):
        for number in range(6):
            optimizer.zero_grad()
            used.zero_grad()
            (held if late and number >= 2 else used)(X).square().mean().backward()
            if not late:  # A3C
                for p, q in zip(held.parameters(), used.parameters(), strict=True):
                    p.grad = q.grad
            optimizer.step()
    assert Run(tmp_path / "run" / "run.db").events("not-in-optimizer") == []


@pytest.mark.slow
@pytest.mark.parametrize("who", ["another optimizer", "by hand", "nobody: a target"])
def test_what_somebody_steps_or_nobody_should_is_not_told_to_join(tmp_path: Path, who: str) -> None:
    agent = Agent()
    target = copy.deepcopy(agent.critic)
    model = nn.ModuleDict({"actor": agent.actor, "critic": agent.critic})
    optimizer = torch.optim.Adam(agent.actor.parameters())
    other = torch.optim.SGD(agent.critic.parameters(), 0.1) if who != "by hand" else None
    if who == "nobody: a target":
        model["target"] = target
    with gm.watch(model, optimizer, run=tmp_path / "run", quiet=True):
        for _ in range(6):
            model.zero_grad()
            (loss_of(agent) + target(X).mean()).backward()
            optimizer.step()
            if other is not None:
                other.step()
            else:
                with torch.no_grad():
                    for p in agent.critic.parameters():
                        p -= 0.1 * p.grad
    run = Run(tmp_path / "run" / "run.db")
    assert facts(run)[1]["not-in-optimizer"] == "ok"
    assert [each for each in gm.diagnose(run).findings if each.id == "not-in-optimizer"] == []


# leak-between-terms, dead-term


def advantage_step(detached: bool, *, summed: bool = True) -> Step:
    """A2C with advantages that carry a gradient, or not."""

    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        values = agent.critic(X).squeeze(-1)
        advantages = (RETURNS - values).detach() if detached else RETURNS - values
        log_prob = Categorical(logits=agent.actor(X)).log_prob(ACTIONS)
        policy_loss, value_loss = -(log_prob * advantages).mean(), F.mse_loss(values, RETURNS)
        agent.zero_grad()
        if summed:
            (policy_loss + 0.5 * value_loss).backward()
        else:
            policy_loss.backward(retain_graph=True)
            value_loss.backward()
        for each in optimizers.values():
            each.step()

    return step


@pytest.mark.parametrize(("apart", "summed"), [(False, True), (True, True), (True, False)])
def test_advantages_that_carry_a_gradient_are_a_leak_at_step_0(
    tmp_path: Path, apart: bool, summed: bool
) -> None:
    run = run_of(tmp_path / "leak", advantage_step(False, summed=summed), apart=apart)
    assert facts(run)[0] == {"leak-between-terms": 0}
    (event,) = run.events("leak-between-terms")
    assert (event.detail["term"], event.detail["into"]) == ("policy_loss", "value_loss")
    assert event.detail["parameter"].startswith("critic.")
    run = run_of(tmp_path / "none", advantage_step(True, summed=summed), apart=apart)
    assert facts(run)[0] == {}
    assert facts(run)[1]["leak-between-terms"] == "ok"


class ChosenValues(nn.Module):
    """A value for each action; the policy is a network of its own, or the softmax of the values."""

    def __init__(self, *, soft: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.pi = nn.Linear(4, 3), nn.Linear(4, 3)
        self.soft = soft

    def loss(self, *, detached: bool) -> Tensor:
        q = self.q(X)
        chosen = q.gather(1, ACTIONS[:, None])
        log_probs = (q if self.soft else self.pi(X)).log_softmax(-1)
        expected = (q * log_probs.exp().detach()).sum(1, keepdim=True)
        advantages = RETURNS[:, None] - (expected.detach() if detached else expected)
        policy_loss = -(log_probs.gather(1, ACTIONS[:, None]) * advantages).mean()
        value_loss = F.smooth_l1_loss(chosen, RETURNS[:, None])
        return policy_loss + value_loss


@pytest.mark.parametrize(
    ("soft", "detached", "leaks"), [(False, False, 1), (False, True, 0), (True, True, 0)]
)
def test_advantages_of_action_values_that_carry_a_gradient_are_a_leak_too(
    tmp_path: Path, soft: bool, detached: bool, leaks: int
) -> None:
    """As in ACER, whose V is a mean of Q. Where the policy is made of Q, it trains it rightly."""
    agent = ChosenValues(soft=soft)
    optimizer = torch.optim.Adam(agent.parameters())
    with gm.watch(agent, optimizer, run=tmp_path / "run", quiet=True):
        for _ in range(2):
            policy_and_value = agent.loss(detached=detached)
            optimizer.zero_grad()
            policy_and_value.backward()
            optimizer.step()
    assert len(Run(tmp_path / "run" / "run.db").events("leak-between-terms")) == leaks


def test_terms_that_are_named_by_hand_show_a_leak_too(tmp_path: Path) -> None:
    for detached in (False, True):
        agent = Agent()
        optimizer = torch.optim.Adam(agent.parameters())
        folder = tmp_path / str(detached)
        with gm.watch(agent, optimizer, run=folder, quiet=True) as meter:
            values = agent.critic(X).squeeze(-1)
            advantages = RETURNS - (values.detach() if detached else values)
            log_prob = Categorical(logits=agent.actor(X)).log_prob(ACTIONS)
            value = F.mse_loss(values, RETURNS)
            with meter.terms(policy=-(log_prob * advantages).mean(), value=value) as loss:
                loss.backward()
            optimizer.step()
        assert len(Run(folder / "run.db").events("leak-between-terms")) == (not detached)


class Shared(nn.Module):
    """One trunk, and one layer for logits and value."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.Linear(8, 4)
        self.critic = nn.Linear(8, 1)


@pytest.mark.parametrize("one_layer", [True, False])
def test_a_shared_trunk_is_no_leak(tmp_path: Path, one_layer: bool) -> None:
    model = Shared()
    optimizer = torch.optim.Adam(model.parameters())
    with gm.watch(model, optimizer, run=tmp_path / "run", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            features = model.trunk(X).tanh()
            out = model.heads(features)
            values = out[:, 3] if one_layer else model.critic(features).squeeze(-1)
            log_prob = Categorical(logits=out[:, :3]).log_prob(ACTIONS)
            value_loss = (values - RETURNS).pow(2).mean()
            policy_loss = -(log_prob * (RETURNS - values.detach())).mean()
            (policy_loss + value_loss).backward()
            optimizer.step()
    assert Run(tmp_path / "run" / "run.db").events("leak-between-terms") == []


def test_an_actor_s_loss_through_a_critic_is_no_leak_while_terms_are_read_and_when_not(
    tmp_path: Path,
) -> None:
    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        critic_loss = F.mse_loss(agent.critic(X), COLUMN)
        optimizers["critic"].zero_grad()
        critic_loss.backward()
        optimizers["critic"].step()
        actor_loss = -agent.critic(torch.cat([agent.actor(X), X[:, :1]], -1)).mean()
        optimizers["actor"].zero_grad()
        actor_loss.backward()
        optimizers["actor"].step()

    found, _ = facts(run_of(tmp_path / "run", step, apart=True, steps=14))
    assert found == {}


def test_a_bonus_under_no_grad_is_a_dead_term_under_its_name_at_step_0(tmp_path: Path) -> None:
    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        policy = Categorical(logits=agent.actor(X))
        policy_loss = -(policy.log_prob(ACTIONS) * RETURNS).mean()
        value_loss = F.mse_loss(agent.critic(X).squeeze(-1), RETURNS)
        with torch.no_grad():
            entropy = policy.entropy().mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        optimizers["all"].zero_grad()
        loss.backward()
        optimizers["all"].step()

    run = run_of(tmp_path / "run", step)
    found = [each for each in gm.diagnose(run).findings if each.id == "dead-term"]
    assert [(each.basis, each.since_step) for each in found] == [("proved", 0)]
    assert "'entropy'" in found[0].title


# dead-block


def test_a_critic_that_first_steps_later_waits_and_is_not_dead(tmp_path: Path) -> None:
    count = 0

    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        nonlocal count
        count += 1
        agent.zero_grad()
        (-Categorical(logits=agent.actor(X)).log_prob(ACTIONS) * RETURNS).mean().backward()
        optimizers["actor"].step()
        if count > late:
            F.mse_loss(agent.critic(X), COLUMN).backward()
            optimizers["critic"].step()

    late = 99
    run = run_of(tmp_path / "short", step, apart=True, steps=12)
    assert run.tables("waiting")[-1].content == ["critic", "layer.critic"]
    assert [each for each in gm.diagnose(run).findings if each.id == "dead-block"] == []
    count, late = 0, 8
    run = run_of(tmp_path / "long", step, apart=True, steps=12)
    assert run.tables("waiting")[-1].content == []


def test_a_policy_head_with_a_gradient_of_exactly_zero_is_critical(tmp_path: Path) -> None:
    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        optimizers["all"].zero_grad()
        log_prob = Categorical(logits=agent.actor(X)).log_prob(ACTIONS)
        policy_loss = -(log_prob * (RETURNS - RETURNS)).mean()
        (policy_loss + F.mse_loss(agent.critic(X), COLUMN)).backward()
        optimizers["all"].step()

    found = gm.diagnose(run_of(tmp_path / "run", step, steps=22)).findings
    dead = [each for each in found if each.id == "dead-block"]
    assert [(each.severity, each.basis) for each in dead] == [("critical", "proved")]


@pytest.mark.parametrize("forgotten", ["actor", "critic", None])
def test_an_optimizer_that_never_steps_beside_one_that_does_is_told(
    forgotten: str | None, tmp_path: Path
) -> None:
    def step(agent: Agent, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        data = torch.randn(ROWS, 4)
        loss = agent.actor(data).square().mean() + agent.critic(data).square().mean()
        for each in optimizers.values():
            each.zero_grad()
        loss.backward()
        for name, each in optimizers.items():
            if name != forgotten:
                each.step()

    with run_of(tmp_path / "run", step, apart=True, steps=120) as run:
        messages = [event.message for event in run.events("never-trained")]
    assert len(messages) == (forgotten is not None)
    assert all("never stepped" in message for message in messages)


def test_a_target_that_brings_an_optimizer_of_its_own_is_a_target() -> None:
    """As in minimalRL's SAC, where each network makes its optimizer; a trained one is none."""
    online, target = Net(), Net()
    optimizers = [torch.optim.Adam(each.parameters()) for each in (online, target)]
    held = held_by(optimizers)
    spaces = [{"q1": online, "q1_target": target}]
    assert [name for name, *_ in twins_among(spaces, held)] == ["q1_target"]
    target(torch.randn(4, 4)).sum().backward()
    assert twins_among(spaces, held) == []


@pytest.mark.parametrize("follows", [True, False])
def test_an_optimizer_without_a_step_whose_parameters_follow_others_is_no_mistake(
    follows: bool,
) -> None:
    online, target = Net(), Net()
    log = ProofLog(Events())
    idle = IdleOptimizers(log, [torch.optim.Adam(each.parameters()) for each in (online, target)])
    for _ in range(100):
        idle.stepped(0)
    if follows:
        target.load_state_dict(online.state_dict())
    idle.finish()
    assert (log.state("never-trained") == "found") is not follows
