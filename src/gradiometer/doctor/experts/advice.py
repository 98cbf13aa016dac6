"""What to try next: only what an answer asks for, the most telling first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradiometer.doctor.experts.answers import Answer, Routing
from gradiometer.doctor.experts.readings import listed
from gradiometer.doctor.experts.routers import RouterHealth
from gradiometer.doctor.signs import number

__all__ = ["advise"]


def advise(
    *,
    routing: Routing,
    answers: tuple[Answer, Answer, Answer],
    health: RouterHealth,
    facts: Mapping[str, Any],
) -> tuple[str, ...]:
    """Sentences that begin with what to do."""
    waking, divergence, lasting = answers
    found = list(_router_advice(health))
    scale = f"{_raise_scale(facts)}, or adjust sparsity{_now(facts, 'sparsity')}"
    if divergence.verdict == "explained by routing" and routing == "top-k":
        found.append(
            "Start the experts from different weights: they see different tokens and still get gradients of one direction."
        )
    elif divergence.verdict == "explained by routing":
        found.append(
            "Merge per sample instead of once a batch, or route tokens to the top k: one merge gives every expert the "
            f"same gradient. {scale}: that can tell only afterwards."
        )
    elif routing != "top-k" and (waking.verdict == "not waking up" or lasting.verdict == "collapses"):
        found.append(f"{scale}.")
    if lasting.verdict == "collapses":
        who = listed(_fallen(lasting))
        found.append(
            f"Find what draws {who} to expert 0 (averaging or merging of weights, a consensus or distillation loss): a "
            "balance loss evens the load and does not keep experts apart."
            if routing == "top-k"
            else f"Lower the weight decay on the experts that approach expert 0: {who}."
        )
    if not found and _waits(answers):
        found.append("Train on, or measure more often (experts_every=), until the intervals decide.")
    return tuple(found)


def _router_advice(health: RouterHealth) -> list[str]:
    found = []
    if health.untrained:
        found.append(
            "Let the task reach the router: multiply the experts' output by the router's weights, do not detach them, "
            "and do not normalise a single chosen weight to 1."
        )
    if health.aux_leads and not health.untrained:
        found.append("Lower the coefficient of the balance loss: it moves the router more than the task does.")
    if health.uneven or health.dead:
        who = f" ({listed(health.dead)} got nothing)" if health.dead else ""
        found.append(f"Raise the coefficient of the balance loss, or add noise to the router's logits{who}.")
    return found


def _raise_scale(facts: Mapping[str, Any]) -> str:
    scale = number(setting(facts, "perturbation_scale"))
    if scale is not None and scale >= 2.0:
        return f"Raise perturbation_scale above {scale:g}"
    return f"Raise perturbation_scale to 2.0 or higher{_now(facts, 'perturbation_scale')}"


def _now(facts: Mapping[str, Any], name: str) -> str:
    value = number(setting(facts, name))
    return f" (now {value:g})" if value is not None else ""


def setting(facts: Mapping[str, Any], name: str) -> Any:
    """A value of the run's configuration by its last name, wherever it is nested; None when nobody wrote it down."""
    for key, value in facts.items():
        if key == name or str(key).rpartition(".")[2] == name:
            return value
    inner = (setting(value, name) for value in facts.values() if isinstance(value, Mapping))
    return next((value for value in inner if value is not None), None)


def _fallen(lasting: Answer) -> list[str]:
    return [expert for expert, verdict in lasting.experts.items() if verdict == "collapses"]


def _waits(answers: tuple[Answer, ...]) -> bool:
    return any(answer.verdict == "undecided" and "more steps" in " ".join(answer.missing) for answer in answers)
