"""From what was seen of a script at its first steps to checks."""

from __future__ import annotations

from collections.abc import Iterator

from gradiometer.capture.blocks import Blocks, find_blocks
from gradiometer.probes.auditcheck import Check, failed, few, passed, skipped
from gradiometer.probes.auditreach import Subject
from gradiometer.probes.auditscale import SCALE, judged
from gradiometer.probes.auditscript import Seen
from gradiometer.probes.auditwiring import DEAD_REFERENCES, frozen_check, two_optimizers_check, whole_blocks

__all__ = ["checks_of"]

MORE = {
    "hidden-term": "whether the terms are the whole loss: gm.audit(terms, model, optimizer, loss=...)",
    "score-not-zero-mean": "whether log_prob is that of the sampler: gm.audit(..., policy=...)",
    "gradient-not-invariant": "whether micro-batches change the gradient: gm.audit(..., micro_batches=..., batch=...)",
    "baseline-leak": "whether the baseline holds its own reward: gm.audit(..., baseline=...)",
}
"""What a script does not show by itself."""


def checks_of(seen: Seen) -> list[Check]:
    """Every check a script allows, and what would allow the others."""
    blocks = find_blocks(seen.named, None)
    subject = Subject(named=seen.named, blocks=blocks, optimizers=seen.optimizers, memory_limit=0)
    found = [*_terms(seen), _finite(seen), *_blocks(seen, blocks), _orphans(seen, subject)]
    found += [two_optimizers_check(subject), frozen_check(subject), _scale(seen)]
    return [
        *found,
        *(skipped((kind, kind.replace("-", " ")), f"a script alone does not show {how}") for kind, how in MORE.items()),
    ]


def _terms(seen: Seen) -> Iterator[Check]:
    about = ("dead-term", "every term has a gradient")
    if not seen.used_terms:
        yield skipped(about, "the script does not split its loss: with meter.terms(policy=..., entropy=...) as loss")
        return
    for term, message in seen.dead_terms.items():
        yield failed(
            about,
            "critical",
            message,
            numbers={"term": term},
            fix=(f"compute {term!r} outside torch.no_grad(), without .detach(), .item(), .data or argmax",),
            references=DEAD_REFERENCES,
        )
    if not seen.dead_terms:
        yield passed(about, "every term of meter.terms reaches a parameter")
    if seen.still_terms:
        yield passed(("dead-term", "stationary terms"), "; ".join(seen.still_terms.values()))


def _finite(seen: Seen) -> Check:
    about = ("nonfinite-gradient", "gradients are finite")
    if not seen.nonfinite:
        return passed(about, f"no NaN and no Inf in {len(seen.reached)} gradients, {seen.steps} steps seen")
    first = min(seen.nonfinite.items(), key=lambda each: each[1])
    return failed(
        about,
        "critical" if seen.scale is None else "info",
        f"{len(seen.nonfinite)} gradients hold a NaN or an Inf, first {first[0]} at step {first[1]}"
        + ("" if seen.scale is None else "; the GradScaler skips such steps until its scale fits"),
        numbers={"parameters": len(seen.nonfinite)},
        fix=(
            "look for log(0), 0/0, a std of one sample or a masked -inf; torch.autograd.set_detect_anomaly finds the line",
        ),
    )


def _blocks(seen: Seen, blocks: Blocks) -> Iterator[Check]:
    """Blocks and layers that could be trained and had no gradient at any step."""
    about = ("dead-block", "every block is reached")
    parameters = list(seen.named.values())
    trained = {i for i, p in enumerate(parameters[: len(parameters) - seen.num_loose]) if p.requires_grad}
    dead: list[str] = []
    for name, members in zip(blocks.names, blocks.members, strict=True):
        inside = trained & set(members)
        if inside and not any(id(parameters[i]) in seen.reached for i in inside):
            dead.append(name)
    named = [name for name in dead if not name.startswith("layer.")]
    layers = [name.removeprefix("layer.") for name in dead if name.startswith("layer.")]
    if not dead:
        yield passed(about, f"each of {len(blocks.names) - blocks.num_named - seen.num_loose} layers has a gradient")
        return
    yield failed(
        about,
        "critical" if named else "warn",
        f"no gradient in {seen.steps} steps: {f'the block {few(named)}' if named else f'{len(layers)} layers ({few(layers)})'}",
        numbers={"blocks": named, "layers": layers},
        fix=("use its output in the loss, outside no_grad and detach; or requires_grad_(False)",),
        block=named[0] if named else f"layer.{layers[0]}",
    )


def _orphans(seen: Seen, subject: Subject) -> Check:
    about = ("not-in-optimizer", "what has a gradient is trained")
    holders = subject.holders()
    lost = [i for i, p in enumerate(subject.parameters) if id(p) in seen.reached and id(p) not in holders]
    if not lost:
        return passed(about, f"all {len(seen.reached)} parameters with a gradient are in an optimizer")
    whole = whole_blocks(subject, lost)
    stale = [p for p in subject.parameters[len(subject.named) - seen.num_loose :] if id(p) not in seen.reached]
    replaced = f"; the optimizers hold {len(stale)} of no module instead: a layer was replaced" if stale else ""
    return failed(
        about,
        "critical" if whole else "warn",
        f"{len(lost)} parameters get a gradient and are in no optimizer: {few([subject.names[i] for i in lost])}"
        + (f" (the whole block {few(whole)})" if whole else "")
        + replaced,
        numbers={"parameters": len(lost), "blocks": whole, "stale": len(stale)},
        fix=(
            "give them to an optimizer: make it after the layers are made or replaced, or add_param_group; if nobody should "
            "train them, requires_grad_(False)",
        ),
        block=whole[0] if whole else None,
    )


def _scale(seen: Seen) -> Check:
    if seen.clip is None or (seen.scale is None and not seen.clip.clips):
        return passed(SCALE, "no GradScaler and no clip")
    return judged(seen.clip, seen.scale, seen.factor)
