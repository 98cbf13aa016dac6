"""Did the step help: against brute force, with known answers, and without a trace in the
training."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer.probes import helped as module
from gradiometer.probes.helped import Helped, helped

UNITS = 40


class Net(nn.Module):
    """A bit of everything that a probe could leave changed: dropout, batch norm, a rebound
    buffer."""

    def __init__(self, *, noisy: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3 if noisy else 0.0)
        self.last = nn.Linear(16, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return self.last(self.drop(torch.tanh(self.norm(self.first(x))))).squeeze(-1)


def make(
    seed: int = 0, *, noisy: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[Net, Callable[[], Tensor]]:
    torch.manual_seed(seed)
    net = Net(noisy=noisy).to(dtype)
    x = torch.randn(UNITS, 6, dtype=dtype)
    y = x[:, 0] - 2 * x[:, 1] + 0.1 * torch.randn(UNITS, dtype=dtype)
    return net, lambda: (net(x) - y).square()


def step_of(net: nn.Module, loss: Tensor, *, lr: float) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr)
    loss.backward()
    return optimizer


def slopes_of(net: nn.Module, losses: Tensor, moved: list[Tensor]) -> list[float]:
    """Brute force: the gradient of every unit by itself."""
    trained = [p for p in net.parameters() if p.requires_grad]
    found = []
    for loss in losses:
        grads = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
        found.append(
            sum(float((g * d).sum()) for g, d in zip(grads, moved, strict=True) if g is not None)
        )
    return found


@pytest.mark.parametrize("one_by_one", [False, True])
def test_slopes_and_changes_are_those_of_brute_force(
    one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if one_by_one:
        monkeypatch.setattr(module, "_twice", lambda *_, **__: None)
        monkeypatch.setattr(module, "MOST_PASSES", UNITS)
    net, loss_of = make(dtype=torch.float64)
    before = copy.deepcopy(net)
    optimizer = step_of(net, loss_of().mean(), lr=0.05)
    with helped(net, loss_of) as check:
        optimizer.step()
    moved = [
        p.detach() - q.detach() for p, q in zip(net.parameters(), before.parameters(), strict=True)
    ]
    after = loss_of().detach()
    with torch.no_grad():
        for p, d in zip(net.parameters(), moved, strict=True):
            p -= d
    slopes = slopes_of(net, loss_of(), moved)
    assert check.predicted.mean == pytest.approx(np.mean(slopes), rel=1e-9)
    width = (
        2.0226909 * np.std(slopes, ddof=1) / np.sqrt(UNITS)
    )  # Student's quantile at 39 degrees of freedom
    assert check.predicted.high == pytest.approx(np.mean(slopes) + width, rel=1e-6)
    assert check.realised.mean == pytest.approx(
        float((after - loss_of().detach()).mean()), rel=1e-6
    )
    assert check.ratio == pytest.approx(check.realised.mean / check.predicted.mean)
    assert check.result.step_norm == pytest.approx(
        float(torch.cat([d.flatten() for d in moved]).norm()), rel=1e-9
    )


def test_a_right_sign_helps_and_a_wrong_one_hurts() -> None:
    for sign, verdict in ((1.0, "helps"), (-1.0, "hurts")):
        net, loss_of = make()
        optimizer = step_of(net, sign * loss_of().mean(), lr=0.01)
        with helped(net, loss_of) as check:
            optimizer.step()
        assert check.verdict == verdict, check.reason
        assert np.sign(check.predicted.mean) == -sign
        assert check.ratio == pytest.approx(1.0, abs=0.25)
        assert not check.result.too_large
    assert "wrong sign" in check.reason


def test_the_sign_of_a_policy_gradient_is_seen_where_norms_are_the_same() -> None:
    verdicts = []
    for sign in (1.0, -1.0):
        torch.manual_seed(1)
        policy = nn.Linear(4, 3)
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

        def episodes(
            count: int, policy: nn.Module = policy
        ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            states = torch.randn(count, 4)
            log_policy = policy(states).log_softmax(-1).detach()
            actions = torch.multinomial(log_policy.exp(), 1)
            rewards = (actions.squeeze(-1) == states[:, :3].argmax(-1)).float()
            return (
                states,
                actions,
                log_policy.gather(-1, actions).squeeze(-1),
                rewards - rewards.mean(),
            )

        def surrogate(batch: tuple[Tensor, ...], policy: nn.Module = policy) -> Tensor:
            states, actions, old, advantages = batch
            now = policy(states).log_softmax(-1).gather(-1, actions).squeeze(-1)
            return -(now - old).exp() * advantages

        held_out = episodes(400)
        (sign * surrogate(episodes(400)).mean()).backward()
        with helped(
            policy, lambda held_out=held_out, surrogate=surrogate: surrogate(held_out)
        ) as check:
            optimizer.step()
        verdicts.append(check.verdict)
    assert verdicts == ["helps", "hurts"]


def test_too_large_a_step_is_told_from_a_wrong_one() -> None:
    net, loss_of = make()
    optimizer = step_of(net, loss_of().mean(), lr=30.0)
    with helped(net, loss_of) as check:
        optimizer.step()
    assert check.predicted.high is not None
    assert check.predicted.high < 0
    assert check.realised.low is not None
    assert check.realised.low > 0
    assert check.verdict == "hurts"
    assert check.result.too_large
    assert "too large" in check.reason


@pytest.mark.parametrize(
    ("length", "ratio", "words"),
    [(1.0, 0.5, ""), (1.8, 0.1, "a shorter one"), (2.5, -0.25, "too large")],
)
def test_on_a_parabola_the_ratio_tells_the_length(length: float, ratio: float, words: str) -> None:
    """L = (w − c)²/2 with c near 1 from w = 0: the best step is 1, and a step of a gains a(1 − a/2)
    of the slope."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.zero_()
    targets = 1.0 + 0.01 * torch.linspace(-1, 1, 20)
    with helped(model, lambda: 0.5 * (model.weight.reshape(()) - targets).square()) as check:
        model.weight.data += length
    assert check.ratio == pytest.approx(ratio, abs=1e-3)
    assert words in check.reason
    assert check.result.too_large == (length > 2)


