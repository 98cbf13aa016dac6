"""What a part of a loss is made of, where no name tells what it is for.

Only the operations above the model are looked at: the square of a difference, the log-probability
of something chosen, p log p, weights themselves. What a square is for depends on the company: next
to a policy's part it is the critic's.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from gradiometer.doctor.terms import role_of

__all__ = ["Made", "inputs_of", "made_of", "role_among", "role_by_name"]

Made: TypeAlias = Literal["squares", "choice", "entropy", "weights", "kl"]

SQUARES = re.compile(r"(MseLoss|SmoothL1Loss|HuberLoss|L1Loss)Backward\d")
CHOSEN = re.compile(r"(Gather|Index|NllLoss|TakeAlongDim|Select)Backward\d")
LOG = re.compile(r"(LogSoftmax|Logsumexp|Log)Backward\d")
PROBABILITY = re.compile(r"(Exp|Softmax)Backward\d")
MODEL = re.compile(
    r"(Addmm|Mm|Bmm|Baddbmm|Convolution|MkldnnConvolution|NativeLayerNorm|NativeBatchNorm"
    r"|CudnnBatchNorm|Embedding|Linear|MkldnnLinear)Backward\d*|AccumulateGrad|CompiledFunction.*"
)
MOST_NODES = 80
MOST_INPUTS, DEEPEST = 16, 3
ROLES: dict[Made, str] = {"squares": "value", "entropy": "entropy", "choice": "policy", "kl": "kl"}


def made_of(node: Any, passed: Iterable[str] = ()) -> Made | None:
    """What a part is made of that ends in this node, after the linear nodes `passed`."""
    if _is_square(node):
        return "squares"
    if type(node).__name__ == "MaximumBackward0":
        children = [child for child, _ in node.next_functions if child is not None]
        if children and all(map(_is_square, children)):
            return "squares"
    factors = [child for child, _ in node.next_functions if child is not None]
    weighted = factors if type(node).__name__ == "MulBackward0" else []  # by a ratio, as TRL does
    if any(map(_is_exp_less_itself, [node, *weighted])):
        return "kl"
    above, of_weights = _above_model(node)
    if of_weights:
        return "weights"
    has_log = any(map(LOG.fullmatch, above))
    if any(map(CHOSEN.fullmatch, [*passed, *above])) and has_log:
        return "choice"
    if type(node).__name__ == "MinimumBackward0" and any(map(PROBABILITY.fullmatch, above)):
        return "choice"  # of a ratio, clipped: the log-probabilities may come from anywhere
    if type(node).__name__ == "MulBackward0" and has_log and any(map(PROBABILITY.fullmatch, above)):
        return "entropy"
    return None


def role_among(made: Made | None, roles: Iterable[str | None]) -> str | None:
    """What a part is for, beside parts in these roles: without a policy nothing can be told."""
    return None if made is None or "policy" not in set(roles) else ROLES.get(made)


TEMPERATURE = re.compile(r"(^|_)(alpha|log_alpha|ent_coef|entropy_coef|temperature|temp)(_|$)")
ACTION_VALUE = re.compile(r"(^|_)(q|qf|qs|qvalue|critic)s?\d*(_|-|$)")


def role_by_name(name: str) -> str | None:
    """As the doctor has it, with two more: the loss of a temperature, and that of action values."""
    plain = name.lower()
    if TEMPERATURE.search(plain) and "loss" in plain:
        return "temperature"
    role = role_of(name)
    return "q" if role == "value" and ACTION_VALUE.search(plain) else role


def inputs_of(node: Any) -> Iterable[tuple[Any, int]]:
    """Places a few operations below a part, above the model, the nearest first."""
    waiting, seen = deque([(node, 0)]), 0
    while waiting and seen < MOST_INPUTS:
        here, depth = waiting.popleft()
        seen += 1
        for child, number in here.next_functions:
            if child is not None:
                yield child, number
                if depth < DEEPEST and not MODEL.fullmatch(type(child).__name__):
                    waiting.append((child, depth + 1))


def _is_square(node: Any) -> bool:
    name = type(node).__name__
    if name == "PowBackward0":
        return bool(node._saved_exponent == 2)
    return bool(SQUARES.fullmatch(name))


def _is_exp_less_itself(node: Any) -> bool:
    """exp(d) − d − 1, the estimate of a KL divergence that is never negative."""
    for _ in range(3):
        if type(node).__name__ not in ("SubBackward0", "AddBackward0"):
            return False
        children = [child for child, _ in node.next_functions if child is not None]
        exps = [child for child in children if type(child).__name__ == "ExpBackward0"]
        if len(children) == 2 and len(exps) == 1:
            other = next(child for child in children if child is not exps[0])
            return _is_difference(other) and _is_difference(exps[0].next_functions[0][0])
        if len(children) != 1:
            return False
        node = children[0]
    return False


def _is_difference(node: Any) -> bool:
    """Of something trained and a constant, such as a reference."""
    if type(node).__name__ != "SubBackward0":
        return False
    return [child for child, _ in node.next_functions].count(None) == 1


def _above_model(node: Any) -> tuple[list[str], bool]:
    """The operations between this one and the model; and whether there is nothing but weights."""
    found: list[str] = []
    waiting, seen, of_model = [node], {node}, False
    while waiting and len(seen) <= MOST_NODES:
        here = waiting.pop()
        name = type(here).__name__
        if MODEL.fullmatch(name):
            of_model = of_model or name != "AccumulateGrad"
            continue
        found.append(name)
        for child, _ in here.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return found, not of_model and not waiting
