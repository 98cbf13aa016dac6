"""Every number of a step that the catalogue names, of every block and layer, from its definition.

The training keeps its gradients, weights, micro-batches and terms in float64; scipy has the robust
slope and the rank correlation. tests/capture/test_mixes.py has fewer numbers and more trainings.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import gradiometer as gm

STEPS, PARTS, SKETCH = 51, 2, 4096
NAMED = ("all", "actor", "critic", "shared")
Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Gradients: TypeAlias = dict[str, Vector]


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 50), nn.Tanh())
        self.actor, self.critic = nn.Linear(50, 4), nn.Linear(50, 1)

    def terms(self, x: Tensor, advantages: Tensor) -> dict[str, Tensor]:
        h = self.trunk(x)
        log_probs = self.actor(h).log_softmax(-1)
        return {
            "policy": -(log_probs[:, 0] * advantages).mean() / PARTS,
            "value": 0.5 * (self.critic(h) - 1).square().mean() / PARTS,
            "entropy": 0.01 * (log_probs.exp() * log_probs).sum(-1).mean() / PARTS,
        }


@dataclass
class Step:
    """What one step was made of."""

    raw: Gradients
    seen: Gradients
    before: Gradients
    moved: Gradients
    parts: list[Gradients]
    terms: dict[str, Gradients]
    rates: dict[str, float]


@dataclass
class Numbers:
    """What is expected by name and step: a number, how far it may be off, or None for absent."""

    found: dict[str, dict[int, float]]
    step: int = 0
    kinds: set[str] = field(default_factory=set)

    def expect(
        self, name: str, value: float | None, *, rel: float = 1e-4, off: float = 1e-6
    ) -> None:
        self.kinds.add(name.split("/", 2)[-1])
        expected = None if value is None else pytest.approx(float(value), rel=rel, abs=off)
        assert self.found.get(name, {}).get(self.step) == expected, (name, self.step)


def optimizer_of(model: Policy, kind: str) -> torch.optim.Optimizer:
    heads = [*model.actor.parameters(), *model.critic.parameters()]
    groups = [{"params": list(model.trunk.parameters()), "lr": 1e-2}, {"params": heads, "lr": 3e-3}]
    return torch.optim.AdamW(groups) if kind == "adamw" else torch.optim.SGD(groups, momentum=0.9)


def train(kind: str, clip: Any, folder: Path) -> list[Step]:
    torch.manual_seed(0)
    model = Policy()
    optimizer = optimizer_of(model, kind)
    names = [name for name, _ in model.named_parameters()]
    options: dict[str, Any] = {
        "blocks": {"actor": model.actor, "critic": model.critic, "shared": model.trunk},
        "pairs": {"heads": (model.actor, model.critic)},
        "sketch_size": SKETCH,
        "terms_every": 1,
    }
    steps: list[Step] = []

    def kept(tensors: Any) -> Gradients:
        return {n: x.detach().double().numpy().copy() for n, x in zip(names, tensors, strict=True)}

    def gradients() -> Gradients:
        return kept(p.grad for p in model.parameters())

    with gm.watch(model, optimizer, run=folder, budget=None, **options) as meter:
        for number in range(STEPS):
            optimizer.zero_grad()
            # Only the heads have a schedule: the first group does not speak for all blocks.
            optimizer.param_groups[1]["lr"] = 3e-3 / (1 + 0.05 * number)
            sums = [{n: np.zeros(p.shape) for n, p in model.named_parameters()}]
            by_term: dict[str, Gradients] = {}
            for _ in range(PARTS):
                advantages = torch.randn(16) * (1 + 0.5 * math.sin(number))
                made = model.terms(torch.randn(16, 8), advantages)
                for name, term in made.items():
                    got = torch.autograd.grad(
                        term, list(model.parameters()), retain_graph=True, allow_unused=True
                    )
                    held = by_term.setdefault(name, {})
                    for n, g in zip(names, got, strict=True):
                        if g is not None:
                            held[n] = held.get(n, 0.0) + g.double().numpy()
                with meter.terms(**made) as loss:
                    loss.backward()
                sums.append(gradients())
            parts = [{n: b[n] - a[n] for n in names} for a, b in itertools.pairwise(sums)]
            raw = gradients()
            clip(model.parameters())
            seen, before = gradients(), kept(model.parameters())
            optimizer.step()
            after = kept(model.parameters())
            moved = {n: after[n] - before[n] for n in names}
            rates = dict.fromkeys(("actor", "critic"), 0.003 / (1 + 0.05 * number))
            steps.append(Step(raw, seen, before, moved, parts, by_term, rates))
    return steps


def blocks_of(names: list[str]) -> dict[str, list[str]]:
    blocks = {"all": names, "shared": [n for n in names if n.startswith("trunk")]}
    blocks |= {b: [n for n in names if n.startswith(b)] for b in ("actor", "critic")}
    for name in names:
        blocks.setdefault(f"layer.{name.rpartition('.')[0]}", []).append(name)
    return blocks


def joined(given: Gradients, members: list[str], like: Gradients | None = None) -> Vector:
    return np.concatenate(
        [
            (given[n] if like is None or n in given else np.zeros_like(like[n])).ravel()
            for n in members
        ]
    )


def cosine(a: Vector, b: Vector) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def alignment(parts: list[Vector]) -> float:
    return float(np.linalg.norm(sum(parts)) / sum(np.linalg.norm(part) for part in parts))


def check_elements(to: Numbers, block: str, steps: list[Step], members: list[str]) -> None:
    """What is read off the elements of one gradient, and beside the one before."""
    step = steps[to.step]
    g, c, u, w = (joined(x, members) for x in (step.raw, step.seen, step.moved, step.before))
    norm, at, long_view = np.linalg.norm, f"grad/{block}/", to.step % 4 == 0
    whole = all(step.raw[n].size <= 1024 for n in members)
    sampled = 1e-6 if whole else 0.06
    to.expect(f"{at}norm/raw", norm(g))
    to.expect(f"{at}norm/clipped", norm(c))
    to.expect(f"{at}norm/update", norm(u))
    to.expect(f"{at}update_ratio", norm(u) / norm(w))
    to.expect(f"{at}max_abs", np.abs(g).max())
    to.expect(f"{at}nonfinite", 0.0)
    to.expect(f"{at}mean", g.mean() if long_view else None, rel=1e-3)
    to.expect(f"{at}zero_fraction", (g == 0).mean(), off=sampled)
    to.expect(f"{at}positive_fraction", (g > 0).mean(), off=sampled)
    shared = (g**2).sum() ** 2 / (g**4).sum() if whole or long_view else None
    to.expect(f"{at}participation", shared)
    to.expect(f"{at}cos_update", cosine(-c, u) if long_view else None)
    if to.step:
        before = joined(steps[to.step - 1].seen, members)
        to.expect(f"{at}cos_prev", cosine(g, before), off=1e-5)
        both = (g != 0) & (before != 0)
        agree = (np.sign(g) == np.sign(before))[both].mean()
        to.expect(f"{at}sign_agreement", agree, off=sampled)


def check_terms(to: Numbers, block: str, step: Step, members: list[str]) -> None:
    """Norms, shares and cosines of the loss terms."""
    at = f"grad/{block}/term/"
    terms = {name: joined(held, members, step.raw) for name, held in step.terms.items()}
    there = {name: any(n in held for n in members) for name, held in step.terms.items()}
    total = sum(terms.values())
    for name, g in terms.items():
        to.expect(f"{at}{name}/norm", np.linalg.norm(g) if there[name] else None)
        share = g @ total / (total @ total) if there[name] else None
        to.expect(f"{at}{name}/share", share, rel=1e-3, off=1e-5)
    for a, b in (("policy", "value"), ("policy", "entropy"), ("value", "entropy")):
        both = there[a] and there[b]
        to.expect(f"{at}{a}~{b}/cos", cosine(terms[a], terms[b]) if both else None, off=1e-5)
    if block == "all":
        to.expect(f"{at}scale", 1.0)
        to.expect(f"{at}additivity_error", 0.0, off=1e-5)


def check_past(to: Numbers, block: str, steps: list[Step], members: list[str]) -> None:
    """What stands beside the steps before: averages, windows, micro-batches."""
    at, past = f"grad/{block}/", [joined(step.raw, members) for step in steps[: to.step + 1]]
    weights = 0.98 ** np.arange(to.step, -1, -1)
    norms = np.array([np.linalg.norm(g) for g in past])
    to.expect(f"{at}norm/ema", weights @ norms / weights.sum())
    if to.step % 4:
        return
    error = 4 / math.sqrt(SKETCH)
    parts = [joined(part, members) for part in steps[to.step].parts]
    to.expect(f"{at}alignment", alignment(parts), rel=error)
    sketched = past[::4]
    if len(sketched) > 1:
        earlier = sum(0.9**k * g for k, g in enumerate(reversed(sketched[:-1])))
        to.expect(f"{at}cos_ema", cosine(sketched[-1], earlier), off=error)
    window = alignment(sketched[-8:]) if len(sketched) >= 8 else None
    to.expect(f"{at}alignment_window", window, rel=error)


def check_trends(to: Numbers, block: str, steps: list[Step], members: list[str]) -> None:
    """Slopes and rank correlations over all that was measured."""
    at, upto = f"grad/{block}/", steps[: to.step + 1]
    norms = np.log10([np.linalg.norm(joined(step.raw, members)) for step in upto])
    moved = [np.linalg.norm(joined(step.moved, members)) for step in upto]
    slope = scipy.stats.theilslopes(norms, np.arange(to.step + 1))[0]
    to.expect(f"{at}drift", 1000 * slope, rel=1e-3)
    rates = [step.rates.get(block, 1.0) for step in upto]
    response = scipy.stats.spearmanr(rates, moved)[0] if np.ptp(rates) else None
    to.expect(f"{at}lr_response", response)


def severities(steps: list[Step], name: str, at: int, seen: int) -> tuple[float, float]:
    """How far the norm of step `at` is outside the band of the first `seen` norms, in six decades."""
    logs = np.log10([np.linalg.norm(step.raw[name]) for step in steps[: at + 1]])
    low, high = -10.0, 4.0
    if seen >= 20:
        middle = np.median(logs[:seen])
        sigma = max(1.4826 * np.median(np.abs(logs[:seen] - middle)), 0.1)
        low, high = middle - 5 * sigma, middle + 5 * sigma
    return (
        float(np.clip((low - logs[at]) / 6, 0, 1)),
        float(np.clip((logs[at] - high) / 6, 0, 1)),
    )


def check_health(to: Numbers, block: str, steps: list[Step], blocks: dict[str, list[str]]) -> None:
    """Severities against each tensor's own past, and what is left of health."""
    members, raw = blocks[block], steps[to.step].raw
    seen = to.step + 1 if to.step <= 20 else to.step // 10 * 10 + 1  # bands are read at every tenth
    found = [severities(steps, name, to.step, seen) for name in members]
    vanishing, exploding = np.mean(found, axis=0)
    to.expect(f"grad/{block}/vanishing_severity", vanishing)
    to.expect(f"grad/{block}/exploding_severity", exploding)
    inside = [blocks[b] for b in blocks if b.startswith("layer.") and set(blocks[b]) < set(members)]
    rms = [np.sqrt(np.mean(joined(raw, part) ** 2)) for part in inside] or [1.0]
    imbalance = np.clip((math.log10(max(rms) / min(rms)) - 3) / 3, 0, 1)
    health = max(0.0, 1 - vanishing - 1.6 * exploding - 0.3 * imbalance)
    to.expect(f"grad/{block}/health", health)


