"""What the structure of a training proves, without statistics: facts of its graph and optimizers.

`ProofLog` keeps what was checked. The rest are small functions over the nodes of a loss that is
about to go backward; nothing of a graph is kept but words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = [
    "ExpandedSides",
    "ProofLog",
    "Twice",
    "are_columns",
    "broadcast_shape",
    "broadcasts",
    "is_mixed",
    "normalised_elsewhere",
    "normalised_twice",
]

OK, FOUND, UNMEASURABLE = "ok", "found", "unmeasurable"


class EventSink(Protocol):
    """Who keeps events: the meter."""

    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None: ...


class ProofLog:
    """Which structural facts were checked in this run, and what came of each.

    A fact that is found is an event with the finding's id as its kind, once per subject. The states
    become the table `proofs`: {"gradients-not-cleared": "ok", "double-softmax": "found",
    "sampler-mismatch": "unmeasurable: why"}. What was found stays, unless it is withdrawn.
    """

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._states: dict[str, str] = {}
        self._told: set[tuple[str, str]] = set()
        self._is_new = False

    def ok(self, id: str) -> None:
        """It was checked, and it is well."""
        if self._states.get(id) != FOUND:
            self._set(id, OK)

    def found(
        self, id: str, message: str, *, step: int | None = None, subject: str = "", **detail: Any
    ) -> None:
        """It is so: an event, once for each subject (a term, a block), and the state."""
        self._set(id, FOUND)
        if (id, subject) not in self._told:
            self._told.add((id, subject))
            more = {"subject": subject} if subject else {}
            self._events.event(id, message, step, **more, **detail)

    def unmeasurable(self, id: str, why: str) -> None:
        """It cannot be checked here; a check that could be made counts more."""
        if self._states.get(id) not in (OK, FOUND):
            self._set(id, f"{UNMEASURABLE}: {why}")

    def withdraw(self, id: str) -> None:
        """A later look showed that it was not so: the event stays, the state says ok."""
        if self._states.get(id) == FOUND:
            self._set(id, OK)

    def state(self, id: str) -> str | None:
        """`ok`, `found`, `unmeasurable: why`, or None where nobody has looked."""
        return self._states.get(id)

    def news(self) -> dict[str, str] | None:
        """The table, if it has changed since it was last asked for."""
        is_new, self._is_new = self._is_new, False
        return dict(self._states) if is_new else None

    def _set(self, id: str, state: str) -> None:
        self._is_new = self._is_new or self._states.get(id) != state
        self._states[id] = state


# Nodes. What a node saved for its backward is read where that is a look and no computation.

MOST_NODES = 20_000
"""Of one loss; a larger graph is read as far as this."""
UNARY = re.compile(
    r"(Neg|Pow|Abs|Exp|Expm1|Log|Log1P|Sqrt|Rsqrt|Clamp|ClampMin|ClampMax|Sigmoid|LogSigmoid"
    r"|Softplus|Relu|LeakyRelu|Tanh|MaskedFill|NanToNum|Reciprocal|Sgn|Cosh|Where)Backward\d*"
)
BINARY = re.compile(r"(Sub|Add|Rsub|Mul|Div|Minimum|Maximum|Addcmul|Addcdiv)Backward\d*")
REDUCED = re.compile(r"(Mean|Sum|Nansum|Nanmean)Backward\d*")
LOSSES = re.compile(
    r"(MseLoss|SmoothL1Loss|HuberLoss|L1Loss|BinaryCrossEntropy|BinaryCrossEntropyWithLogits)"
    r"Backward\d*"
)
VIEWS = re.compile(
    r"(View|UnsafeView|ReshapeAlias|Reshape|Squeeze|Unsqueeze|Expand|ToCopy|Clone|Alias|Contiguous"
    r"|T|Transpose|Permute|NumpyT|Slice|Select)Backward\d*"
)
TURNED = re.compile(r"(T|Transpose|Permute|NumpyT)Backward\d*")
EXPANDED = re.compile(r"ExpandBackward\d*")
LINEAR = re.compile(r"(Mean|Sum|Neg|Add|Sub|Rsub)Backward\d*")

Shape = tuple[int, ...]


def children(node: Any) -> list[tuple[Any, int]]:
    """What a node takes from other nodes."""
    return [(child, number) for child, number in node.next_functions if child is not None]


def shape_of(node: Any, number: int = 0) -> Shape | None:
    """Of an output of a node; private to torch, and None where it does not tell."""
    known = getattr(node, "_input_metadata", ())
    if number >= len(known):
        return None
    return tuple(int(size) for size in known[number].shape)


def saved(node: Any, name: str) -> Tensor | None:
    """A tensor that a node keeps for its backward.

    None where a hook stands before it: a checkpoint would run the forward again.
    """
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", raw) is not None:
        return None
    try:
        found = getattr(node, f"_saved_{name}")
    except RuntimeError:  # changed in place since: the backward itself will say so
        return None
    return found if isinstance(found, Tensor) else None


def before_expansion(tensor: Tensor) -> Shape:
    """Its shape without what was expanded: those dimensions have a stride of 0."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return bare(1 if stride == 0 else int(size) for size, stride in sizes)


