"""The anatomy against the schedule of its source: for `all` and each bucket a forward and a
backward by term and micro-batch.

48 groups of 8 rollouts, 40 % to all of 40 or 96 tokens long, a Qwen2 of 0.3M parameters, three
terms; the two schedules agree to 1e-5, or there is no baseline. The source may take micro-batches
as large as its smallest bucket, 64 rows. Its schedule takes 6 (F + B), ours F + 3 B; with a
backward of two forwards that is 18 to 7, 2.57 at most. Only shorter rows go beyond that: rows of
similar width share a forward, whosever they are, and padding is cut off (a witness shows that this
changes nothing, and costs one group); "group by group" is without that. The peak is a probe's, in a
fresh process, beside 1.3 × that of a training step on one group and the vectors that are kept; the
graph is kept over three terms where a training step frees it on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import gradiometer as gm
from benchmarks.fresh import MIB, in_fresh_processes, resident
from benchmarks.models import num_parameters
from benchmarks.rows import Row, Scale, clock, measured
from benchmarks.timing import in_turns
from gradiometer.maths import losses

__all__ = ["rows"]

SIZE, WORDS = 8, 500
FULL, QUICK = (48, 40), (12, 8)  # groups and tokens
LONG = (48, 96)
BUCKETS = 6
TERMS = ("task", "entropy", "kl")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A small Qwen2, as the sokoban lab has one, and groups of 8 rollouts, 40 % to all of the
    tokens long."""

    model: nn.Module
    batch: dict[str, Tensor]
    rewards: Tensor
    groups: Tensor


