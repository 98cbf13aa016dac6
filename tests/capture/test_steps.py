"""The step axis: a step is what an optimizer did, whatever happens to gradients on the way."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import gradiometer as gm

STEPS = 9


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.actor, self.critic = nn.Linear(5, 6), nn.Linear(6, 2), nn.Linear(6, 1)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.trunk(x))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(x)
        return self.actor(hidden), self.critic(hidden)


class Fused(Plain):
    """Parameters joined before they are used: their gradients are views of one tensor."""

    def __init__(self, join: Callable[[list[Tensor]], Tensor]) -> None:
        super().__init__()
        self.join = join
        self.parts = nn.ParameterList([nn.Parameter(0.3 * torch.randn(2, 5)) for _ in range(3)])
        del self.trunk

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(functional.linear(x, self.join(list(self.parts)).reshape(6, 5)))


class Tied(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.second = nn.Linear(5, 5), nn.Linear(5, 6)
        self.again = nn.Linear(5, 5)
        self.again.weight = self.trunk.weight

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.again(torch.tanh(self.trunk(x))))))


def nothing(model: nn.Module) -> None:
    pass


def hook_in_place(model: nn.Module) -> None:
    def tame(p: Tensor) -> None:
        assert p.grad is not None
        p.grad.nan_to_num_().clamp_(-9.0, 9.0)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(tame)


def nan_to_num(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad.nan_to_num_()


def nan_to_num_anew(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad = p.grad.nan_to_num()


def clip(model: nn.Module) -> None:
    clip_grad_norm_(model.parameters(), 0.05)


@dataclass(frozen=True, kw_only=True)
class Case:
    model: Callable[[], Plain] = Plain
    begin: Callable[[nn.Module], None] = nothing
    after_backward: Callable[[nn.Module], None] = nothing
    zero: str = "after"
    to_none: bool = True
    two_losses: bool = False
    create_graph: bool = False


CASES = {
    "plain": Case(),
    "cat": Case(model=lambda: Fused(torch.cat)),
    "stack": Case(model=lambda: Fused(torch.stack)),
    "hook in place": Case(begin=hook_in_place),
    "nan_to_num_": Case(after_backward=nan_to_num),
    "nan_to_num": Case(after_backward=nan_to_num_anew),
    "clip per micro-batch": Case(after_backward=clip),
    "tied": Case(model=Tied),
    "two losses": Case(two_losses=True),
    "create_graph": Case(create_graph=True),
    "zero_grad before": Case(zero="before"),
    "set_to_none=False": Case(to_none=False),
    "set_to_none=False before": Case(to_none=False, zero="before"),
    "by the module": Case(zero="module"),
    "by hand": Case(zero="by hand"),
    "by hand to zero": Case(zero="by hand", to_none=False),
}


def zero_grad(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if case.zero == "module":
        model.zero_grad(set_to_none=case.to_none)
    elif case.zero == "by hand":
        for p in model.parameters():
            if case.to_none or p.grad is None:
                p.grad = None
            else:
                p.grad.zero_()
    else:
        optimizer.zero_grad(set_to_none=case.to_none)


def losses(model: Plain, seed: int) -> dict[str, Tensor]:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
    action, value = model(x)
    return {"policy": action.square().mean(), "value": (value - 1).square().mean()}


def backward(case: Case, meter: gm.Meter, model: Plain, seed: int) -> None:
    found = losses(model, seed)
    with meter.terms(**found) as loss:
        if case.two_losses:
            found["policy"].backward(retain_graph=True)
            found["value"].backward()
        else:
            loss.backward(create_graph=case.create_graph)


def train(
    case: Case, folder: Path, tier: Any, parts: int, skip: tuple[int, ...] = (), steps: int = STEPS
) -> Any:
    torch.manual_seed(0)
    model = case.model()
    case.begin(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=folder, budget=None, tier=tier) as meter:
        for step in range(steps):
            if case.zero == "before":
                zero_grad(case, model, optimizer)
            for part in range(parts):
                backward(case, meter, model, 100 * step + part)
                case.after_backward(model)
            meter.log(reward=float(step))
            if step not in skip:
                optimizer.step()
            if case.zero != "before":
                zero_grad(case, model, optimizer)
    return gm.load(folder)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize(("parts", "tier"), [(1, "standard"), (4, "standard"), (4, "light")])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_counted_and_those_left_out_are_told_whatever_happens_to_gradients(
    name: str, parts: int, tier: Any, tmp_path: Path
) -> None:
    case, skipped = CASES[name], (5, 6)
    run = train(case, tmp_path / "run", tier, parts, skip=skipped)
    every = list(range(STEPS))
    assert [event.step for event in run.events("skipped-step")] == list(skipped)
    assert not run.events("fault")
    assert run.newest_step == STEPS - 1
    assert dict(zip(*run.series("reward"), strict=True)) == {step: step for step in every}
    stepped = [step for step in every if step not in skipped]
    assert [x for x in run.series("grad/all/norm/raw")[0] if x not in skipped] == stepped
    assert list(run.series("grad/all/term/value/norm")[0]) == every[:5]
    if tier == "light":
        return
    assert list(run.series("grad/all/norm/update")[0]) == stepped
    assert list(run.series("grad/all/cos_prev")[0])[:4] == every[1:5]
    if parts > 1 and not case.two_losses:
        # Whether nan_to_num changed anything is not known the first time.
        due = [4] if name.startswith("nan_to_num") else [0, 4]
        found = dict(zip(*run.series("meter/micro_batches"), strict=True))
        assert {step: n for step, n in found.items() if step < 5} == dict.fromkeys(due, parts)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", ["plain", "cat", "nan_to_num_", "clip per micro-batch"])
def test_numbers_of_accumulated_gradients_are_those_of_the_tensors(
    name: str, tmp_path: Path
) -> None:
    """Raw: the gradient before the last clip of the step; parts: what each backward added."""
    torch.manual_seed(0)
    case, model = CASES[name], CASES[name].model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    raw, alignments = [], []
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, sketch_size=4096):
        for step, parts in enumerate([3, 3, 3, 3, 3, 2, 3, 3, 3]):
            added, base = [], torch.zeros(())
            for part in range(parts):
                sum(losses(model, 100 * step + part).values()).backward()
                raw_now = flat(model)
                added.append(raw_now - base)
                case.after_backward(model)
                base = flat(model)
            raw.append(raw_now)
            alignments.append(float(sum(added).norm() / sum(g.norm() for g in added)))
            optimizer.step()
            optimizer.zero_grad()
    run = gm.load(tmp_path / "run")
    found = dict(zip(*run.series("grad/all/norm/raw"), strict=True))
    clipped = name.startswith("clip")
    # A step with fewer clips than the one before it comes before its gradient was read.
    assert list(found) == [step for step in range(9) if not (clipped and step == 5)]
    assert all(x == pytest.approx(float(raw[step].norm()), rel=1e-5) for step, x in found.items())
    cosines = dict(zip(*run.series("grad/all/cos_prev"), strict=True))
    assert set(cosines) >= {1, 2, 3, 4, 8}
    for step, x in cosines.items():
        expected = torch.cosine_similarity(raw[step - 1], raw[step], dim=0)
        assert x == pytest.approx(float(expected), abs=1e-4)
    aligned = dict(zip(*run.series("grad/all/alignment"), strict=True))
    assert 4 in aligned
    for step, x in aligned.items():
        assert x == pytest.approx(alignments[step], rel=0.1)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("unscale", [True, False])
def test_a_scaler_that_skips_is_heard_under_accumulation(
    unscale: bool, to_none: bool, parts: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Fused(torch.cat)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for step in range(STEPS):
            for part in range(parts):
                loss = losses(model, 100 * step + part)["value"]
                overflows = step == 2 and part == parts - 1
                scaler.scale(loss * (torch.inf if overflows else 1.0)).backward()
            if unscale:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=to_none)
    run = gm.load(tmp_path / "run")
    assert [event.step for event in run.events("skipped-step")] == [2]
    assert run.newest_step == STEPS - 1
    assert list(run.series("grad/all/norm/update")[0]) == [s for s in range(STEPS) if s != 2]


@pytest.mark.parametrize("tier", ["light", "standard", "deep"])
@pytest.mark.parametrize("bad", [1, 3, 4])
def test_a_nonfinite_gradient_is_of_the_micro_batch_that_made_it(
    bad: int, tier: Any, tmp_path: Path
) -> None:
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watched = gm.watch(
        model, optimizer, run=tmp_path / "run", budget=None, tier=tier, on_nonfinite="raise"
    )
    with (
        watched,
        pytest.raises(gm.NonFiniteGradient, match=f"in micro-batch {bad}, counted") as told,
    ):
        for step in range(3):
            for part in range(4):
                loss = losses(model, part)["value"]
                (loss * (torch.nan if (step, part + 1) == (2, bad) else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert str(told.value).startswith("step 2:")


def test_a_clip_before_the_step_leaves_the_micro_batches_known(tmp_path: Path) -> None:
    """One by value, or of some parameters only, is no factor of what was sketched."""
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for part in range(2):
            sum(losses(model, part).values()).backward()
        clip_grad_norm_([model.trunk.weight], 0.1)
        clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
    assert list(gm.load(tmp_path / "run").series("meter/micro_batches")[1]) == [2.0]


def test_a_nan_that_no_backward_made_is_said_to_be_set_after_it(tmp_path: Path) -> None:
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watched = gm.watch(model, optimizer, run=None, budget=None, on_nonfinite="raise")
    with watched, pytest.raises(gm.NonFiniteGradient, match="set after the last backward"):
        losses(model, 0)["value"].backward()
        assert model.critic.bias.grad is not None
        model.critic.bias.grad.fill_(torch.nan)
        optimizer.step()


def test_a_critic_zeroed_before_its_own_backward_leaves_the_actors_gradient(tmp_path: Path) -> None:
    """DDPG with both steps at the end: the actor's loss went through the critic."""
    actor, critic = nn.Linear(3, 1), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (actor, critic)]
    both = {"actor": actor, "critic": critic}
    with gm.watch(both, optimizers, run=tmp_path / "run", budget=None):
        for _ in range(4):
            x = torch.randn(8, 3)
            for optimizer in optimizers:
                optimizer.zero_grad()
            (-critic(torch.cat([x, actor(x)], 1)).mean()).backward()
            optimizers[1].zero_grad()
            critic(torch.cat([x, torch.randn(8, 1)], 1)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("skipped-step")
    assert run.newest_step == 3
    assert "meter/micro_batches" not in run.names()


def test_a_penalty_through_autograd_grad_is_no_backward(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for step in range(4):
            optimizer.zero_grad()
            for part in range(2):
                loss = losses(model, 10 * step + part)["value"]
                own = [p for name, p in model.named_parameters() if "actor" not in name]
                slopes = torch.autograd.grad(loss, own, create_graph=True)
                (loss + sum(slope.square().sum() for slope in slopes)).backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("skipped-step")
    assert run.newest_step == 3
    assert set(run.series("meter/micro_batches")[1]) == {2.0}


def test_a_gradient_of_zero_that_is_touched_was_not_dropped(tmp_path: Path) -> None:
    """A micro-batch without advantage, after it was seen that gradients are changed by hand."""
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for step in range(4):
            for part in range(2):
                advantage = 0.0 if step == 2 and part == 0 else 1.0
                (advantage * sum(losses(model, part).values())).backward()
                nan_to_num(model)
            optimizer.step()
            optimizer.zero_grad()
    run = gm.load(tmp_path / "run")
    assert not run.events("skipped-step")
    assert run.newest_step == 3


def compiled(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """One step, as people compile it; `backward` runs inside when the whole is compiled."""

    def with_clip() -> None:
        clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()

    def whole(x: Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step = {"step": optimizer.step, "clip": with_clip, "whole": whole}[kind]
    return torch.compile(step, backend="aot_eager")


def compiled_training(kind: str, folder: Path | None) -> tuple[list[Tensor], list[float]]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step, norms = compiled(kind, model, optimizer), []
    watched: Any = contextlib.nullcontext()
    if folder is not None:
        watched = gm.watch(model, optimizer, run=folder, budget=None)
    with watched:
        for _ in range(4):
            x = torch.randn(8, 5)
            if kind == "whole":
                step(x)
                continue
            model(x).square().mean().backward()
            norms.append(float(flat(model).norm()))
            step()
            optimizer.zero_grad()
    return [p.detach() for p in model.parameters()], norms


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["step", "clip", "whole"])
def test_a_compiled_step_is_measured_and_trains_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    without, _ = compiled_training(kind, None)
    weights, norms = compiled_training(kind, tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(without, weights, strict=True))
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert run.newest_step == 3
    assert list(run.series("grad/all/norm/update")[0]) == [0, 1, 2, 3]
    assert list(run.series("grad/all/cos_prev")[0]) == [1, 2, 3]
    assert len(run.events("clip-compiled")) == (kind == "clip")
    if norms and kind != "clip":
        assert list(run.series("grad/all/norm/raw")[1]) == pytest.approx(norms, rel=1e-5)


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """One period of a training with several optimizers: which of them each backward reaches, and
    which step after it; `rounds` is how many steps of the axis that is."""

    moves: tuple[tuple[str, str], ...]
    rounds: int
    learned_after: int = 1
    """Periods until the meter has seen whose turn it is."""


CYCLES = {
    "one loss": Cycle(moves=(("ab", "ab"),), rounds=1, learned_after=0),
    "one loss, b every other": Cycle(moves=(("ab", "a"), ("ab", "ab")), rounds=2),
    "one loss, b every third": Cycle(moves=(("ab", "a"), ("ab", "a"), ("ab", "ba")), rounds=3),
    "SAC": Cycle(moves=(("a", "a"), ("ab", "b")), rounds=1, learned_after=0),
    "SAC, actor first": Cycle(moves=(("ab", "b"), ("a", "a")), rounds=1, learned_after=0),
    "TD3": Cycle(moves=(("a", "a"), ("a", "a"), ("ab", "b")), rounds=2, learned_after=0),
    "TD3, the actor first": Cycle(
        moves=(("a", "a"), ("ab", "b"), ("a", "a")), rounds=2, learned_after=0
    ),
    "GAN without detach": Cycle(moves=(("ab", "a"), ("ab", "b")), rounds=1, learned_after=0),
    "GAN, two and one": Cycle(
        moves=(("ab", "a"), ("ab", "a"), ("ab", "b")), rounds=2, learned_after=5
    ),
    "own losses": Cycle(moves=(("a", "a"), ("b", "b")), rounds=1, learned_after=0),
    "three, one loss": Cycle(moves=(("abc", "a"), ("abc", "ab"), ("abc", "abc")), rounds=3),
}


class Legs(nn.Module):
    """A leg for each optimizer."""

    def __init__(self, names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(3, 2))

    def loss(self, names: str, seed: int) -> Tensor:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        return torch.stack([getattr(self, name)(x).square().mean() for name in names]).sum()


@pytest.mark.parametrize(("parts", "clip_all"), [(1, False), (1, True), (2, True)])
@pytest.mark.parametrize("name", CYCLES)
def test_optimizers_of_different_cadences_keep_the_axis_and_their_own_norms(
    name: str, parts: int, clip_all: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    cycle, periods = CYCLES[name], CYCLES[name].learned_after + 3
    names = sorted({letter for reached, _ in cycle.moves for letter in reached})
    model = Legs("".join(names))
    optimizers = {n: torch.optim.SGD(getattr(model, n).parameters(), lr=0.01) for n in names}
    norms: dict[str, list[float]] = {n: [] for n in names}
    with gm.watch(model, list(optimizers.values()), run=tmp_path / "run", budget=None) as meter:
        for period, (at, (reached, stepped)) in itertools.product(
            range(periods), enumerate(cycle.moves)
        ):
            model.zero_grad()
            for part in range(parts):
                model.loss(reached, 1000 * period + 10 * at + part).backward()
            meter.log(period=float(period))
            for n in stepped:
                norms[n].append(float(flat(getattr(model, n)).norm()))
            if clip_all:
                clip_grad_norm_([p for n in reached for p in getattr(model, n).parameters()], 0.1)
            for n in stepped:
                optimizers[n].step()
    run = gm.load(tmp_path / "run")
    assert not run.events("skipped-step")
    assert run.newest_step == cycle.rounds * periods - 1
    first = cycle.learned_after * cycle.rounds
    steps, logged = run.series("period")
    late = steps >= first
    assert list(logged[late]) == [step // cycle.rounds for step in steps[late]]
    for n in names:
        moved = [int(step) for step in run.series(f"grad/layer.{n}/norm/update")[0]]
        raw = dict(zip(*run.series(f"grad/layer.{n}/norm/raw"), strict=True))
        true = dict(zip(reversed(moved), reversed(norms[n]), strict=False))
        known = periods - max(cycle.learned_after, clip_all)
        assert len(moved) >= len(norms[n]) * known // periods
        assert all(raw[s] == pytest.approx(true[s], rel=1e-5) for s in moved if s >= first)


def test_the_two_backwards_of_sharpness_aware_minimisation_are_one_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    norms = []
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for step in range(5):
            sum(losses(model, step).values()).backward()
            moves = [0.05 * p.grad for p in model.parameters() if p.grad is not None]
            with torch.no_grad():
                torch._foreach_add_(list(model.parameters()), moves)
            optimizer.zero_grad()
            sum(losses(model, step).values()).backward()
            norms.append(float(flat(model).norm()))
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moves)
            optimizer.step()
            optimizer.zero_grad()
    run = gm.load(tmp_path / "run")
    assert not run.events()
    assert list(run.series("grad/all/norm/raw")[1]) == pytest.approx(norms, rel=1e-5)


def test_a_backward_thrown_away_before_every_step_is_part_of_it_once_that_is_seen(
    tmp_path: Path,
) -> None:
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for step in range(6):
            losses(model, step)["policy"].backward()  # somebody looks at it
            optimizer.zero_grad()
            losses(model, step)["value"].backward()
            optimizer.step()
            optimizer.zero_grad()
    run = gm.load(tmp_path / "run")
    assert [event.kind for event in run.events()] == ["skipped-step"] * 3 + ["backward-unused"]
    assert list(run.series("grad/all/norm/update")[0]) == [1, 3, 5, 6, 7, 8]


@pytest.mark.parametrize("free", [True, False])
def test_steps_inside_the_backward_are_steps(free: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Plain()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def step_with(p: Tensor) -> None:
        optimizers[p].step()  # type: ignore[index]
        if free:
            p.grad = None

    with gm.watch(model, list(optimizers.values()), run=tmp_path / "run", budget=None) as meter:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step_with)
        for step in range(9):
            model.zero_grad()
            sum(losses(model, step).values()).backward()
            meter.log(reward=float(step))
    run = gm.load(tmp_path / "run")
    assert not run.events()
    assert list(run.series("reward")[0]) == list(run.series("reward")[1]) == list(range(9))
    assert list(run.series("grad/all/norm/update")[0]) == list(range(9))


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_scaler_that_skips_one_of_two_optimizers_keeps_the_axis(
    order: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Legs("ab")
    optimizers = {n: torch.optim.SGD(getattr(model, n).parameters(), lr=0.01) for n in "ab"}
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with gm.watch(model, list(optimizers.values()), run=tmp_path / "run", budget=None) as meter:
        for step in range(9):
            overflow = torch.inf if step in (3, 7) else 1.0
            scaler.scale(overflow * model.loss("a", step) + model.loss("b", step)).backward()
            meter.log(reward=float(step))
            for n in order:
                scaler.step(optimizers[n])
            scaler.update()
            model.zero_grad()
    run = gm.load(tmp_path / "run")
    assert [event.step for event in run.events("skipped-step")] == [3, 7]
    assert list(run.series("reward")[0]) == list(run.series("reward")[1]) == list(range(9))
    assert list(run.series("grad/layer.a/norm/update")[0]) == [0, 1, 2, 4, 5, 6, 8]
    assert list(run.series("grad/layer.b/norm/update")[0]) == list(range(9))
