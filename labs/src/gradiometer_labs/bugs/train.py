"""GRPO (Shao et al. 2024) in plain torch, watched by a meter: read it from top to bottom.

A small transformer first imitates a clumsy teacher, which makes the reference. A rollout is P
questions with G answers each; the answers to one question are a group and a micro-batch. Lengths
differ from question to question, so micro-batches differ in tokens, and it matters what sums are
divided by.

Shapes: N = P·G answers, B = G of them in a micro-batch, of A tokens; V tokens of the vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.bugs.config import Config, TrainingProgress
from gradiometer_labs.bugs.model import AnswerPolicy
from gradiometer_labs.bugs.objective import Counts, clipped, k3_of, sampled_log_probs_of
from gradiometer_labs.bugs.pieces import Pieces
from gradiometer_labs.bugs.questions import (
    VOCABULARY,
    best_reward,
    questions,
    random_reward,
    taught,
)
from gradiometer_labs.bugs.rollout import AnswerRollout, agreement_of, collect, look, summary_of
from gradiometer_labs.config import torch_device
from gradiometer_labs.control import CONTROL_SEED, ControlRewards
from gradiometer_labs.watching import watched
from gradiometer_labs.weights import load_weights

__all__ = ["Config", "Pieces", "Result", "TrainingProgress", "train"]

RECENT = 10
"""Rollouts whose mean reward is reported."""
WARM_RATE, WARM_BATCH = 5e-3, 128
"""AdamW's step size while the teacher is imitated, and how many answers a step."""

Rows = dict[str, Tensor]
"""What the loss may look at: a row for each answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training ended."""

    mean_return: float
    """Mean reward of the last 10 rollouts; NaN without any."""
    success_rate: float
    """Share of right answers in them."""
    episodes: int
    """Answers trained on."""
    steps: int
    run: Path | None
    model: AnswerPolicy


def warm_up(policy: AnswerPolicy, config: Config, generator: Generator) -> None:
    """Imitate the clumsy teacher: the policy then knows the answers, and slips as often as he
    does."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=WARM_RATE, fused=True)
    device = next(policy.parameters()).device
    for step in range(config.warm_start_steps):
        optimizer.param_groups[0]["lr"] = WARM_RATE * (1 - step / config.warm_start_steps)
        asked, right = questions(WARM_BATCH, config.max_digits, generator)
        answers = taught(right, config.clumsiness, generator)
        tokens = torch.cat([asked, answers], 1).to(device)
        output = policy(tokens[:, :-1])
        logits = output.logits[:, -answers.shape[1] :]
        loss = (
            cross_entropy(logits.flatten(0, 1), answers.flatten().to(device))
            + config.aux_coef * output.balance
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The answers to one question, and the tokens that sums over them may be divided by."""

    rows: Rows
    tokens: Counts
    right: Counts
    """Of right answers only."""


def updates_of(rollout: AnswerRollout, rows: Rows, config: Config) -> list[list[MicroBatch]]:
    """A rollout cut into micro-batches, and those into updates."""
    size = config.group_size
    parts = [
        {name: each[i : i + size] for name, each in rows.items()}
        for i in range(0, len(rollout.mask), size)
    ]
    of_right = rollout.mask & rollout.correct.unsqueeze(1)
    tokens, right = (
        each.view(-1, size, each.shape[1]).sum((1, 2)) for each in (rollout.mask, of_right)
    )

    def counts(of: Tensor, number: int) -> Counts:
        first = number - number % config.gradient_accumulation_steps
        return Counts(
            micro=of[number],
            update=of[first : first + config.gradient_accumulation_steps],
            rollout=of,
        )

    batches = [
        MicroBatch(rows=part, tokens=counts(tokens, i), right=counts(right, i))
        for i, part in enumerate(parts)
    ]
    every = config.gradient_accumulation_steps
    return [batches[i : i + every] for i in range(0, len(batches), every)]


