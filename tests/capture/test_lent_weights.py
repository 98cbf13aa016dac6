"""A critic that gets its weights for one call (torchrl): what it says is heard all the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gradiometer.capture.rollouts import CriticListener


def critic() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 1))


def lent(net: nn.Module) -> dict[str, Tensor]:
    return {name: torch.randn_like(each) for name, each in net.named_parameters()}


def heard(listener: CriticListener, rows: Tensor) -> list[float | None]:
    return [listener.values.get(row.numpy().tobytes()) for row in rows]


def test_a_critic_with_lent_weights_is_heard_one_set_at_a_time_and_several_at_once() -> None:
    net, listener = critic(), CriticListener(list)
    weights, seen, following = lent(net), torch.randn(9, 3), torch.randn(9, 3)
    listener.learn([weights["2.weight"]], 3)
    assert listener.listening
    alone = functional_call(net, weights, (seen,))
    assert heard(listener, seen) == alone.reshape(-1).tolist()
    listener.forget()
    both = {name: torch.stack([each, each]) for name, each in weights.items()}
    data = torch.stack([seen, following])
    said = vmap(lambda own, x: functional_call(net, own, (x,)))(both, data)
    assert heard(listener, seen) == said[0].reshape(-1).tolist()
    assert heard(listener, following) == said[1].reshape(-1).tolist()
    listener.stop()
    functional_call(net, weights, (seen,))
    assert not listener.values


def test_other_weights_in_the_same_layers_are_not_the_critic_s() -> None:
    net, listener = critic(), CriticListener(list)
    listener.learn([lent(net)["2.weight"]], 3)
    functional_call(net, lent(net), (torch.randn(9, 3),))
    assert not listener.values
    listener.stop()


def test_a_process_is_searched_for_such_layers_once() -> None:
    listener = CriticListener(list)
    listener.learn([torch.randn(1, 5)], 3)
    assert not listener.listening
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    listener.learn([net[1].weight], 3)
    assert not listener.listening