def test_a_direction_without_a_slope_is_decided_in_one_of_twenty_cases() -> None:
    """At the truth the expected gradient is zero, so any direction has only the slope that chance
    gave these units."""
    decided, covered = 0, 0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        model = nn.Linear(5, 1, bias=False)
        truth = torch.randn(1, 5, generator=generator)
        model.weight.data.copy_(truth)
        x = torch.randn(30, 5, generator=generator)
        y = (x @ truth.T).squeeze(-1) + torch.randn(30, generator=generator)
        direction = 1e-3 * torch.randn(1, 5, generator=generator)
        with helped(
            model, lambda model=model, x=x, y=y: (model(x).squeeze(-1) - y).square()
        ) as check:
            model.weight.data += direction
        decided += check.verdict != "undecided"
        covered += check.predicted.sign == 0
    assert 0.90 <= covered / 200 <= 0.99
    assert decided / 200 <= 0.10


def test_units_with_several_losses_count_once() -> None:
    net, loss_of = make(dtype=torch.float64)
    units = torch.arange(UNITS) // 4
    for one_by_one in (False, True):
        optimizer = step_of(net, loss_of().mean(), lr=1e-3)
        with pytest.MonkeyPatch.context() as patch:
            if one_by_one:
                patch.setattr(module, "_twice", lambda *_, **__: None)
            with (
                helped(net, loss_of, units=units) as check,
                helped(net, lambda: loss_of().view(-1, 4).mean(1)) as same,
            ):
                optimizer.step()
        assert check.realised.count == 10
        assert check.predicted.low == pytest.approx(same.predicted.low, rel=1e-9)
        assert check.realised.low == pytest.approx(same.realised.low, rel=1e-9)


def test_frozen_parameters_and_several_groups() -> None:
    net, loss_of = make()
    net.first.requires_grad_(False)
    groups = [
        {"params": net.norm.parameters(), "lr": 0.02},
        {"params": net.last.parameters(), "lr": 0.005},
    ]
    optimizer = torch.optim.Adam(groups)
    loss_of().mean().backward()
    with helped(net, loss_of) as check:
        optimizer.step()
    assert check.verdict == "helps"
    assert net.first.weight.grad is None


