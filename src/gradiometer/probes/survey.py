"""The survey: one forward for each micro-batch, one backward for each term, and the vectors they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.errors import UsageError
from gradiometer.maths.vectors import ExactVectors, Vectors, vectors_for
from gradiometer.probes.plan import ALL, Plan, Weights

__all__ = ["NULL", "LossTerms", "Progress", "Survey", "part_name"]

LossTerms: TypeAlias = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
Progress: TypeAlias = Callable[[int, int], None]

NULL = "null"
"""The name of the task term with rewards permuted inside groups."""


def part_name(part: int | str, term: str) -> str:
    """What the vector of a part (or of a bucket) and a term is called."""
    return f"{part}|{term}"


class Survey:
    """Gradients of every term on every part, added up in `vectors`, and on every bucket, in `sums`."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        atoms: Sequence[Sequence[int]],
        plan: Plan,
        weights: Weights,
        *,
        memory_limit: int,
        k: int,
        seed: int,
    ) -> None:
        self._parameters, self._atoms, self._plan, self._weights = parameters, atoms, plan, weights
        self._chosen: dict[str, Any] = {"memory_limit": memory_limit, "k": k, "seed": seed}
        self._bucket_of = {i: name for name, parts in plan.buckets.items() if name != ALL for i in parts}
        self.terms: tuple[str, ...] = ()
        self.reached: set[str] = set()
        """Terms with a gradient path to some parameter."""
        self._losses: dict[str, Tensor] = {}
        self.vectors: Vectors
        self.sums: Vectors

    @property
    def losses(self) -> dict[str, NDArray[np.float64]]:
        """Σ weight · loss of each part by term, [parts]: a sync."""
        return {term: values.cpu().numpy().astype(np.float64) for term, values in self._losses.items()}

    def run(
        self,
        batch: Mapping[str, Tensor],
        loss_terms: LossTerms,
        *,
        null: Mapping[str, Tensor] | None,
        micro_batch_size: int | None,
        trim: str | None,
        progress: Progress | None,
    ) -> None:
        """Walk the batch. In a distributed job every rank has the same batch and takes its turn of the micro-batches."""
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        pieces = list(self._plan.micro_batches(micro_batch_size))
        if len(pieces) < world:
            raise UsageError(
                f"{len(pieces)} micro-batches cannot be shared by {world} ranks: use a smaller micro_batch_size"
            )
        for number, (part, rows) in enumerate(pieces):
            if number % world == rank:
                self._take(part, rows, batch, loss_terms, null, trim)
            if progress is not None:
                progress(number + 1, len(pieces))
        if world > 1:
            self._reduce()
        self._add_up()

    def _take(
        self,
        part: int,
        rows: NDArray[np.intp],
        batch: Mapping[str, Tensor],
        loss_terms: LossTerms,
        null: Mapping[str, Tensor] | None,
        trim: str | None,
    ) -> None:
        micro = _rows_of(batch, rows)
        replaced = {} if null is None else _rows_of(null, rows)
        weight = self._weights.token[torch.as_tensor(rows, device=self._weights.token.device)]
        micro, replaced, weight = _trimmed(micro, replaced, weight, trim)
        with torch.enable_grad():
            found = dict(loss_terms({**micro, **{f"null_{name}": entry for name, entry in replaced.items()}}))
            if null is not None and NULL not in found:  # a loss that knows nothing of nulls: ask it again
                found[NULL] = next(iter(loss_terms({**micro, **replaced}).values()))
            sums = {name: _weighted(name, loss, weight) for name, loss in found.items()}
        self._begin(tuple(sums))
        alive = [name for name, total in sums.items() if total.requires_grad]
        for name, total in sums.items():
            self._losses[name][part] += total.detach().to(self._losses[name])
            if name in alive:
                gradients = torch.autograd.grad(
                    total, list(self._parameters), retain_graph=name != alive[-1], allow_unused=True
                )
                self._add(part, name, gradients)

    def _begin(self, terms: tuple[str, ...]) -> None:
        if self.terms:
            if terms != self.terms:
                raise UsageError(
                    f"loss_terms gave {', '.join(terms)} for one micro-batch and {', '.join(self.terms)} for another: "
                    "give the same terms for all rows"
                )
            return
        for name in terms:
            if "/" in name or "~" in name or name == "total":
                raise UsageError(f"a term cannot be called {name!r}: choose a plain word such as 'task' or 'entropy'")
        self.terms = terms
        parts, buckets = len(self._plan.parts), len(self._plan.buckets)
        self.vectors = vectors_for(
            self._parameters, self._atoms, expected=(parts + buckets) * len(terms), **self._chosen
        )
        # Too many parts to keep in full still leaves room for the buckets, whose norms are then exact.
        self.sums = (
            self.vectors
            if isinstance(self.vectors, ExactVectors)
            else vectors_for(self._parameters, self._atoms, expected=buckets * len(terms), **self._chosen)
        )
        device = self._parameters[0].device
        self._losses = {name: torch.zeros(parts, dtype=torch.float64, device=device) for name in terms}

    def _add(self, part: int, term: str, gradients: Sequence[Tensor | None]) -> None:
        if any(gradient is not None for gradient in gradients):
            self.reached.add(term)
        self.vectors.add(part_name(part, term), gradients)
        if self.sums is not self.vectors:
            self.sums.add(part_name(self._bucket_of[part], term), gradients)

    def _reduce(self) -> None:
        """Ranks hold addends of every vector: they are added up before any product is taken."""
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (self.terms, self.reached))
        if len({terms for terms, _ in everyone}) > 1:
            raise UsageError("loss_terms gave different terms on different ranks")
        self.reached = set().union(*(reached for _, reached in everyone))
        for term in self.terms:
            dist.all_reduce(self._losses[term])
            if term not in self.reached:
                continue
            for number in range(len(self._plan.parts)):
                dist.all_reduce(self.vectors.row(part_name(number, term)))
            if self.sums is not self.vectors:
                for bucket in self._plan.buckets:
                    if bucket != ALL:
                        dist.all_reduce(self.sums.row(part_name(bucket, term)))

    def _add_up(self) -> None:
        """A bucket's gradient is the sum of its parts', and that of `all` the sum of the buckets': no backward more."""
        for term in sorted(self.reached):
            everything = self.sums.row(part_name(ALL, term))
            for bucket in self._plan.buckets:
                if bucket == ALL:
                    continue
                row = self.sums.row(part_name(bucket, term))
                if self.sums is self.vectors:
                    for part in self._plan.buckets[bucket]:
                        row += self.vectors.row(part_name(part, term))
                everything += row


