"""The parts of a loss, as its graph has them: what is opened, what it is called, what it is not."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradiometer as gm
from gradiometer.capture import terms as splitting
from gradiometer.capture.frames import names_around
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.store.wiring import LossTerm, read_wiring

Loss = Callable[[nn.Module], Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.actor, self.critic = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class Watched:
    """A training of a few steps, each a call of `step` that goes backward itself."""

    def __init__(self, folder: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        options = {"budget": None, "quiet": True, **options}
        self.meter = gm.watch(self.model, self.optimizer, run=folder, **options)
        self.folder = folder

    def train(self, step: Callable[[Net], None], steps: int = 2) -> gm.Run:
        with self.meter:
            for _ in range(steps):
                self.optimizer.zero_grad()
                step(self.model)
                self.optimizer.step()
        run = gm.load(self.folder)
        assert not run.events("fault")
        return run


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "run")


def pieces(model: Net) -> tuple[Tensor, Tensor, Tensor]:
    """A policy's loss, a critic's and an entropy."""
    logits, values = model(torch.randn(16, 4))
    log_probs = logits.log_softmax(-1)
    policy = -(log_probs[:, 0] * torch.randn(16)).mean()
    return (
        policy,
        F.mse_loss(values, torch.randn(16)),
        -(log_probs.exp() * log_probs).sum(-1).mean(),
    )


def parts(run: gm.Run, step: int | None = None) -> dict[str, LossTerm]:
    return {term.name: term for term in read_wiring(run, step).terms}


def norms(run: gm.Run) -> set[str]:
    return {
        name.split("/")[3]
        for name in run.names()
        if name.startswith("grad/all/term/") and name.endswith("/norm")
    }


def test_a_sum_with_a_name_is_one_term(watched: Watched) -> None:
    def step(model: Net) -> None:
        logits, values = model(torch.randn(16, 4))
        delta = logits[:, 0] - 0.1
        kl = (torch.exp(delta) - delta - 1).mean()
        value_loss = values.square().mean()
        (value_loss + 0.1 * kl).backward()

    run = watched.train(step)
    assert norms(run) == {"kl", "value_loss"}
    assert parts(run)["kl"].coefficient == pytest.approx(0.1)


def test_a_function_of_one_value_is_not_opened_where_nothing_has_a_name(watched: Watched) -> None:
    def penalty(delta: Tensor) -> Tensor:
        return 0.1 * (torch.exp(delta) - delta - 1).mean()

    def step(model: Net) -> None:
        logits, values = model(torch.randn(16, 4))
        value_loss = values.square().mean()
        (value_loss + penalty(logits[:, 0] - 0.1)).backward()

    assert norms(watched.train(step)) == {"value_loss", "term-1"}


def test_what_a_distribution_says_of_actions_is_one_term(watched: Watched) -> None:
    """It is a square beside the logarithm of a deviation, and both come from that deviation."""

    def step(model: Net) -> None:
        logits, values = model(torch.randn(16, 4))
        spread = torch.distributions.Normal(values, logits[:, 0].exp())
        (-(torch.rand(16) * spread.log_prob(torch.randn(16))).mean()).backward()

    run = watched.train(step)
    assert len(parts(run)) == 1
    assert not norms(run)


def test_parts_of_each_sample_are_opened_below_a_mask_and_made_from_one_value(
    watched: Watched,
) -> None:
    """A policy and its entropy come from the same log-probabilities, and have no names."""

    def loss(model: Net) -> Tensor:
        logs = model(torch.randn(16, 4))[0].log_softmax(-1)
        mask = (torch.rand(16) < 0.7).float()
        gain = torch.tanh(logs[:, 0]) * torch.randn(16)
        return ((0.01 * (logs.exp() * logs).sum(-1) - gain) * mask).mean()

    run = watched.train(lambda model: loss(model).backward())
    assert len(parts(run)) == 2


def test_a_named_sum_of_named_losses_is_opened(watched: Watched) -> None:
    def step(model: Net) -> None:
        policy_loss, value_loss, entropy = pieces(model)
        actor_loss = policy_loss - 0.01 * entropy
        loss = actor_loss + 0.5 * value_loss
        loss.backward()

    assert norms(watched.train(step)) == {"policy_loss", "value_loss", "entropy"}


def test_what_was_broadcast_in_a_sum_is_summed(watched: Watched) -> None:
    def step(model: Net) -> None:
        logits, values = model(torch.randn(16, 4))
        rows, columns = logits[:, :1], values * 2
        (rows + columns).mean().backward()

    run = watched.train(step)
    assert norms(run) == {"rows", "columns"}
    _, errors = run.series("grad/all/term/additivity_error")
    assert (errors < 1e-6).all()


@pytest.mark.parametrize("how", ["no_grad", "detach", "item", "mean of detached"])
def test_an_entropy_without_a_gradient_is_named_at_the_first_step(
    how: str, watched: Watched
) -> None:
    def step(model: Net) -> None:
        ent_coef = 0.02
        policy_loss, value_loss, entropy = pieces(model)
        if how == "no_grad":
            with torch.no_grad():
                entropy = entropy * 1.0
        if how == "mean of detached":
            entropy = torch.stack([entropy, 2 * entropy]).detach()
        bonus = {"detach": entropy.detach(), "mean of detached": entropy.mean()}.get(how, entropy)
        bonus = bonus.item() if how == "item" else bonus
        (policy_loss + 0.5 * value_loss - ent_coef * bonus).backward()

    run = watched.train(step, 1)
    event = run.events("dead-term")[0]
    assert (event.step, event.detail["term"]) == (0, "entropy")
    entropy = parts(run)["entropy"]
    assert not entropy.alive
    assert entropy.coefficient == pytest.approx(-0.02)
    assert norms(run) == {"policy_loss", "value_loss"}


def test_a_literal_and_a_detached_baseline_are_no_dead_terms(watched: Watched) -> None:
    def step(model: Net) -> None:
        logits, values = model(torch.randn(16, 4))
        value = values.detach()
        kl_target = torch.tensor(0.3)
        gain = -(logits[:, 0] - value).mean()
        penalty = logits.square().mean()
        (gain + 0.1 * (penalty - kl_target) + 1e-3).backward()

    run = watched.train(step, 4)
    assert not run.events("dead-term")
    assert norms(run) == {"gain", "penalty"}


def test_a_coefficient_of_zero_is_said_and_not_measured(watched: Watched) -> None:
    def step(model: Net) -> None:
        policy_loss, value_loss, entropy_loss = pieces(model)
        (policy_loss + 0.0 * entropy_loss + 0.5 * value_loss).backward()

    run = watched.train(step, 8)
    assert norms(run) == {"policy_loss", "value_loss"}
    assert parts(run)["entropy_loss"].coefficient == 0.0
    assert not run.events("stationary-term")


def test_a_loss_of_one_part_costs_no_pass_and_has_no_series(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    honest = splitting.gradients

    def counting(*given: Any) -> Any:
        passes.append(1)
        return honest(*given)

    monkeypatch.setattr(splitting, "gradients", counting)

    def step(model: Net) -> None:
        loss = F.mse_loss(model(torch.randn(16, 4))[1], torch.randn(16))
        loss.backward()

    run = watched.train(step, 6)
    assert not norms(run)
    assert list(parts(run)["loss"].reaches) == ["critic", "trunk"]
    assert len(passes) == 1  # of the first step, when others might have followed


def test_a_model_that_adds_up_its_own_layers_is_not_opened(tmp_path: Path) -> None:
    class Dueling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.advantage = nn.Linear(4, 1), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            advantage = self.advantage(x)
            return self.value(x) + advantage - advantage.mean(-1, keepdim=True)

    torch.manual_seed(0)
    model = Dueling()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            (-model(torch.randn(8, 4)).mean()).backward()
            optimizer.step()
    assert not norms(gm.load(tmp_path / "run"))


def test_micro_batches_add_up(watched: Watched) -> None:
    def step(model: Net) -> None:
        for _ in range(3):
            policy_loss, value_loss, _ = pieces(model)
            ((policy_loss + 0.5 * value_loss) / 3).backward()

    run = watched.train(step)
    assert norms(run) == {"policy_loss", "value_loss"}
    assert parts(run)["value_loss"].coefficient == pytest.approx(0.5 / 3)
    assert (run.series("grad/all/term/additivity_error")[1] < 1e-5).all()


def test_the_loss_scale_of_half_precision_is_taken_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True) as meter:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                policy_loss, value_loss, _ = pieces(model)
                loss = policy_loss + 0.5 * value_loss
            by_hand = torch.autograd.grad(
                value_loss, list(model.critic.parameters()), retain_graph=True
            )
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    norm = 0.5 * torch.cat([g.flatten() for g in by_hand]).norm().item()
    assert meter._values["grad/critic/term/value_loss/norm"] == pytest.approx(norm, rel=0.02)
    assert meter._values["grad/all/term/scale"] == pytest.approx(1.0, abs=0.01)


def test_meter_terms_wins(watched: Watched) -> None:
    meter = watched.meter

    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        with meter.terms(pi=policy_loss, v=0.5 * value_loss) as loss:
            loss.backward()

    run = watched.train(step)
    assert norms(run) == {"pi", "v"}


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        (policy_loss + value_loss).backward()

    run = Watched(tmp_path / "run", terms="manual").train(step)
    assert not norms(run)
    assert "wiring" not in run.table_names()
    with pytest.raises(gm.UsageError, match="terms is one of 'auto', 'manual'"):
        Watched(tmp_path / "other", terms="never")


def test_a_hook_on_an_activation_is_called_once_and_such_steps_have_no_terms(
    watched: Watched,
) -> None:
    calls: list[int] = []

    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        value_loss.register_hook(lambda _: calls.append(1))
        (policy_loss + value_loss).backward()

    run = watched.train(step, 3)
    assert len(calls) == 3
    assert not norms(run)
    assert run.events("terms-hooked")


class Doubling(torch.autograd.Function):
    """A backward that does not bear to run twice: it changes what it has saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.scale = torch.ones(())
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        ctx.scale *= 2
        return gradient * ctx.scale