def bare(sizes: Iterable[int]) -> Shape:
    """Without ones in front, which an expansion puts there."""
    listed = list(sizes)
    while len(listed) > 1 and listed[0] == 1:
        listed.pop(0)
    return tuple(listed)


def is_of_parameter(node: Any) -> bool:
    """Whether nothing but views lie between a node and a leaf."""
    while VIEWS.fullmatch(node.name()) and len(children(node)) == 1:
        node = children(node)[0][0]
    return hasattr(node, "variable")


# Shapes. A table N × N of two columns of N is averaged into the loss.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedSides:
    """Two operands that were expanded against each other."""

    node: Any
    above: tuple[Any, ...]
    """The nodes from there to the loss."""
    first: Shape
    second: Shape
    result: Shape

    @property
    def operation(self) -> str:
        """For people."""
        return re.sub(r"Backward\d*$", "", self.node.name())


@dataclass(slots=True)
class _Visit:
    node: Any
    above: tuple[Any, ...]
    nonlinear: bool
    """Whether the path to the loss is more than a weighted sum: of that, shapes change nothing."""


LEAST_ROWS = 3
DEEPEST = 40
"""Nodes between an operation and the loss."""


def broadcasts(roots: Iterable[Any]) -> Iterator[ExpandedSides]:
    """Operations of a loss whose result is N × N although each side has N elements, by accident.

    By accident: the ranks differ or nobody asked for a table (`x[:, None] - x[None, :]`, `x - x.T`
    do), and all of the table goes into the loss element by element.
    """
    for visit in _pointwise(roots):
        name = visit.node.name()
        if LOSSES.fullmatch(name):
            found = _in_loss(visit)
        elif BINARY.fullmatch(name):
            found = _in_operation(visit)
        else:
            continue
        if found is not None:
            yield found


def _pointwise(roots: Iterable[Any]) -> Iterator[_Visit]:
    """The nodes from which elements go into the loss one by one: no layer lies between."""
    waiting = [_Visit(root, (), nonlinear=False) for root in roots]
    seen = set(roots)
    while waiting and len(seen) < MOST_NODES:
        visit = waiting.pop()
        name = visit.node.name()
        yield visit
        passes = any(kind.fullmatch(name) for kind in (UNARY, BINARY, REDUCED, LOSSES, VIEWS))
        if not passes or len(visit.above) > DEEPEST:
            continue
        nonlinear = visit.nonlinear or not _is_linear(visit.node, name)
        for child, _ in children(visit.node):
            if child not in seen:
                seen.add(child)
                waiting.append(_Visit(child, (visit.node, *visit.above), nonlinear=nonlinear))


def _is_linear(node: Any, name: str) -> bool:
    if LINEAR.fullmatch(name) or VIEWS.fullmatch(name):
        return True
    factors = [saved(node, "self"), saved(node, "other")] if BINARY.fullmatch(name) else [None]
    there = [factor for factor in factors if factor is not None]
    return bool(there) and all(factor.numel() == 1 for factor in there)


