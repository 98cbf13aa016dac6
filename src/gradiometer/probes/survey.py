"""The survey of an anatomy: groups of a batch in buckets, and each term's gradient on each group.

Everything is decided before the first forward. Then one forward for each micro-batch, always inside
one group, and one backward for each term; vectors add up by group and term.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.errors import UsageError
from gradiometer.maths import groups as grouping
from gradiometer.maths import losses
from gradiometer.maths.groups import RolloutFilter
from gradiometer.maths.vectors import ExactVectors, Vectors, vectors_for

__all__ = [
    "ALL",
    "NULL",
    "Asked",
    "Cut",
    "LossTerms",
    "Part",
    "Plan",
    "Progress",
    "Survey",
    "Trim",
    "Trimming",
    "Weights",
    "check_batch",
    "gathered",
    "last_used",
    "make_plan",
    "part_name",
    "permuted_inside",
    "trimming_of",
    "weights_of",
]

LossTerms: TypeAlias = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
Progress: TypeAlias = Callable[[int, int], None]
Trim: TypeAlias = str | Sequence[str] | None

ALL = "all"
NULL = "null"
"""The name of the task term with rewards permuted inside groups."""
ALIKE = 0.8  # of the longest row's width: below, padding costs more than another forward
WORTHWHILE = 256  # tokens of a forward
MIN_CROSS_FIT = 4  # rollouts of a group: two for its reward std, two for its gradient
COUNTS = ("sample_count", "sample_pct", "token_count", "group_rv_count", "group_rv_table")
RESERVED = frozenset(
    (*COUNTS, "reward_std_mean", "reward_std_min", "reward_std_max", "total", "between")
)
"""What stands where a term's name does in the keys of an analysis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An independent unit: one group, with the rows whose gradient is taken."""

    id: Hashable
    reward_std: float
    rows: NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts, and the buckets as positions among them; `all` is every part and comes first."""

    parts: tuple[Part, ...]
    buckets: Mapping[str, tuple[int, ...]]
    num_groups: int
    """Before the filter."""

    def rows(self, bucket: str) -> NDArray[np.intp]:
        """The rows of the batch in that bucket."""
        return np.concatenate([self.parts[i].rows for i in self.buckets[bucket]])

    def micro_batches(
        self, size: int | None, widths: NDArray[np.intp] | None = None
    ) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Rows of one part that go through the model together; of similar width, if known."""
        for number, part in enumerate(self.parts):
            limit = len(part.rows) if size is None else size
            if widths is None:
                for start in range(0, len(part.rows), limit):
                    yield number, part.rows[start : start + limit]
            else:
                for rows in _alike(part.rows, widths[part.rows], limit):
                    yield number, rows