def _rows_of(batch: Mapping[str, Tensor], rows: NDArray[np.intp]) -> dict[str, Tensor]:
    return {name: entry[torch.as_tensor(rows, device=entry.device)] for name, entry in batch.items()}


def _trimmed(
    micro: dict[str, Tensor], replaced: dict[str, Tensor], weight: Tensor, trim: str | None
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Without the columns at the right that only padding reaches: they cost as much as words."""
    if trim is None:
        return micro, replaced, weight
    if trim not in micro or micro[trim].ndim != 2:
        raise UsageError(f"trim={trim!r} is no [N, T] entry of the batch; give the name of its attention mask")
    width = micro[trim].shape[1]
    used = int((micro[trim] != 0).any(0).nonzero().max()) + 1  # a sync: the width of a tensor is a number of the host

    def cut(entry: Tensor) -> Tensor:
        return entry[:, :used] if entry.ndim >= 2 and entry.shape[1] == width else entry

    both = [{name: cut(entry) for name, entry in entries.items()} for entries in (micro, replaced)]
    return both[0], both[1], cut(weight)


def _weighted(name: str, loss: Tensor, weight: Tensor) -> Tensor:
    """Σ w l of a micro-batch; what stands at masked tokens does not matter, be it NaN."""
    if not isinstance(loss, Tensor):
        raise UsageError(f"term {name!r} is a {type(loss).__name__}: loss_terms gives a tensor for each term")
    if loss.shape != weight.shape:
        wanted = "[n, T], one loss for each token of the mask" if weight.ndim == 2 else "[n], one loss for each sample"
        raise UsageError(
            f"term {name!r} has shape {list(loss.shape)}; expected {list(weight.shape)}, {wanted}, not reduced"
        )
    weight = weight.to(loss.device)
    return (weight * loss.masked_fill(weight == 0, 0.0)).sum()
