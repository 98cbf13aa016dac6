"""Each loss term's own gradient, and terms that have none."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

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
    return {
        "policy": logits[:, 0].mean(),
        "value": 0.5 * value.square().mean(),
        "entropy": -0.01 * entropy,
    }


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"trunk": nn.Linear(4, 8), "actor": nn.Linear(8, 3), "critic": nn.Linear(8, 1)}
    )


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
        assert run.series(f"grad/layer.trunk/term/{name}/norm")[1][0] == pytest.approx(
            norm, rel=1e-5
        )
    assert "grad/critic/term/policy/norm" not in run.names()
    assert run.series("grad/all/term/value/loss")[1][0] == pytest.approx(
        float(parts(model)["value"].detach()), rel=0.5
    )
    assert not run.events("dead-term")


def test_a_term_without_a_gradient_path_is_named_at_the_first_step(
    model: nn.Module, tmp_path: Path
) -> None:
    run = train_a_step(model, tmp_path / "run", entropy_under_no_grad=True)
    (event,) = run.events("dead-term")
    assert event.step == 0
    assert "'entropy'" in event.message
    assert not [name for name in run.names() if "term/entropy/norm" in name]
    assert "grad/all/term/entropy/loss" in run.names()


@pytest.mark.parametrize(
    ("tier", "last"), [("light", [40]), ("standard", [10, 20, 30, 40]), ("deep", range(5, 42))]
)
def test_a_tier_says_how_often_a_loss_is_split(
    tier: Literal["light", "standard", "deep"],
    last: Sequence[int],
    model: nn.Module,
    tmp_path: Path,
) -> None:
    attributes(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run", tier=tier) as meter:
        for _ in range(42):
            optimizer.zero_grad()
            with meter.terms(**parts(model)) as loss:
                loss.backward()
            optimizer.step()
    steps, _ = gm.load(tmp_path / "run").series("grad/all/term/policy/norm")
    assert list(steps) == [0, 1, 2, 3, 4, *last]


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
        with (
            pytest.warns(GradiometerWarning, match="hooks of your own"),
            meter.terms(**parts(model)) as loss,
        ):
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
        (lambda t: {"a~b": t}, "tilde"),
        (lambda t: {"policy": lambda advantages: t}, "no advantages to call it with"),
        (lambda t: {"policy": t, "advantages": {}}, "nothing in it"),
        (lambda t: {"policy": t, "advantages": {"a": 1.0}}, "floating point numbers; found float"),
        (
            lambda t: {"policy": t, "advantages": {"a": torch.ones(2, dtype=torch.int64)}},
            "torch.int64",
        ),
        (lambda t: {"policy": t, "advantages": {"a/b": torch.ones(2)}}, "reward name 'a/b'"),
        (lambda t: {"policy": t, "advantages": {"a": t, "b": t}}, "the same tensor of advantages"),
        (
            lambda t: {"policy": t, "advantages": {"a": torch.ones(2), "b": torch.ones(3)}},
            r"'b' \(3,\)",
        ),
        (
            lambda t: {"policy": t, "advantages": {"a": torch.ones(2)}},
            "function of the summed advantages.*requires_grad_",
        ),
        (
            lambda t: {"policy": lambda a: 1.0, "advantages": {"a": torch.ones(2)}},
            "is a float, not a tensor",
        ),
        (lambda t: {"policy": lambda a: a, "advantages": {"a": torch.ones(2)}}, r"shape \(2,\)"),
    ],
)
@pytest.mark.parametrize("disabled", [False, True])
def test_what_cannot_be_a_term_is_refused(
    given: object, says: str, disabled: bool, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIOMETER_DISABLED", str(int(disabled)))
    tensor = torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        gm.watch(model, optimizer, budget=None, run=None) as meter,
        pytest.raises(UsageError, match=says),
        meter.terms(**given(tensor)),  # type: ignore[operator]
    ):
        pass


def test_a_term_outside_of_any_graph_is_named_on_a_step_that_is_not_measured(
    model: nn.Module, tmp_path: Path
) -> None:
    attributes(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run", every=10) as meter:
        for number in range(9):
            optimizer.zero_grad()
            with meter.terms(**parts(model, entropy_under_no_grad=number >= 7)) as loss:
                loss.backward()
            optimizer.step()
    (event,) = gm.load(tmp_path / "run").events("dead-term")
    assert event.step == 7
    assert event.detail["term"] == "entropy"


def test_when_every_term_is_dead_the_users_own_backward_says_so(
    model: nn.Module, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with meter.terms(policy=torch.tensor(1.0), value=torch.tensor(2.0)) as loss:
            assert float(loss) == 3.0
            with pytest.raises(RuntimeError, match="does not require grad"):
                loss.backward()
        with meter.terms(**parts(attributes(model))) as loss:
            loss.backward()
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert {event.detail["term"] for event in run.events("dead-term")} == {"policy", "value"}
    assert not run.events("fault")


def test_a_validation_loss_under_no_grad_is_no_dead_term(model: nn.Module, tmp_path: Path) -> None:
    attributes(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with meter.terms(**parts(model)) as loss:
            loss.backward()
        with torch.no_grad(), meter.terms(**parts(model)) as same:
            assert same == loss
        optimizer.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("dead-term")
    assert run.series("grad/all/term/additivity_error")[1][0] < 5e-6


def test_a_gradient_that_is_exactly_zero_is_stationary_and_not_dead(
    model: nn.Module, tmp_path: Path
) -> None:
    attributes(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number in range(4):
            optimizer.zero_grad()
            out = model.actor(model.trunk(torch.ones(2, 4)))  # type: ignore[operator,union-attr]
            kl = (out - out.detach()).square().mean()  # at the reference: zero, with a path
            with meter.terms(
                policy=out.mean(), kl=kl * 0.1 if number < 2 else kl + out[0, 0] * 0.1
            ) as loss:
                loss.backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("dead-term")
    (event,) = run.events("stationary-term")
    assert event.step == 0
    assert event.detail == {"term": "kl", "severity": "info"}
    assert list(run.series("grad/all/term/kl/norm")[1][:2]) == [0.0, 0.0]
    assert 0 not in run.series("grad/all/term/policy~kl/cos")[0], "a zero has no direction"
    assert list(run.series("grad/all/term/kl/share")[1][:2]) == [0.0, 0.0]


def test_the_table_of_terms_says_what_each_one_reaches_and_is_written_when_it_changes(
    model: nn.Module, tmp_path: Path
) -> None:
    attributes(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number in range(4):
            optimizer.zero_grad()
            given = parts(model, entropy_under_no_grad=number < 2)
            given["value"] = given["value"] * (0.0 if number == 3 else 1.0)
            with meter.terms(**given) as loss:
                loss.backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    path = {"all": "path", "actor": "path", "critic": "none", "trunk": "path"}
    value = {"all": "path", "actor": "none", "critic": "path", "trunk": "path"}
    dead = dict.fromkeys(path, "none")
    zero = {block: "zero" if state == "path" else state for block, state in value.items()}
    tables = {table.step: table.content for table in run.tables("terms")}
    assert sorted(tables) == [0, 2, 3]
    assert tables[0] == {"policy": path, "value": value, "entropy": dead}
    assert tables[2] == {"policy": path, "value": value, "entropy": path}
    assert tables[3] == {"policy": path, "value": zero, "entropy": path}
    assert [event.step for event in run.events("stationary-term")] == [3]