def _alike(
    rows: NDArray[np.intp], widths: NDArray[np.intp], limit: int
) -> Iterator[NDArray[np.intp]]:
    """Longest first, cut where a row is much shorter than the first and enough is there."""
    order = np.argsort(-widths, kind="stable")
    start = 0
    for place in range(1, len(order) + 1):
        longest, count = widths[order[start]], place - start
        ends = place == len(order) or count >= limit
        if ends or (widths[order[place]] < ALIKE * longest and count * longest >= WORTHWHILE):
            yield rows[order[start:place]]
            start = place


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Σ token · loss / Σ row is the aggregated loss of any set of rows."""

    token: Tensor
    """[N, T], or [N] for losses per sample."""
    row: NDArray[np.float64]
    """[N]"""
    tokens: NDArray[np.float64] | None
    """[N]: how many tokens count at all; None where losses are per sample."""


def make_plan(
    rewards: Any,
    groups: Any,
    *,
    rollout_filter: RolloutFilter | None,
    bucket_mode: str,
    num_buckets: int,
    cross_fit: bool,
) -> Plan:
    """Score the groups, filter them, sort them into buckets."""
    reward, ids = _array(rewards), _labels(groups)
    if len(reward) != len(ids):
        raise UsageError(
            f"there are {len(reward)} rewards and {len(ids)} group ids: give one of each for"
            " every row"
        )
    scored, probed = _halves(ids) if cross_fit else (np.arange(len(ids)), np.arange(len(ids)))
    scores = grouping.reward_std(reward[scored], [ids[i] for i in scored])
    chosen = rollout_filter or RolloutFilter()
    kept = np.sort(chosen.select(chosen.scores_of(scores)))
    if len(kept) == 0:
        raise UsageError(_nothing_kept(chosen, scores.scores))
    split = grouping.split(
        scores.scores[kept], mode=bucket_mode, num_buckets=num_buckets, means=scores.means[kept]
    )
    rows_of = _members(ids, probed)
    parts: list[Part] = []
    buckets: dict[str, tuple[int, ...]] = {ALL: tuple(range(sum(len(b.groups) for b in split)))}
    for bucket in split:
        buckets[bucket.name] = tuple(range(len(parts), len(parts) + len(bucket.groups)))
        for i in kept[bucket.groups]:
            name, std = scores.ids[i], float(scores.scores[i])
            parts.append(Part(id=name, reward_std=std, rows=np.array(rows_of[name])))
    return Plan(parts=tuple(parts), buckets=buckets, num_groups=len(scores.ids))


def _members(ids: Sequence[Hashable], rows: NDArray[np.intp]) -> dict[Hashable, list[int]]:
    """Some rows by their group."""
    members: dict[Hashable, list[int]] = {}
    for row in rows.tolist():
        members.setdefault(ids[row], []).append(row)
    return members


def weights_of(
    mask: Tensor | None, num_rows: int, aggregation: str, horizon: float | None = None
) -> Weights:
    """Weights of tokens and rows; a mask with nothing in it is an error."""
    if mask is None:
        losses.aggregate(torch.zeros(1, 1), torch.ones(1, 1), aggregation)  # an error if unknown
        return Weights(token=torch.ones(num_rows), row=np.ones(num_rows), tokens=None)
    if len(mask) != num_rows:
        raise UsageError(
            f"the mask has {len(mask)} rows and the batch {num_rows}: give one row for each sample"
        )
    if not bool((torch.isfinite(mask) & (mask >= 0)).all()):
        raise UsageError(
            "the mask holds a negative number or a NaN: it says how much each token counts, from"
            " 0 up"
        )
    token = losses.token_weights(mask, aggregation, horizon=horizon)
    row = losses.sequence_weights(mask, aggregation).double().cpu().numpy()
    if not row.any():
        raise UsageError(
            f"the mask {list(mask.shape)} is zero everywhere: check which tokens it marks as"
            " trained"
        )
    return Weights(token=token, row=row, tokens=(mask != 0).sum(-1).double().cpu().numpy())


def check_batch(batch: Mapping[str, Tensor], num_rows: int) -> None:
    """Every entry is a tensor with one row for each sample."""
    if not batch:
        raise UsageError(
            "the batch is empty: give a mapping from names to tensors with one row for each sample"
        )
    for name, entry in batch.items():
        if not isinstance(entry, Tensor):
            raise UsageError(
                f"batch[{name!r}] is a {type(entry).__name__}: give tensors, one row for each"
                " sample"
            )
        if entry.ndim == 0 or len(entry) != num_rows:
            raise UsageError(
                f"batch[{name!r}] has shape {list(entry.shape)}, but there are {num_rows} rewards"
            )


def permuted_inside(groups: Any, seed: int) -> Tensor:
    """A permutation inside groups, [N]: row i gets the reward of row order[i]."""
    ids, rng = _labels(groups), np.random.default_rng(seed)
    order = np.arange(len(ids))
    for rows in _members(ids, np.arange(len(ids))).values():
        order[rows] = rng.permutation(rows)
    return torch.from_numpy(order)


def _halves(ids: Sequence[Hashable]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Every other rollout of each group: one half scores it, the other gives its gradient."""
    first = np.zeros(len(ids), dtype=np.bool_)
    for name, rows in _members(ids, np.arange(len(ids))).items():
        if len(rows) < MIN_CROSS_FIT:
            raise UsageError(
                f"cross_fit=True halves each group, and group {name!r} has {len(rows)} rollouts:"
                f" use groups of {MIN_CROSS_FIT} or more, or cross_fit=False"
            )
        first[rows[::2]] = True
    return np.flatnonzero(first), np.flatnonzero(~first)


def _nothing_kept(chosen: RolloutFilter, scores: NDArray[np.float64]) -> str:
    what = f"{chosen.strategy} {chosen.value:g}"
    if not (scores > grouping.ZERO).any():
        return (
            f"the rollout filter ({what}) keeps none of {len(scores)} groups: inside each, all"
            " rewards are equal. No group-relative gradient can come of this batch; change the"
            " task's difficulty or sample more rollouts"
        )
    return (
        f"the rollout filter ({what}) keeps none of {len(scores)} groups, whose reward std is at"
        f" most {scores.max():.3g}: linear top_p stops {grouping.LINEAR_SLACK} below its share,"
        " which is more than these scores; scale the rewards, or use top_p_prob_mode=softmax or"
        " another strategy"
    )


