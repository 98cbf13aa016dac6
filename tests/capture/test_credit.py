"""Credit: what each sample was given, read off the user's own backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

import gradiometer as gm
from gradiometer.capture import hooks
from gradiometer.maths.credit import correlation, returns_to_go, summary

ADVANTAGES = torch.tensor([1.0, -2.0, 0.0, 4.0, -1.0, 0.0, 3.0, 2.0])
N = len(ADVANTAGES)

BESIDE = {"credit/action_share", "credit/input_spread", "credit/input_largest", "credit/entropy"}
"""Of the samples, whatever they were given."""

Loss = Callable[[Tensor], Tensor]
"""From the outputs of a layer [N, 4] to a policy loss with ADVANTAGES."""


def credit_of(
    loss: Loss, folder: Path, steps: int = 2, terms: Literal["auto", "manual"] = "auto"
) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=folder, budget=None, quiet=True, terms=terms):
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(torch.randn(N, 3))).backward()
            optimizer.step()
    with gm.load(folder) as kept:
        assert kept.events("fault") == []
        return {
            name: float(kept.series(name)[1][-1])
            for name in kept.names()
            if name.startswith("credit/") and name not in BESIDE
        }


def actions() -> Tensor:
    return torch.arange(N) % 4


def weigh(log_probs: Tensor) -> Tensor:
    return -(log_probs.reshape(N, -1).sum(-1) * ADVANTAGES).mean()


def by_normal(out: Tensor) -> Tensor:
    return weigh(Normal(out[:, :2], out[:, 2:].exp()).log_prob(torch.randn(N, 2)))


def by_independent(out: Tensor) -> Tensor:
    policy = Independent(Normal(out[:, :2], out[:, 2:].exp()), 1)
    return weigh(policy.log_prob(policy.sample()))


def by_squashed(out: Tensor) -> Tensor:
    base = Independent(Normal(out[:, :2], out[:, 2:].exp()), 1)
    return weigh(TransformedDistribution(base, TanhTransform()).log_prob(torch.rand(N, 2) - 0.5))


def by_mixture(out: Tensor) -> Tensor:
    parts = Normal(out[:, :2], torch.ones(N, 2))
    return weigh(MixtureSameFamily(Categorical(logits=out[:, 2:]), parts).log_prob(torch.randn(N)))


def by_full_normal(out: Tensor) -> Tensor:
    return weigh(MultivariateNormal(out, torch.eye(4)).log_prob(torch.randn(N, 4)))


def by_bernoulli(out: Tensor) -> Tensor:
    return weigh(Bernoulli(logits=out).log_prob((torch.rand(N, 4) > 0.5).float()))


def by_gather(out: Tensor) -> Tensor:
    return weigh(out.log_softmax(-1).gather(1, actions()[:, None]))


def by_index(out: Tensor) -> Tensor:
    return weigh(out.log_softmax(-1)[torch.arange(N), actions()])


def by_log_of_gather(out: Tensor) -> Tensor:
    return weigh(out.softmax(-1).gather(1, actions()[:, None]).squeeze(1).log())


def by_log_of_select(out: Tensor) -> Tensor:
    p = out.softmax(-1)
    parts = [torch.log(p[i][a]) * ADVANTAGES[i] for i, a in enumerate(actions().tolist())]
    return -torch.stack(parts).mean()


def by_logsumexp(out: Tensor) -> Tensor:
    chosen = out.gather(-1, actions()[:, None]).squeeze(-1)
    return weigh(chosen - torch.stack([torch.logsumexp(row, -1) for row in out]))


def by_cross_entropy(out: Tensor) -> Tensor:
    return (nn.functional.cross_entropy(out, actions(), reduction="none") * ADVANTAGES).mean()


def by_categorical(out: Tensor) -> Tensor:
    return weigh(Categorical(logits=out).log_prob(actions()))


FORMS = [
    by_categorical,
    by_normal,
    by_independent,
    by_squashed,
    by_mixture,
    by_full_normal,
    by_bernoulli,
    by_gather,
    by_index,
    by_log_of_gather,
    by_log_of_select,
    by_logsumexp,
    by_cross_entropy,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_credit_is_the_advantage_in_whatever_form_the_log_probability_is_written(
    form: Loss, tmp_path: Path
) -> None:
    found = credit_of(form, tmp_path / "run")
    expected = summary(ADVANTAGES.double().numpy())
    assert found == pytest.approx(expected, rel=1e-5)
    assert expected["credit/zero_share"] == 0.25


def test_an_action_that_is_reparametrised_has_no_credit(tmp_path: Path) -> None:
    def loss(out: Tensor) -> Tensor:
        policy = Normal(out[:, :2], out[:, 2:].exp())
        action = policy.rsample()
        return (0.2 * policy.log_prob(action).sum(-1) - action.sum(-1)).mean()

    assert credit_of(loss, tmp_path / "run") == {}


def test_a_supervised_loss_has_no_credit(tmp_path: Path) -> None:
    loss = lambda out: nn.functional.cross_entropy(out, actions())  # noqa: E731
    assert credit_of(loss, tmp_path / "run") == {}


def test_a_q_value_that_is_gathered_is_no_log_probability(tmp_path: Path) -> None:
    def loss(out: Tensor) -> Tensor:
        chosen = out.gather(1, actions()[:, None]).squeeze(1)
        return nn.functional.smooth_l1_loss(chosen, torch.full((N,), 9.0))

    found = credit_of(loss, tmp_path / "run")
    assert found == {"credit/value_slope": pytest.approx(-1.0)}


@pytest.mark.parametrize(
    "entropy",
    [
        lambda out: Categorical(logits=out).entropy(),
        lambda out: -(out.softmax(-1) * out.log_softmax(-1)).sum(-1),
        lambda out: -(out.log_softmax(-1).exp() * out.log_softmax(-1)).sum(-1),
        lambda out: Normal(out[:, :2], out[:, 2:].exp()).entropy().sum(-1),
    ],
)
def test_the_slope_of_the_entropy_is_minus_its_coefficient(entropy: Any, tmp_path: Path) -> None:
    found = credit_of(lambda out: by_gather(out) - 0.03 * entropy(out).mean(), tmp_path / "run")
    assert found["credit/entropy_slope"] == pytest.approx(-0.03, rel=1e-5)


def test_the_slope_of_a_value_is_read_off_errors_written_by_hand(tmp_path: Path) -> None:
    loss = lambda out: ((out[:, 0] - 100.0) ** 2).mean() * 0.5  # noqa: E731
    assert credit_of(loss, tmp_path / "run")["credit/value_slope"] == pytest.approx(-100.0, rel=0.1)


def test_the_error_of_the_ratio_is_that_of_new_over_old(tmp_path: Path) -> None:
    def loss(out: Tensor) -> Tensor:
        new = Categorical(logits=out).log_prob(actions())
        return -((new - new.detach() - 0.5).exp() * ADVANTAGES).mean()

    found = credit_of(loss, tmp_path / "run")
    assert found["credit/ratio_error"] == pytest.approx(1 - np.exp(-0.5), rel=1e-5)


def test_sequences_that_are_long_and_pushed_up_show_as_a_correlation_with_length(
    tmp_path: Path,
) -> None:
    lengths = torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    mask = (torch.arange(12)[None] < lengths[:, None]).float()

    def loss(out: Tensor) -> Tensor:
        logits = out.mean(0).expand(10, 12, 4) * 1.0
        log_probs = logits.log_softmax(-1).gather(-1, torch.zeros(10, 12, 1).long()).squeeze(-1)
        return -(log_probs * mask).sum()

    assert credit_of(loss, tmp_path / "run")["credit/corr_length"] == pytest.approx(1.0)


def test_nothing_is_hooked_beside_measured_steps_and_every_patch_is_taken_back(
    tmp_path: Path,
) -> None:
    before = {
        (kind, name): vars(kind)[name]
        for kind in (Normal, Categorical, Independent, Bernoulli, torch.distributions.Distribution)
        for name in ("log_prob", "entropy", "sample", "rsample")
        if name in vars(kind)
    }
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[Any] = []
    with gm.watch(model, optimizer, run=tmp_path / "run", every=2, budget=None, quiet=True):
        assert any(vars(kind)[name] is not old for (kind, name), old in before.items())
        for _ in range(4):
            mark = hooks.HookMark.now().next_id
            loss = by_categorical(model(torch.randn(N, 3)))
            seen.append(loss.grad_fn)
            optimizer.zero_grad()
            loss.backward()
            seen[-1] = hooks.HookMark.now().next_id - mark
            optimizer.step()
    assert seen == [1, 0, 1, 0]
    assert all(vars(kind)[name] is old for (kind, name), old in before.items())


def test_a_compiled_policy_is_compiled_as_it_is_without_us(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager", fullgraph=True)
    def loss(x: Tensor) -> Tensor:
        policy = Categorical(logits=model(x), validate_args=False)
        return weigh(policy.log_prob(actions())) - 0.01 * policy.entropy().mean()

    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            loss(torch.randn(N, 3)).backward()
            optimizer.step()
    with gm.load(tmp_path / "run") as kept:
        assert kept.events("fault") == []


def test_what_is_packed_by_somebody_is_left_packed(tmp_path: Path) -> None:
    """Checkpoints recompute a forward when a saved tensor is looked at."""
    unpacked: list[int] = []

    def unpack(x: Tensor) -> Tensor:
        unpacked.append(torch._C._current_graph_task_id())
        return x

    def loss(out: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            return by_gather(out)

    try:
        # terms open the sums of a loss, and what those saved
        assert credit_of(loss, tmp_path / "run", terms="manual") == {}
    finally:
        hooks._saved_tensors_are_hooked = False
    assert unpacked
    assert -1 not in unpacked, "nothing is unpacked outside of a backward"


def test_the_summary_of_no_credit_and_of_a_nan_is_empty() -> None:
    assert summary(np.array([])) == summary(np.array([1.0, np.nan])) == {}
    assert summary(np.zeros(4)) == {"credit/zero_share": 1.0}
    assert correlation(np.arange(4.0), np.arange(4.0)) is None
    assert correlation(np.arange(9.0), np.ones(9)) is None


def test_returns_stop_at_the_end_of_an_episode() -> None:
    rewards = np.array([[1.0], [1.0], [1.0]])
    paid = returns_to_go(rewards, np.array([[False], [True], [False]]), 0.5)
    assert paid[:, 0].tolist() == [1.5, 1.0, 1.0]


@pytest.mark.parametrize("parts", [1, 7, 40])
def test_returns_of_few_environments_and_of_many_are_the_sums_that_they_are(parts: int) -> None:
    generator = np.random.default_rng(parts)
    rewards, ends = generator.normal(size=(50, parts)), generator.random((50, parts)) < 0.1
    paid = returns_to_go(rewards, ends, 0.9)
    assert paid.shape == rewards.shape
    for t in range(50):
        for part in range(parts):
            last = t + int(np.argmax(np.r_[ends[t:, part], True]))
            own = rewards[t : last + 1, part]
            assert paid[t, part] == pytest.approx(float(own @ 0.9 ** np.arange(len(own))))


@pytest.mark.parametrize("style", ["mse_loss", "by hand"])
def test_what_a_program_need_not_log_is_read_off_its_loss(style: str, tmp_path: Path) -> None:
    """Entropy, ratios and their clipping, the critic's fit, actions and inputs, against numpy."""
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 4), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.0)
    x, targets, chosen = torch.randn(N, 3), torch.randn(N), torch.tensor([0, 1, 1, 1, 2, 1, 3, 1])
    with torch.no_grad():
        old = Categorical(logits=actor(x)).log_prob(chosen) + torch.randn(N) * 0.3
    with gm.watch(nn.ModuleList([actor, critic]), optimizer, run=tmp_path, budget=None, quiet=True):
        for _ in range(2):
            policy = Categorical(logits=actor(x))
            ratio = (policy.log_prob(chosen) - old).exp()
            entropy = policy.entropy()
            clipped = torch.minimum(ratio * ADVANTAGES, torch.clamp(ratio, 0.8, 1.25) * ADVANTAGES)
            values = critic(x).squeeze(-1)
            if style == "mse_loss":
                fit = nn.functional.mse_loss(values, targets)
            else:
                fit = 0.5 * ((values - targets) ** 2).mean()
            optimizer.zero_grad()
            (-clipped.mean() - 0.01 * entropy.mean() + 0.5 * fit).backward()
            optimizer.step()
    r, v, t = (each.detach().double().numpy() for each in (ratio, values, targets))
    expected = {
        "credit/entropy": float(entropy.detach().mean()),
        "credit/ratio_error": np.abs(r - 1).mean(),
        "credit/ratio_largest": r.max(),
        "credit/clip_fraction": ((r < 0.8) | (r > 1.25)).mean(),
        "credit/value_loss": ((v - t) ** 2).mean(),
        "credit/explained_variance": 1 - (t - v).var() / t.var(),
        "credit/action_share": 5 / 8,
        "credit/input_spread": x.double().numpy().std(),
        "credit/input_largest": float(x.abs().max()),
    }
    assert 0 < expected["credit/clip_fraction"] < 1
    with gm.load(tmp_path) as kept:
        assert kept.events("fault") == []
        found = {name: float(kept.series(name)[1][-1]) for name in expected}
    assert found == pytest.approx(expected, rel=1e-5)