def test_a_part_that_the_held_out_loss_does_not_reach_counts_for_nothing() -> None:
    net, loss_of = make()
    spare = nn.Linear(3, 3)
    optimizer = step_of(net, loss_of().mean(), lr=0.01)
    with helped([net, spare], loss_of) as check:
        optimizer.step()
        spare.weight.data += 5.0
    assert check.verdict == "helps"
    assert check.result.step_norm > 5.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees_with_single(dtype: torch.dtype) -> None:
    """A step that most finite differences of half-precision weights would round away."""
    exact, _ = make(seed=3)
    half = copy.deepcopy(exact).to(dtype)
    exact.load_state_dict(half.state_dict())
    x = torch.randn(UNITS, 6).to(dtype)
    y = x[:, 0] - 2 * x[:, 1]
    found = []
    for net, of in ((exact, torch.float32), (half, dtype)):
        net.eval()
        delta = [torch.linspace(-1, 1, p.numel()).view_as(p) / 64 for p in net.parameters()]
        with (
            helped(net, lambda net=net, of=of: (net(x.to(of)) - y.to(of)).square()) as check,
            torch.no_grad(),
        ):
            for p, d in zip(net.parameters(), delta, strict=True):
                p.add_(d.to(p.dtype))
        found.append(check)
    # Weights of half precision take a rounded step, so the two steps differ by a few percent.
    assert found[1].predicted.mean == pytest.approx(found[0].predicted.mean, rel=0.1)
    assert found[1].predicted.count == UNITS


def test_a_kernel_that_cannot_be_differentiated_twice_is_walked_unit_by_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * grad

    class Careless(Once):
        """Forgets that its own gradient hangs on what comes in."""

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * grad.detach()

    monkeypatch.setattr(module, "MOST_PASSES", 16)
    net, _ = make(dtype=torch.float64)
    x = torch.randn(UNITS, 6, dtype=torch.float64)
    for square in (Once, Careless):
        moved = [1e-3 * torch.randn_like(p) for p in net.parameters()]
        with helped(net, lambda square=square: square.apply(net(x))) as check, torch.no_grad():
            slopes = slopes_of_now(net, lambda: net(x).square(), moved)
            for p, d in zip(net.parameters(), moved, strict=True):
                p += d
        assert check.predicted.count == 14  # three units each, or two
        assert check.predicted.mean == pytest.approx(np.mean(slopes), rel=1e-9)


def test_attention_takes_two_passes_and_gives_what_brute_force_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 24)
    x = torch.randn(10, 5, 8)

    def loss_of() -> Tensor:
        q, k, v = layer(x).unsqueeze(1).chunk(3, -1)
        return (
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .square()
            .mean((1, 2, 3))
        )

    monkeypatch.setattr(
        module, "_one_by_one", lambda *_: pytest.fail("the short way was not taken")
    )
    moved = [1e-3 * torch.randn_like(p) for p in layer.parameters()]
    slopes = slopes_of_now(layer, loss_of, moved)
    with helped(layer, loss_of) as check, torch.no_grad():
        for p, d in zip(layer.parameters(), moved, strict=True):
            p += d
    assert check.predicted.mean == pytest.approx(np.mean(slopes), rel=1e-3)
    assert check.ratio is None or check.ratio == pytest.approx(1.0, abs=0.1)


def slopes_of_now(
    net: nn.Module, loss_of: Callable[[], Tensor], moved: list[Tensor]
) -> list[float]:
    with torch.enable_grad():
        return slopes_of(net, loss_of(), moved)