def broadcast_shape(first: Shape, second: Shape) -> Shape | None:
    """Of both together; None where they do not fit."""
    try:
        return tuple(torch.broadcast_shapes(first, second))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None


def are_columns(first: Shape | None, second: Shape | None, result: Shape | None) -> bool:
    """Whether both are N numbers, and the result is N × N."""
    if first is None or second is None or result is None:
        return False
    sizes = [[size for size in shape if size != 1] for shape in (first, second, result)]
    rows = sizes[0]
    return len(rows) == 1 and rows[0] >= LEAST_ROWS and sizes[1:] == [rows, rows * 2]


def is_mixed(first: Shape, second: Shape, result: Shape | None) -> bool:
    """The sides of mse_loss and the like: of these also a column against a table of N × N, which
    was mixed up before (`r + gamma * q`, with r a column and q a row)."""
    one = first if len(first) < len(second) or first != result else second
    return are_columns(first, second, result) or (
        {first, second} == {one, result} and are_columns(one, one, result)
    )


def _in_loss(visit: _Visit) -> ExpandedSides | None:
    """mse_loss and the like expand both sides themselves, and keep them."""
    one, other = saved(visit.node, "self"), saved(visit.node, "target")
    if one is None or other is None or any(_asked_for(x) for x, _ in children(visit.node)):
        return None
    first, second, result = before_expansion(one), before_expansion(other), tuple(one.shape)
    return _broadcast(visit, first, second, result) if is_mixed(first, second, result) else None


def _in_operation(visit: _Visit) -> ExpandedSides | None:
    node, result = visit.node, shape_of(visit.node)
    edges = list(node.next_functions)[:2]
    linear = bool(LINEAR.fullmatch(node.name()))
    if result is None or len(edges) < 2 or (linear and not visit.nonlinear):
        return None
    if any(child is not None and _asked_for(child) for child, _ in edges):
        return None
    shapes = [
        _operand(node, child, number, name)
        for (child, number), name in zip(edges, ("self", "other"), strict=True)
    ]
    if None in shapes and linear:
        known = next((shape for shape in shapes if shape is not None), None)
        if not are_columns(known, known, result) or not _is_sum_of_columns(visit, result):
            return None
        shapes = [_other_side(known, result) if child is None else known for child, _ in edges]
    first, second = shapes
    if first is None or second is None or not are_columns(first, second, result):
        return None
    return _broadcast(visit, first, second, result)


def _broadcast(visit: _Visit, first: Shape, second: Shape, result: Shape) -> ExpandedSides:
    return ExpandedSides(
        node=visit.node, above=visit.above, first=first, second=second, result=result
    )


def _operand(node: Any, child: Any, number: int, name: str) -> Shape | None:
    """The shape of one side, before anything expanded it."""
    if child is None:
        kept = saved(node, name)
        return None if kept is None else before_expansion(kept)
    while EXPANDED.fullmatch(child.name()) and children(child):
        child, number = children(child)[0]
    return shape_of(child, number)


def _other_side(known: Shape | None, result: Shape) -> Shape:
    """What was not kept, where the result is a sum of a column and a row."""
    assert known is not None
    padded = (1,) * (len(result) - len(known)) + known
    return bare(1 if mine == size else size for mine, size in zip(padded, result, strict=True))


def _asked_for(node: Any) -> bool:
    """Whether somebody made a column or a row of it on purpose, or it is a parameter itself."""
    if is_of_parameter(node):
        return True
    for _ in range(8):
        name, below = node.name(), children(node)
        if TURNED.fullmatch(name):
            return True
        if len(below) != 1 or not (VIEWS.fullmatch(name) or UNARY.fullmatch(name)):
            return False
        (child, number), now = below[0], shape_of(node)
        then = shape_of(child, number)
        expands = bool(EXPANDED.fullmatch(name))
        if not expands and now is not None and then is not None and len(now) > len(then):
            return True
        node = child
    return False