def test_a_backward_of_the_users_own_runs_once(watched: Watched) -> None:
    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        doubled: Tensor = Doubling.apply(value_loss)  # type: ignore[no-untyped-call]
        (policy_loss + doubled).backward()

    run = watched.train(step, 2)
    assert "Doubling" in run.events("terms-unmeasurable")[0].message
    assert not norms(run)
    assert set(parts(run)) == {"policy_loss", "doubled"}
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        step(model)
        optimizer.step()
    pairs = zip(model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_walked_through_or_left_alone(reentrant: bool, watched: Watched) -> None:
    def step(model: Net) -> None:
        x = torch.randn(16, 4, requires_grad=True)
        hidden = checkpoint(model.trunk, x, use_reentrant=reentrant)
        policy_loss = model.actor(hidden).square().mean()
        value_loss = model.critic(hidden).square().mean()
        (policy_loss + value_loss).backward()

    run = watched.train(step)
    assert norms(run) == (set() if reentrant else {"policy_loss", "value_loss"})
    assert bool(run.events("terms-unmeasurable")) is reentrant
    assert set(parts(run)) == {"policy_loss", "value_loss"}


def test_anomaly_mode_and_hooks_on_saved_tensors_change_nothing(watched: Watched) -> None:
    def step(model: Net) -> None:
        with (
            torch.autograd.set_detect_anomaly(True),
            torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x),
        ):
            policy_loss, value_loss, _ = pieces(model)
            (policy_loss + 0.5 * value_loss).backward()

    assert norms(watched.train(step)) == {"policy_loss", "value_loss"}