def _array(numbers: Any) -> NDArray[np.float64]:
    if isinstance(numbers, Tensor):
        numbers = numbers.detach().double().cpu().numpy()
    array = np.asarray(numbers, dtype=np.float64)
    if array.ndim != 1:
        raise UsageError(
            f"rewards are one number for each sample, [N]; found the shape {list(array.shape)}"
        )
    return array


def _labels(groups: Any) -> list[Hashable]:
    if isinstance(groups, Tensor | np.ndarray):
        return list(groups.tolist())
    try:
        ids = [i.item() if isinstance(i, Tensor) and i.ndim == 0 else i for i in groups]
        hash(tuple(ids))
    except TypeError as problem:
        raise UsageError(
            f"groups are ids, one for each row: numbers or strings; found {groups!r:.80}"
        ) from problem
    return ids


def gathered(mine: Any) -> list[Any]:
    """What every rank has, in the order of the ranks."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def part_name(part: int | str, term: str) -> str:
    """What the vector of a part (or of a bucket) and a term is called."""
    return f"{part}|{term}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The batch, and what is asked of any of its rows."""

    batch: Mapping[str, Tensor]
    loss_terms: LossTerms
    null: Mapping[str, Tensor] | None
    weights: Tensor
    """Of tokens [N, T], or of samples [N]."""

    def losses(self, rows: NDArray[np.intp], cut: Cut | None) -> dict[str, Tensor]:
        """By term, weight · loss of these rows [n, T]."""
        micro = _rows_of(self.batch, rows)
        replaced = {} if self.null is None else _rows_of(self.null, rows)
        weight = self.weights[torch.as_tensor(rows, device=self.weights.device)]
        if cut is not None:
            micro, replaced, weight = cut.entries(micro), cut.entries(replaced), cut.weight(weight)
        nulls = {f"null_{name}": entry for name, entry in replaced.items()}
        found = dict(self.loss_terms({**micro, **nulls}))
        self._check(found)
        if self.null is not None and NULL not in found:  # it knows nothing of nulls: ask it again
            found[NULL] = next(iter(self.loss_terms({**micro, **replaced}).values()))
        return {name: _weighted(name, loss, weight) for name, loss in found.items()}

    def _check(self, found: Mapping[str, Tensor]) -> None:
        """The names that the loss gave, before anything is done with them."""
        if not found:
            raise UsageError(
                "loss_terms gave no term: return a mapping such as {'task': ..., 'entropy': ...}"
            )
        if self.null is None and NULL in found:
            raise UsageError(
                "a term cannot be called 'null' without null=: that is the task with permuted"
                " rewards"
            )
        for name in found:
            plain = isinstance(name, str) and re.fullmatch(r"[^/~<>|]+", name)
            if not plain or name in RESERVED or (name == "policy" and "task" in found):
                raise UsageError(
                    f"a term cannot be called {name!r}: choose a plain word such as 'task' or"
                    " 'entropy'"
                )


