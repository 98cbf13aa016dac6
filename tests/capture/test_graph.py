"""Which layer feeds which: read off the graph, whatever the order in which layers are registered."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.capture import hooks
from gradiometer.capture.graph import layers_feeding
from gradiometer.doctor.rules.numbers import branches
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.signs import where
from gradiometer.store.layers import LayerGraph, _from_table, read_layers

NORM = "grad/<block>/norm/raw"


def mlp(*sizes: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        parts += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*parts[:-1])


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(4, 8, 8, 2), mlp(4, 8, 8, 1)


class HeadFirst(nn.Module):
    """Registered from the output to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(8, 2), mlp(4, 8, 8)
        self.between: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.between(torch.tanh(self.body(x))))
        return out


class Shrunk(torch.autograd.Function):
    """The same forwards, a millionth of the gradient backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 1e-6 * gradient


def trained(
    model: nn.Module, loss: Callable[[], Tensor], steps: int = 2, run: Path | None = None
) -> gm.Meter:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with gm.watch(model, optimizer, run=run, budget=None, quiet=True) as meter:
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return meter


def names(graph: LayerGraph) -> dict[str, set[str]]:
    return {
        name.removeprefix("layer."): {each.removeprefix("layer.") for each in below}
        for name, below in graph.fed_by.items()
    }


def feeding(model: nn.Module, loss: Tensor) -> dict[str, set[str]]:
    layer_of = {id(p): name.rpartition(".")[0] or name for name, p in model.named_parameters()}
    found = layers_feeding([loss.grad_fn], layer_of)
    assert found is not None
    return {name: set(below) for name, below in found.items()}


X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


def test_a_parallel_branch_with_small_gradients_is_not_lost() -> None:
    model = ActorCritic()
    meter = trained(
        model, lambda: 1e-6 * model.actor(X).sum() + 1e2 * model.critic(X).square().sum()
    )
    flow = meter.flow()
    assert flow.order == "graph"
    rms = {layer.name: layer.rms for layer in flow.layers}
    assert rms["layer.actor.4"] * 1e4 < rms["layer.critic.0"]  # type: ignore[operator]
    assert (flow.lost_at, flow.reason) == (None, "")
    feeds = {layer.name: layer.feeds for layer in flow.layers}
    assert feeds["layer.actor.4"] == ()
    assert feeds["layer.critic.2"] == ("layer.critic.4",)


@pytest.mark.parametrize(
    ("between", "reason"),
    [(Shrunk.apply, "more than 10,000"), (Tensor.detach, "no gradient arrives at all")],
)
def test_a_cut_is_seen_with_the_head_registered_first(between: Any, reason: str) -> None:
    model = HeadFirst()
    assert trained(model, lambda: model(X).square().sum()).flow().lost_at is None
    model.between = between
    flow = trained(model, lambda: model(X).square().sum()).flow()
    assert flow.lost_at == "layer.body.2"
    assert reason in flow.reason


def test_layers_are_in_the_order_of_the_graph_and_kept_with_the_run(tmp_path: Path) -> None:
    model = HeadFirst()
    meter = trained(model, lambda: model(X).square().sum(), steps=12, run=tmp_path / "run")
    wanted = ["layer.body.0", "layer.body.2", "layer.head"]
    assert [layer.name for layer in meter.flow().layers] == wanted
    with gm.load(tmp_path / "run") as run:
        assert list(read_layers(run).order) == wanted
        assert [[where(x) for x in chain] for chain in branches(RunData(run), NORM)] == [wanted]


def test_branches_of_one_module_are_networks_of_their_own(tmp_path: Path) -> None:
    """SB3's mlp_extractor holds the actor's and the critic's layers."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            nets = {"policy_net": mlp(4, 8, 8), "value_net": mlp(4, 8, 8)}
            self.mlp_extractor = nn.ModuleDict(nets)
            self.action_net, self.value_net = nn.Linear(8, 2), nn.Linear(8, 1)
            self.log_std = nn.Parameter(torch.zeros(2))

        def loss(self) -> Tensor:
            actor = self.action_net(torch.tanh(self.mlp_extractor["policy_net"](X)))
            critic = self.value_net(torch.tanh(self.mlp_extractor["value_net"](X)))
            return (actor / self.log_std.exp()).square().sum() + critic.square().sum()

    model = Policy()
    trained(model, model.loss, steps=12, run=tmp_path / "run")
    with gm.load(tmp_path / "run") as run:
        chains = [[where(x) for x in chain] for chain in branches(RunData(run), NORM)]
    part = "layer.mlp_extractor"
    assert [f"{part}.policy_net.0", f"{part}.policy_net.2", "layer.action_net"] in chains
    assert [f"{part}.value_net.0", f"{part}.value_net.2", "layer.value_net"] in chains
    assert ["layer.log_std"] in chains
    assert len(chains) == 3


