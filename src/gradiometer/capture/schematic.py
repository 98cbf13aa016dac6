"""The parts of a loss, read off its own graph: what is added up, under which name, times what.

From the root the graph is followed down. A sum is opened, by calling its node: that gives the
gradient of each of its inputs, edge by edge (the gradient of the loss by an inner tensor would be
the total over all paths through it). What is linear in its one input is passed through. Anything
else ends a part, and so does a value that the program has a name for: `exp(d) - d - 1` is a sum,
and still one part.

A part's gradient is that of its edge in the graph, given what arrives there from the loss. The
loss is affine in what the parts are of, so <arriving gradient, value> is what each adds to it, and
the rest are parts without a gradient.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from gradiometer.capture.frames import NamedTensor, Names
from gradiometer.capture.hooks import BackwardCall
from gradiometer.capture.noderesults import result_of
from gradiometer.capture.partroles import Made, inputs_of, made_of, role_among, role_by_name
from gradiometer.capture.terms import Edge, GraphPart
from gradiometer.doctor.terms import role_of

__all__ = ["Schematic", "Surveyed", "read", "survey"]

SUMS = re.compile(r"(Add|Sub|Stack|Cat)Backward0|RsubBackward\d")
LINEAR = re.compile(
    r"(Mul|Div|Neg|Mean|Sum|Nansum|T|Transpose|Permute|View|UnsafeView|ReshapeAlias"
    r"|Expand|Unsqueeze|Squeeze|ToCopy|Clone|Alias|Slice|Select|Split|SplitWithSizes|Unbind"
    r"|AsStrided|MoveAxis|Index|IndexSelect|Gather|MaskedSelect|MaskedFill|MaskedScatter|Where"
    r"|Flip|Roll|Cumsum|Dot|Mv|Repeat|Tril|Triu|Diagonal|ConstantPadNd)"
    r"Backward\d+|CopyBackwards"
)
"""Nodes that are linear in an input, where only one of their inputs has a gradient."""
MODEL = re.compile(
    r"(Addmm|Mm|Bmm|Baddbmm|Addbmm|Convolution|MkldnnConvolution|NativeLayerNorm|NativeBatchNorm"
    r"|CudnnBatchNorm|NativeGroupNorm|FusedRmsNorm|Embedding|Linear|MkldnnLinear)Backward\d*"
    r"|AccumulateGrad"
)
"""Nodes that a model is made of: a sum of their results is a residual or a dueling head."""
MOST_PARTS = 2_000
MOST_STEPS = 32
"""Linear nodes in a row."""
MOST_ALIKE = 8
"""More items of one list, or more parts without a name, are one term."""
MOST_NODES = 200_000
KNOWN = ("torch.", "trl.", "flash_attn", "gradiometer.", "torchrl.modules.distributions.")
"""Modules whose own backwards may run more than once."""
LOSS = re.compile(r"(^|_)(loss|penalty|bonus|reg|term|cost)(_|$)")
GENERIC = frozenset({"loss", "losses", "total", "total_loss", "l", "x", "t", "term", "item", "out"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Schematic:
    """A loss about to go backward, and its parts."""

    loss: Tensor
    """Its value, a scalar; of several roots their sum."""
    parts: tuple[GraphPart, ...]
    constants: tuple[bool, ...]
    """Inputs of the sums that have no gradient, literals or parts that were detached: whether each
    is in a sum of scalars."""
    constant: Tensor | None
    """What these add to the loss; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """The leaves below some roots, and what is on the way there."""

    leaves: tuple[Tensor, ...]
    is_half: bool
    strangers: frozenset[str]
    """Operations with a backward of somebody's own."""


def survey(roots: Iterable[Tensor]) -> Surveyed | None:
    """Walk the whole graph; None of one too large for that."""
    found = [root for root in roots if root.grad_fn is None and root.requires_grad]
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen: set[Any] = set(waiting)
    is_half = False
    strangers: set[str] = set()
    while waiting:
        node: Any = waiting.pop()
        if isinstance(node, BackwardCFunction):
            made_by = getattr(node, "_forward_cls", type(node))
            hides = made_by.__name__ == "CheckpointFunction"  # reentrant: its weights are not seen
            if hides or not made_by.__module__.startswith(KNOWN):
                strangers.add(made_by.__name__)
        is_half = is_half or any(
            x.dtype in (torch.float16, torch.bfloat16) for x in node._input_metadata
        )
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
        if len(seen) > MOST_NODES:
            return None
    return Surveyed(leaves=tuple(found), is_half=is_half, strangers=frozenset(strangers))


