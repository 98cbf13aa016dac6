"""Log-probabilities, entropies, ratios and values in the graph of a loss that is about to go
backward.

A distribution marks the node of its answer when it gives it (`mark`). What programs write by hand
is found by its form: a gather out of a log-softmax, the logarithm of a gather out of a softmax,
selected logits minus their logsumexp, a cross entropy without reduction. The walk ends at layers:
what lies below them is the model. Nothing of a graph is kept beyond the backward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Mark",
    "SeenEntropy",
    "SeenGraph",
    "SeenLogProbs",
    "TrainedValues",
    "activation_below",
    "layer_below",
    "layer_weights",
    "look",
    "mark",
    "observations",
    "of_one_network",
    "trained_towards",
    "value_layers",
    "value_weights",
]

MOST_NAMES = 4096


def named(pattern: str) -> Callable[[str], bool]:
    """Whether the name of an operation is of this pattern: asked of few names again and again, for
    every node of every loss that is looked at."""
    compiled = re.compile(pattern)
    return lru_cache(MOST_NAMES)(lambda name: compiled.fullmatch(name) is not None)


MARK = "gradiometer"
MOST_NODES = 20_000
"""Nodes above the layers; a loss over a long episode has thousands."""
MOST_LAYERS = 64
MOST_STACKED = 16
"""Networks in one layer; more is another dimension."""
MOST_BELOW, MOST_WEIGHTS = 400, 40
"""Nodes between a log-probability and its observations, and the weights on them from which on a
model with more nodes is not searched: it is no policy of a few layers. A recurrent network has few
weights and many nodes, its own ones anew at each step: it is searched up to `MOST_NODES`."""
is_layer = named(
    r"(Addmm|Mm|Bmm|Baddbmm|Convolution|NativeLayerNorm|NativeBatchNorm|NativeGroupNorm|Embedding"
    r"|Linear|MkldnnLinear|MkldnnRnnLayer|CudnnRnn|Lstm\w*|Gru\w*|ThnnFused\w*"
    r"|ScaledDotProduct\w*|CompiledFunction|Checkpoint\w*)(Backward\d*)?|AccumulateGrad"
)
is_view = named(
    r"(View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze|Expand|Clone|Alias|ToCopy|Transpose|T"
    r"|Permute|Slice|Clamp|ClampMin|AsStrided|Copy\w*|Cat|Stack|Unbind|Split|MaskedFill)"
    r"Backward\d*"
)
"""Nodes that hand on what they get, element by element."""
is_fused = named(r"\w*(LogProb|Logprob|LogP|FusedLinearForPPO)\w*Backward")
"""Functions of trainers that go from hidden states to log-probabilities at once, by their name:
TRL's ChunkedLogProbFunction, verl's FusedLinearForPPOFunction."""
CHOICES = ("GatherBackward0", "IndexBackward0", "SelectBackward0")
BOUNDS = ("MinimumBackward0", "MaximumBackward0")
NLL_LOSSES = ("NllLossBackward0", "NllLoss2DBackward0")
NEAR = 8
"""Nodes between a bound and the clip in it, or between an error and the layer of its value."""
BOUNDED = ("TanhBackward0", "SigmoidBackward0", "ReluBackward0")
"""Activations that do not give every number."""
ERRORS = ("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0")
TELLING = frozenset((*CHOICES, *BOUNDS, *NLL_LOSSES, *ERRORS)) | {
    *("LogBackward0", "SubBackward0", "MulBackward0", "ExpBackward0", "ClampBackward1"),
    "PowBackward0",
}
"""What is looked at more closely, beside views and fused functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a distribution answered, on the node of its answer."""

    kind: str
    """`log_prob` or `entropy`."""
    wide: bool
    """The last dimension is of actions, not of samples."""
    rows: int = 0
    """Samples; what is held of them may be thinned out."""
    actions: Tensor | None = None
    log_probs: Tensor | None = None
    resampled: bool = False
    """The very tensor that a distribution drew while a graph was being made."""
    reparametrised: bool = False
    residuals: Tensor | None = None
    """Of each sample what has a mean of zero if the distribution drew it."""
    level: Tensor | None = None
    """Of an entropy: its mean over the samples."""


@dataclass(slots=True, kw_only=True)
class SeenLogProbs:
    """Log-probabilities of one node. `sign` is −1 where the node holds their negatives."""

    node: Any
    sign: float = 1.0
    wide: bool = False
    rows: int = 0
    actions: Tensor | None = None
    log_probs: Tensor | None = None
    resampled: bool = False
    reparametrised: bool = False
    residuals: Tensor | None = None
    mask: Tensor | None = None
    """The program's own, of the tokens that count."""