def test_residual_streams_casts_tied_and_weight_only_layers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 4, bias=False)
            self.embed = nn.Embedding(4, 8)
            self.second, self.first = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.norm = nn.LayerNorm(8)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            x = x + self.first(x)
            with torch.autocast("cpu", torch.bfloat16):
                x = x + self.second(x)
            y: Tensor = self.out(self.norm(x.float()))
            return y

    model = Net()
    found = feeding(model, model(torch.arange(4)).sum())
    assert found["out"] == {"norm"}
    assert found["norm"] == {"second", "first", "embed"}
    assert found["second"] == {"first", "embed"}
    assert found["first"] == {"embed"}
    assert found["embed"] == set()


def test_a_frozen_layer_is_passed_through() -> None:
    model = mlp(4, 8, 8, 2)
    for p in model[2].parameters():
        p.requires_grad_(False)
    assert feeding(model, model(X).sum()) == {"4": {"0"}, "0": set()}


def test_a_recurrent_loop_has_an_order() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.cell, self.inner = nn.Linear(4, 1), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.tanh(self.cell(torch.tanh(self.inner(x))))
            y: Tensor = self.out(x)
            return y

    model = Loop()
    assert feeding(model, model(X).sum()) == {
        "out": {"cell"},
        "cell": {"inner"},
        "inner": {"cell"},
    }
    flow = trained(model, lambda: model(X).sum()).flow()
    assert [layer.name for layer in flow.layers] == ["layer.inner", "layer.cell", "layer.out"]
    assert flow.lost_at is None


def test_a_delayed_actor_is_found_when_it_comes() -> None:
    model = ActorCritic()
    optimizers = [
        torch.optim.SGD(part.parameters(), lr=1e-3) for part in (model.actor, model.critic)
    ]
    with gm.watch(model, optimizers, run=None, budget=None, quiet=True) as meter:
        for step in range(6):
            model.critic(X).square().sum().backward()
            optimizers[1].step()
            if step % 3 == 2:
                model.actor(X).sum().backward()
                optimizers[0].step()
            model.zero_grad()
        graph = meter._observer.layers.graph
    assert names(graph)["actor.2"] == {"actor.0"}
    assert names(graph)["critic.4"] == {"critic.2"}


def test_a_target_network_without_gradients_is_not_a_cut() -> None:
    model = nn.ModuleDict({"critic": mlp(4, 8, 1), "critic_target": mlp(4, 8, 1)})
    optimizer = torch.optim.SGD(model["critic"].parameters(), lr=1e-3)
    with gm.watch(model, optimizer, run=None, budget=None, quiet=True) as meter:
        (model["critic"](X) - model["critic_target"](X).detach()).square().sum().backward()
        optimizer.step()
        assert meter.flow().lost_at is None


@pytest.mark.slow
def test_a_model_compiled_into_one_node_keeps_the_order_of_registration() -> None:
    model = mlp(4, 8, 2)
    compiled = torch.compile(model, backend="aot_eager")
    flow = trained(model, lambda: compiled(X).square().sum()).flow()
    assert flow.order == "registration"
    assert [layer.name for layer in flow.layers] == ["layer.0", "layer.2"]


@pytest.mark.parametrize("terms", ["auto", "manual"])
def test_nothing_of_the_graph_is_kept_and_torch_is_as_it_was(terms: Any) -> None:
    original = torch.autograd.backward
    model, marks = HeadFirst(), list[weakref.ref[Any]]()

    class Marked(torch.autograd.Function):
        """What it holds lives as long as the graph does."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark = nn.Identity()
            marks.append(weakref.ref(ctx.mark))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    model.between = Marked.apply
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gm.watch(model, optimizer, run=None, budget=None, quiet=True, terms=terms):
        loss = model(X).square().sum()
        loss.backward()
        optimizer.step()
        (held,) = marks
        assert held() is not None
        del loss
        assert held() is None
    assert not hooks._root_listeners
    assert torch.autograd.backward is original


def test_layers_that_no_graph_has_stay_where_they_are_registered() -> None:
    graph = LayerGraph(
        registered=("a", "b", "c", "d"),
        fed_by={"a": frozenset("c"), "c": frozenset("d"), "d": frozenset()},
    )
    assert graph.order == ("d", "c", "a", "b")
    assert graph.chains() == [["d", "c", "a"]]
    assert graph.feeds == {"d": ["c"], "c": ["a"]}


def test_what_is_kept_reads_back_as_the_same_order() -> None:
    looped = LayerGraph(
        registered=("out", "cell", "inner", "idle"),
        fed_by={
            "out": frozenset(["cell"]),
            "cell": frozenset(["inner"]),
            "inner": frozenset(["cell"]),
        },
    )
    again = _from_table(looped.table())
    assert again is not None
    assert again.order == looped.order == ("inner", "cell", "out", "idle")
    assert (again.feeds, again.chains()) == (looped.feeds, looped.chains())
    for other in (None, [], {"order": 3}, {"order": ["a"], "fed_by": {}}, {"rows": [1]}):
        assert _from_table(other) is None
