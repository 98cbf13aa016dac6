"""Clips are seen by closure, and by name where the closure is not the one we know."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from gradiometer.capture import hooks
from gradiometer.capture.rollouts import CriticListener


class Listener:
    def __init__(self) -> None:
        self.calls: list[tuple[str, hooks.ClipCall]] = []

    def before_clip(self, call: hooks.ClipCall) -> None:
        self.calls.append(("before", call))

    def after_clip(self, call: hooks.ClipCall) -> None:
        self.calls.append(("after", call))


@pytest.fixture
def layer() -> nn.Linear:
    made = nn.Linear(3, 1)
    made(torch.ones(1, 3)).sum().backward()
    return made


@pytest.mark.parametrize("closure_known", [True, False])
def test_both_ways_of_observing_see_norm_and_value_clips(
    closure_known: bool, layer: nn.Linear, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not closure_known:
        monkeypatch.setattr(hooks, "fill_closure", lambda *_: None)
    originals = (
        clip_grad._clip_grads_with_norm_,
        torch.nn.utils.clip_grads_with_norm_,
        torch.nn.utils.clip_grad_value_,
    )
    listener = Listener()
    remove = hooks.observe_clips(listener)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
    torch.nn.utils.clip_grads_with_norm_(layer.weight, 0.5, torch.tensor(2.0))
    torch.nn.utils.clip_grad_value_(layer.parameters(), 0.1)
    remove()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
    assert [when for when, _ in listener.calls] == ["before", "after"] * 3
    assert [
        (call.kind, call.threshold, len(call.parameters))
        for when, call in listener.calls
        if when == "after"
    ] == [
        ("norm", 0.5, 2),
        ("norm", 0.5, 1),
        ("value", 0.1, 2),
    ]
    now = (
        clip_grad._clip_grads_with_norm_,
        torch.nn.utils.clip_grads_with_norm_,
        torch.nn.utils.clip_grad_value_,
    )
    assert now == originals


def test_the_clip_itself_gives_what_it_gave_before(layer: nn.Linear) -> None:
    reference = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    expected = torch.nn.utils.get_total_norm(reference)
    remove = hooks.observe_clips(Listener())
    total = torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
    remove()
    assert torch.equal(total, expected)
    for p, before in zip(layer.parameters(), reference, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, before * (0.5 / (expected + 1e-6)))


def test_one_patch_serves_all_listeners_until_the_last_one_leaves(layer: nn.Linear) -> None:
    first, second = Listener(), Listener()
    remove_first, remove_second = hooks.observe_clips(first), hooks.observe_clips(second)
    remove_first()
    remove_first()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
    remove_second()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
    assert len(first.calls) == 0
    assert len(second.calls) == 2


def test_the_optimizer_inside_a_wrapper_is_found() -> None:
    inner = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)

    class Wrapper:
        optimizer: Any = inner

    assert hooks.unwrap(Wrapper()) is inner
    with pytest.raises(TypeError, match="int"):
        hooks.unwrap(3)


@pytest.mark.parametrize("listens", [True, False])
def test_only_hooks_of_others_count_and_a_list_that_is_called_hooks_is_no_table(
    layer: nn.Linear, listens: bool
) -> None:
    vars(layer)["their_hooks"] = [10**9]  # some models have such lists
    mark = hooks.HookMark.now()
    if listens:
        hooks.observe_layer(layer, lambda given, said: None)
    assert not hooks.hooked_since(mark, [layer])
    layer.register_forward_hook(lambda *given: None)
    assert not hooks.hooked_since(mark, [layer])  # on a module whose hooks are known
    activation = layer(torch.ones(1, layer.in_features))
    activation.register_hook(lambda gradient: None)
    assert hooks.hooked_since(mark, [layer])


def test_the_process_is_not_searched_for_hooks_where_only_ours_are_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the critic's listener come and go before the first loss: a search takes 0.1 s in a
    small program, and half a second beside transformers."""

    def searched() -> list[object]:
        raise AssertionError("the whole process was searched")

    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    listener = CriticListener(lambda: [critic])
    mark = hooks.HookMark.now()
    removes = [
        hooks.observe_forward(critic, lambda output, trained: None),
        hooks.observe_layer(critic[0], lambda given, said: None),
    ]
    listener.expect(lambda: 4)
    critic(torch.ones(1, 4))
    listener.expect_no_more()
    listener.learn([critic[2].weight], 4)
    monkeypatch.setattr(hooks.gc, "get_objects", searched)
    assert not hooks.hooked_since(mark)
    listener.stop()
    for remove in removes:
        remove()
    assert not any(part._forward_hooks for part in critic.modules())


class Told:
    def before_backward(self) -> None:
        self.before = sum(range(3))

    def after_backward(self, reached: frozenset[int]) -> None:
        self.reached = sorted(reached)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_that_goes_backward_compiles_nothing_of_the_listener(
    layer: nn.Linear,
) -> None:
    listener, tried = Told(), list[types.CodeType]()

    def seen(graph: torch.fx.GraphModule, _: Any) -> Any:
        return graph.forward

    @torch.compile(backend=seen)
    def step(x: Tensor) -> None:
        layer(x).sum().backward()

    remove = hooks.observe_backward(list(layer.parameters()), listener)
    torch._dynamo.reset()
    frames = torch._dynamo.convert_frame.input_codes
    try:
        step(torch.ones(2, 3))
        tried += [held() for held in frames.seen]
    finally:
        remove()
        torch._dynamo.reset()
    assert listener.reached == [0, 1]
    names = {(code.co_filename, code.co_name) for code in tried if code is not None}
    assert (__file__, "step") in names
    ours = {(__file__, "before_backward"), (__file__, "after_backward")}
    assert not names & ours
    assert hooks.__file__ not in {file for file, _ in names}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_reader_without_a_graph_leaves_autograd_as_it_was_also_when_it_raises(
    enabled: bool,
) -> None:
    @hooks.without_graph
    def read(fails: bool) -> bool:
        if fails:
            raise KeyError("gone")
        return torch.is_grad_enabled()

    with torch.set_grad_enabled(enabled):
        assert not read(False)
        assert torch.is_grad_enabled() == enabled
        with pytest.raises(KeyError):
            read(True)
        assert torch.is_grad_enabled() == enabled


def test_hooks_of_ours_are_nobody_elses(layer: nn.Linear) -> None:
    mark = hooks.HookMark.now()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    listener: Any = Told()
    removers = [
        hooks.observe_backward(list(layer.parameters()), listener),
        hooks.observe_optimizer(optimizer, listener),
    ]
    assert hooks.HookMark.now().not_ours == mark.not_ours
    layer.weight.register_hook(lambda _: None)
    assert hooks.HookMark.now().not_ours == mark.not_ours + 1
    for remove in removers:
        remove()
