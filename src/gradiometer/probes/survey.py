"""The survey: one forward for each micro-batch, one backward for each term, and the vectors they leave behind."""

from __future__ import annotations

import re
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

__all__ = ["NULL", "LossTerms", "Progress", "Survey", "Trim", "gathered", "part_name"]

LossTerms: TypeAlias = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
Progress: TypeAlias = Callable[[int, int], None]

NULL = "null"
"""The name of the task term with rewards permuted inside groups."""


Trim: TypeAlias = str | Sequence[str] | None
COUNTS = ("sample_count", "sample_pct", "token_count", "group_rv_count", "group_rv_table")
RESERVED = frozenset((*COUNTS, "reward_std_mean", "reward_std_min", "reward_std_max", "total", "between"))
"""What stands where a term's name does in the keys of an analysis."""


def gathered(mine: Any) -> list[Any]:
    """What every rank has, in the order of the ranks."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


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
        self.reached: dict[str, set[int]] = {}
        """By term, the parameters with a gradient path from it; a term that reaches none is dead."""
        self._losses: dict[str, Tensor] = {}
        self._alone = True
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
        trim: Trim,
        progress: Progress | None,
    ) -> None:
        """Walk the batch. In a distributed job every rank has the same batch and takes its turn of the micro-batches."""
        if torch.is_inference_mode_enabled():
            raise UsageError("a probe needs gradients, and torch.inference_mode() is on: call it outside")
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        widths = None if trim is None else _widths(batch, trim, self._weights.token)
        pieces = list(self._plan.micro_batches(micro_batch_size, widths))
        self._alone = null is None
        if len(pieces) < world:
            raise UsageError(
                f"{len(pieces)} micro-batches cannot be shared by {world} ranks: use a smaller micro_batch_size"
            )
        problem: Exception | None = None
        try:
            for number, (part, rows) in enumerate(pieces):
                if number % world == rank:
                    cut = None if widths is None else _Cut(batch, trim, int(widths[rows].max()))
                    self._take(part, rows, batch, loss_terms, null, cut)
                if progress is not None:
                    progress(number + 1, len(pieces))
        except Exception as raised:
            if world == 1:
                raise
            problem = raised  # the others wait for us: tell them first
        if world > 1:
            self._reduce(problem)
        self._add_up()

    def _take(
        self,
        part: int,
        rows: NDArray[np.intp],
        batch: Mapping[str, Tensor],
        loss_terms: LossTerms,
        null: Mapping[str, Tensor] | None,
        cut: _Cut | None,
    ) -> None:
        micro = _rows_of(batch, rows)
        replaced = {} if null is None else _rows_of(null, rows)
        weight = self._weights.token[torch.as_tensor(rows, device=self._weights.token.device)]
        if cut is not None:
            micro, replaced, weight = cut.entries(micro), cut.entries(replaced), cut.weight(weight)
        with torch.enable_grad():
            found = dict(loss_terms({**micro, **{f"null_{name}": entry for name, entry in replaced.items()}}))
            self._check(found)
            if null is not None and NULL not in found:  # a loss that knows nothing of nulls: ask it again
                found[NULL] = next(iter(loss_terms({**micro, **replaced}).values()))
            # A sum over many tokens leaves the range of half precision: the mean of the part is differentiated.
            scale = float(self._weights.row[self._plan.parts[part].rows].sum()) or 1.0
            means = {name: _weighted(name, loss, weight) / scale for name, loss in found.items()}
        self._begin(tuple(means))
        alive = [name for name, mean in means.items() if mean.requires_grad]
        for name, mean in means.items():
            self._losses[name][part] += scale * mean.detach().to(self._losses[name])
            if name in alive:
                gradients = torch.autograd.grad(
                    mean, list(self._parameters), retain_graph=name != alive[-1], allow_unused=True
                )
                self._add(part, name, gradients, scale)

    def _check(self, found: Mapping[str, Tensor]) -> None:
        """The names that the loss gave, before anything is done with them."""
        if not found:
            raise UsageError("loss_terms gave no term: return a mapping such as {'task': ..., 'entropy': ...}")
        if self._alone and NULL in found:
            raise UsageError("a term cannot be called 'null' without null=: that is the task with permuted rewards")
        for name in found:
            plain = isinstance(name, str) and re.fullmatch(r"[^/~<>|]+", name)
            if not plain or name in RESERVED or (name == "policy" and "task" in found):
                raise UsageError(f"a term cannot be called {name!r}: choose a plain word such as 'task' or 'entropy'")

    def _begin(self, terms: tuple[str, ...]) -> None:
        if self.terms:
            if terms != self.terms:
                raise UsageError(
                    f"loss_terms gave {', '.join(terms)} for one micro-batch and {', '.join(self.terms)} for another: "
                    "give the same terms for all rows"
                )
            return
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

    def _add(self, part: int, term: str, gradients: Sequence[Tensor | None], scale: float) -> None:
        there = {index for index, gradient in enumerate(gradients) if gradient is not None}
        if not there:
            return
        self.reached.setdefault(term, set()).update(there)
        self.vectors.add(part_name(part, term), gradients, scale)
        if self.sums is not self.vectors:
            self.sums.add(part_name(self._bucket_of[part], term), gradients, scale)

    def _reduce(self, problem: Exception | None) -> None:
        """Ranks hold addends of every vector: they are added up before any product is taken."""
        everyone = gathered((None if problem is None else repr(problem), self.terms, self.reached))
        if problem is not None:
            raise problem
        if troubles := [trouble for trouble, _, _ in everyone if trouble]:
            raise UsageError(f"another rank could not go on: {troubles[0]}")
        if len({terms for _, terms, _ in everyone}) > 1:
            raise UsageError("loss_terms gave different terms on different ranks")
        self.reached = {
            term: set().union(*(reached.get(term, set()) for _, _, reached in everyone))
            for term in self.terms
            if any(term in reached for _, _, reached in everyone)
        }
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


def _widths(batch: Mapping[str, Tensor], trim: Trim, weights: Tensor) -> NDArray[np.intp]:
    """How many columns of each row attention reaches, [N], at least one: found before the walk, where a sync is cheap."""
    attention, *names = [trim] if isinstance(trim, str) else list(trim or ())
    missing = [name for name in (attention, *names) if name not in batch]
    if missing or batch[attention].ndim != 2:
        wrong = missing[0] if missing else attention
        raise UsageError(f"trim: {wrong!r} is no [N, T] entry of the batch; give the name of its attention mask first")
    widths = _last_used(batch[attention]).clamp(min=1).cpu()
    if weights.ndim == 2:
        less = batch[attention].shape[1] - weights.shape[1]
        if bool((_last_used(weights).cpu() > (widths - less).clamp(min=1)).any()):
            raise UsageError(f"the mask counts tokens that {attention!r} calls padding: they cannot be trimmed")
    return widths.numpy().astype(np.intp)


def _last_used(mask: Tensor) -> Tensor:
    """One past the last column that is not zero, of each row; 0 where all are."""
    return ((mask != 0) * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)


class _Cut:
    """Without the columns at the right that only padding reaches: they cost as much as words."""

    def __init__(self, batch: Mapping[str, Tensor], trim: Trim, used: int) -> None:
        attention, *self._names = [trim] if isinstance(trim, str) else list(trim or ())
        self._attention, self._width, self._used = attention, batch[attention].shape[1], used

    def entries(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of the mask's width, or those that were named."""
        wanted = {self._attention, *self._names}
        return {name: self.weight(e) if not self._names or name in wanted else e for name, e in rows.items()}

    def weight(self, entry: Tensor) -> Tensor:
        """Losses of the next token have one column less."""
        less = self._width - entry.shape[1] if entry.ndim >= 2 else 2
        return entry[:, : max(self._used - less, 1)] if less in (0, 1) else entry


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
