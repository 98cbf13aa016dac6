"""The anatomy against the schedule of source 003: a forward and a backward for each bucket, term and micro-batch.

Same batch, same numbers (checked to 1e-5, or there is no baseline), in turns in one process; memory in fresh ones.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import gradiometer as gm
from benchmarks.memory import MIB, ROOT, resident
from benchmarks.models import num_parameters
from benchmarks.timing import in_turns, row
from gradiometer.maths import losses

__all__ = ["main"]

GROUPS, SIZE, TOKENS, WORDS = 48, 8, 96, 500
ROUNDS = 3
TERMS = ("task", "entropy", "kl")


def problem() -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    """A small Qwen2, as the sokoban lab has one, and 48 groups of 8 rollouts, 40 % to all of 96 tokens long."""
    torch.manual_seed(0)
    settings = Qwen2Config(
        vocab_size=WORDS,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=TOKENS,
    )
    model: nn.Module = Qwen2ForCausalLM(settings)  # type: ignore[no-untyped-call]
    number = GROUPS * SIZE
    rewards = torch.randn(number) * torch.linspace(0.1, 3, GROUPS).repeat_interleave(SIZE)
    lengths = torch.randint(int(0.4 * TOKENS), TOKENS + 1, (number,))
    batch = {
        "tokens": torch.randint(0, WORDS, (number, TOKENS)),
        "mask": (torch.arange(TOKENS) < lengths[:, None]).float(),
        "old": torch.full((number, TOKENS), -math.log(WORDS)),
        "ref": torch.full((number, TOKENS), -math.log(WORDS)),
        "advantages": rewards - rewards.view(GROUPS, SIZE).mean(1).repeat_interleave(SIZE),
    }
    return model, batch, rewards, torch.arange(number) // SIZE


class Terms:
    """The loss of both candidates."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        logits = self.model(rows["tokens"], use_cache=False).logits  # causal: padding at the right changes nothing
        log_probs = losses.token_log_probs(logits, rows["tokens"])
        advantages = rows["advantages"][:, None].expand_as(log_probs)
        return {
            "task": losses.policy_loss(log_probs, rows["old"], advantages),
            "entropy": -0.01 * losses.entropy(logits),
            "kl": 0.1 * losses.kl_loss(log_probs, rows["ref"]),
        }


def ours(num_buckets: int = 6, *, trim: str | None = None, **options: object) -> dict[str, float]:
    """One probe."""
    model, batch, rewards, groups = PROBLEM
    result = gm.anatomy(
        model,
        batch,
        Terms(model),
        rewards=rewards,
        groups=groups,
        mask=batch["mask"],
        num_buckets=num_buckets,
        trim=trim,
        **options,  # type: ignore[arg-type]
    )
    return result.metrics


def source_schedule(micro_batch_size: int, num_buckets: int = 6) -> dict[str, float]:
    """For `all` and each bucket, for each term, for each micro-batch: a forward and a backward."""
    model, batch, rewards, _ = PROBLEM
    terms, norms = Terms(model), dict[str, float]()
    order = rewards.view(GROUPS, SIZE).std(1).argsort()
    rows = torch.arange(GROUPS * SIZE).view(GROUPS, SIZE)
    buckets = {"all": rows[order].reshape(-1)}
    for number, part in enumerate(order.tensor_split(num_buckets), 1):
        buckets[f"bucket_{number}"] = rows[part].reshape(-1)
    for bucket, members in buckets.items():
        weight = batch["mask"][members].sum()
        for term in TERMS:
            model.zero_grad()
            for micro in torch.split(members, micro_batch_size):
                picked = {name: entry[micro] for name, entry in batch.items()}
                ((picked["mask"] * terms(picked)[term]).sum() / weight).backward()  # type: ignore[no-untyped-call]
            squares = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
            norms[f"grad_norm/{bucket}/{term}"] = float(torch.stack(squares).sum().sqrt())
    model.zero_grad()
    return norms


def check_same_numbers() -> float:
    """The largest relative difference between the two; above 1e-5 the rendering is no baseline."""
    theirs = source_schedule(SIZE)
    worst = max(
        abs(found[name] - value) / value for found in (ours(), ours(trim="mask")) for name, value in theirs.items()
    )
    assert worst < 1e-5, f"the two schedules differ by {worst:.1e}"
    return worst


def print_speed() -> None:
    """Ratios in one run."""
    print(f"same numbers to {check_same_numbers():.1e} relative")
    smallest = GROUPS // 6 * SIZE
    taken = in_turns(
        {
            f"source, micro-batch {SIZE}": lambda: source_schedule(SIZE),
            f"source, micro-batch {smallest}": lambda: source_schedule(smallest),
            "gm.anatomy, 6 buckets": ours,
            "gm.anatomy, 6 buckets, padding trimmed": lambda: ours(trim="mask"),
            "gm.anatomy, 48 buckets": lambda: ours(48),
            "gm.anatomy, 6 buckets, with null": lambda: ours(null=True),
        },
        rounds=ROUNDS,
        warm_up=0,
    )
    base = taken["gm.anatomy, 6 buckets"]
    for name, seconds in taken.items():
        print(row(name, seconds, base))
    best = min(seconds for name, seconds in taken.items() if name.startswith("source"))
    print(f"the source's schedule takes {best / base:.2f} × as long (target 3)")
    print(f"  and {best / taken['gm.anatomy, 6 buckets, padding trimmed']:.2f} × with padding trimmed")
    print(f"48 buckets cost {taken['gm.anatomy, 48 buckets'] / base:.2f} × 6 buckets (target at most 1.15)")


def peak(part: str) -> dict[str, int]:
    """What that part prints, run by itself."""
    command = [sys.executable, "-m", "benchmarks.anatomy", part]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    sizes: dict[str, int] = json.loads(printed.splitlines()[-1])
    return sizes


def sizes_of(part: str) -> dict[str, int]:
    """Peak beyond the model and its batch: of a training step on one group, or of a probe."""
    model, batch, _, _ = PROBLEM
    terms, before = Terms(model), resident()
    if part == "training":
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            found = terms({name: entry[:SIZE] for name, entry in batch.items()})
            optimizer.zero_grad()
            sum((loss * batch["mask"][:SIZE]).sum() for loss in found.values()).backward()  # type: ignore[union-attr]
            optimizer.step()
    else:
        ours()
    stored = (GROUPS + 7) * len(TERMS) * num_parameters(model) * 4
    return {"peak": resident("VmHWM") - before, "stored": stored}


def print_memory() -> None:
    """The probe's peak against a training step's plus the vectors it keeps."""
    training, probe = peak("training"), peak("probe")
    allowed = 1.3 * training["peak"] + probe["stored"]
    print(
        f"training step {training['peak'] / MIB:.0f} MiB, probe {probe['peak'] / MIB:.0f} MiB, of which stored vectors"
    )
    print(
        f"  {probe['stored'] / MIB:.0f} MiB: {probe['peak'] / allowed:.2f} of 1.3 × training + stored (target at most 1)"
    )


def main() -> None:
    """Speed, then memory."""
    print(f"anatomy: {GROUPS} groups of {SIZE}, {num_parameters(PROBLEM[0]) / 1e6:.1f}M parameters, three terms")
    print_speed()
    print_memory()


PROBLEM = problem()

if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        print(json.dumps(sizes_of(sys.argv[1])))
    else:
        main()