@cache
def problem(num_groups: int, tokens: int) -> Problem:
    """Make it."""
    torch.manual_seed(0)
    settings = Qwen2Config(
        vocab_size=WORDS,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=tokens,
    )
    model: nn.Module = Qwen2ForCausalLM(settings)  # type: ignore[no-untyped-call]
    number = num_groups * SIZE
    rewards = torch.randn(number) * torch.linspace(0.1, 3, num_groups).repeat_interleave(SIZE)
    lengths = torch.randint(int(0.4 * tokens), tokens + 1, (number,))
    batch = {
        "tokens": torch.randint(0, WORDS, (number, tokens)),
        "mask": (torch.arange(tokens) < lengths[:, None]).float(),
        "old": torch.full((number, tokens), -math.log(WORDS)),
        "ref": torch.full((number, tokens), -math.log(WORDS)),
        "advantages": rewards - rewards.view(num_groups, SIZE).mean(1).repeat_interleave(SIZE),
    }
    return Problem(model=model, batch=batch, rewards=rewards, groups=torch.arange(number) // SIZE)


class Terms:
    """The loss of both candidates."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        logits = self.model(
            rows["tokens"], use_cache=False
        ).logits  # causal: padding at the right changes nothing
        log_probs = losses.token_log_probs(logits, rows["tokens"])
        advantages = rows["advantages"][:, None].expand_as(log_probs)
        return {
            "task": losses.policy_loss(log_probs, rows["old"], advantages),
            "entropy": -0.01 * losses.entropy(logits),
            "kl": 0.1 * losses.kl_loss(log_probs, rows["ref"]),
        }


def ours(
    given: Problem, num_buckets: int = BUCKETS, trim: str | None = None, *, together: bool = True
) -> dict[str, float]:
    """One probe."""
    result = gm.anatomy(
        given.model,
        given.batch,
        Terms(given.model),
        rewards=given.rewards,
        groups=given.groups,
        mask=given.batch["mask"],
        num_buckets=num_buckets,
        trim=trim,
        together=together,
    )
    return result.metrics


def source_schedule(given: Problem) -> dict[str, float]:
    """For `all` and each bucket, for each term, for each micro-batch: a forward and a backward."""
    model, batch, terms, norms = given.model, given.batch, Terms(given.model), dict[str, float]()
    rows_of = torch.arange(len(given.rewards)).view(-1, SIZE)
    order = given.rewards.view(-1, SIZE).std(1).argsort()
    buckets = {"all": rows_of[order].reshape(-1)}
    for number, part in enumerate(order.tensor_split(BUCKETS), 1):
        buckets[f"bucket_{number}"] = rows_of[part].reshape(-1)
    smallest = min(len(members) for members in buckets.values())
    for bucket, members in buckets.items():
        weight = batch["mask"][members].sum()
        for term in TERMS:
            model.zero_grad()
            for micro in torch.split(members, smallest):
                picked = {name: entry[micro] for name, entry in batch.items()}
                ((picked["mask"] * terms(picked)[term]).sum() / weight).backward()  # type: ignore[no-untyped-call]
            squares = [
                p.grad.double().square().sum() for p in model.parameters() if p.grad is not None
            ]
            norms[f"grad_norm/{bucket}/{term}"] = float(torch.stack(squares).sum().sqrt())
    model.zero_grad()
    return norms


def check_same_numbers(given: Problem) -> float:
    """The largest relative difference between the two; above 1e-5 the rendering is no baseline."""
    theirs = source_schedule(given)
    worst = max(
        abs(found[name] - value) / value
        for found in (ours(given), ours(given, trim="mask"), ours(given, together=False))
        for name, value in theirs.items()
    )
    assert worst < 1e-5, f"the two schedules differ by {worst:.1e}"
    return worst


def speed(scale: Scale, size: tuple[int, int]) -> Iterator[Row]:
    """Ratios in one run."""
    given = problem(*size)
    worst = check_same_numbers(given)
    taken = in_turns(
        {
            "source": lambda: source_schedule(given),
            "ours": lambda: ours(given),
            "trimmed": lambda: ours(given, trim="mask"),
            "group by group": lambda: ours(given, together=False),
            "48 buckets": lambda: ours(given, scale.of(48, 12)),
        },
        rounds=scale.rounds(),
        warm_up=0,
    )
    rows = f"rows of {size[1]} tokens"
    for name, told, aim in (
        ("ours", f", same numbers to {worst:.0e}", 3.0),
        ("trimmed", "", 3.0),
        ("group by group", "", None),
    ):
        yield measured(
            f"the source's schedule / {name}, {rows}",
            taken["source"] / taken[name],
            at_least=aim,
            note=clock(taken, "source", name) + told,
        )
    ratio = taken["48 buckets"] / taken["ours"]
    yield measured(f"48 buckets / 6 buckets, {rows}", ratio, at_most=1.15)


def peak_of_training(size: tuple[int, int]) -> int:
    """Beyond the model and its batch, of training steps on one group."""
    given = problem(*size)
    terms, before = Terms(given.model), resident()
    optimizer = torch.optim.Adam(given.model.parameters())
    rows_of = {name: entry[:SIZE] for name, entry in given.batch.items()}
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(
            [(loss * rows_of["mask"]).sum() for loss in terms(rows_of).values()]
        )
        optimizer.step()
    return resident("VmHWM") - before


def peak_of_probe(size: tuple[int, int]) -> int:
    """Likewise, of one probe."""
    given = problem(*size)
    before = resident()
    ours(given)
    return resident("VmHWM") - before


def memory(scale: Scale) -> Row:
    """The probe's peak against a training step's plus the vectors it keeps."""
    size = scale.of(FULL, QUICK)
    calls = [
        partial(call, size)
        for _ in range(scale.rounds())
        for call in (peak_of_training, peak_of_probe)
    ]
    training, probe = (
        np.array(in_fresh_processes(calls, at_once=2), dtype=np.float64).reshape(-1, 2).T
    )
    stored = (size[0] + BUCKETS + 1) * len(TERMS) * num_parameters(problem(*size).model) * 4
    told = (
        f"a step {np.median(training) / MIB:.0f} MiB, stored {stored / MIB:.0f}, a probe"
        f" {np.median(probe) / MIB:.0f}"
    )
    return measured(
        "peak / (1.3 × a training step + stored)",
        probe / (1.3 * training + stored),
        at_most=1,
        note=told,
    )


def rows(scale: Scale) -> Iterator[Row]:
    """Speed, then memory."""
    yield from speed(scale, scale.of(FULL, QUICK))
    if not scale.quick:
        yield from speed(scale, LONG)
    yield memory(scale)