@torch.no_grad()
def read(call: BackwardCall, names: Names, numbering: dict[Any, str]) -> Schematic:
    """The parts of what goes backward. `numbering` has the names that parts without one were given,
    and gets more of them: they keep theirs over a run."""
    walk = _Walk(names)
    loss: Tensor | None = None
    for number, root in enumerate(call.tensors):
        slope = call.slope(number)
        value = (root.detach() * slope).sum()
        loss = value if loss is None else loss + value.to(loss.device)
        if root.grad_fn is not None:
            top = _Front(root.grad_fn, root.output_nr, slope, path=(number,))
            walk.whole.append(top)
    walk.run()
    assert loss is not None
    parts = _merged(walk.ended, names, numbering)
    known = [part.value for part in parts if part.value is not None]
    rest = loss - sum(x.to(loss) for x in known)
    if len(known) == len(parts) - 1 and not walk.constants:
        # where one value alone is not known, it is what the others leave of the loss
        parts = [part if part.value is not None else replace(part, value=rest) for part in parts]
    told = bool(walk.constants) and len(known) == len(parts)
    return Schematic(
        loss=loss,
        parts=tuple(parts),
        constants=tuple(walk.constants),
        constant=rest if told else None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Front:
    node: Any
    number: int
    slope: Tensor
    path: tuple[Any, ...]
    """Which inputs lead here from the root."""
    coefficient: float = 1.0


@dataclass(frozen=True, slots=True)
class _Chain:
    """A front, and the linear nodes below it down to a sum or an end."""

    top: _Front
    bottom: _Front
    opens: bool
    """It ends in a sum."""
    nodes: tuple[Any, ...]
    named: tuple[tuple[NamedTensor, _Front], ...]


@dataclass(frozen=True, slots=True)
class _Ended:
    """A part: its front, and the best of its names."""

    front: _Front
    named: NamedTensor | None
    at: _Front
    """Where the name is, or else the end of the linear nodes."""
    bottom: _Front
    """The end of the linear nodes."""

    @property
    def made(self) -> Made | None:
        """What it is made of, whatever its name."""
        passed = [name for name, _ in self.bottom.path[len(self.front.path) :]]
        return made_of(self.bottom.node, passed)


@dataclass(slots=True)
class _Walk:
    names: Names
    whole: list[_Front] = field(default_factory=list)
    ended: list[_Ended] = field(default_factory=list)
    constants: list[bool] = field(default_factory=list)

    def run(self) -> None:
        """Follow all fronts down to their ends."""
        waiting = deque(self.whole)
        alone = len(waiting) == 1
        while waiting:
            chain = self._follow(waiting.popleft())
            children = self._opened(chain, waiting, whole=alone) if chain.opens else None
            if children is None:
                self.ended.append(_ended(chain))
            else:
                alone = alone and len(children) == 1
                waiting.extendleft(reversed(children))

    def _opened(self, chain: _Chain, waiting: deque[_Front], *, whole: bool) -> list[_Front] | None:
        """The inputs of the sum at the end of the chain; None where the part is not to be opened.

        The whole loss is always opened, whatever its name.
        """
        sum_ = chain.bottom
        children, constants = _open(sum_)
        if len(waiting) + len(self.ended) + len(children) > MOST_PARTS or not children:
            return None
        if not whole or not _is_scalar(sum_):
            chains = [self._follow(child) for child in children]
            all_named = all(each.named for each in chains)
            if not whole and chain.named and not (all_named and _is_scalar(sum_)):
                return None
            closed = any(map(_is_of_model, chains)) or _are_of_one(chains)
            closed = closed or (_is_weighed(chain) and not any(each.named for each in chains))
            if not _is_scalar(sum_) and not all_named and closed:
                return None
        self.constants += [_is_scalar(sum_)] * constants
        return children

    def _follow(self, front: _Front) -> _Chain:
        """Down the linear nodes, to the next sum or to an end."""
        named: list[tuple[NamedTensor, _Front]] = []
        nodes: list[Any] = []
        now = front
        for _ in range(MOST_STEPS):
            nodes.append(now.node)
            named += [(each, now) for each in self.names.of(now.node, now.number)]
            live = [child for child, _ in now.node.next_functions if child is not None]
            name = type(now.node).__name__
            if isinstance(now.node, BackwardCFunction):
                break
            if SUMS.fullmatch(name) and live:
                return _Chain(front, now, True, tuple(nodes), tuple(named))
            if len(live) != 1 or not LINEAR.fullmatch(name):
                break
            below = _open(now)[0]
            if not below:
                break
            now = below[0]
        return _Chain(front, now, False, tuple(nodes), tuple(named))


def _open(front: _Front) -> tuple[list[_Front], int]:
    """The inputs of a linear node with what arrives there, and how many have no gradient."""
    node = front.node
    given: list[Tensor | None] = [None] * len(node._input_metadata)
    given[front.number] = front.slope
    made = node(*given)
    slopes: Sequence[Tensor | None] = made if isinstance(made, tuple) else (made,)
    found: list[_Front] = []
    constants = int(type(node).__name__.startswith("Rsub"))
    for place, ((child, number), slope) in enumerate(
        zip(node.next_functions, slopes, strict=False)
    ):
        if child is None:
            constants += 1
        elif slope is not None:
            slope = _fitted(slope, child._input_metadata[number])
            factor = front.coefficient * _factor(node, place)
            path = (*front.path, (type(node).__name__, place))
            found.append(_Front(child, number, slope, path, factor))
    return found, constants


def _fitted(slope: Tensor, metadata: Any) -> Tensor:
    """As autograd hands it on: summed over what was broadcast, in the input's own type."""
    shape = tuple(metadata.shape)
    if tuple(slope.shape) != shape:
        slope = slope.sum_to_size(shape)
    return slope.to(dtype=metadata.dtype, device=metadata.device)


def _factor(node: Any, place: int) -> float:
    """The number that a node multiplies by; 1 where that is no single number on the host."""
    name = type(node).__name__
    if name == "NegBackward0":
        return -1.0
    if name in ("SubBackward0", "AddBackward0"):
        alpha = _number(getattr(node, "_saved_alpha", 1)) if place == 1 else 1.0
        return -alpha if name[0] == "S" and place == 1 else alpha
    if name.startswith("RsubBackward"):
        return -1.0
    if name == "MulBackward0":
        return _number(node._saved_other if place == 0 else node._saved_self)
    if name == "DivBackward0" and place == 0:
        return 1.0 / (_number(node._saved_other) or 1.0)
    return 1.0


def _number(value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value)
    return 1.0


def _is_scalar(front: _Front) -> bool:
    return front.slope.numel() == 1 and front.slope.dim() <= 1


def _is_of_model(chain: _Chain) -> bool:
    return bool(MODEL.fullmatch(_name(chain.bottom.node))) and not chain.named


def _are_of_one(chains: Sequence[_Chain]) -> bool:
    """Whether an input of the sum is made from another: exp(d) - d is one function of d."""
    for chain in chains:
        below = {child for child, _ in chain.bottom.node.next_functions if child is not None}
        others = [each for each in chains if each is not chain]
        if not chain.opens and any(not below.isdisjoint(each.nodes) for each in others):
            return True
    return False


def _is_weighed(chain: _Chain) -> bool:
    """Whether each sample of the sum has a weight of its own, as what a distribution says of an
    action has its advantage: a square and the logarithm of a deviation, and still one term."""
    return any(_weighs(node) for node in chain.nodes)


def _weighs(node: Any) -> bool:
    """A product with many numbers. Zeros and ones are a mask, which parts of all kinds share."""
    if _name(node) != "MulBackward0":
        return False
    given = (node._saved_self, node._saved_other)
    factor = next((each for each in given if isinstance(each, Tensor) and each.numel() > 1), None)
    if factor is None or not factor.is_floating_point():
        return False
    return factor.device.type != "cpu" or not bool(((factor == 0) | (factor == 1)).all())


def _name(node: Any) -> str:
    return type(node).__name__


def _ended(chain: _Chain) -> _Ended:
    """The part under the best of its names: as far up as there is one, unless that one says nothing
    and one further down says what it is for."""
    if not chain.named:
        return _Ended(chain.top, None, chain.bottom, chain.bottom)
    ordered = sorted(chain.named, key=lambda pair: (len(pair[1].path), pair[0].distance))
    clear = [pair for pair in ordered if not _is_vague(pair[0])]
    named, at = clear[0] if clear else ordered[0]
    if clear and _is_vague(ordered[0][0]) and not _is_telling(named.name):
        named, at = ordered[0]
    return _Ended(chain.top, named, at, chain.bottom)


def _is_vague(named: NamedTensor) -> bool:
    is_item = named.by == "list" and named.siblings <= MOST_ALIKE
    return named.name.lower() in GENERIC or is_item


def _is_telling(name: str) -> bool:
    return role_of(name) is not None or LOSS.search(name.lower()) is not None


def _merged(ended: Iterable[_Ended], names: Names, numbering: dict[Any, str]) -> list[GraphPart]:
    """Parts of one name are one term; so are the many items of a list, and many without a name."""
    ended = list(ended)
    unnamed = [each for each in ended if each.named is None]
    many = len(unnamed) > MOST_ALIKE
    made = {each.front: each.made for each in ended if not many or each.named}
    known: list[str | None] = [role_of(each.named.name) for each in ended if each.named]
    known += [role_among(x, ["policy"]) for x in made.values() if x == "choice"]
    found: dict[str, GraphPart] = {}
    for each in ended:
        named, role = each.named, None
        if named is None:
            role = role_among(made.get(each.front), known)
            name, by = _by_structure(each, role, names, numbering, many=many)
        elif named.by == "list" and named.siblings > MOST_ALIKE:
            name, by = str(named.container), "list"
        else:
            name, by = named.name, str(named.by)
        part = GraphPart(
            name=name,
            role=role or _role(name, made.get(each.front), known, beside=set(made.values())),
            edges=(Edge(each.front.node, each.front.number, each.front.slope),),
            value=_value(each),
            coefficient=each.at.coefficient,
            named_by=by,
        )
        found[name] = part if name not in found else found[name].together(part)
    return list(found.values())


def _role(
    name: str, made: Made | None, known: Collection[str | None], *, beside: Collection[Made | None]
) -> str | None:
    """What a part with a name is for: its name says it, or else what it is made of. Beside
    log-probabilities of choices a critic's loss is of values, not of action values."""
    role = role_by_name(name)
    if role == "q" and made == "squares" and "choice" in beside:
        return "value"
    return role or role_among(made, known)


def _value(part: _Ended) -> Tensor | None:
    """What it adds to the loss: what arrives there times what is there."""
    there = part.named.tensor.detach() if part.named else result_of(part.at.node)
    if there is None or there.shape != part.at.slope.shape:
        return None
    return (part.at.slope * there).sum()


def _by_structure(
    part: _Ended, role: str | None, names: Names, numbering: dict[Any, str], *, many: bool
) -> tuple[str, str]:
    """What a part without a name is called, and why: its role, what it is made from, a number."""
    # the steps of one answer, added up sample by sample, are one term
    alike = role is not None and part.front.slope.numel() > 1
    path: Any = "many" if many else ("alike", role) if alike else _form(part.front)
    if path in numbering:
        return numbering[path], "structure" if role else "number"
    if role is None and not many:
        for place in inputs_of(part.at.node):
            telling = [each for each in names.of(*place) if role_by_name(each.name) is not None]
            if telling:
                numbering[path] = telling[0].name
                return telling[0].name, "input"
    return _numbered(path, role, numbering), "number" if role is None else "structure"


def _form(front: _Front) -> tuple[Any, ...]:
    """How a part without a name is known again: the way from the root to it."""
    return (*front.path, type(front.node).__name__)


def _numbered(path: Any, role: str | None, numbering: dict[Any, str]) -> str:
    """`term-2`, or `value` and `value-2` where the role is known."""
    if path not in numbering:
        stem = role or "term"
        taken = sum(
            re.fullmatch(rf"{stem}(-\d+)?", name) is not None for name in numbering.values()
        )
        numbering[path] = stem if role and not taken else f"{stem}-{taken + 1}"
    return numbering[path]
