"""A part of a loss that has no gradient: which of the program's tensors it is.

In the graph such a part is an input of a sum that leads nowhere, as a literal is. What it adds to
the loss is known: the loss less its other parts. Where that is one of the tensors that the program
holds (or its mean, or its sum), times a number that the program holds, it is that tensor, detached.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gradiometer.capture.frames import NamedTensor, Names
from gradiometer.capture.schematic import Schematic
from gradiometer.capture.terms import GraphPart
from gradiometer.doctor.terms import role_of

__all__ = ["detached_part"]

LARGEST = 1 << 20
"""Elements of a tensor whose mean is taken."""
NOT_A_TERM = re.compile(
    r"(^|_)(target|targ|old|prev|ref|limit|max|min|delta|threshold|budget|coef|coeff|weight|beta"
    r"|alpha|baseline|mean|std|eps|reward|return|returns|adv|advantages?)(_|$)"
)
LOSS = re.compile(r"(^|_)(loss|losses|penalty|bonus|reg|term|cost)(_|$)")
IN_SAMPLES = ("entropy", "kl", "auxiliary", "penalty")
"""What may be a term of a sum over samples: a baseline is detached there on purpose."""
MOST_COEFFICIENTS = 128
"""The nearest frames' come first; with more of them a number would fit by chance."""
SURE = ("entropy", "kl", "value", "policy")
ROUNDING, VISIBLE = 8.0, 64.0
"""In units of the last digit of the sum: how far off the value may be, and how large it must be."""


class _Match(NamedTuple):
    named: NamedTensor
    coefficient: float
    error: float


def detached_part(found: Schematic, names: Names) -> GraphPart | None:
    """The part without a gradient, where the program's tensors tell which it is."""
    if found.constant is None or found.loss.device.type != "cpu":
        return None  # elsewhere every look at a value would be a sync
    missing = float(found.constant)
    values = [abs(float(part.value)) for part in found.parts if part.value is not None]
    digit = torch.finfo(found.loss.dtype).eps * (abs(float(found.loss)) + sum(values))
    if not abs(missing) > VISIBLE * digit:
        return None
    live = {part.name for part in found.parts}
    scalar = all(found.constants)
    matches = list(_matches(missing, ROUNDING * digit, names, live, scalar=scalar))
    if not matches:
        return None
    best = min(matches, key=lambda match: (_rank(match), match.error))
    role = role_of(best.named.name)
    others = [match for match in matches if role_of(match.named.name) != role]
    if any(_rank(match) < len(SURE) and not _is_same(match, best) for match in others):
        return None  # two tensors of different meaning have this very value
    return GraphPart(
        name=best.named.name,
        role=role,
        edges=(),
        value=found.constant,
        coefficient=best.coefficient,
        named_by="value",
    )


def _rank(match: _Match) -> int:
    role = role_of(match.named.name)
    return SURE.index(role) if role in SURE else len(SURE) + (role is None)


def _is_same(a: _Match, b: _Match) -> bool:
    return a.named.tensor is b.named.tensor


def _matches(
    missing: float, allowed: float, names: Names, live: Collection[str], *, scalar: bool
) -> Iterator[_Match]:
    held = dict.fromkeys(abs(x) for x in (1.0, *names.numbers) if x and abs(x) < 1e4)
    coefficients = list(held)[:MOST_COEFFICIENTS]
    for named in names.tensors:
        if named.name in live or not _may_be_term(named, scalar=scalar):
            continue
        for value in _readings(named.tensor):
            for coefficient in coefficients:
                error = abs(abs(missing) - abs(coefficient * value))
                if error <= allowed:
                    sign = 1.0 if missing * value > 0 else -1.0
                    yield _Match(named, sign * coefficient, error)


def _may_be_term(named: NamedTensor, *, scalar: bool) -> bool:
    tensor, name = named.tensor, named.name.lower()
    if not tensor.is_floating_point() or tensor.device.type != "cpu" or NOT_A_TERM.search(name):
        return False
    if not 0 < tensor.numel() <= LARGEST:
        return False
    role = role_of(named.name)
    return (role is not None or bool(LOSS.search(name))) if scalar else role in IN_SAMPLES


def _readings(tensor: Tensor) -> list[float]:
    held = tensor.detach().float()
    return [float(held)] if held.numel() == 1 else [float(held.mean()), float(held.sum())]
