"""What the form of a loss proves: each wrong line beside its healthy twins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradiometer as gm
from gradiometer.doctor.diagnosis import diagnose

Objective = Callable[[Tensor, Tensor], Tensor]


def both(ratio: Tensor, advantages: Tensor, low: float = 0.8) -> tuple[Tensor, Tensor]:
    return ratio * advantages, torch.clamp(ratio, low, 2.0 - low) * advantages


def smaller(ratio: Tensor, advantages: Tensor) -> Tensor:
    return -torch.min(*both(ratio, advantages)).mean()


def larger_loss(ratio: Tensor, advantages: Tensor) -> Tensor:
    return torch.max(*both(ratio, -advantages)).mean()


def larger(ratio: Tensor, advantages: Tensor) -> Tensor:
    return -torch.max(*both(ratio, advantages)).mean()


def smaller_loss(ratio: Tensor, advantages: Tensor) -> Tensor:
    return torch.min(*both(ratio, -advantages)).mean()


def no_room(ratio: Tensor, advantages: Tensor) -> Tensor:
    return -torch.min(*both(ratio, advantages, low=1.0)).mean()


def limits_exchanged(ratio: Tensor, advantages: Tensor) -> Tensor:
    return -torch.min(*both(ratio, advantages, low=1.2)).mean()


def far_from_any_ratio(ratio: Tensor, advantages: Tensor) -> Tensor:
    deep = ratio
    for _ in range(12):
        deep = torch.tanh(deep)
    return -torch.min(deep * advantages, ratio * advantages).mean()


def train(folder: Path, objective: Objective, target: str = "detached") -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"pi": nn.Linear(4, 3), "v": nn.Linear(4, 1)})
    other = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with gm.watch(model, optimizer, run=folder, budget=None, quiet=True):
        for _ in range(5):
            states, nexts = torch.randn(32, 4), torch.randn(32, 4)
            actions, rewards = torch.randint(3, (32,)), torch.rand(32, 1)
            with torch.no_grad():
                old = torch.distributions.Categorical(logits=model["pi"](states)).log_prob(actions)
            for _ in range(3):
                policy = torch.distributions.Categorical(logits=model["pi"](states))
                ratio = torch.exp(policy.log_prob(actions) - old)
                ahead = (other if target == "of another network" else model["v"])(nexts)
                goal = rewards + 0.98 * ahead * (torch.rand(32, 1) < 0.9)
                goal = goal.detach() if target == "detached" else goal
                loss = objective(ratio, torch.randn(32)) + functional.smooth_l1_loss(
                    model["v"](states), goal
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def learn_values(folder: Path, last: nn.Module, far: float, by_hand: bool) -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), last)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    with gm.watch(critic, optimizer, run=folder, budget=None, quiet=True):
        for _ in range(12):
            goals, values = far * torch.rand(32), critic(torch.randn(32, 4)).squeeze(-1)
            error = (values - goals).pow(2).mean()
            optimizer.zero_grad()
            (error if by_hand else functional.mse_loss(values, goals)).backward()
            optimizer.step()


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize(
    ("last", "far", "told"),
    [
        (nn.Tanh(), 20.0, True),
        (nn.ReLU(), -20.0, True),
        (nn.Sigmoid(), 20.0, True),
        (nn.Tanh(), 1.0, False),
        (nn.ReLU(), 20.0, False),
        (nn.Identity(), 20.0, False),
    ],
)
def test_values_that_cannot_reach_their_targets_are_told(
    tmp_path: Path, last: nn.Module, far: float, told: bool, by_hand: bool
) -> None:
    learn_values(tmp_path / "run", last, far, by_hand)
    assert found(tmp_path / "run") == ({("recipe-mismatch", "output-bounded")} if told else set())
    titles = [each.title for each in diagnose(tmp_path / "run").findings]
    assert ("The output of the values cannot reach their targets" in titles[:1]) is told


def found(folder: Path) -> set[tuple[str, str]]:
    with gm.load(folder) as run:
        assert not run.events("fault")
        return {
            (kind, str(event.detail.get("recipe", "")))
            for kind in ("recipe-mismatch", "ppo-clip-saturated")
            for event in run.events(kind)
        }


@pytest.mark.parametrize("objective", [smaller, larger_loss, far_from_any_ratio])
@pytest.mark.parametrize("target", ["detached", "of another network"])
def test_the_usual_forms_prove_nothing(tmp_path: Path, objective: Objective, target: str) -> None:
    train(tmp_path / "run", objective, target)
    assert found(tmp_path / "run") == set()


@pytest.mark.parametrize(
    ("objective", "target", "fact", "title"),
    [
        (larger, "detached", ("recipe-mismatch", "clip-largest"), "bounds nothing"),
        (smaller_loss, "detached", ("recipe-mismatch", "clip-largest"), "bounds nothing"),
        (no_room, "detached", ("ppo-clip-saturated", ""), "leaves no room"),
        (limits_exchanged, "detached", ("ppo-clip-saturated", ""), "leaves no room"),
        (smaller, "attached", ("recipe-mismatch", "target-attached"), "not detached"),
    ],
)
def test_one_wrong_line_is_proved_and_leads(
    tmp_path: Path, objective: Objective, target: str, fact: tuple[str, str], title: str
) -> None:
    train(tmp_path / "run", objective, target)
    assert found(tmp_path / "run") == {fact}
    first = diagnose(tmp_path / "run").findings[0]
    assert (first.id, first.basis) == (fact[0], "proved")
    assert title in first.title
