"""Time every reduction before choosing it: what each costs on the gradients of a 10M-parameter transformer."""

from __future__ import annotations

import torch

from benchmarks.models import num_parameters, transformer, with_gradients
from benchmarks.timing import in_turns, row

__all__ = ["main"]


def main() -> None:
    """Print each reduction against `clip_grad_norm_`."""
    torch.set_num_threads(1)
    model = with_gradients(transformer(384, 5))
    parameters = list(model.parameters())
    grads = [p.grad for p in parameters if p.grad is not None]
    scratch = [torch.empty_like(g) for g in grads]
    taken = in_turns(
        {
            "clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9),
            "_foreach_norm": lambda: torch._foreach_norm(grads),
            "aminmax": lambda: [torch.aminmax(g) for g in grads],
            "norm(inf)": lambda: torch._foreach_norm(grads, float("inf")),
            "norm(1)": lambda: torch._foreach_norm(grads, 1),
            "isfinite().all()": lambda: [torch.isfinite(g).all() for g in grads],
            "count_nonzero": lambda: [torch.count_nonzero(g) for g in grads],
            "(g > 0).sum()": lambda: [(g > 0).sum() for g in grads],
            "sum": lambda: [g.sum() for g in grads],
            "dot": lambda: [torch.dot(g.view(-1), k.view(-1)) for g, k in zip(grads, scratch, strict=True)],
            "_foreach_copy_": lambda: torch._foreach_copy_(scratch, grads),
            "_foreach_sub_": lambda: torch._foreach_sub_(scratch, grads),
        },
        rounds=15,
    )
    print(f"\nreductions over {num_parameters(model):,} gradients, one thread")
    for name, seconds in taken.items():
        print(row(name, seconds, taken["clip_grad_norm_"]))


if __name__ == "__main__":
    main()
