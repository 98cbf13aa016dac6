"""What each sample was given: hooks on log-probabilities, entropies and values of a loss, in the
user's own backward and at no extra pass.

`CreditReader` hears distributions and looks at each loss of a measured step before it goes backward
(logprobs.py). The gradients that arrive there are kept as a bounded sample, go to the host with the
step's one sync, and become a `CreditBatch`.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture import hooks, logprobs
from gradiometer.capture.hooks import guarded
from gradiometer.capture.logprobs import (
    Mark,
    SeenGraph,
    SeenLogProbs,
    TrainedValues,
    trained_towards,
)
from gradiometer.capture.rounds import Recorder
from gradiometer.capture.statistics import Fetched, Reading
from gradiometer.maths.credit import correlation, summary

__all__ = ["CreditBatch", "CreditReader"]

Floats = NDArray[np.float64]

MOST_ROWS = 1024
"""Samples of one node that are kept; of more, every second, third, ..."""
MOST_NODES = 1024
"""Log-probabilities of a round that are hooked: an episode of that many steps, one by one."""
MOST_OBSERVED = 64
"""Of those, how many are followed down to their observations."""
OBSERVED_ROWS, OBSERVED_COLUMNS = 512, 64
"""Of observations: rows that are kept, and numbers of each."""
SCALARS = {
    "entropy": "credit/entropy_slope",
    "values": "credit/value_slope",
    "level": "credit/entropy",
}
"""By what they are called among the scalars of a reading."""
MOST_FITS, FEWEST_FITTED = 4, 8
"""Errors of values that are looked at in a loss, and samples of each."""
LEAST_CHOICES = 8
"""Of fewer the most frequent one says nothing: of one it is all."""
MOST_CHOICES = 1024
"""Whole numbers in a range up to here are counted one by one."""
OF_SEQUENCES = ("sums", "counts", "beyond")
TELLING = ("actions", "log_probs", "observations", "ratio", "residuals")


@dataclass(slots=True, kw_only=True)
class _Samples:
    """What belongs to the samples of one node, on their device; thinned out."""

    credit: Tensor | None = None
    sums: Tensor | None = None
    """Of the credit of each sequence, and below how many of its tokens have any."""
    counts: Tensor | None = None
    beyond: Tensor | None = None
    """Tokens with credit that the program's own mask leaves out, of each sequence."""
    rows: int = 0
    actions: Tensor | None = None
    log_probs: Tensor | None = None
    observations: Tensor | None = None
    ratio: Tensor | None = None
    residuals: Tensor | None = None
    """∂ log π by the outputs of the policy, up to a scale: of samples of the policy itself its mean
    is zero."""
    resampled: bool = False


@dataclass(slots=True, kw_only=True)
class _Backward:
    """What one backward of the user's brought."""

    samples: list[_Samples] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    fits: list[Tensor] = field(default_factory=list)
    """Of values in the loss of a policy: n, and n times the mean squared error, its variance and
    that of the targets."""
    levels: list[Tensor] = field(default_factory=list)
    """Of entropies."""
    ranges: list[tuple[float, float]] = field(default_factory=list)
    """What ratios are clipped to."""


@dataclass(slots=True, kw_only=True)
class SampledRows:
    """Samples of one node on the host, row by row; None where something is not known of them."""

    credit: Floats
    rows: int
    """How many there were before a sample was taken of them."""
    actions: Floats | None = None
    log_probs: Floats | None = None
    observations: Floats | None = None
    ratio: Floats | None = None
    residuals: Floats | None = None
    resampled: bool = False
    sums: Floats | None = None
    """Of sequences, as in `_Samples`."""
    counts: Floats | None = None
    beyond: Floats | None = None

    @property
    def stride(self) -> int:
        """Which every k-th of the samples the rows are."""
        return math.ceil(self.rows / MOST_ROWS) or 1


@dataclass(slots=True, kw_only=True)
class CreditBatch:
    """A measured step's credit on the host."""

    values: dict[str, float]
    samples: list[SampledRows]
    num_entropies: int
    unmeasurable: str = ""
    """Why a part of it could not be looked at."""