def trained(steps: int, *, watched: bool) -> tuple[Any, ...]:
    net, loss_of = make(noisy=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    noise = []

    def held_out() -> Tensor:
        net.eval()
        net(torch.randn(2, 6))
        random.random()
        np.random.rand()
        net.train()
        return loss_of() + torch.rand(UNITS)

    for _ in range(steps):
        optimizer.zero_grad()
        loss_of().mean().backward()
        grads = [p.grad for p in net.parameters()]
        kept = [g.clone() for g in grads if g is not None]
        if watched:
            with helped(net, held_out):
                optimizer.step()
        else:
            optimizer.step()
        assert all(p.grad is g for p, g in zip(net.parameters(), grads, strict=True))
        assert all(torch.equal(g, k) for g, k in zip(grads, kept, strict=True) if g is not None)
        noise.append((random.random(), np.random.rand(), torch.rand(()).item(), net.training))
    return [*net.state_dict().values()], noise, [p.data_ptr() for p in net.parameters()]


def test_the_training_is_bit_identical_with_and_without_the_check() -> None:
    states = random.getstate(), np.random.get_state()
    weights, noise, _ = trained(5, watched=False)
    random.setstate(states[0])
    np.random.set_state(states[1])
    again, noise_again, _ = trained(5, watched=True)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    assert noise == noise_again


def test_weights_keep_their_storage() -> None:
    net, loss_of = make()
    places = [p.data_ptr() for p in net.parameters()]
    optimizer = step_of(net, loss_of().mean(), lr=0.01)
    with helped(net, loss_of):
        optimizer.step()
    assert places == [p.data_ptr() for p in net.parameters()]


def test_it_is_kept_at_the_step_that_was_made(tmp_path: Path) -> None:
    net, loss_of = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    said = []
    with gm.watch(net, optimizer, run=tmp_path / "run", every=1) as meter:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of().mean().backward()
            with helped(net, loss_of) as check:
                optimizer.step()
            check.record(meter)
            said.append(check.predicted.mean)
    run = gm.load(tmp_path / "run")
    steps, values = run.series("step/predicted")
    assert steps.tolist() == run.series("grad/all/norm/raw")[0].tolist() == [0, 1, 2]
    assert values.tolist() == pytest.approx(said)
    assert len(run.series("step/realised")[0]) == 3


def test_a_step_that_breaks_the_loss_hurts_and_one_that_does_nothing_is_told() -> None:
    net, loss_of = make()
    with helped(net, loss_of) as check, torch.no_grad():
        net.last.weight.fill_(float("nan"))
    assert check.verdict == "hurts"
    assert "not finite" in check.reason
    net, loss_of = make()
    with helped(net, loss_of) as check:
        pass
    assert (check.verdict, check.ratio) == ("undecided", None)
    assert "no weight moved" in check.reason


def test_three_units_have_no_interval() -> None:
    net, loss_of = make()
    optimizer = step_of(net, loss_of().mean(), lr=0.01)
    with helped(net, lambda: loss_of()[:3]) as check:
        optimizer.step()
    assert check.verdict == "undecided"
    assert check.predicted.low is None
    assert check.ratio is None
    assert "too few" in check.reason


def test_what_is_wrong_with_the_held_out_loss_is_said() -> None:
    net, loss_of = make()
    wrong: list[tuple[Any, str]] = [
        (lambda: loss_of().mean(), r"a tensor \[units\]; found a tensor \[\]"),
        (lambda: 3.0, "found float"),
        (lambda: loss_of().detach(), "without a gradient"),
    ]
    for losses, words in wrong:
        with pytest.raises(UsageError, match=words), helped(net, losses):
            net.last.weight.data += 0.01
    with pytest.raises(UsageError, match="takes a function"):
        helped(net, loss_of())  # type: ignore[arg-type]
    with (
        pytest.raises(UsageError, match="3 entries for 40 losses"),
        helped(net, loss_of, units=[0, 1, 2]),
    ):
        net.last.weight.data += 0.01


def test_nothing_can_be_read_before_the_step_and_an_error_inside_comes_through() -> None:
    net, loss_of = make()
    with pytest.raises(KeyError, match="mine"), helped(net, loss_of) as check:
        assert isinstance(check, Helped)
        with pytest.raises(UsageError, match="nothing to say yet"):
            _ = check.verdict
        raise KeyError("mine")
    with pytest.raises(UsageError, match="nothing to say yet"):
        _ = check.result