@dataclass(slots=True, kw_only=True)
class SeenEntropy:
    """An entropy, or with `sign` −1 the products p log p that a program adds up by hand."""

    node: Any
    sign: float = 1.0
    wide: bool = False
    level: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class SeenGraph:
    """What a loss is made of, above the layers."""

    log_probs: list[SeenLogProbs] = field(default_factory=list)
    entropies: list[SeenEntropy] = field(default_factory=list)
    ratios: list[Any] = field(default_factory=list)
    """Nodes of exp(new − old), where old has no gradient."""
    ranges: list[tuple[float, float]] = field(default_factory=list)
    """What such a ratio is clipped to."""
    closed: list[tuple[float, float]] = field(default_factory=list)
    """Ranges of such clips that 1 is not inside of."""
    bounds: list[Any] = field(default_factory=list)
    """Nodes of the smaller or larger of an objective and its clipped twin."""
    attached: list[Any] = field(default_factory=list)
    """Nodes of an error whose target, r + γ V(next), leads to the layer of the value too."""
    errors: list[tuple[Any, int]] = field(default_factory=list)
    """Nodes of a squared or Huber error, and which of their inputs is trained."""
    layers: list[Any] = field(default_factory=list)
    """Nodes where the walk ended, at most 64."""
    whole: bool = True
    """False where the graph was too large to be walked."""


@dataclass(slots=True, kw_only=True)
class TrainedValues:
    """Values in a squared error, and what they are trained towards."""

    below: Any
    """The node of the values."""
    values: Tensor
    targets: Tensor
    actions: Tensor | None
    """Which of several values were chosen, as indices."""


def mark(tensor: Tensor, made: Mark) -> None:
    """Say on its node what a tensor is; the node's own notes carry it and die with it."""
    if tensor.grad_fn is not None:
        tensor.grad_fn.metadata[MARK] = made  # type: ignore[index]


def look(roots: Iterable[Any]) -> SeenGraph:
    """From the nodes of a loss down to the layers."""
    seen = SeenGraph()
    done: set[Any] = set()
    waiting = [root for root in roots if root is not None]
    while waiting:
        node = waiting.pop()
        if node in done:
            continue
        done.add(node)
        if len(done) > MOST_NODES:
            return SeenGraph(whole=False)
        if is_layer(type(node).__name__):
            if len(seen.layers) < MOST_LAYERS:
                seen.layers.append(node)
        elif not _take(node, seen):
            waiting += _children(node)
    return seen


def _take(node: Any, seen: SeenGraph) -> bool:
    """Note what the node is; whether the walk ends here."""
    name = type(node).__name__
    made = _mark_of(node)
    if made is not None:
        _take_marked(node, made, seen)
        return True
    if name not in TELLING and not is_view(name) and not is_fused(name):
        return False
    if name in NLL_LOSSES:
        if node._saved_reduction == 0:
            seen.log_probs.append(_chosen_at(node, node._saved_target.detach(), sign=-1.0))
        return True
    if is_fused(name) or (is_view(name) and _is_fused(_through(node))):
        seen.log_probs.append(SeenLogProbs(node=node))  # above its views it has sequences as rows
        return True
    if (found := _by_hand(node, name)) is not None:
        seen.log_probs.append(found)
        return True
    if name == "MulBackward0" and _is_p_log_p(node):
        seen.entropies.append(SeenEntropy(node=node, sign=-1.0))
        return True
    if name == "ExpBackward0" and _is_ratio(node):
        seen.ratios.append(node)
    if name == "ClampBackward1" and (limits := _ratio_limits(node)) is not None:
        (seen.ranges if limits[0] < 1 < limits[1] else seen.closed).append(limits)
    if name in BOUNDS and sum(_has_clipped_ratio(child) for child, _ in node.next_functions) == 1:
        seen.bounds.append(node)
    if _has_attached_target(node, name):
        seen.attached.append(node)
    if (trained := _error_of(node, name)) is not None:
        seen.errors.append((node, trained))
    return False