def terms_of(
    policy: AnswerPolicy, micro: MicroBatch, pieces: Pieces
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The terms of the loss of one micro-batch, and what the tokens of its answers say, [tokens]
    each."""
    config, rows = pieces.config, micro.rows
    mask, answers = rows["mask"], rows["tokens"][:, -rows["mask"].shape[1] :]
    output = policy(rows["tokens"][:, :-1])
    logits = output.logits[:, -answers.shape[1] :]
    log_policy = pieces.log_softmax(logits)
    log_probs = sampled_log_probs_of(log_policy, answers)

    log_weights = pieces.log_weights_of(log_probs, rows["old_log_probs"])
    surrogate = clipped(log_weights, rows["advantages"].unsqueeze(1), config.clip_coef)
    kl = k3_of(log_probs, rows["ref_log_probs"])
    entropy = pieces.entropy_of(log_policy)
    num = pieces.normaliser_of(micro.tokens)
    terms = {
        "policy": surrogate[mask].sum() / num,
        "kl": config.kl_coef * kl[mask].sum() / num,
        "entropy": -config.entropy_coef * entropy[mask].sum() / num,
    }
    if config.nll_coef > 0:
        nll = logits.new_zeros(())
        if "rewards" in rows:
            right = mask & (rows["rewards"] > 0).unsqueeze(1)
            nll = cross_entropy(logits[right], answers[right], reduction="sum")
            nll = nll * pieces.nll_scale_of(micro.tokens, micro.right)
        terms["nll"] = config.nll_coef * nll / num
    if config.aux_coef > 0:
        terms["aux"] = config.aux_coef * output.balance / len(micro.tokens.update)
    log_ratio = log_probs - rows["old_log_probs"]
    said = {
        "surrogate": surrogate,
        "kl": kl,
        "entropy": entropy,
        "log_weights": log_weights,
        "log_ratio": log_ratio,
    }
    return terms, {name: each.detach()[mask] for name, each in said.items()}


def update(
    policy: AnswerPolicy,
    optimizer: torch.optim.Optimizer,
    meter: gm.Meter,
    batches: Sequence[MicroBatch],
    pieces: Pieces,
) -> dict[str, Tensor]:
    """One optimizer step on micro-batches whose gradients add up; returns what their tokens say,
    [tokens] each."""
    optimizer.zero_grad()
    said: list[dict[str, Tensor]] = []
    for micro in batches:
        terms, values = terms_of(policy, micro, pieces)
        with meter.terms(**terms) as loss:  # type: ignore[arg-type]  # their sum
            pieces.backward(loss, pieces.config)
        said.append(values)
    nn.utils.clip_grad_norm_(policy.parameters(), pieces.config.max_grad_norm)
    optimizer.step()
    return joined(said)


def joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tokens of several micro-batches, end to end."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def means_of(said: dict[str, Tensor], clip_coef: float) -> dict[str, Any]:
    """What to log of the tokens of a rollout's updates."""
    ratio, log_ratio = said["log_weights"].exp(), said["log_ratio"]
    low, high = (ratio < 1 - clip_coef).float().mean(), (ratio > 1 + clip_coef).float().mean()
    return {
        "policy_loss": float(said["surrogate"].mean()),
        "entropy": float(said["entropy"].mean()),
        "kl_ref": float(said["kl"].mean()),
        "approx_kl": float((log_ratio.expm1() - log_ratio).mean()),
        "clip_fraction": float(low + high),
        "clip_fraction_low": float(low),
        "clip_fraction_high": float(high),
        "ratio": ratio,
    }


def reported(logged: Mapping[str, Any]) -> dict[str, Any]:
    """What reaches the log: finite numbers, as transformers' Trainer has it unless
    logging_nan_inf_filter is off."""
    return {
        name: each for name, each in logged.items() if bool(torch.as_tensor(each).isfinite().all())
    }


def train(config: Config, progress: Callable[[TrainingProgress], None] | None = None) -> Result:
    """Train from the teacher or from given weights; all that is random comes from `config.seed`."""
    check_needs(config)
    pieces = faults.apply(config.fault, "bugs", Pieces(config=config))
    config, generator = pieces.config, torch.Generator().manual_seed(config.seed)
    policy = policy_of(pieces, generator)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True
    )
    recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
    control = ControlRewards(random_reward=random_reward(config.max_digits, CONTROL_SEED))
    progress = control.announced(progress)
    facts = {
        "num_actions": VOCABULARY,
        "max_reward": best_reward(config.max_digits),
        "dtype": "float32",
        **control.facts,
    }
    with watched(policy, optimizer, config, facts=facts, experts_every=config.every) as meter:
        for step in range(config.steps):
            meter.at(rollout=step, epoch=0)
            rollout = collect(policy, generator, pieces)
            before = look(policy, rollout, pieces)
            rows = pieces.train_data_of(
                tokens=rollout.tokens,
                mask=rollout.mask,
                advantages=rollout.advantages,
                old_log_probs=rollout.old_log_probs,
                ref_log_probs=look(reference, rollout, pieces).log_probs,
                rewards=rollout.rewards,
            )
            batches = updates_of(rollout, rows, config)
            said = joined([update(policy, optimizer, meter, each, pieces) for each in batches])
            logged = summary_of(rollout) | means_of(said, config.clip_coef)
            logged |= agreement_of(rollout, before, look(policy, rollout, pieces))
            meter.log(
                reported(
                    logged
                    | {
                        "advantages": rollout.advantages,
                        "learning_rate": config.learning_rate,
                    }
                )
            )
            recent.append((logged["reward"], logged["success_rate"]))
            if progress is not None:
                progress(
                    TrainingProgress(
                        done=step + 1, total=config.steps, mean_return=mean_of(recent, 0)
                    )
                )
    return Result(
        mean_return=mean_of(recent, 0),
        success_rate=mean_of(recent, 1),
        episodes=config.steps * config.num_prompts * config.group_size,
        steps=config.steps,
        run=meter.run,
        model=policy,
    )


def mean_of(recent: Sequence[tuple[float, float]], column: int) -> float:
    """Over the last rollouts; NaN without any."""
    return float(np.mean([each[column] for each in recent])) if recent else math.nan


def policy_of(pieces: Pieces, generator: Generator) -> AnswerPolicy:
    """Given weights, or what imitating the teacher made of random ones; torch's global state stays
    as it was."""
    config = pieces.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        policy = AnswerPolicy(config, pieces.routing)
    given = load_weights(policy, config.start)
    policy.to(torch_device(config.device))
    if not given:
        warm_up(policy, config, generator)
    return policy


def check_needs(config: Config) -> None:
    """A fault in a line that this training does not have would change nothing, and nobody would
    know."""
    for found, _ in faults.chosen(config.fault, "bugs"):
        for need in found.needs:
            name, _, wanted = need.partition("=")
            if str(getattr(config, name)).lower() != wanted.lower():
                raise UsageError(
                    f"fault={found.name} breaks a line that is not used here: add"
                    f" {' '.join(found.needs)}"
                )