class CreditReader:
    """Hooks what is hooked on measured steps, and hands it over when the step ends."""

    def __init__(self, recorder: Recorder, *, measuring: Callable[[], bool]) -> None:
        self._recorder, self._measuring = recorder, measuring
        self.seconds = self.entered = 0.0
        self._pending: _Backward | None = None
        """What the backward in progress brings, where its graph was looked at."""
        self._kept: list[tuple[int, _Backward]] = []
        """By round."""
        self._num_nodes = 0
        self._unmeasurable = ""
        self.reduces: Callable[[], bool] = lambda: True
        """Whether the next backward reaches the gradients: of micro-batches that a sharded model
        does not reduce, only the last is heard to end."""
        self._drawn: deque[weakref.ref[Tensor]] = deque(maxlen=64)
        self.on_graph: list[Callable[[SeenGraph], None]] = []
        """Told what a loss is made of."""
        self.removers = [hooks.observe_distributions(self), hooks.observe_roots(self)]

    # What the hooks call.

    @property
    def listening(self) -> bool:
        """Whether what is made now may go backward in a round that is measured."""
        return self._measuring()

    @guarded
    def heard(self, method: str, distribution: Any, value: Any, answer: Tensor) -> None:
        """A distribution answered while a graph is being made."""
        if method in ("sample", "rsample"):
            self._drawn.append(weakref.ref(answer))
            return
        if not isinstance(answer, Tensor) or not answer.requires_grad:
            return
        wide = answer.ndim > 1 and _is_wide(distribution)
        if method == "entropy":
            with torch.no_grad():
                whole = answer.detach().sum(-1) if wide else answer.detach()
                logprobs.mark(answer, Mark(kind="entropy", wide=wide, level=whole.float().mean()))
        elif isinstance(value, Tensor):
            with torch.no_grad():
                made = self._log_prob_mark(value, answer, wide=wide)
                if made.rows:
                    made = replace(made, residuals=_residuals(distribution, value, made.rows))
                logprobs.mark(answer, made)

    @property
    def wants_graph(self) -> bool:
        """On measured steps."""
        return self._measuring()

    @guarded
    def graph_ready(self, call: hooks.BackwardCall) -> None:
        """A loss is about to go backward: hook what it is made of."""
        tensors = call.tensors
        into = self._pending = _Backward()
        if not self.reduces():
            self._unmeasurable = "this backward is not reduced (set_requires_gradient_sync(False))"
            return
        if hooks.saved_tensors_are_hooked():
            self._unmeasurable = "what the graph saves is packed (checkpoints, offloading)"
            return
        roots = [x.grad_fn for x in tensors if isinstance(x, Tensor) and x.grad_fn is not None]
        with torch.no_grad():
            self._hook(logprobs.look(roots), into)

    def backward_ended(self, number: int | None) -> None:
        """A backward has reached the model that is watched: what came with it is of this round,
        None where that is not measured."""
        pending, self._pending = self._pending, None
        if pending is None or number is None:
            return
        if pending.samples or pending.entropy or pending.values:
            self._kept.append((number, pending))

    def give_up(self, problem: str) -> None:
        """A fault of ours inside the user's forward or backward: all else goes on."""
        self.unhook()
        self.forget()
        self._pending = None
        self._recorder.event("fault", problem)

    def unhook(self) -> None:
        """Listen no more."""
        while self.removers:
            self.removers.pop()()

    def forget(self) -> None:
        """What was kept is of no step that is measured."""
        self._kept.clear()
        self._num_nodes, self._unmeasurable = 0, ""

    def _log_prob_mark(self, value: Tensor, answer: Tensor, *, wide: bool) -> Mark:
        resampled = any(drawn() is value for drawn in self._drawn)
        if value.requires_grad:
            return Mark(kind="log_prob", wide=wide, reparametrised=True, resampled=resampled)
        log_probs = (answer.detach().sum(-1) if wide else answer.detach()).reshape(-1)
        return Mark(
            kind="log_prob",
            wide=wide,
            rows=len(log_probs),
            actions=_by_rows(value, len(log_probs)),
            log_probs=_strided(log_probs, len(log_probs)),
            resampled=resampled,
        )

    def _hook(self, seen: SeenGraph, into: _Backward) -> None:
        if not seen.whole:
            self._unmeasurable = "the graph above the layers is too large"
        ratios = [node._saved_result.detach() for node in seen.ratios]
        every = math.ceil(len(seen.log_probs) / MOST_OBSERVED) or 1
        for place, found in enumerate(seen.log_probs):
            if self._num_nodes < MOST_NODES:
                self._num_nodes += 1
                self._hook_log_probs(found, into, ratios, observed=place % every == 0)
        for entropy in seen.entropies:
            hooks.observe_node(entropy.node, self._entropy_note(into, entropy))
        into.levels += [each.level for each in seen.entropies if each.level is not None]
        into.ranges += seen.ranges
        for told in self.on_graph:
            told(seen)
        for node, place in seen.errors[:MOST_NODES]:
            hooks.observe_node(node, self._value_note(into, place), leaving=True)
        # Values that a loss trains without a policy beside them may be those of actions, whose
        # targets are no returns.
        if seen.log_probs:
            fits = (_fit(trained_towards(*each)) for each in seen.errors[:MOST_FITS])
            into.fits += [each for each in fits if each is not None]

    def _hook_log_probs(
        self, found: SeenLogProbs, into: _Backward, ratios: list[Tensor], *, observed: bool
    ) -> None:
        if found.reparametrised:
            self._unmeasurable = (
                "actions are reparametrised: the gradient goes through them, and log-probs are no"
                " credit"
            )
            return
        samples = _Samples(resampled=found.resampled)
        if rows := found.rows:
            is_marked = found.actions is not None and found.actions.ndim == 2  # thinned out by then
            samples.actions = found.actions if is_marked else _by_rows(found.actions, rows)
            samples.residuals = found.residuals
            if found.log_probs is not None:
                samples.log_probs = _strided(found.log_probs.reshape(-1), rows)
            fitting = (x for x in ratios if x.numel() == rows)
            samples.ratio = next((_strided(x.reshape(-1), rows) for x in fitting), None)
            if observed:
                seen = logprobs.observations(found.node, rows)
                samples.observations = None if seen is None else _thinned(seen)

        @guarded
        def note(self: CreditReader, gradients: tuple[Any, ...]) -> None:
            if gradients[0] is not None:
                _take_credit(samples, gradients[0].detach(), found)
                into.samples.append(samples)

        hooks.observe_node(found.node, lambda gradients: note(self, gradients))

    def _entropy_note(self, into: _Backward, seen: logprobs.SeenEntropy) -> Any:
        sign, wide = seen.sign, seen.wide

        def note(gradients: tuple[Any, ...]) -> None:
            if gradients[0] is not None:
                slope = gradients[0].detach()
                slope = slope.mean(-1) if wide or sign < 0 else slope
                into.entropy.append(sign * slope.sum())

        return note

    def _value_note(self, into: _Backward, place: int) -> Any:
        def note(gradients: tuple[Any, ...]) -> None:
            if len(gradients) > place and gradients[place] is not None:
                into.values.append(gradients[place].detach().sum())

        return note

    # When the round ends.

    def put_into(self, reading: Reading, number: int) -> list[_Samples]:
        """Hand over what this round brought; the list says what the arrays are of."""
        self._kept = [(of, one) for of, one in self._kept if of == number]
        samples = [each for _, one in self._kept for each in one.samples]
        for name in ("credit", *OF_SEQUENCES, *TELLING):
            for place, each in enumerate(samples):
                if (held := getattr(each, name)) is not None:
                    reading.add_array(f"credit/{name}/{place}", held)
        for name in ("entropy", "values"):
            slopes = [x for _, one in self._kept for x in getattr(one, name)]
            if slopes:
                reading.add_scalar(f"credit/{name}", torch.stack(slopes).sum())
        if levels := [x for _, one in self._kept for x in one.levels]:
            reading.add_scalar("credit/level", torch.stack(levels).mean())
        for one in (each for _, kept in self._kept for each in kept.fits):
            reading.add_array("credit/fits", one)
        return samples

    def collect(self, samples: list[_Samples], fetched: Fetched) -> CreditBatch | None:
        """The round's credit from what was fetched; None where there was none."""
        num_entropies = sum(len(one.entropy) for _, one in self._kept)
        ranges = {each for _, one in self._kept for each in one.ranges}
        why = self._unmeasurable
        self.forget()
        rows = [_on_host(each, place, fetched) for place, each in enumerate(samples)]
        values = _values(rows, fetched)
        values |= _by_length(len(samples), fetched) | _of_ratios(rows, ranges)
        if not values and not why:
            return None
        return CreditBatch(
            values=values, samples=rows, num_entropies=num_entropies, unmeasurable=why
        )