class Survey:
    """Gradients of every term on every part, added up in `vectors`, and on buckets, in `sums`."""

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
        self.parameters, self._atoms, self.plan, self.weights = parameters, atoms, plan, weights
        self._chosen: dict[str, Any] = {"memory_limit": memory_limit, "k": k, "seed": seed}
        self._bucket_of = {
            i: name for name, parts in plan.buckets.items() if name != ALL for i in parts
        }
        self.terms: tuple[str, ...] = ()
        self.reached: dict[str, set[int]] = {}
        """By term, the parameters with a gradient path from it; a term without any is dead."""
        self._losses: dict[str, Tensor] = {}
        self.rows: dict[str, Tensor] = {}
        """By term, the vectors of the parts side by side [parts, P], where they are in full."""
        self.vectors: Vectors
        self.sums: Vectors

    @property
    def losses(self) -> dict[str, NDArray[np.float64]]:
        """Σ weight · loss of each part by term, [parts]: a sync."""
        return {term: values.cpu().numpy() for term, values in self._losses.items()}

    def run(
        self,
        asked: Asked,
        *,
        micro_batch_size: int | None,
        trim: Trim,
        progress: Progress | None,
    ) -> None:
        """Walk the batch; ranks have the same one, and each takes its turn of micro-batches."""
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        trimming = trimming_of(asked.batch, trim, asked.weights)
        known = None if trimming is None else trimming.used
        pieces = list(self.plan.micro_batches(micro_batch_size, known))
        if len(pieces) < world:
            raise UsageError(
                f"{len(pieces)} micro-batches cannot be shared by {world} ranks: use a smaller"
                " micro_batch_size"
            )
        problem: Exception | None = None
        try:
            for number, (part, rows) in enumerate(pieces):
                if number % world == rank:
                    cut = None if trimming is None else trimming.cut(rows)
                    self.take(part, rows, asked, cut)
                if progress is not None:
                    progress(number + 1, len(pieces))
        except Exception as raised:
            if world == 1:
                raise
            problem = raised  # the others wait for us: tell them first
        if world > 1:
            self._reduce(problem)
        self._add_up()

    def take(
        self, part: int, rows: NDArray[np.intp], asked: Asked, cut: Cut | None
    ) -> dict[str, Tensor]:
        """Add the gradients of some rows of one part; their weighted losses by term [n, T]."""
        # A sum over many tokens leaves the range of half precision: the mean of the part is
        # differentiated.
        scale = float(self.weights.row[self.plan.parts[part].rows].sum()) or 1.0
        with torch.enable_grad():
            losses = asked.losses(rows, cut)
            means = {name: loss.sum() / scale for name, loss in losses.items()}
        self.begin(tuple(means))
        alive = [name for name, mean in means.items() if mean.requires_grad]
        for name, mean in means.items():
            self._losses[name][part] += scale * mean.detach().to(self._losses[name])
            if name in alive:
                gradients = torch.autograd.grad(
                    mean, list(self.parameters), retain_graph=name != alive[-1], allow_unused=True
                )
                self._add(part, name, gradients, scale)
        return {name: loss.detach() for name, loss in losses.items()}

    def add_losses(self, name: str, owners: Tensor, losses: Tensor) -> None:
        """Σ weight · loss of rows [n, ...], each to the part that has it."""
        kept = self._losses[name]
        sums = losses.detach().flatten(1).sum(1) if losses.ndim > 1 else losses.detach()
        kept.index_add_(0, owners.to(kept.device), sums.to(kept))

    def of_one(self, part: int) -> Survey:
        """An empty survey of one part."""
        alone = Plan(
            parts=(self.plan.parts[part],), buckets={ALL: (0,), "bucket_1": (0,)}, num_groups=1
        )
        return Survey(self.parameters, self._atoms, alone, self.weights, **self._chosen)

    def forget(self) -> None:
        """As if nothing had been taken yet."""
        self.terms, self.reached, self.rows, self._losses = (), {}, {}, {}

    def begin(self, terms: tuple[str, ...]) -> None:
        """Make room for these terms; later micro-batches have the same ones."""
        if self.terms:
            if terms != self.terms:
                raise UsageError(
                    f"loss_terms gave {', '.join(terms)} for one micro-batch and"
                    f" {', '.join(self.terms)} for another: give the same terms for all rows"
                )
            return
        self.terms = terms
        parts, buckets = len(self.plan.parts), len(self.plan.buckets)
        self.vectors = self.sums = self._vectors((parts + buckets) * len(terms))
        # Too many parts to keep in full may leave room for the buckets, whose norms are then exact.
        if not isinstance(self.vectors, ExactVectors):
            self.sums = self._vectors(buckets * len(terms))
        zeros = torch.zeros(parts, dtype=torch.float64, device=self.parameters[0].device)
        self._losses = {name: zeros.clone() for name in terms}

    def _vectors(self, expected: int) -> Vectors:
        return vectors_for(self.parameters, self._atoms, expected=expected, **self._chosen)

    def _add(self, part: int, term: str, gradients: Sequence[Tensor | None], scale: float) -> None:
        there = {index for index, gradient in enumerate(gradients) if gradient is not None}
        if not there:
            return
        if term not in self.reached:
            self.make_room(term)
        self.reached.setdefault(term, set()).update(there)
        self.vectors.add(part_name(part, term), gradients, scale)
        if self.sums is not self.vectors:
            self.sums.add(part_name(self._bucket_of[part], term), gradients, scale)

    def make_room(self, term: str) -> None:
        """A term's vectors lie side by side; one without a gradient has none."""
        if isinstance(self.vectors, ExactVectors):
            names = [part_name(i, term) for i in range(len(self.plan.parts))]
            self.rows[term] = self.vectors.block(names)

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
            if isinstance(self.vectors, ExactVectors):
                if term not in self.rows:
                    self.make_room(term)
                dist.all_reduce(self.rows[term])
                continue
            for number in range(len(self.plan.parts)):
                dist.all_reduce(self.vectors.row(part_name(number, term)))
            if self.sums is not self.vectors:
                for bucket in self.plan.buckets:
                    if bucket != ALL:
                        dist.all_reduce(self.sums.row(part_name(bucket, term)))

    def _add_up(self) -> None:
        """Of sketches, `all` is the sum of the buckets; exact vectors are added up when read."""
        for term in sorted(self.reached) if self.sums is not self.vectors else ():
            everything = self.sums.row(part_name(ALL, term))
            for bucket in self.plan.buckets:
                if bucket != ALL:
                    everything += self.sums.row(part_name(bucket, term))