def _mark_of(node: Any) -> Mark | None:
    made = node.metadata.get(MARK)
    return made if isinstance(made, Mark) else None


def _take_marked(node: Any, made: Mark, seen: SeenGraph) -> None:
    if made.kind == "entropy":
        seen.entropies.append(SeenEntropy(node=node, wide=made.wide, level=made.level))
        return
    seen.log_probs.append(
        SeenLogProbs(
            node=node,
            wide=made.wide,
            rows=made.rows,
            actions=made.actions,
            log_probs=made.log_probs,
            resampled=made.resampled,
            reparametrised=made.reparametrised,
            residuals=made.residuals,
        )
    )


def _by_hand(node: Any, name: str) -> SeenLogProbs | None:
    if name in CHOICES and _of_classes(node):
        below = _through(_first(node))
        if below is not None and _is_log_softmax(below):
            return _chosen_at(node, _chosen(node), _gathered(node))
    if name == "LogBackward0":
        choice = _through(_first(node))
        if choice is not None and type(choice).__name__ in CHOICES and _of_classes(choice):
            below = _through(_first(choice))
            if below is not None and type(below).__name__ in ("SoftmaxBackward0", "ExpBackward0"):
                return _chosen_at(node, _chosen(choice), node._saved_self.detach().log())
    if name == "SubBackward0":
        one, other = (_through(child) for child, _ in node.next_functions)
        if _is(one, "GatherBackward0") and _is(other, "LogsumexpBackward0"):
            return _chosen_at(node, _chosen(one))
    return None


def _chosen_at(
    node: Any, actions: Tensor | None, log_probs: Tensor | None = None, sign: float = 1.0
) -> SeenLogProbs:
    rows = 0 if actions is None else actions.numel()
    return SeenLogProbs(node=node, sign=sign, rows=rows, actions=actions, log_probs=log_probs)


def _is(node: Any, name: str) -> bool:
    return node is not None and type(node).__name__ == name


def _is_fused(node: Any) -> bool:
    return node is not None and is_fused(type(node).__name__)


def _is_log_softmax(node: Any) -> bool:
    name = type(node).__name__
    if name == "LogBackward0":
        return _is(_through(_first(node)), "SoftmaxBackward0")
    if name == "SubBackward0":
        children = [_through(child) for child, _ in node.next_functions]
        return len(children) > 1 and _is(children[1], "LogsumexpBackward0")
    return name == "LogSoftmaxBackward0"


def _is_p_log_p(node: Any) -> bool:
    children = [_through(child) for child, _ in node.next_functions]
    if len(children) != 2 or None in children:
        return False
    for p, log_p in (children, children[::-1]):
        if type(p).__name__ in ("SoftmaxBackward0", "ExpBackward0") and _is_log_softmax(log_p):
            return True
    return False


def _is_ratio(node: Any) -> bool:
    """exp(new − old): old has no gradient. exp(reference − new) is no ratio of the update's."""
    below = _first(node)
    while below is not None and _has_one_child(below) and type(below).__name__ != "SubBackward0":
        below = _first(below)
    if not _is(below, "SubBackward0"):
        return False
    (new, _), (old, _) = below.next_functions
    return new is not None and old is None


def _ratio_limits(node: Any) -> tuple[float, float] | None:
    """Lower and upper limit of a clipped ratio, where the program gave both as numbers."""
    below, limits = _through(_first(node)), (node._saved_min, node._saved_max)
    if not _is(below, "ExpBackward0") or not all(isinstance(x, int | float) for x in limits):
        return None
    return float(limits[0]), float(limits[1])