def _fit(found: TrainedValues | None) -> Tensor | None:
    """How well values fit their targets, as sums; of a few samples nothing can be said.

    Targets that differ by rounding alone, as those found from values and errors do, are all one.
    """
    if found is None or (number := found.targets.numel()) < FEWEST_FITTED:
        return None
    targets, values = found.targets.reshape(-1).float(), found.values.reshape(-1).float()
    both = torch.stack([targets, values, targets - values])
    spread, mean = torch.var_mean(both, dim=1, correction=0)
    rounding = torch.finfo(found.values.dtype).eps * both[:2].abs().amax()
    of_targets, _, left = spread.unbind()
    of_targets = torch.where(of_targets > (2 * rounding).square(), of_targets, 0.0)
    told = [torch.ones_like(left), left + mean[2].square(), left, of_targets]
    return number * torch.stack(told)


def _is_wide(distribution: Any) -> bool:
    """Whether each sample has several actions, whose log-probs the program adds up itself."""
    discrete = ("Categorical", "OneHotCategorical", "Geometric", "Poisson", "Binomial")
    names = {kind.__name__ for kind in type(distribution).__mro__}
    return not distribution.event_shape and names.isdisjoint(discrete)


def _residuals(distribution: Any, value: Tensor, rows: int) -> Tensor | None:
    """Of choices one-hot less probabilities, of normal numbers z and z² − 1; None of all else.

    What the distribution holds is read, and none of its lazy properties is asked for.
    """
    base = vars(distribution).get("base_dist", distribution)
    kind, held = type(base).__name__, vars(base)
    if kind == "Categorical" and isinstance(logits := held.get("logits"), Tensor):
        if logits.numel() != rows * logits.shape[-1] or value.numel() != rows:
            return None
        p = _strided(logits.detach().reshape(rows, -1), rows).float().exp()
        chosen = _strided(value.detach().reshape(rows, 1), rows).long()
        return p.neg_().scatter_add_(1, chosen, torch.ones_like(p[:, :1]))
    if kind == "Normal" and value.numel() % rows == 0:
        loc, scale = (x.detach().expand_as(value) for x in (held["loc"], held["scale"]))
        z = _strided(((value.detach() - loc) / scale).reshape(rows, -1), rows).float()
        return torch.cat([z, z.square() - 1.0], dim=1)
    return None


