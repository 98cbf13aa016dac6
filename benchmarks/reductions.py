"""Why the meter uses what it uses: what each reduction costs on the gradients of a 10M transformer,
in clips.

A norm and `aminmax` are cheap; `norm(inf)`, `isfinite().all()` and counting signs are not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.models import transformer, with_gradients
from benchmarks.rows import Row, Scale, clock, measured
from benchmarks.timing import in_turns

__all__ = ["rows"]


def rows(scale: Scale) -> Iterator[Row]:
    """Each reduction against `clip_grad_norm_`."""
    parameters = list(with_gradients(transformer(*scale.of((384, 5), (64, 2)))).parameters())
    grads = [p.grad for p in parameters if p.grad is not None]
    scratch = [torch.empty_like(g) for g in grads]
    reductions = {
        "_foreach_norm": lambda: torch._foreach_norm(grads),
        "aminmax": lambda: [torch.aminmax(g) for g in grads],
        "norm(inf)": lambda: torch._foreach_norm(grads, float("inf")),
        "norm(1)": lambda: torch._foreach_norm(grads, 1),
        "isfinite().all()": lambda: [torch.isfinite(g).all() for g in grads],
        "count_nonzero": lambda: [torch.count_nonzero(g) for g in grads],
        "(g > 0).sum()": lambda: [(g > 0).sum() for g in grads],
        "sum": lambda: [g.sum() for g in grads],
        "dot": lambda: [
            torch.dot(g.view(-1), k.view(-1)) for g, k in zip(grads, scratch, strict=True)
        ],
        "_foreach_copy_": lambda: torch._foreach_copy_(scratch, grads),
        "_foreach_sub_": lambda: torch._foreach_sub_(scratch, grads),
    }
    clip = {"clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9)}
    taken = in_turns({**clip, **reductions}, rounds=scale.rounds(15), warm_up=2)
    for name in reductions:
        told = clock(taken, "clip_grad_norm_") if name == "_foreach_norm" else ""
        yield measured(
            f"`{name}` / `clip_grad_norm_`", taken[name] / taken["clip_grad_norm_"], note=told
        )
