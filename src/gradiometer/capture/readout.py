"""Records a person or a policy reads off the last measured step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.blocks import Blocks
from gradiometer.capture.rounds import Round, WatchedModel
from gradiometer.errors import UnknownName
from gradiometer.maths import health
from gradiometer.records import Flow, FlowLayer, GradientHealth, State
from gradiometer.store.layers import LayerGraph
from gradiometer.words import some

__all__ = [
    "FEATURES",
    "GradientStateChange",
    "GradientStates",
    "features",
    "first_look",
    "flow",
    "gradient_health",
    "waiting_blocks",
]

LOST_DECADES = 4.0  # between neighbouring layers; initialisation and depth alone stay well below
FEATURES = (
    "norm",
    "health",
    "vanishing_severity",
    "exploding_severity",
    "clip_intensity",
    "zero_fraction",
    "positive_fraction",
    "cos_prev",
    "cos_ema",
    "update_ratio",
)
NORM_DECADES = (-8.0, 4.0)
RATIO_DECADES = (-8.0, 0.0)


def gradient_health(
    block: str,
    blocks: Blocks,
    values: Mapping[str, float],
    step: int | None,
    states: list[State],
    tensor_norms: NDArray[np.float64],
) -> GradientHealth:
    """The block under the compatibility names; None wherever nothing was measured."""
    members = blocks.members[place_of(block, blocks)]
    inside = blocks.layers_inside(block)
    layers = [
        n
        for name in inside
        if (n := values.get(f"grad/{name}/norm/raw")) is not None and np.isfinite(n)
    ]
    norms = tensor_norms[list(members)] if len(tensor_norms) > max(members) else np.full(1, np.nan)
    measured = norms[~np.isnan(norms)]
    vanishing, exploding = (
        values.get(f"grad/{block}/{kind}_severity") for kind in ("vanishing", "exploding")
    )
    return GradientHealth(
        block=block,
        step=step,
        state=health.state_of(states[i] for i in members) if step is not None else "missing",
        gradient_norm=values.get(f"grad/{block}/norm/raw"),
        gradient_health=values.get(f"grad/{block}/health"),
        has_vanishing=_flag(vanishing, health.has_vanishing, measured),
        has_exploding=_flag(exploding, health.has_exploding, measured),
        vanishing_severity=vanishing,
        exploding_severity=exploding,
        zero_grad_fraction=values.get(f"grad/{block}/zero_fraction"),
        min_layer_norm=min(layers, default=None),
        max_layer_norm=max(layers, default=None),
        norm_ratio=max(layers) / max(min(layers), 1e-10) if layers else None,
    )


def _flag(
    severity: float | None, has: Callable[[NDArray[np.float64]], bool], norms: NDArray[np.float64]
) -> bool | None:
    """Whether there is any severity; the tier `light` keeps no past to judge against."""
    if severity is not None:
        return severity > 0
    return has(norms) if norms.size else None


def flow(
    blocks: Blocks,
    values: Mapping[str, float],
    step: int | None,
    states: list[State],
    sizes: NDArray[np.float64],
    *,
    graph: LayerGraph,
    trained: Collection[int],
) -> Flow:
    """Layer by layer, with the first place, seen from the loss, where the gradient is lost.

    A layer is compared with those it feeds, never with a neighbour in a list: branches are apart.
    """
    members, feeds = blocks.layers, graph.feeds
    layers = tuple(
        _flow_layer(name, members[name], values, states, sizes, feeds.get(name, ()))
        for name in graph.order
    )
    # what no optimizer holds is a copy, a target network: nobody expects a gradient there
    copies = {name for name, part in members.items() if not set(part) & set(trained)}
    lost_at, reason = (None, "nothing measured yet") if step is None else _lost(layers, copies)
    order: Literal["graph", "registration"] = "graph" if graph.known else "registration"
    return Flow(step=step, layers=layers, lost_at=lost_at, reason=reason, order=order)


def _lost(layers: Sequence[FlowLayer], copies: Collection[str]) -> tuple[str | None, str]:
    """The first layer, seen from the loss, that the gradient does not come through, and why."""
    by_name = {layer.name: layer for layer in layers}
    back = [layer for layer in reversed(layers) if layer.state != "frozen"]
    for layer in back:
        if layer.state == "nonfinite":
            return layer.name, "NaN or Inf"
        after = max(_reached(layer, by_name), key=lambda each: each.rms or 0.0, default=None)
        if after is None or not after.rms or layer.rms is None:
            continue
        if layer.rms < after.rms * 10**-LOST_DECADES:
            fall = f"{layer.rms:.3g} after {after.rms:.3g} in {after.name}"
            return layer.name, f"it falls by a factor of more than 10,000: {fall}"
    missing = [layer for layer in back if layer.state == "missing" and layer.name not in copies]
    if missing and any(layer.rms for layer in layers):
        return missing[0].name, "no gradient arrives at all"
    return None, ""


def _reached(layer: FlowLayer, by_name: Mapping[str, FlowLayer]) -> list[FlowLayer]:
    """The layers with a gradient that take its output, also behind frozen ones and missing ones."""
    found: list[FlowLayer] = []
    waiting, seen = list(layer.feeds), set(layer.feeds)
    while waiting:
        after = by_name[waiting.pop()]
        if after.rms is not None:
            found.append(after)
            continue
        waiting += [name for name in after.feeds if name not in seen]
        seen.update(after.feeds)
    return found


def features(block: str, blocks: Blocks, values: Mapping[str, float]) -> NDArray[np.float32]:
    """FEATURES of a block, each in [0, 1]; what is not known is the neutral value."""
    place_of(block, blocks)

    def of(name: str, neutral: float) -> float:
        value = values.get(f"grad/{block}/{name}", neutral)
        return value if np.isfinite(value) else neutral

    clip = values.get(f"grad/{block}/clip/intensity", values.get("grad/all/clip/intensity", 0.0))
    row = (
        _decades(of("norm/raw", 0.0), NORM_DECADES),
        of("health", 0.0),
        of("vanishing_severity", 0.0),
        of("exploding_severity", 0.0),
        clip if np.isfinite(clip) else 1.0,
        of("zero_fraction", 0.0),
        of("positive_fraction", 0.5),
        (1 + of("cos_prev", 0.0)) / 2,
        (1 + of("cos_ema", 0.0)) / 2,
        _decades(of("update_ratio", 0.0), RATIO_DECADES),
    )
    return np.clip(np.asarray(row, dtype=np.float32), 0.0, 1.0)


def place_of(block: str, blocks: Blocks) -> int:
    """Where a block stands; an unknown name is an error that says what is close."""
    if block not in blocks.names:
        raise UnknownName("block", block, blocks.names)
    return blocks.names.index(block)


def _decades(value: float, between: tuple[float, float]) -> float:
    low, high = between
    return (np.log10(value) - low) / (high - low) if value > 0 else 0.0


def _flow_layer(
    name: str,
    members: tuple[int, ...],
    values: Mapping[str, float],
    states: list[State],
    sizes: NDArray[np.float64],
    feeds: Sequence[str],
) -> FlowLayer:
    norm = values.get(f"grad/{name}/norm/raw")
    elements = sum(sizes[i] for i in members)
    state = health.state_of(states[i] for i in members)
    rms = None if norm is None else float(norm / np.sqrt(elements))
    return FlowLayer(name=name, state=state, rms=rms, feeds=tuple(feeds))


@dataclass(frozen=True, slots=True)
class GradientStateChange:
    """What is different from the last measured step."""

    changed: bool
    newly_missing: tuple[str, ...]
    newly_nonfinite: tuple[str, ...]


class GradientStates:
    """`finite`, `nonfinite`, `missing` (trained, without a gradient) or `frozen`."""

    def __init__(self) -> None:
        self.current: dict[str, State] = {}
        self._seen: tuple[object, ...] = ()
        """What the last step was: where that is the same, the states are."""

    def in_order(self, names: Sequence[str]) -> list[State]:
        """The states of these parameters; missing before the first measured step."""
        return [self.current.get(name, "missing") for name in names]

    def update(
        self, watched: WatchedModel, current: Round, *, nonfinite: Collection[int]
    ) -> GradientStateChange:
        """Take in a measured step. Whose optimizer did not step in it stays as it was."""
        bad, waiting = set(nonfinite), set()
        if current.stepped:
            waiting = {i for i, number in watched.owner.items() if number not in current.stepped}
        others = [p for i, p in enumerate(watched.parameters) if i not in current.captured]
        seen = watched.names, current.captured, bad, waiting, [p.requires_grad for p in others]
        if seen == self._seen:
            return GradientStateChange(changed=False, newly_missing=(), newly_nonfinite=())
        self._seen = seen

        def state(i: int, name: str, p: Tensor) -> State:
            if i in current.captured:
                return "nonfinite" if i in bad else "finite"
            if not p.requires_grad:
                return "frozen"
            return self.current.get(name, "missing") if i in waiting else "missing"

        names = watched.names
        new = {
            name: state(i, name, p)
            for i, (name, p) in enumerate(zip(names, watched.parameters, strict=True))
        }
        before, self.current = self.current, new
        turned = {name: state for name, state in new.items() if before.get(name) != state}
        return GradientStateChange(
            changed=new != before,
            newly_missing=tuple(
                name
                for i, name in enumerate(names)
                if turned.get(name) == "missing" and i not in waiting
            ),
            newly_nonfinite=tuple(name for name, state in turned.items() if state == "nonfinite"),
        )


def waiting_blocks(watched: WatchedModel, stepped: Collection[int]) -> list[str]:
    """Blocks and layers all of whose parameters belong to optimizers that have not stepped yet."""
    late = {i for i, number in watched.owner.items() if number not in stepped}
    blocks = zip(watched.blocks.names, watched.blocks.members, strict=True)
    return [name for name, members in blocks if late and members and late.issuperset(members)]


NAMED = 5  # parameters a message names


def first_look(watched: WatchedModel) -> dict[str, Any]:
    """A check in the form of `gm.audit`: parameters that two optimizers hold. Those that none holds
    are a fact of the table `proofs`."""
    twice = [watched.names[i] for i in watched.held_twice]
    return {"checks": [_check("in-two-optimizers", twice, "are stepped by two optimizers")]}


def _check(id: str, names: Sequence[str], what: str) -> dict[str, Any]:
    found = f"{len(names)} parameters {what}: {some(names, NAMED)}"
    fix = "Give the optimizer all parameters you train, each to one optimizer only."
    return {
        "id": id,
        "state": "failed" if names else "ok",
        "severity": "warn",
        "message": found if names else f"no parameters {what}",
        "numbers": {"count": len(names)},
        "fix": [fix] if names else [],
    }
