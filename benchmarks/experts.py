"""What looking at experts costs: against the training step, and against lists of numbers in Python.

Eight layers of eight experts, top-2 of 4,096 and of 16,384 tokens a step. The alternative is what loops of this kind usually
do: turn every gradient and weight into a Python list, sort the weights, and add up squares one by one.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import gradiometer as gm
from benchmarks.timing import in_turns

__all__ = ["main"]

LAYERS, EXPERTS, WIDTH, HIDDEN = 8, 8, 128, 256
TOKENS, MANY_TOKENS = 4096, 16_384


class Routed(nn.Module):
    """Attention left out: what is here is what a mixture of experts adds, so the share is an upper bound."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(EXPERTS)
        )
        self.top_k = 2

    def forward(self, x: Tensor) -> Tensor:
        """The two best experts of each token, weighted."""
        best = self.gate(x).softmax(-1).topk(self.top_k, -1)
        weights = best.values / best.values.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, place = (best.indices == e).nonzero(as_tuple=True)
            out = out.index_add(0, token, weights[token, place, None] * expert(x[token]))
        return out


class Model(nn.Module):
    """A stack of normalised residual layers of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Routed() for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        """Through all layers."""
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x


class Training:
    """One training, watched or not, a step at a time."""

    def __init__(self, experts: bool | None, run: Path | None = None, tokens: int = TOKENS) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(tokens, WIDTH)
        self.meter = None
        if experts is not None:
            self.meter = gm.watch(
                self.model,
                self.optimizer,
                run=run,
                budget=None,
                every=1,
                experts=None if experts else False,
                experts_every=1,
            )

    def step(self) -> None:
        """Forward, backward, step."""
        self.optimizer.zero_grad()
        (self.model(self.data) - self.data.flip(0)).square().mean().backward()
        self.optimizer.step()


def tiers_in_python(model: Model) -> float:
    """The same tier norms with lists: what the benchmark is to beat."""
    total = 0.0
    for layer in model.layers:
        for expert in layer.experts:  # type: ignore[union-attr]
            for parameter in expert.parameters():
                sizes = [abs(w) for w in parameter.detach().reshape(-1).tolist()]
                assert parameter.grad is not None
                grads = parameter.grad.reshape(-1).tolist()
                m = max(1, int(len(sizes) * 0.05))
                ordered = sorted(sizes)
                low, high = ordered[m - 1], ordered[-m]
                top = sum(g * g for g, s in zip(grads, sizes, strict=True) if s >= high)
                bottom = sum(g * g for g, s in zip(grads, sizes, strict=True) if s <= low)
                middle = sum(g * g for g, s in zip(grads, sizes, strict=True) if low < s < high)
                total += top + bottom + middle
    return total


def look(training: Training) -> None:
    """One look at all experts, routing and sync included, and the row into the store."""
    assert training.meter is not None
    training.meter.log_gradient_dynamics()


def storage() -> tuple[float, int]:
    """Bytes per value of a run that holds expert series only, and how many values."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        training = Training(True, run)
        training.step()
        assert training.meter is not None
        for step in range(1, 200):
            training.meter.log_gradient_dynamics(step=step)
        training.meter.close()
        opened = gm.load(run)
        count = sum(len(opened.series(name)[0]) for name in opened.names())
        return (run / "run.db").stat().st_size / count, count


def main() -> None:
    """The share of the step, the ratio to lists, the bytes."""
    torch.set_num_threads(1)
    bare, many, watched = Training(None), Training(None, tokens=MANY_TOKENS), Training(True)
    for training in (bare, watched):
        training.step()
    count = sum(p.numel() for name, p in watched.model.named_parameters() if "experts" in name)
    steps = {"step": bare.step, "many": many.step, "look": lambda: look(watched)}
    taken = in_turns(steps, rounds=10, warm_up=1, calls=2)
    started = time.perf_counter()
    tiers_in_python(watched.model)
    lists = time.perf_counter() - started
    print(f"{LAYERS} layers × {EXPERTS} experts, {count:,} weights, top-2, one thread")
    print(f"  one look at the experts          {taken['look'] * 1e3:9.2f} ms")
    for tokens, seconds in ((TOKENS, taken["step"]), (MANY_TOKENS, taken["many"])):
        share = f"look = {taken['look'] / seconds:.2%} of it   target ≤ 3 %"
        print(f"  training step of {tokens:6} tokens   {seconds * 1e3:9.1f} ms   {share}")
    ratio = f"look = 1/{lists / taken['look']:.0f} of it   target ≤ 1/20"
    print(f"  the same tiers with Python lists {lists * 1e3:9.1f} ms   {ratio}")
    bytes_per_value, values = storage()
    print(f"  storage                          {bytes_per_value:9.1f} bytes per value, {values:,} values   target ≤ 30")


if __name__ == "__main__":
    main()