def test_targets_that_are_all_one_explain_no_variance_however_they_are_rounded(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 4), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.0)
    with gm.watch(nn.ModuleList([actor, critic]), optimizer, run=tmp_path, budget=None, quiet=True):
        x = torch.randn(64, 3)
        log_probs = Categorical(logits=actor(x)).log_prob(torch.zeros(64))
        (-log_probs.mean() + (critic(x) - 1.0).square().mean()).backward()
        optimizer.step()
    with gm.load(tmp_path) as kept:
        assert "credit/value_loss" in kept.names()
        assert "credit/explained_variance" not in kept.names()


def test_the_fit_of_action_values_is_not_told_as_that_of_returns(tmp_path: Path) -> None:
    """A loss without a policy: its values may be of actions, and their targets no returns."""
    torch.manual_seed(0)
    critic = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.0)
    with gm.watch(critic, optimizer, run=tmp_path, budget=None, quiet=True):
        chosen = critic(torch.randn(N, 3)).gather(1, torch.zeros(N, 1).long())
        nn.functional.mse_loss(chosen, torch.randn(N, 1)).backward()
        optimizer.step()
    with gm.load(tmp_path) as kept:
        assert "credit/value_slope" in kept.names()
        assert not {"credit/value_loss", "credit/explained_variance"} & set(kept.names())


