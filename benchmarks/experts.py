"""What one look at experts costs (tiers, products, routing, the row) against a training step, and
against lists in Python.

Eight layers of eight experts, 4.2M weights, top-2, attention left out. A look costs what it costs,
whatever the batch, so its share of a step falls with the tokens; at the default cadence of ten
steps the average share is a tenth of these. The alternative is what loops of this kind usually do:
turn every gradient and weight into a Python list, sort the weights, and add up squares one by one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import gradiometer as gm
from benchmarks.rows import Row, Scale, clock, counted, measured
from benchmarks.timing import in_turns

__all__ = ["rows"]

LAYERS, EXPERTS, WIDTH, HIDDEN = 8, 8, 128, 256
TOKENS, MANY_TOKENS = 4096, 16_384


class Routed(nn.Module):
    """Attention left out: what is here is what a mixture of experts adds, so the share is an upper
    bound."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
            for _ in range(EXPERTS)
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

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Routed() for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Through all layers."""
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x


class Training:
    """One training, watched or not, a step at a time."""

    def __init__(
        self, experts: bool | None, run: Path | None = None, *, tokens: int, layers: int
    ) -> None:
        torch.manual_seed(0)
        self.model = Model(layers)
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


def storage(looks: int, layers: int) -> tuple[float, int]:
    """Bytes per value of a run that holds expert series only, and how many values."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        training = Training(True, run, tokens=64, layers=layers)
        training.step()
        assert training.meter is not None
        for step in range(1, looks):
            training.meter.log_gradient_dynamics(step=step)
        training.meter.close()
        with gm.load(run) as opened:
            count = sum(len(opened.series(name)[0]) for name in opened.names())
        return (run / "run.db").stat().st_size / count, count


def rows(scale: Scale) -> Iterator[Row]:
    """The share of the step, the ratio to lists, the bytes."""
    few, many = scale.of((TOKENS, MANY_TOKENS), (64, 128))
    layers = scale.of(LAYERS, 1)
    short, long, watched = (
        Training(None, tokens=few, layers=layers),
        Training(None, tokens=many, layers=layers),
        Training(True, tokens=few, layers=layers),
    )
    watched.step()
    taken = in_turns(
        {
            "few": short.step,
            "many": long.step,
            "look": lambda: look(watched),
            "lists": lambda: tiers_in_python(watched.model),
        },
        rounds=scale.rounds(),
        warm_up=scale.of(1, 0),
    )
    assert watched.meter is not None
    watched.meter.close()
    for tokens, name in ((TOKENS, "few"), (MANY_TOKENS, "many")):
        share, told = (
            100 * taken["look"] / taken[name],
            clock({"step": taken[name], "look": taken["look"]}, "step", "look"),
        )
        yield measured(
            f"a look, of a step of {tokens:,} tokens", share, unit="%", at_most=3, note=told
        )
    told = clock(taken, "lists")
    yield measured(
        "the tiers with Python lists / a look",
        taken["lists"] / taken["look"],
        at_least=20,
        note=told,
    )
    size, count = storage(scale.of(200, 5), layers)
    yield counted("storage of a value", size, unit="bytes", at_most=30, note=f"{count:,} values")