def test_gradients_changed_before_the_step_are_no_reason_to_doubt_the_parts(
    watched: Watched,
) -> None:
    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        (policy_loss + 0.5 * value_loss).backward()
        for p in model.parameters():
            p.grad += torch.randn_like(p)  # type: ignore[operator]

    run = watched.train(step, 4)
    steps, _ = run.series("grad/all/term/policy_loss/norm")
    assert steps.tolist() == [1, 2, 3]  # from the second on the whole is taken, too
    assert not run.events("terms-not-additive")


def test_parts_that_do_not_add_up_are_not_kept(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = splitting.gradients

    def wrong(term: Any, parameters: Any) -> Any:
        found = honest(term, parameters)
        name = getattr(term, "name", "")
        return [g if g is None or name != "value_loss" else 1.01 * g for g in found]

    monkeypatch.setattr(splitting, "gradients", wrong)

    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        (policy_loss + 0.5 * value_loss).backward()

    run = watched.train(step, 4)
    assert not norms(run)
    assert len(run.events("terms-not-additive")) == 1


def test_a_graph_that_cannot_be_read_stops_nothing_else(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise ValueError("no such node")

    monkeypatch.setattr("gradiometer.capture.schematic.read", failing)

    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        (policy_loss + value_loss).backward()

    run = watched.train(step)
    assert "no such node" in run.events("terms-unmeasurable")[0].message
    assert len(run.series("grad/all/norm/raw")[0]) == 2


def test_a_backward_of_another_model_is_not_ours(watched: Watched) -> None:
    other = nn.Linear(4, 2)

    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        (policy_loss + value_loss).backward()
        one, two = other(torch.randn(8, 4)).unbind(1)
        (one.mean() + two.square().mean()).backward()

    assert norms(watched.train(step)) == {"policy_loss", "value_loss"}


@pytest.mark.slow
def test_nothing_of_a_step_is_kept_through_frames(watched: Watched) -> None:
    alive: list[weakref.ref[Tensor]] = []

    def step(model: Net) -> None:
        policy_loss, value_loss, _ = pieces(model)
        alive.append(weakref.ref(policy_loss))
        loss = policy_loss + value_loss
        loss.backward()

    with watched.meter:
        for _ in range(3):
            watched.optimizer.zero_grad()
            policy_loss, value_loss, _ = pieces(watched.model)
            alive.append(weakref.ref(policy_loss))
            (policy_loss + value_loss).backward()
            watched.optimizer.step()
            del policy_loss, value_loss, _
            gc.collect()
            assert alive[-1]() is None
            watched.optimizer.zero_grad()
            step(watched.model)
            watched.optimizer.step()
    assert [reference() for reference in alive] == [None] * 6


@pytest.mark.slow
@pytest.mark.parametrize("steps", [150, pytest.param(2_000, marks=pytest.mark.proof)])
def test_memory_is_flat_over_many_steps(tmp_path: Path, steps: int) -> None:
    """Every step is split; what lives after the last is what lived after the first fifty."""
    watched = Watched(tmp_path / "run", terms_every=1, tier="light")
    counts: list[int] = []
    with watched.meter:
        for number in range(steps):
            watched.optimizer.zero_grad()
            policy_loss, value_loss, entropy = pieces(watched.model)
            loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
            loss.backward()
            watched.optimizer.step()
            if number in (49, steps - 1):
                gc.collect()
                counts.append(sum(isinstance(x, Tensor) for x in gc.get_objects()))
    assert counts[0] == counts[1]


def test_blocks_come_from_what_the_parts_reach(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(4, 8), "b": nn.Linear(8, 3), "c": nn.Linear(8, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=None, budget=None, quiet=True) as meter:
        hidden = torch.tanh(model["a"](torch.randn(8, 4)))
        pg_loss = -(model["b"](hidden).log_softmax(-1)[:, 0] * torch.randn(8)).mean()
        v_loss = model["c"](hidden).square().mean()
        (pg_loss + 0.5 * v_loss).backward()
        optimizer.step()
        named = {name: meter.blocks.named[name] for name in ("trunk", "actor", "critic")}
    assert named == {"trunk": (0, 1), "actor": (2, 3), "critic": (4, 5)}


@pytest.mark.parametrize("every", [1, 2, 3])
def test_an_actor_s_loss_after_its_critic_has_stepped_is_of_the_same_round(
    every: int, tmp_path: Path
) -> None:
    """With gaps between measured steps it was left out, and a healthy SAC was told of a term that
    is hidden."""
    torch.manual_seed(0)
    models = {"actor": nn.Linear(3, 2), "critic": nn.Linear(5, 1)}
    optimizers = {name: torch.optim.Adam(each.parameters()) for name, each in models.items()}
    with gm.watch(models, optimizers, run=tmp_path / "run", quiet=True, every=every, budget=None):
        for _ in range(8):
            seen, goal = torch.randn(16, 3), torch.randn(16)
            worth = models["critic"](torch.cat((seen, torch.randn(16, 2)), -1)).squeeze(-1)
            critic_loss = (worth - goal).square().mean() + 0.01 * worth.square().mean()
            optimizers["critic"].zero_grad()
            critic_loss.backward()
            optimizers["critic"].step()
            acted = models["actor"](seen).tanh()
            effort, hope = acted.square().mean(), models["critic"](torch.cat((seen, acted), -1))
            actor_loss = 0.1 * effort - hope.mean()
            optimizers["actor"].zero_grad()
            actor_loss.backward()
            optimizers["actor"].step()
    with gm.load(tmp_path / "run") as run:
        assert {"effort", "hope"} <= norms(run)
        steps, errors = run.series("grad/all/term/additivity_error")
        assert steps.tolist() == [step for step in range(8) if step % every == 0][:5]
        assert errors.max() < 1e-5


def test_what_is_cleared_once_its_optimizer_has_stepped_was_in_the_gradient(tmp_path: Path) -> None:
    """A model of the world clears its gradients at once, as the actor's loss goes through it."""
    torch.manual_seed(0)
    models = {"world": nn.Linear(5, 3), "actor": nn.Linear(3, 2)}
    world, actor = (torch.optim.Adam(each.parameters()) for each in models.values())
    with gm.watch(models, [world, actor], run=tmp_path / "run", quiet=True, budget=None):
        for _ in range(4):
            seen, acted = torch.randn(16, 3), torch.randn(16, 2)
            told = models["world"](torch.cat((seen, acted), -1))
            state_loss = (told[:, :2] - torch.randn(16, 2)).square().mean()
            reward_loss = (told[:, 2] - torch.randn(16)).square().mean()
            (state_loss + reward_loss).backward()
            world.step()
            world.zero_grad()
            acted = models["actor"](seen).tanh()
            actor_loss = -models["world"](torch.cat((seen, acted), -1))[:, 2].mean()
            actor.zero_grad()
            actor_loss.backward()
            actor.step()
            world.zero_grad()
    with gm.load(tmp_path / "run") as run:
        assert {"state_loss", "reward_loss"} <= norms(run)
        assert "dead-term" not in {each.id for each in diagnose(run).findings}


RANKS = """
import sys
import torch
from torch import nn
import gradiometer as gm

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if world > 1:
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
model = nn.parallel.DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randn(3, 8, 4)
with gm.watch(model, optimizer, run=folder, budget=None, quiet=True):
    for batch in rows:
        mine = batch[rank * 8 // world : (rank + 1) * 8 // world]
        out = model(mine)
        policy_loss, value_loss = out[:, 0].mean(), out[:, 1].square().mean()
        loss = policy_loss + 0.5 * value_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_two_ranks_have_the_terms_of_the_averaged_gradient(
    ranks: Callable[..., Any], tmp_path: Path
) -> None:
    for world in (1, 2):
        ranks(RANKS, world, tmp_path / str(world))
    one, two = (gm.load(tmp_path / str(world)) for world in (1, 2))
    assert norms(two) == {"policy_loss", "value_loss"}
    assert not two.events("ranks-differ")
    for name in (
        "policy_loss/norm",
        "value_loss/norm",
        "value_loss/loss",
        "policy_loss~value_loss/cos",
    ):
        ours, theirs = (run.series(f"grad/all/term/{name}") for run in (two, one))
        assert ours[0].tolist() == theirs[0].tolist() == [0, 1, 2]
        assert ours[1] == pytest.approx(theirs[1], rel=1e-4)
    assert parts(two)["value_loss"].coefficient == 0.5


def test_the_locals_that_a_program_asked_for_stay_as_they_are() -> None:
    mine = torch.ones(1)
    held = locals()
    names_around(sys._getframe())
    assert held["mine"] is mine


class CountedList(list[Any]):
    """Counts how often somebody walks it from its first item to its last."""

    walks = 0

    def __iter__(self) -> Any:
        self.walks += 1
        return super().__iter__()


def test_a_script_s_history_of_numbers_is_not_walked_and_a_long_list_of_losses_is() -> None:
    x = torch.ones(1, requires_grad=True)
    returns = CountedList([0.5] * 4_000)
    history = {"loss": CountedList([0.1] * 300), "token": [x * n for n in range(300)]}
    late = [0, *(x * n for n in range(100))]  # noqa: F841 - read off this frame
    found = {each.name for each in names_around(sys._getframe()).tensors}
    assert {"token-0", "token-299", "late-1", "late-100"} <= found
    assert returns.walks == history["loss"].walks == 0  # type: ignore[attr-defined]


def test_what_a_meter_holds_is_no_name_of_the_program() -> None:
    x = torch.ones(1, requires_grad=True)
    holder = type("Holder", (), {"__module__": "gradiometer.capture.meter"})()
    other = type("Other", (), {"__module__": "gradiometer_labs.lab"})()
    holder.ours, other.theirs = x * 2, x * 3
    found = {each.name for each in names_around(sys._getframe()).tensors}
    assert "theirs" in found
    assert "ours" not in found