def _is_sum_of_columns(visit: _Visit, result: Shape) -> bool:
    """Whether the values of the result are a_i + b_j: what the operation after it has kept shows.

    Of a side without a gradient not even the shape is kept by a sum or a difference.
    """
    for parent in visit.above[:1]:
        for name in ("self", "other", "result"):
            kept = saved(parent, name)
            if kept is None or tuple(kept.shape) != result:
                continue
            kept = kept.log() if name == "result" and parent.name().startswith("Exp") else kept
            if _adds_up(kept):
                return True
    return False


@torch.no_grad()
def _adds_up(table: Tensor) -> bool:
    corner = table.detach().squeeze()[:64, :64].double()
    mixed = corner - corner[:1] - corner[:, :1] + corner[:1, :1]
    size = float(corner.abs().max())
    rows, columns = (
        float((corner - corner[:1]).abs().max()),
        float((corner - corner[:, :1]).abs().max()),
    )
    return bool(float(mixed.abs().max()) <= 1e-4 * size) and min(rows, columns) > 1e-3 * size


# Softmax of a softmax.

NORMALISES = re.compile(r"(_?Softmax|_?LogSoftmax|Logsumexp)Backward\d*")
PROBABILITIES = re.compile(r"_?SoftmaxBackward\d*")
LOGITS_LOSS = re.compile(r"BinaryCrossEntropyWithLogitsBackward\d*")
SIGMOID = re.compile(r"SigmoidBackward\d*")
RELU, LAYER = re.compile(r"ReluBackward\d*"), re.compile(r"AddmmBackward\d*")
HANDED_ON = re.compile(
    r"(View|UnsafeView|ReshapeAlias|Reshape|Squeeze|Unsqueeze|ToCopy|Clone|Alias|Contiguous|Slice"
    r"|MaskedFill|Index|Add|Sub|Mul|Div)Backward\d*"
)
"""What leaves probabilities what they are, or scales and masks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twice:
    """Probabilities that are taken for logits, or a ReLU of logits."""

    node: Any
    """That normalises the second time."""
    below: Any
    """That did so first."""
    above: tuple[Any, ...] = field(default=())

    @property
    def words(self) -> tuple[str, str]:
        """Of the first and of the second, for people."""
        return _plain(self.below), _plain(self.node)


def _plain(node: Any) -> str:
    name = re.sub(r"Backward\d*$", "", node.name()).lstrip("_")
    known = {
        "Logsumexp": "Categorical(logits=...) or logsumexp",
        "LogSoftmax": "log_softmax",
        "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    }
    return known.get(name, name.lower())


def normalised_twice(roots: Iterable[Any]) -> Iterator[Twice]:
    """Places where softmax comes after softmax, or a sigmoid before a loss that takes logits.

    A softmax of log-probabilities changes nothing, and is not told, but where the first one is
    along the samples that a layer gave and the second along the classes. A ReLU between a layer and
    the softmax of what it gave is.
    """
    for node in every_node(roots):
        name = node.name()
        if NORMALISES.fullmatch(name):
            below = _handed_on(node, PROBABILITIES)
            if below is not None and _same_dimension(node, below):
                yield Twice(node=node, below=below)
            over_samples = _handed_on(node, SOFTMAX)
            if over_samples is not None and _is_along_samples(over_samples, node):
                yield Twice(node=node, below=over_samples)
            # of a layer alone: some attention has a ReLU of its scores
            cut = _handed_on(node, RELU)
            if cut is not None and _handed_on(cut, LAYER) is not None:
                yield Twice(node=node, below=cut)
        elif LOGITS_LOSS.fullmatch(name) and (below := _handed_on(node, SIGMOID)) is not None:
            yield Twice(node=node, below=below)


CHOOSES = re.compile(r"GatherBackward\d*")
SOFTMAX = re.compile(r"_?(Log)?SoftmaxBackward\d*")
TO_LOGITS = re.compile(r"(Log|Clamp|ClampMin|Div|ToCopy|Clone|Squeeze|View)Backward\d*")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherAxis:
    """One of several probabilities is chosen, which were normalised over the samples."""

    node: Any
    """That chooses."""
    below: Any
    """That normalises."""


def normalised_elsewhere(roots: Iterable[Any]) -> Iterator[OtherAxis]:
    """Places where a table of rows by actions goes through softmax along its rows, and an action of
    each row is chosen: softmax(dim=0) where dim=1 is meant. Of sequences, [rows, tokens, words],
    the last dimension is chosen from, and the softmax may be along either of the others."""
    for node in every_node(roots):
        if not CHOOSES.fullmatch(node.name()):
            continue
        index = saved(node, "index")
        if index is None or index.ndim not in (2, 3) or index.shape[-1] != 1:
            continue
        below = _chosen_from(node)
        shape = None if below is None else shape_of(below)
        if shape is None or len(shape) != index.ndim or shape[-1] < 2:
            continue
        chosen, normalised = (_counted(_place(each), index.ndim) for each in (node, below))
        if chosen == index.ndim - 1 and normalised is not None and normalised != chosen:
            yield OtherAxis(node=node, below=below)


def _chosen_from(node: Any) -> Any:
    """The softmax that a choice is made from, perhaps by way of its logarithm and of Categorical,
    which divides by the sum over actions."""
    for _ in range(6):
        below = children(node)
        node = below[0][0] if below else None
        if node is None or SOFTMAX.fullmatch(node.name()):
            return node
        if not TO_LOGITS.fullmatch(node.name()):
            return None
    return None


def _place(node: Any) -> int | None:
    """The dimension that a node saved, which may be negative, or without its sign."""
    given = getattr(node, "_saved_dim", None)
    if not isinstance(given, int):
        return None
    return given - 2**64 if given >= 2**63 else given


def _counted(place: int | None, dimensions: int) -> int | None:
    """Of so many dimensions, counted from the first."""
    return None if place is None else place % dimensions


def dimension_of(node: Any) -> int | None:
    """The one that a softmax normalises, counted from the first."""
    shape = shape_of(node)
    return None if shape is None else _counted(_place(node), len(shape))


def every_node(roots: Iterable[Any]) -> Iterator[Any]:
    """Each node below the roots once, those nearest to the loss first."""
    waiting = list(dict.fromkeys(roots))
    seen = set(waiting)
    for node in waiting:
        yield node
        for child, _ in children(node):
            if child not in seen and len(seen) < MOST_NODES:
                seen.add(child)
                waiting.append(child)


def _handed_on(node: Any, wanted: re.Pattern[str]) -> Any:
    """The node of that kind whose output this one takes, perhaps scaled or masked."""
    below = children(node)
    for _ in range(8):
        if len(below) != 1:
            return None
        child = below[0][0]
        if wanted.fullmatch(child.name()):
            return child
        if not HANDED_ON.fullmatch(child.name()):
            return None
        below = children(child)
    return None


def _is_along_samples(below: Any, node: Any) -> bool:
    """Whether a table straight from a layer is normalised along its rows, and then along its
    columns by what takes logits (a cross entropy, Categorical): two softmaxes, or those of a matrix
    of similarities, are on purpose."""
    shape = shape_of(below)
    return (
        shape is not None
        and len(shape) == 2
        and not PROBABILITIES.fullmatch(node.name())
        and (dimension_of(below), _dimension(node)) == (0, -1)
        and shape_of(node) in (shape, shape[:1], (shape[0], 1))
        and _handed_on(below, LAYER) is not None
    )


def _same_dimension(node: Any, below: Any) -> bool:
    """Rows and then columns are normalised on purpose."""
    one, other = _dimension(node), _dimension(below)
    return one is None or other is None or one == other


def _dimension(node: Any) -> int | None:
    """Counted from the end."""
    dimension, shape = getattr(node, "_saved_dim", None), shape_of(node)
    given = dimension[0] if isinstance(dimension, Sequence) and len(dimension) == 1 else dimension
    if not isinstance(given, int) or shape is None:
        return None
    given = given - 2**64 if given >= 2**63 else given
    rank = len(shape) + (_drops_dimension(node, shape))
    return given if given < 0 else given - rank


def _drops_dimension(node: Any, shape: Shape) -> int:
    """logsumexp without keepdim has one dimension less than what it takes."""
    kept = saved(node, "self")
    return 0 if kept is None else max(0, kept.dim() - len(shape))
