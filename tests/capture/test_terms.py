"""Each loss term's own gradient, and terms that have none."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.errors import GradiometerWarning, UsageError


def parts(model: nn.Module, *, entropy_under_no_grad: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(1)
    h = torch.tanh(model.trunk(torch.randn(16, 4)))  # type: ignore[operator]
    logits, value = model.actor(h), model.critic(h)  # type: ignore[operator]
    with torch.set_grad_enabled(not entropy_under_no_grad):
        log_probs = logits.log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return {"policy": logits[:, 0].mean(), "value": 0.5 * value.square().mean(), "entropy": -0.01 * entropy}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"trunk": nn.Linear(4, 8), "actor": nn.Linear(8, 3), "critic": nn.Linear(8, 1)})


def attributes(model: nn.Module) -> nn.Module:
    for name in ("trunk", "actor", "critic"):
        setattr(model, name, model[name])  # type: ignore[index]
    return model


def train_a_step(model: nn.Module, run: Path, **options: bool) -> gm.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=run) as meter:
        with meter.terms(**parts(attributes(model), **options)) as loss:
            loss.backward()
        optimizer.step()
    return gm.load(run)


def test_the_norm_of_a_term_is_that_of_its_own_backward(model: nn.Module, tmp_path: Path) -> None:
    attributes(model)
    expected = {}
    for name in ("policy", "value", "entropy"):
        model.zero_grad()
        parts(model)[name].backward()
        grads = [p.grad for p in model.trunk.parameters() if p.grad is not None]  # type: ignore[union-attr]
        expected[name] = float(torch.nn.utils.get_total_norm(grads))
    model.zero_grad()
    run = train_a_step(model, tmp_path / "run")
    for name, norm in expected.items():
        assert run.series(f"grad/layer.trunk/term/{name}/norm")[1][0] == pytest.approx(norm, rel=1e-5)
    assert "grad/critic/term/policy/norm" not in run.names()
    assert run.series("grad/all/term/value/loss")[1][0] == pytest.approx(float(parts(model)["value"].detach()), rel=0.5)
    assert not run.events("dead-term")


def test_a_term_without_a_gradient_path_is_named_at_the_first_step(model: nn.Module, tmp_path: Path) -> None:
    run = train_a_step(model, tmp_path / "run", entropy_under_no_grad=True)
    (event,) = run.events("dead-term")
    assert event.step == 0
    assert "'entropy'" in event.message
    assert not [name for name in run.names() if "term/entropy/norm" in name]
    assert "grad/all/term/entropy/loss" in run.names()


def test_terms_off_the_cadence_cost_no_backward(model: nn.Module, tmp_path: Path) -> None:
    attributes(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run", terms_every=10) as meter:
        for _ in range(21):
            optimizer.zero_grad()
            with meter.terms(**parts(model)) as loss:
                loss.backward()
            optimizer.step()
    steps, _ = gm.load(tmp_path / "run").series("grad/all/term/policy/norm")
    assert list(steps) == [0, 1, 2, 3, 4, 10, 20]


def test_the_users_own_backward_hooks_switch_terms_off_with_one_warning(model: nn.Module) -> None:
    attributes(model)
    calls: list[Tensor] = []
    model.actor.weight.register_hook(calls.append)  # type: ignore[union-attr]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=None) as meter:
        with pytest.warns(GradiometerWarning, match="hooks of your own"), meter.terms(**parts(model)) as loss:
            loss.backward()
        with warnings.catch_warnings(), meter.terms(**parts(model)) as loss:
            loss.backward()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda t: {}, "at least one term"),
        (lambda t: {"policy": 0.5}, "is a float, not a tensor"),
        (lambda t: {"policy": t.expand(3)}, r"shape \(3,\)"),
        (lambda t: {"policy": t, "value": t}, "the same tensor"),
        (lambda t: {"a/b": t}, "slash"),
    ],
)
def test_what_cannot_be_a_term_is_refused(given: object, says: str, model: nn.Module) -> None:
    tensor = torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=None) as meter, pytest.raises(UsageError, match=says):  # noqa: SIM117
        with meter.terms(**given(tensor)):  # type: ignore[operator]
            pass