def _has_clipped_ratio(node: Any) -> bool:
    """Whether a product of a clipped ratio comes in here."""
    for _ in range(NEAR):
        if node is None or type(node).__name__ == "ClampBackward1":
            break
        live = [child for child, _ in node.next_functions if child is not None]
        node = live[0] if len(live) == 1 else None
    return _is(node, "ClampBackward1") and _ratio_limits(node) is not None


def _has_attached_target(node: Any, name: str) -> bool:
    """An error between a value and r + γ V(next), where both lead to the weights of one layer."""
    below = node
    if name == "PowBackward0" and node._saved_exponent == 2:
        below = _through(_first(node))
    elif name not in ERRORS:
        return False
    if below is None or (below is not node and not _is(below, "SubBackward0")):
        return False
    sides = [child for child, _ in below.next_functions[:2]]
    if len(sides) < 2 or None in sides:
        return False
    return any(_is_expected(a, b) for a, b in (sides, sides[::-1]))


def _is_expected(value: Any, target: Any) -> bool:
    """Whether one side is a value and the other a discounted one of the same layer, plus data."""
    layer = layer_below(value)
    if layer is None or not _is(_through(target), "AddBackward0"):
        return False
    ahead = _through(target)
    live = [child for child, _ in ahead.next_functions if child is not None]
    if len(live) != 1:
        return False
    product, found = _through(live[0]), False
    while _is(product, "MulBackward0"):
        found, inside = True, [child for child, _ in product.next_functions if child is not None]
        product = _through(inside[0]) if len(inside) == 1 else None
    weights = {id(each) for each in layer_weights(layer)}
    other = None if product is None else layer_below(product)
    return found and other is not None and any(id(x) in weights for x in layer_weights(other))


def layer_below(node: Any) -> Any:
    """The layer that gave this, perhaps with a choice or the best among its outputs."""
    for _ in range(NEAR):
        if node is None or is_layer(type(node).__name__):
            break
        name = type(node).__name__
        passed = is_view(name) or name in CHOICES or name in ("MaxBackward0", "AmaxBackward0")
        node = _first(node) if passed else None
    return node


def activation_below(node: Any) -> Any:
    """The activation that gave this, perhaps with a choice among its outputs; None where something
    else is between."""
    for _ in range(NEAR):
        name = type(node).__name__
        if node is None or name in BOUNDED:
            return node
        node = _first(node) if is_view(name) or name in CHOICES else None
    return None


def _has_one_child(node: Any) -> bool:
    name = type(node).__name__
    return is_view(name) or name in ("SumBackward1", "SumBackward0", "MeanBackward1")


def _error_of(node: Any, name: str) -> int | None:
    """Which input of an error is trained, where the other one is data, or what another network
    expects."""
    if name in ERRORS:
        return _live(node)
    if name == "PowBackward0" and node._saved_exponent == 2:
        below = _through(_first(node))
        if _is(below, "SubBackward0"):
            return None if _live(below) is None else 0
    return None


def value_weights(seen: SeenGraph) -> list[Tensor]:
    """The parameters of the layers whose outputs the errors of a loss are of."""
    return [weight for layer in value_layers(seen) for weight in layer_weights(layer)]


def value_layers(seen: SeenGraph) -> list[Any]:
    """The layers whose outputs the errors of a loss are of."""
    found: list[Any] = []
    for node, place in seen.errors:
        below: Any = _through(_first(node)) if type(node).__name__ == "PowBackward0" else node
        at = place if below is node else _live(below)
        below = None if below is None or at is None else _column(below.next_functions[at][0])
        below = None if below is None else _through(below)
        if below is not None and is_layer(type(below).__name__):
            found.append(below)
    return found