def check_whole(to: Numbers, steps: list[Step], blocks: dict[str, list[str]], clips: bool) -> None:
    """What there is of the whole model only."""
    raw = steps[to.step].raw
    squares = np.array([(joined(raw, blocks[b]) ** 2).sum() for b in blocks if "layer." in b])
    shares = squares / squares.sum()
    to.expect("grad/all/concentration", -(shares * np.log(shares)).sum() / math.log(len(shares)))
    actor, critic = (np.sqrt(np.mean(joined(raw, blocks[b]) ** 2)) for b in ("actor", "critic"))
    to.expect("grad/pair/heads/ratio", min(10.0, actor / (critic + 1e-8)))
    to.expect("optimizer/0/lr", 1e-2)
    if clips:
        sizes = [np.linalg.norm(joined(step.raw, blocks["all"])) for step in steps[: to.step + 1]]
        ratio = min(1.0, 0.3 / sizes[-1])
        to.expect("grad/all/clip/active", float(sizes[-1] > 0.3))
        to.expect("grad/all/clip/ratio", ratio)
        to.expect("grad/all/clip/intensity", 1 - ratio)
        to.expect("grad/all/clip/rate", np.mean(np.array(sizes) > 0.3))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "clip"), [("adamw", "norm"), ("momentum", "value")])
def test_every_number_of_every_block_is_the_one_its_definition_gives(
    kind: str, clip: str, tmp_path: Path
) -> None:
    def by_norm(parameters: Any) -> None:
        nn.utils.clip_grad_norm_(parameters, 0.3)

    def by_value(parameters: Any) -> None:
        nn.utils.clip_grad_value_(parameters, 0.02)

    steps = train(kind, by_norm if clip == "norm" else by_value, tmp_path / "run")
    run = gm.load(tmp_path / "run")
    found = {
        name: dict(zip(*(x.tolist() for x in run.series(name)), strict=True))
        for name in run.names()
    }
    to, blocks = Numbers(found), blocks_of(list(steps[0].raw))
    for to.step in range(STEPS):
        for block, members in blocks.items():
            check_elements(to, block, steps, members)
            check_terms(to, block, steps[to.step], members)
            check_health(to, block, steps, blocks)
            if block in NAMED:
                check_past(to, block, steps, members)
                if to.step in (25, 50):
                    check_trends(to, block, steps, members)
        check_whole(to, steps, blocks, clip == "norm")
    assert len(to.kinds) >= 36