def _strided(x: Tensor, rows: int) -> Tensor:
    """A copy of every k-th row, at most MOST_ROWS; what was thinned out before stays."""
    return x[:: math.ceil(rows / MOST_ROWS)].clone() if len(x) == rows > 0 else x


def _by_rows(value: Tensor | None, rows: int) -> Tensor | None:
    """Actions, one row a sample; None where they do not fit."""
    if value is None or rows == 0 or value.numel() % rows:
        return None
    return _strided(value.detach().reshape(rows, -1), rows)


def _thinned(seen: Tensor) -> Tensor:
    """Rows and columns of observations, as `environment.digest` takes them."""
    flat = seen.reshape(len(seen), -1)
    every = math.ceil(flat.shape[1] / OBSERVED_COLUMNS) or 1
    kept = _strided(flat, len(flat))[:OBSERVED_ROWS, ::every]
    return kept.float() if kept.dtype != torch.float32 else kept


def _take_credit(samples: _Samples, gradient: Tensor, found: SeenLogProbs) -> None:
    """−∂L/∂log π of the samples of a node; of sequences, sums over their tokens too."""
    credit, wide = gradient * -found.sign, found.wide
    if wide:
        credit = credit.mean(-1)
    elif credit.ndim == 3 and credit.shape[2] == 1:
        credit = credit[..., 0]
    if not wide and credit.ndim == 2 and credit.shape[1] > 1:
        given = (credit != 0).to(credit.dtype)
        samples.sums, samples.counts = credit.sum(1), given.sum(1)
        if found.mask is not None and found.mask.shape == credit.shape:
            samples.beyond = (given * (found.mask == 0)).sum(1)
    credit = credit.reshape(-1)
    samples.rows = len(credit)
    samples.credit = _strided(credit, len(credit))