def trained_towards(node: Any, place: int) -> TrainedValues | None:
    """The targets of an error; None where the graph does not tell them."""
    if type(node).__name__ in ERRORS:
        values, targets = node._saved_self, node._saved_target
        if values.shape != targets.shape:
            return None
        below = _column(node.next_functions[place][0])
        values, targets = (values, targets) if place == 0 else (targets, values)
    else:
        difference = _through(_first(node))
        at = _live(difference)
        if at is None or difference._saved_alpha != 1:
            return None
        below = _column(difference.next_functions[at][0])
        result, held = _result_of(_through(below)), node._saved_self
        if result is None or result.numel() != held.numel():
            return None
        flat, error = result.reshape(-1), held.detach().reshape(-1)
        values, targets = flat, flat - error if at == 0 else flat + error
    choice = _through(below)
    # a column that is the same for all samples, `values[:, 0]`, is no choice of theirs
    is_choice = type(choice).__name__ in CHOICES and not _is(choice, "SelectBackward0")
    chosen = _chosen(choice) if is_choice else None
    return TrainedValues(
        below=below, values=values.detach(), targets=targets.detach(), actions=chosen
    )


def of_one_network(found: TrainedValues) -> TrainedValues:
    """Several critics in one layer, [critics, samples], are trained towards the same: the values of
    the first."""
    values, targets = found.values, found.targets
    if targets.ndim < 2 or not 2 <= len(targets) <= MOST_STACKED or found.actions is not None:
        return found
    rows = targets[0].numel()
    if observations(found.below, rows) is None or not bool((targets == targets[:1]).all()):
        return found
    return replace(found, values=values.reshape(targets.shape)[0], targets=targets[0])


def _column(node: Any) -> Any:
    """Of a column out of several values side by side, `torch.cat([q1, q2], -1)[:, 0]`, or of the
    only one, the values that are there; the node itself where it is none."""
    if not _is(node, "SelectBackward0") or not _of_classes(node):
        return node
    sizes = node._saved_self_sym_sizes
    if sizes[-1] == 1:
        return _first(node)
    joined = _through_views(_first(node))
    if not _is(joined, "CatBackward0") or len(sizes) != 2:
        return node
    if not _is_last(joined._saved_dim, 2) or len(joined.next_functions) <= node._saved_index:
        return node
    alone = sizes[1] == len(joined.next_functions)  # each has one column
    return joined.next_functions[node._saved_index][0] if alone else node


def _through_views(node: Any) -> Any:
    """Below a view that is no concatenation."""
    return _first(node) if _is(node, "ViewBackward0") else node


def _result_of(node: Any) -> Tensor | None:
    """What a choice, an activation or a linear layer gave."""
    if type(node).__name__ in BOUNDED:
        result: Tensor = node._saved_result
        return result.detach()
    if _is(node, "GatherBackward0"):
        return _gathered(node)
    if not _is(node, "AddmmBackward0"):
        return None
    bias, data, weight = node.next_functions[0][0], node._saved_mat1, node._saved_mat2
    if weight is None:  # of a layer on data, whose gradient needs no weight
        turned = node.next_functions[2][0]
        held = _first(turned) if _is(turned, "TBackward0") else None
        weight = held.variable.t() if held is not None and _is(held, "AccumulateGrad") else None
    if not _is(bias, "AccumulateGrad") or data is None or weight is None:
        return None
    return torch.addmm(bias.variable.detach(), data.detach(), weight.detach())


def _live(node: Any) -> int | None:
    """Which input of a difference or an error is trained. Many a program does not detach what its
    target network says: of r + γ Q'(next) and Q(now) it is the second."""
    sides = [] if node is None else [child for child, _ in node.next_functions[:2]]
    there = [child is not None for child in sides]
    if there.count(True) == 1:
        return there.index(True)
    ahead = [child is not None and _is_ahead(child) for child in sides]
    if len(sides) < 2 or ahead.count(True) != 1:
        return None
    now = ahead.index(False)
    return None if _is_expected(sides[now], sides[1 - now]) else now


def _is_ahead(node: Any) -> bool:
    """Whether data is added to something with a gradient that is multiplied: r + γ Q'(next)."""
    found = _through(node)
    if not _is(found, "AddBackward0"):
        return False
    live = [child for child, _ in found.next_functions if child is not None]
    return len(live) == 1 and _is(_through(live[0]), "MulBackward0")


def layer_weights(layer: Any) -> list[Tensor]:
    """Parameters that a layer takes, as they are or transposed."""
    near = [child for child, _ in layer.next_functions if child is not None]
    near += [child for each in near for child, _ in each.next_functions[:1] if child is not None]
    return [each.variable for each in near if type(each).__name__ == "AccumulateGrad"]