def _rows_of(batch: Mapping[str, Tensor], rows: NDArray[np.intp]) -> dict[str, Tensor]:
    return {
        name: entry[torch.as_tensor(rows, device=entry.device)] for name, entry in batch.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimming:
    """How many columns of each row are used [N], at least one, of which width, in which entries."""

    width: int
    used: NDArray[np.intp]
    names: tuple[str, ...] = ()
    """All entries of that width if there are none."""

    def cut(self, rows: NDArray[np.intp]) -> Cut:
        """What is cut off these rows when they go through the model together."""
        return Cut(self.width, int(self.used[rows].max()), self.names)


def trimming_of(batch: Mapping[str, Tensor], trim: Trim, weights: Tensor) -> Trimming | None:
    """As it was asked for. Found before the walk, where a sync is cheap."""
    if trim is None:
        return None
    attention, *names = [trim] if isinstance(trim, str) else list(trim)
    missing = [name for name in (attention, *names) if name not in batch]
    if missing or batch[attention].ndim != 2:
        wrong = missing[0] if missing else attention
        raise UsageError(
            f"trim: {wrong!r} is no [N, T] entry of the batch; give the name of its attention mask"
            " first"
        )
    widths = last_used(batch[attention]).clamp(min=1).cpu()
    if weights.ndim == 2:
        less = batch[attention].shape[1] - weights.shape[1]
        if bool((last_used(weights).cpu() > (widths - less).clamp(min=1)).any()):
            raise UsageError(
                f"the mask counts tokens that {attention!r} calls padding: they cannot be trimmed"
            )
    return Trimming(
        width=batch[attention].shape[1],
        used=widths.numpy().astype(np.intp),
        names=(attention, *names) if names else (),
    )


def last_used(mask: Tensor) -> Tensor:
    """One past the last column that is not zero, of each row; 0 where all are."""
    return ((mask != 0) * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)


class Cut:
    """Without the columns at the right that only padding reaches: they cost as much as words."""

    def __init__(self, width: int, used: int, names: Sequence[str] = ()) -> None:
        self._width, self._used, self._names = width, used, names

    def entries(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of that width, or those that are named."""
        wanted = set(self._names or rows)
        return {name: self.weight(e) if name in wanted else e for name, e in rows.items()}

    def weight(self, entry: Tensor) -> Tensor:
        """Losses of the next token have one column less."""
        less = self._width - entry.shape[1] if entry.ndim >= 2 else 2
        return entry[:, : max(self._used - less, 1)] if less in (0, 1) else entry


def _weighted(name: str, loss: Tensor, weight: Tensor) -> Tensor:
    """w l of a micro-batch [n, T]; what stands at masked tokens does not matter, be it NaN."""
    if not isinstance(loss, Tensor):
        raise UsageError(
            f"term {name!r} is a {type(loss).__name__}: loss_terms gives a tensor for each term"
        )
    if loss.shape != weight.shape:
        tokens = "[n, T], one loss for each token of the mask"
        wanted = tokens if weight.ndim == 2 else "[n], one loss for each sample"
        raise UsageError(
            f"term {name!r} has shape {list(loss.shape)}; expected {list(weight.shape)}, {wanted},"
            " not reduced"
        )
    weight = weight.to(loss.device)
    return weight * loss.masked_fill(weight == 0, 0.0)