def _on_host(samples: _Samples, place: int, fetched: Fetched) -> SampledRows:
    held = {name: fetched.arrays.get(f"credit/{name}/{place}") for name in TELLING}
    credit = fetched.arrays[f"credit/credit/{place}"]
    for name, array in held.items():
        if array is not None and name != "observations" and len(array) != len(credit):
            held[name] = None
    held |= {name: fetched.arrays.get(f"credit/{name}/{place}") for name in OF_SEQUENCES}
    return SampledRows(
        credit=credit,
        rows=samples.rows,
        resampled=samples.resampled,
        **held,
    )


def _values(rows: list[SampledRows], fetched: Fetched) -> dict[str, float]:
    found: dict[str, float] = {}
    if rows:
        found = summary(np.concatenate([each.credit for each in rows]))
    for name, metric in SCALARS.items():
        if f"credit/{name}" in fetched.scalars:
            found[metric] = fetched.scalars[f"credit/{name}"]
    return found | _of_values(fetched) | _of_inputs(rows) | _of_actions(rows)


def _of_ratios(rows: list[SampledRows], ranges: set[tuple[float, float]]) -> dict[str, float]:
    """How far the policy is from the one that sampled, and how much of that is clipped."""
    told = [each.ratio for each in rows if each.ratio is not None]
    if not told:
        return {}
    ratios = np.concatenate(told)
    found = {
        "credit/ratio_error": float(np.abs(ratios - 1.0).mean()),
        "credit/ratio_largest": float(ratios.max()),
    }
    if len(ranges) == 1:
        ((low, high),) = ranges
        found["credit/clip_fraction"] = float(((ratios < low) | (ratios > high)).mean())
    return found


def _of_values(fetched: Fetched) -> dict[str, float]:
    """Value loss and explained variance, for programs that log neither."""
    fits = fetched.arrays.get("credit/fits")
    if fits is None:
        return {}
    number, squares, left, whole = fits.tolist()
    found = {"credit/value_loss": squares / number}
    if whole > 0.0:
        found["credit/explained_variance"] = 1.0 - left / whole
    return found


def _of_inputs(rows: list[SampledRows]) -> dict[str, float]:
    """Spread and size of what the policy's first layer took."""
    taken = [each.observations for each in rows if each.observations is not None]
    if not taken or len({each.shape[1] for each in taken}) > 1:
        return {}
    seen = np.concatenate(taken).reshape(-1)
    apart = seen - seen.sum() / len(seen)
    return {
        "credit/input_spread": math.sqrt(float(apart @ apart) / len(seen)),
        "credit/input_largest": float(np.abs(seen).max()),
    }


def _of_actions(rows: list[SampledRows]) -> dict[str, float]:
    """The share of the most frequent choice; of tokens it would be that of a filler."""
    told = [each.actions for each in rows if each.actions is not None and each.sums is None]
    if not told or not all(each.shape[1] == 1 and (each == each.round()).all() for each in told):
        return {}
    chosen = np.concatenate(told).reshape(-1)
    if len(chosen) < LEAST_CHOICES:
        return {}
    return {"credit/action_share": _most_frequent(chosen) / len(chosen)}


def _most_frequent(chosen: Floats) -> int:
    """How often the most frequent of some whole numbers is there."""
    least = chosen.min()
    if chosen.max() - least < MOST_CHOICES:  # to sort them takes longer
        return int(np.bincount((chosen - least).astype(np.int64)).max())
    return int(np.unique(chosen, return_counts=True)[1].max())


def _by_length(num: int, fetched: Fetched) -> dict[str, float]:
    """Of sequences: whether long ones are pushed up or down as a whole."""
    pairs = [
        (fetched.arrays[f"credit/sums/{place}"], fetched.arrays[f"credit/counts/{place}"])
        for place in range(num)
        if f"credit/sums/{place}" in fetched.arrays
    ]
    if not pairs:
        return {}
    sums, counts = (np.concatenate(each) for each in zip(*pairs, strict=True))
    found = correlation(sums[counts > 0], counts[counts > 0])
    return {} if found is None else {"credit/corr_length": found}