def _of_classes(node: Any) -> bool:
    """Whether a choice is made among the last dimension's entries."""
    name = type(node).__name__
    if name == "GatherBackward0":
        return _is_last(node._saved_dim, node._saved_index.ndim)
    sizes = node._saved_self_sym_sizes
    if name == "SelectBackward0":
        return _is_last(node._saved_dim, len(sizes))
    indices = node._saved_indices
    return len(indices) == len(sizes) and all(each is not None for each in indices)


def _is_last(dim: int, ndim: int) -> bool:
    return dim in (ndim - 1, -1, (1 << 64) - 1)  # a negative one is kept without its sign


def _chosen(node: Any) -> Tensor | None:
    """Which classes a choice took, as far as the node knows them."""
    name = type(node).__name__
    if name == "GatherBackward0":
        index: Tensor = node._saved_index
        return index.detach().reshape(-1) if index.shape[-1] == 1 else None
    if name == "IndexBackward0":
        last: Tensor = node._saved_indices[-1]
        return last.detach().reshape(-1)
    return torch.tensor([node._saved_index])


def _gathered(node: Any) -> Tensor | None:
    if type(node).__name__ != "GatherBackward0":
        return None
    held = node._saved_self
    return None if held is None else held.detach().gather(-1, node._saved_index)


def _children(node: Any) -> list[Any]:
    return [child for child, _ in node.next_functions if child is not None]


def _first(node: Any) -> Any:
    return next(iter(_children(node)), None)


def _through(node: Any) -> Any:
    """The first node below views and casts."""
    for _ in range(16):
        if node is None or not _hands_on(node) or _mark_of(node) is not None:
            return node
        node = _first(node)
    return node


def _hands_on(node: Any) -> bool:
    """A view or a cast, or a choice of whole rows."""
    name = type(node).__name__
    return is_view(name) or (name in CHOICES and not _of_classes(node))


# From log-probabilities down to what the policy saw.

INPUTS = {
    "AddmmBackward0": (1, "_saved_mat1"),
    "MmBackward0": (0, "_saved_self"),
    "ConvolutionBackward0": (0, "_saved_input"),
}
"""Layers, which of their inputs is data when no gradient flows to it, and where it is kept."""


def _given_to_all(data: Tensor | None, rows: int) -> list[Tensor]:
    """Several networks in one layer (torch.func.vmap) are all given the same rows."""
    if data is None or data.ndim != 3 or data.shape[1] != rows:
        return []
    held = data.detach()
    return [held[0]] if bool((held == held[:1]).all()) else []


def observations(node: Any, rows: int, width: int | None = None) -> Tensor | None:
    """The data that the first layer below a node took, where it has that many rows and there is no
    other such data. A critic may have a layer for observations and one for actions (minimalRL):
    where observations are known to be so wide, both side by side."""
    found: list[Tensor] = []
    done: set[Any] = set()
    waiting = [node]
    weights = 0
    while waiting:
        one = waiting.pop()
        if one in done:
            continue
        done.add(one)
        weights += _is(one, "AccumulateGrad")
        if len(done) > (MOST_NODES if weights <= MOST_WEIGHTS else MOST_BELOW):
            return None
        place, name = INPUTS.get(type(one).__name__, (None, ""))
        if place is not None and one.next_functions[place][0] is None:
            found.append(getattr(one, name).detach())
        elif _is(one, "BmmBackward0") and one.next_functions[0][0] is None:
            found += _given_to_all(one._saved_self, rows)
        waiting += _children(one)
    kept = {(each.data_ptr(), each.shape): each for each in found if len(each) == rows}
    if len(kept) == 2 and all(each.ndim == 2 for each in kept.values()):
        wide = sorted(kept.values(), key=lambda each: each.shape[1] != width)
        apart = wide[0].shape[1] == width != wide[1].shape[1]
        return torch.cat(wide, dim=1) if apart else None
    return next(iter(kept.values())) if len(kept) == 1 else None