@pytest.mark.parametrize("rows", [512, 2000, 4096])
def test_actions_of_a_large_batch_are_kept(rows: int, tmp_path: Path) -> None:
    """They are thinned out once, beside their credit: 2,000 steps are an epoch of Spinning Up."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    chosen = torch.cat([torch.zeros(3 * rows // 4), torch.ones(rows // 4)])
    with gm.watch(model, optimizer, run=tmp_path, budget=None, quiet=True, terms="manual"):
        log_probs = Categorical(logits=model(torch.randn(rows, 3))).log_prob(chosen)
        (-log_probs * torch.randn(rows)).mean().backward()
        optimizer.step()
    with gm.load(tmp_path) as kept:
        assert float(kept.series("credit/action_share")[1][-1]) == pytest.approx(0.75, abs=0.01)


def test_the_one_choice_of_a_step_is_not_called_the_most_frequent(tmp_path: Path) -> None:
    actor = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.0)
    with gm.watch(actor, optimizer, run=tmp_path, budget=None, quiet=True):
        for _ in range(3):
            policy = Categorical(logits=actor(torch.randn(3)))
            optimizer.zero_grad()
            (-policy.log_prob(policy.sample())).backward()
            optimizer.step()
    with gm.load(tmp_path) as kept:
        assert kept.events("fault") == []
        assert "credit/positive_share" in kept.names()
        assert "credit/action_share" not in kept.names()
