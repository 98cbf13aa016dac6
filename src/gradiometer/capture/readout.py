"""Records a person or a policy reads off the last measured step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradiometer.capture.blocks import Blocks
from gradiometer.errors import UnknownName
from gradiometer.maths import health
from gradiometer.records import Flow, FlowLayer, GradientHealth, State

__all__ = ["FEATURES", "features", "flow", "gradient_health"]

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
    inside = _layers_inside(block, blocks)
    layers = [n for name in inside if (n := values.get(f"grad/{name}/norm/raw")) is not None and np.isfinite(n)]
    norms = tensor_norms[list(members)] if len(tensor_norms) > max(members) else np.full(1, np.nan)
    measured = norms[~np.isnan(norms)]
    return GradientHealth(
        block=block,
        step=step,
        state=health.state_of(states[i] for i in members) if step is not None else "missing",
        gradient_norm=values.get(f"grad/{block}/norm/raw"),
        gradient_health=values.get(f"grad/{block}/health"),
        has_vanishing=health.has_vanishing(measured) if measured.size else None,
        has_exploding=health.has_exploding(measured) if measured.size else None,
        vanishing_severity=values.get(f"grad/{block}/vanishing_severity"),
        exploding_severity=values.get(f"grad/{block}/exploding_severity"),
        zero_grad_fraction=values.get(f"grad/{block}/zero_fraction"),
        min_layer_norm=min(layers, default=None),
        max_layer_norm=max(layers, default=None),
        norm_ratio=max(layers) / max(min(layers), 1e-10) if layers else None,
    )


def flow(
    blocks: Blocks, values: Mapping[str, float], step: int | None, states: list[State], sizes: NDArray[np.float64]
) -> Flow:
    """Layer by layer, with the first place, seen from the loss, where the gradient is lost."""
    layers = tuple(
        _flow_layer(name, members, values, states, sizes)
        for name, members in zip(blocks.names[blocks.num_named :], blocks.members[blocks.num_named :], strict=True)
    )
    trained = [layer for layer in layers if layer.state != "frozen"]
    after: FlowLayer | None = None
    for layer in reversed(trained if step is not None else []):
        if layer.state == "nonfinite":
            return Flow(step=step, layers=layers, lost_at=layer.name, reason="NaN or Inf")
        if after is not None and after.rms and layer.state == "missing":
            return Flow(step=step, layers=layers, lost_at=layer.name, reason="no gradient arrives at all")
        if after is not None and after.rms and layer.rms is not None and layer.rms < after.rms * 10**-LOST_DECADES:
            fall = f"{layer.rms:.3g} after {after.rms:.3g} in {after.name}"
            return Flow(
                step=step, layers=layers, lost_at=layer.name, reason=f"it falls by more than four decades: {fall}"
            )
        after = layer if layer.rms is not None else after
    return Flow(step=step, layers=layers, lost_at=None, reason="" if step is not None else "nothing measured yet")


def features(block: str, blocks: Blocks, values: Mapping[str, float]) -> NDArray[np.float32]:
    """FEATURES of a block, each in [0, 1], for a policy that reads telemetry; what is not known is the neutral value."""
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


def _layers_inside(block: str, blocks: Blocks) -> list[str]:
    members = set(blocks.members[place_of(block, blocks)])
    layers = zip(blocks.names[blocks.num_named :], blocks.members[blocks.num_named :], strict=True)
    return [name for name, part in layers if set(part) <= members]


def _flow_layer(
    name: str, members: tuple[int, ...], values: Mapping[str, float], states: list[State], sizes: NDArray[np.float64]
) -> FlowLayer:
    norm = values.get(f"grad/{name}/norm/raw")
    elements = sum(sizes[i] for i in members)
    state = health.state_of(states[i] for i in members)
    return FlowLayer(name=name, state=state, rms=None if norm is None else float(norm / np.sqrt(elements)))
