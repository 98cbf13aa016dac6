"""An actor that goes through its critic must raise what the critic says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional

import gradiometer as gm
from gradiometer.doctor.diagnosis import diagnose

ID = "update-opposes-reward"


def learn(
    folder: Path, kind: str, sign: float, *, freezes: bool = False, maximizes: bool = False
) -> dict[str, str]:
    """Twenty updates of a critic and of its actor; what was checked."""
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 2), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    ours = torch.optim.SGD(actor.parameters(), lr=1e-2, maximize=maximizes)
    theirs = torch.optim.SGD(critic.parameters(), lr=1e-2)
    model = nn.ModuleDict({"actor": actor, "critic": critic})
    with gm.watch(model, [ours, theirs], run=folder, budget=None, quiet=True):
        for _ in range(20):
            states, actions = torch.randn(16, 3), torch.randn(16, 1)
            values = critic(torch.cat([states, actions], 1))
            theirs.zero_grad()
            functional.mse_loss(values, actions.neg()).backward()
            theirs.step()
            critic.requires_grad_(not freezes)
            centre, width = actor(states).chunk(2, 1)
            normal = Normal(centre, functional.softplus(width))
            if kind == "soft":
                chosen = normal.rsample()
                both = critic(torch.cat([states, chosen], 1))
                loss = (0.1 * normal.log_prob(chosen) - sign * both).mean()
            elif kind == "punished":  # the entropy counts with the wrong sign
                chosen = normal.rsample()
                both = critic(torch.cat([states, chosen], 1))
                loss = (-0.1 * normal.log_prob(chosen) - both).mean()
            elif kind == "sampled":  # no way through the critic
                chosen = normal.sample()
                both = critic(torch.cat([states, chosen], 1))
                loss = (0.1 * normal.log_prob(chosen) - both).mean()
            elif kind == "leaking":  # a baseline that was not detached is no actor's critic
                chosen = normal.sample()
                both = critic(torch.cat([states, chosen], 1))
                loss = (normal.log_prob(chosen) * both).mean()
            else:
                loss = -sign * critic(torch.cat([states, centre], 1)).mean()
            ours.zero_grad()
            loss.backward()
            ours.step()
            critic.requires_grad_(True)
    with gm.load(folder) as run:
        assert not run.events("fault")
        states_of: dict[str, str] = run.tables("proofs")[-1].content
    return states_of


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deterministic", "soft"])
def test_the_sign_of_an_actor_that_goes_through_its_critic_is_checked(
    tmp_path: Path, kind: str
) -> None:
    assert learn(tmp_path / "right", kind, 1.0)[ID] == "ok"
    assert learn(tmp_path / "wrong", kind, -1.0)[ID] == "found"
    assert ID not in {each.id for each in diagnose(tmp_path / "right").findings}
    first = diagnose(tmp_path / "wrong").findings[0]
    assert (first.id, first.basis, first.severity) == (ID, "proved", "critical")
    assert "its critic thinks less of the action" in first.title


@pytest.mark.parametrize(("sign", "state"), [(1.0, "ok"), (-1.0, "found")])
def test_a_critic_that_is_frozen_while_its_actor_learns_is_known_too(
    tmp_path: Path, sign: float, state: str
) -> None:
    assert learn(tmp_path / "run", "deterministic", sign, freezes=True)[ID] == state


def test_a_baseline_in_a_policy_gradient_is_not_judged(tmp_path: Path) -> None:
    states = learn(tmp_path / "run", "leaking", 1.0)
    assert not {ID, "recipe-mismatch"} & set(states)


def test_an_actor_that_draws_without_a_gradient_is_told(tmp_path: Path) -> None:
    assert learn(tmp_path / "run", "sampled", 1.0)["recipe-mismatch"] == "found"
    said = next(x for x in diagnose(tmp_path / "run").findings if x.id == "recipe-mismatch")
    assert (said.basis, said.severity) == ("proved", "critical")
    assert "does not go through its critic" in said.title
    assert "rsample" in said.fix[0]


def test_a_soft_actor_whose_loss_falls_with_its_entropy_is_told(tmp_path: Path) -> None:
    assert learn(tmp_path / "right", "soft", 1.0)["entropy-sign"] == "ok"
    assert learn(tmp_path / "wrong", "punished", 1.0)["entropy-sign"] == "found"
    assert "entropy-sign" not in {each.id for each in diagnose(tmp_path / "right").findings}
    first = diagnose(tmp_path / "wrong").findings[0]
    assert (first.id, first.basis, first.severity) == ("entropy-sign", "proved", "critical")


def test_an_optimizer_that_makes_its_loss_large_turns_the_sign(tmp_path: Path) -> None:
    assert learn(tmp_path / "right", "deterministic", -1.0, maximizes=True)[ID] == "ok"
    assert learn(tmp_path / "wrong", "deterministic", 1.0, maximizes=True)[ID] == "found"
