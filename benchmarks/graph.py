"""What reading the graph of a loss costs: a backward that is not split, and a step that is.

    python -m benchmarks.graph

Both sides are timed in turns, in one process, and compared by their medians.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

import gradiometer as gm

STEPS, ROUNDS, CALLS = 40, 3, 2_000


class ActorCritic(nn.Module):
    """Two hidden layers of 64, as Stable-Baselines3 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and values."""
        hidden = self.trunk(x)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def train(steps: int, *, by_hand: bool = False, **options: Any) -> list[float]:
    """Seconds of each `backward()`, under a meter or (without options) alone."""
    torch.manual_seed(0)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters())
    meter = gm.watch(model, optimizer, run=None, quiet=True, **options) if options else None
    taken: list[float] = []
    for _ in range(steps):
        logits, values = model(torch.randn(256, 8))
        log_probs = logits.log_softmax(-1)
        policy_loss = -(log_probs[:, 0] * torch.randn(256)).mean()
        value_loss = values.square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        optimizer.zero_grad()
        started = time.perf_counter()
        if by_hand and meter is not None:
            with meter.terms(
                policy=policy_loss, value=0.5 * value_loss, entropy=-0.01 * entropy
            ) as loss:
                loss.backward()  # type: ignore[no-untyped-call]
        else:
            (policy_loss + 0.5 * value_loss - 0.01 * entropy).backward()
        taken.append(time.perf_counter() - started)
        optimizer.step()
    if meter is not None:
        meter.close()
    return taken


def checks(source: Any) -> float:
    """Seconds of a tiny backward of its own, beside a meter that measures nothing of it."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters())
    with gm.watch(model, optimizer, run=None, quiet=True, every=1_000_000, terms=source):
        for _ in range(2):  # the first step is measured
            model(torch.randn(8, 8))[1].sum().backward()
            optimizer.step()
        weight = torch.ones((), requires_grad=True)
        started = time.perf_counter()
        for _ in range(CALLS):
            (2.0 * weight).backward()  # type: ignore[no-untyped-call]
        return (time.perf_counter() - started) / CALLS


def main() -> None:
    """Print both."""
    bare: list[float] = []
    idle: dict[str, list[float]] = {"auto": [], "manual": []}
    split: dict[str, list[float]] = {"nothing": [], "meter.terms": [], "the graph": []}
    for _ in range(ROUNDS):
        bare += train(STEPS)[10:]
        for source in ("auto", "manual"):
            idle[source].append(checks(source))
        deep: dict[str, Any] = {"tier": "deep", "budget": None}
        split["nothing"] += train(STEPS, terms="manual", **deep)[10:]
        split["meter.terms"] += train(STEPS, by_hand=True, **deep)[10:]
        split["the graph"] += train(STEPS, terms="auto", **deep)[10:]
    check = 1e6 * (statistics.median(idle["auto"]) - statistics.median(idle["manual"]))
    print(f"a backward that is not measured: {check:.2f} us more")
    print(f"backward of an actor-critic alone: {1e6 * statistics.median(bare):.0f} us")
    for source, seconds in split.items():
        print(f"measured, split by {source}: {1e6 * statistics.median(seconds):.0f} us")


if __name__ == "__main__":
    main()
