"""The observer does not disturb: weights after 50 steps are the same bits with and without the
meter. `make test` trains for 30: trends, the rarest thing a meter does, are taken every 25 measured
steps; `make proofs` trains for the 50."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradiometer as gm
from gradiometer.capture.gradients import GradientReader

STEPS = 30
WHOLE = 50


@pytest.fixture(params=[STEPS, pytest.param(WHOLE, marks=pytest.mark.proof)])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many steps the loops below take."""
    monkeypatch.setattr(sys.modules[__name__], "STEPS", request.param)
    return int(request.param)


class Policy(nn.Module):
    """An actor-critic with what makes disturbance visible: dropout draws from the RNG, batch norm
    has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1))
        self.actor = nn.Linear(16, 3)
        self.critic = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h)


def terms_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    logits, value = model(x)
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return {
        "policy": log_probs[:, 0].mean(),
        "value": 0.5 * value.square().mean(),
        "entropy": -0.01 * entropy,
    }


Watch = Callable[..., Any]


def plain(model: Policy, watch: Watch) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            sum(terms_of(model, torch.randn(8, 6)).values()).backward()  # type: ignore[union-attr]
            optimizer.step()


def clipping(model: Policy, watch: Watch) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            sum(terms_of(model, torch.randn(8, 6)).values()).backward()  # type: ignore[union-attr]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            torch.nn.utils.clip_grad_value_(model.actor.parameters(), 0.01)
            optimizer.step()


def two_optimizers(model: Policy, watch: Watch) -> None:
    actor = torch.optim.Adam([*model.trunk.parameters(), *model.actor.parameters()], lr=1e-2)
    critic = torch.optim.SGD(model.critic.parameters(), lr=1e-2, momentum=0.9)
    with watch(model, [actor, critic]):
        for number in range(STEPS):
            model.zero_grad()
            sum(terms_of(model, torch.randn(8, 6)).values()).backward()  # type: ignore[union-attr]
            critic.step()
            if number % 2:
                actor.step()


def accumulation(model: Policy, watch: Watch) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watch(model, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(4):
                (sum(terms_of(model, torch.randn(8, 6)).values()) / 4).backward()  # type: ignore[union-attr]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def split_into_terms(model: Policy, watch: Watch) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer) as meter:
        for _ in range(STEPS):
            optimizer.zero_grad()
            with summed(meter, terms_of(model, torch.randn(8, 6))) as loss:
                loss.backward()
            optimizer.step()
            if meter is not None:
                meter.log(loss=loss)


def terms_of_micro_batches(model: Policy, watch: Watch) -> None:
    """Accumulation under autocast, a loss that is scaled, a clip."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer) as meter:
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(3):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    terms = terms_of(model, torch.randn(8, 6))
                with summed(meter, terms) as loss:
                    (loss * (1024.0 / 3)).backward()
            for p in model.parameters():
                p.grad.div_(1024.0)  # type: ignore[union-attr]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def terms_in_a_closure(model: Policy, watch: Watch) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=2)
    with watch(model, optimizer) as meter:
        for _ in range(STEPS):
            x = torch.randn(8, 6)

            def evaluate(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                with summed(meter, terms_of(model, x)) as loss:
                    loss.backward()
                return loss  # type: ignore[no-any-return]

            optimizer.step(evaluate)


def split_by_reward(model: Policy, watch: Watch) -> None:
    """The policy term is a function of the advantages with a forward of its own: dropout masks,
    running statistics."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer) as meter:
        for _ in range(STEPS):
            optimizer.zero_grad()
            x, correct, brief = torch.randn(8, 6), torch.randn(8), torch.randn(8)

            def policy(advantages: Tensor, x: Tensor = x) -> Tensor:
                log_prob = model(x)[0].log_softmax(-1)[:, 0]
                ratio = (log_prob - log_prob.detach() + 0.1 * torch.randn(8)).exp()
                return -torch.minimum(ratio * advantages, ratio.clamp(0.9, 1.1) * advantages).mean()

            value = terms_of(model, x)["value"]
            with (
                nullcontext(policy(correct + brief) + value)
                if meter is None
                else meter.terms(
                    policy=policy, value=value, advantages={"correct": correct, "brief": brief}
                )
            ) as loss:
                loss.backward()
            optimizer.step()


def summed(meter: Any, terms: dict[str, Tensor]) -> Any:
    total = sum(list(terms.values())[1:], terms["policy"])
    return nullcontext(total) if meter is None else meter.terms(**terms)


def compiled(model: Policy, watch: Watch) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fast = torch.compile(model, backend="aot_eager")
    with watch(fast, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            sum(terms_of(fast, torch.randn(8, 6)).values()).backward()  # type: ignore[union-attr,arg-type]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def closure(model: Policy, watch: Watch) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=2)
    with watch(model, optimizer):
        for _ in range(STEPS):
            x = torch.randn(8, 6)

            def evaluate(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = sum(terms_of(model, x).values())  # type: ignore[assignment]
                loss.backward()
                return loss

            optimizer.step(evaluate)


LOOPS = [
    plain,
    clipping,
    two_optimizers,
    accumulation,
    split_into_terms,
    terms_of_micro_batches,
    terms_in_a_closure,
    split_by_reward,
    compiled,
    closure,
]


SPLIT = (plain, clipping, accumulation, split_into_terms)
"""Whose loss is split by its terms: one of them says which they are, of the others the graph does."""


def state_after(loop: Callable[[Policy, Watch], None], watch: Watch) -> dict[str, Any]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = Policy()
    loop(model, watch)
    grads = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    streams = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.random(),
        "python": random.random(),
    }
    return {**model.state_dict(), **grads, **streams}


@cache
def bare_state(loop: Callable[[Policy, Watch], None], steps: int) -> dict[str, Any]:
    """After the same training without a meter: once per loop and length."""
    assert steps == STEPS
    return state_after(loop, lambda *_: nullcontext())


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(
        torch.equal(x, b[key]) if isinstance(x, Tensor) else x == b[key] for key, x in a.items()
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "light": {"tier": "light"},
    "standard": {},
    "sketch": {"direction": "sketch", "every": 3, "terms_memory": 0},
    "deep": {"tier": "deep", "on_nonfinite": "raise"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_training_is_the_same_bits_with_and_without_the_meter(
    loop: Callable[[Policy, Watch], None], options: str, steps: int, tmp_path: Path
) -> None:
    chosen = {"budget": None, "run": tmp_path / "run", **OPTIONS[options]}
    bare = bare_state(loop, steps)
    watched = state_after(loop, lambda model, optimizer: gm.watch(model, optimizer, **chosen))
    assert same(bare, watched)
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert run.newest_step >= steps - 3
    if loop in SPLIT:
        assert sum(name.startswith("grad/all/term/") for name in run.names()) > 3


class MovingMean(nn.Module):
    """A buffer of its own, changed in place or bound anew in every forward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mean", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "in place":
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        elif self.how == "bound anew":
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        else:
            self.register_buffer("last", x.detach().mean(0))
        return torch.tanh(x * self.mean)


class StochasticRounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        noise = torch.rand_like(gradient) + np.random.random() + random.random()
        return gradient + 1e-3 * noise


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return StochasticRounding.apply(x)  # type: ignore[no-any-return,no-untyped-call]


BODIES: dict[str, Callable[[], nn.Module]] = {
    "a buffer changed in place": lambda: MovingMean("in place"),
    "a buffer bound anew": lambda: MovingMean("bound anew"),
    "a buffer that was not there": lambda: MovingMean("added"),
    "power iterations": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
    "dropout drawn anew": lambda: nn.Dropout(0.3),
    "a backward that draws": Rounded,
}


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("body", BODIES)
def test_what_a_backward_changes_in_passing_changes_once(body: str, by_hand: bool) -> None:
    def train(*, watched: bool) -> dict[str, Any]:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        model = nn.Sequential(nn.Linear(6, 6), BODIES[body](), nn.Linear(6, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        meter = gm.watch(model, optimizer, run=None, budget=None) if watched else None
        for _ in range(3):
            optimizer.zero_grad()
            preserve = body != "dropout drawn anew"
            h = checkpoint(
                model[1],
                model[0](torch.randn(8, 6)),
                use_reentrant=False,
                preserve_rng_state=preserve,
            )
            out = model[2](h)
            policy, value = out[:, 0].mean(), out[:, 1].square().mean()
            with summed(meter if by_hand else None, {"policy": policy, "value": value}) as loss:
                loss.backward()
            optimizer.step()
        if meter is not None:
            # Of a backward of the user's own nobody knows whether it may run again, unless he says.
            is_split = by_hand or body != "a backward that draws"
            assert ("grad/all/term/value/norm" in meter._values) is is_split
            meter.close()
        streams = {
            "torch": torch.get_rng_state(),
            "numpy": np.random.random(),
            "python": random.random(),
        }
        return {**model.state_dict(), **streams}

    bare, watched = train(watched=False), train(watched=True)
    assert bare.keys() == watched.keys()
    assert same(bare, watched)


def test_a_function_of_the_advantages_may_change_a_buffer_that_the_loss_holds() -> None:
    def train(*, watched: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), MovingMean("in place"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        meter = gm.watch(model, optimizer, run=None, budget=None) if watched else None
        x, correct, brief = torch.randn(8, 6), torch.randn(8), torch.randn(8)

        def policy(advantages: Tensor) -> Tensor:
            return (model(x)[:, 0] * advantages).mean()

        with (
            nullcontext(policy(correct + brief))
            if meter is None
            else meter.terms(policy=policy, advantages={"correct": correct, "brief": brief})
        ) as loss:
            loss.backward()
        optimizer.step()
        if meter is not None:
            assert "grad/all/reward/brief/norm" in meter._values
            meter.close()
        return dict(model.state_dict())

    assert same(train(watched=False), train(watched=True))


@pytest.mark.parametrize("kept_before", [False, True])
def test_a_gradient_that_the_user_retains_is_that_of_his_own_backward(kept_before: bool) -> None:
    def train(*, watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        meter = gm.watch(model, optimizer, run=None, budget=None) if watched else None
        found: list[Tensor] = []
        for _ in range(2):
            optimizer.zero_grad()
            h = model(torch.randn(4, 6))
            h.retain_grad()
            if kept_before:
                h.mean().backward(retain_graph=True)
            with summed(meter, {"policy": h.sum(), "value": h.square().sum()}) as loss:
                loss.backward()
            assert h.grad is not None
            found.append(h.grad)
            optimizer.step()
        if meter is not None:
            assert "grad/all/term/value/norm" in meter._values
            meter.close()
        return found

    assert all(
        torch.equal(a, b) for a, b in zip(train(watched=False), train(watched=True), strict=True)
    )
    assert "retain_grad" not in vars(Tensor)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_guard_fails_when_a_hook_changes_one_bit(
    loop: Callable[[Policy, Watch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = GradientReader.read_full

    def disturbing(self: GradientReader, reading: Any, indices: Any, **options: Any) -> None:
        honest(self, reading, indices, **options)
        for i in indices:
            weight = self.parameters[i].detach().view(-1)
            weight[0] = torch.nextafter(weight[0], torch.tensor(10.0))

    bare = bare_state(loop, STEPS)
    monkeypatch.setattr(GradientReader, "read_full", disturbing)
    disturbed = state_after(
        loop,
        lambda model, optimizer: gm.watch(model, optimizer, run=None, every=STEPS - 1, budget=None),
    )
    assert not same(bare, disturbed)


def test_the_guard_fails_when_a_hook_draws_a_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = GradientReader.keep_weights

    def drawing(self: GradientReader, indices: Any) -> None:
        honest(self, indices)
        torch.rand(1)

    bare = bare_state(plain, STEPS)
    monkeypatch.setattr(GradientReader, "keep_weights", drawing)
    disturbed = state_after(
        plain,
        lambda model, optimizer: gm.watch(model, optimizer, run=None, every=STEPS - 1, budget=None),
    )
    assert not same(bare, disturbed)
