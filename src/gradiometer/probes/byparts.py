"""Gradients of each part of a forward that holds the rows of many.

Rows that share a forward share the weights, and autograd adds their gradients up. For what a layer
does with its weights the sum can be taken apart: of y = x Wᵀ with δ = ∂L/∂y the gradient of part g
is Σ_{rows of g} δᵀ x, and that of a scale or a bias the sum of δ x or of δ over the part's rows.
While a `ByParts` is on, torch's functions that get a parameter do this in their backward, straight
into the vectors of the parts.

It holds where rows do not meet. A parameter that is used in another way keeps its own path in the
graph, and `differentiate` refuses what has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["ByParts", "Refused"]

Places: TypeAlias = tuple[Tensor, list[Tensor]]
"""Of one parameter in the vectors: their columns [parts, numel], and in each a view like it."""
Use: TypeAlias = Callable[..., Any]
USES: dict[Any, Use] = {}
"""By function of torch: what is done instead where a parameter is among its arguments."""


class Refused(Exception):
    """These rows cannot share a forward; why, in a few words."""


class ByParts(TorchFunctionMode):
    """A mode of torch: on in a forward, after its rows were seated; then `differentiate`."""

    def __init__(self, parameters: Sequence[Tensor], names: Sequence[str]) -> None:
        super().__init__()
        self._parameters, self._names = parameters, names
        self._number = {id(parameter): i for i, parameter in enumerate(parameters)}
        self._numels = [parameter.numel() for parameter in parameters]
        device, dtype = parameters[0].device, parameters[0].dtype
        self._anchor = torch.zeros((), device=device, dtype=dtype, requires_grad=True)
        self._views: dict[int, list[Places]] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        use, named = USES.get(func), kwargs or {}
        if use is not None and self._meets(args, named) and torch.is_grad_enabled():
            return use(self, func, *args, **named)
        return func(*args, **named)

    def _meets(self, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether a parameter is among the arguments: most functions of a forward have none."""
        known = self._number
        return any(id(each) in known for each in args) or any(
            id(each) in known for each in named.values()
        )

    def seat(self, owners: Sequence[int]) -> None:
        """The forward to come has these rows: the part of each, equal ones side by side."""
        runs = [(part, len(list(same))) for part, same in groupby(owners)]
        self._seated, self._sizes = [part for part, _ in runs], [count for _, count in runs]
        self.num_rows = len(owners)
        self.owners = torch.tensor(owners, device=self._anchor.device)

    def differentiate(self, loss: Tensor, vectors: Tensor, *, again: bool) -> set[int]:
        """Add the gradient of each seated part to its vector, of [parts, P]; which parameters have
        one. `again`: the graph is needed once more."""
        self._reached = set[int]()
        if id(vectors) not in self._views:
            self._views[id(vectors)] = self._split(vectors)
        self._targets = self._views[id(vectors)]
        with torch.no_grad():
            _, *others = torch.autograd.grad(
                loss, [self._anchor, *self._parameters], retain_graph=again, allow_unused=True
            )
        for name, other in zip(self._names, others, strict=True):
            if other is not None:
                raise Refused(f"{name} is used in a way that has no gradient by group")
        return self._reached

    def _split(self, vectors: Tensor) -> list[Places]:
        """By parameter, the places of its gradients."""
        split = vectors.split_with_sizes(self._numels, 1)
        return [
            (columns, [row.view(parameter.shape or (1,)) for row in columns.unbind(0)])
            for columns, parameter in zip(split, self._parameters, strict=True)
        ]

    def place(self, parameter: Any) -> int | None:
        """The number of a parameter; None for any other tensor."""
        return self._number.get(id(parameter)) if isinstance(parameter, Tensor) else None

    def check_rows(self, x: Tensor) -> None:
        """Rows come first, each with as many lines as another."""
        if not len(x) or len(x) % self.num_rows:
            raise Refused(f"a layer gets {list(x.shape)} where there are {self.num_rows} rows")

    def each(self, count: int) -> list[int]:
        """How many of `count` lines belong to each seated part."""
        return [count // self.num_rows * size for size in self._sizes]

    def add_products(self, number: int, left: Tensor, right: Tensor) -> None:
        """leftᵀ right of each part; left [lines, a], right [lines, b], the parameter [a, b]."""
        self._reached.add(number)
        sizes, (_, targets) = self.each(len(left)), self._targets[number]
        lefts, rights = left.t().split_with_sizes(sizes, 1), right.split_with_sizes(sizes)
        for part, a, b in zip(self._seated, lefts, rights, strict=True):
            targets[part].addmm_(a, b)

    def add_lines(self, number: int, places: Tensor, delta: Tensor) -> None:
        """δ [lines, width] to lines of the parameter, by their places [lines]."""
        self._reached.add(number)
        sizes, (_, targets) = self.each(len(delta)), self._targets[number]
        at, deltas = places.split_with_sizes(sizes), delta.split_with_sizes(sizes)
        for part, lines, d in zip(self._seated, at, deltas, strict=True):
            targets[part].index_add_(0, lines, d)

    def add_sums(self, number: int, delta: Tensor) -> None:
        """δ of each row [rows, ...], summed over the rows of each part."""
        self._reached.add(number)
        columns, size = self._targets[number][0], self._numels[number]
        columns.index_add_(0, self.owners, delta.reshape(self.num_rows, -1, size).sum(1))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, flip: bool) -> Any:
        """x Wᵀ + b, or x W + b; of which at least one is a parameter."""
        i, j = self.place(weight), self.place(bias)
        if torch.is_autocast_enabled(x.device.type):
            raise Refused("autocast is on")
        if i is None or weight.ndim != 2 or x.ndim < 2:
            y = _plain(x, weight, flip)
            return y if bias is None else y + (bias if j is None else self.by_row(bias, y))
        b = bias.detach() if bias is not None and j is not None else None
        known: Any = (self._anchor, x, weight.detach(), b, self, i, j, flip)
        y = _Linear.apply(*known)  # type: ignore[no-untyped-call]
        return y if bias is None or j is not None else y + bias

    def embedding(self, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        """Lines of a weight; those of positions [1, T], which all rows share, for each row."""
        if ids.ndim > 1 and len(ids) == 1:
            ids = ids.expand(self.num_rows, *ids.shape[1:])
        known: Any = (self._anchor, ids, weight.detach(), padding, self, self.place(weight))
        lines: Tensor = _Embedding.apply(*known)  # type: ignore[no-untyped-call]
        return lines

    def by_row(self, parameter: Any, other: Any) -> Any:
        """The parameter once for each row, to be combined with `other` [rows, ...]; itself where
        that cannot be."""
        number = self.place(parameter)
        if number is None or not isinstance(other, Tensor) or other.ndim <= parameter.ndim:
            return parameter
        if len(other) != self.num_rows:
            return parameter
        ones = (1,) * (other.ndim - parameter.ndim - 1)
        known: Any = (self._anchor, parameter.detach(), (self.num_rows, *ones, *parameter.shape))
        return _Rows.apply(*known, self, number)  # type: ignore[no-untyped-call]


def _plain(x: Tensor, weight: Tensor, flip: bool) -> Tensor:
    return x @ weight if flip else F.linear(x, weight)


class _Linear(torch.autograd.Function):
    """x Wᵀ + b."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mode: ByParts,
        i: int,
        j: int | None,
        flip: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.told = mode, i, j, flip
        mode.check_rows(x)
        if flip:
            return x @ weight if bias is None else x @ weight + bias
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        mode, i, j, flip = ctx.told
        flat, given = delta.reshape(-1, delta.shape[-1]), x.reshape(-1, x.shape[-1])
        mode.add_products(i, given, flat) if flip else mode.add_products(i, flat, given)
        if j is not None:
            mode.add_sums(j, flat)
        back = None
        if ctx.needs_input_grad[1]:
            back = (flat @ (weight.t() if flip else weight)).view(x.shape)
        return None, back, None, None, None, None, None, None


class _Embedding(torch.autograd.Function):
    """W[ids]."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        ids: Tensor,
        weight: Tensor,
        padding: int | None,
        mode: ByParts,
        number: int,
    ) -> Tensor:
        mode.check_rows(ids)
        ctx.save_for_backward(ids)
        ctx.told = mode, number, padding
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        (ids,) = ctx.saved_tensors
        mode, number, padding = ctx.told
        flat, places = delta.reshape(-1, delta.shape[-1]), ids.reshape(-1)
        if padding is not None:
            flat = flat.masked_fill((places == padding)[:, None], 0.0)
        mode.add_lines(number, places, flat)
        return None, None, None, None, None, None


class _Rows(torch.autograd.Function):
    """A parameter for each row."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        parameter: Tensor,
        shape: Sequence[int],
        mode: ByParts,
        number: int,
    ) -> Tensor:
        ctx.told = mode, number
        return parameter.detach().expand(shape)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        mode, number = ctx.told
        mode.add_sums(number, delta)
        return None, None, None, None, None


def use(*functions: Any) -> Callable[[Use], Use]:
    """Do this instead of those functions of torch."""

    def keep(instead: Use) -> Use:
        USES.update(dict.fromkeys(functions, instead))
        return instead

    return keep


@use(F.linear)
def _linear(
    mode: ByParts, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Any:
    if mode.place(weight) is None and mode.place(bias) is None:
        return func(input, weight, bias)
    return mode.linear(input, weight, bias, flip=False)


@use(torch.addmm)
def _addmm(
    mode: ByParts, func: Any, input: Tensor, mat1: Tensor, mat2: Tensor, **scales: Any
) -> Any:
    """GPT-2's linear layers."""
    if mode.place(mat2) is None or scales:
        return func(input, mat1, mat2, **scales)
    return mode.linear(mat1, mat2, input, flip=True)


@use(torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)
def _matmul(mode: ByParts, func: Any, *given: Any, **named: Any) -> Any:
    if len(given) == 2 and mode.place(given[1]) is not None and not named:
        return mode.linear(given[0], given[1], None, flip=True)
    return func(*given, **named)


@use(F.embedding)
def _embedding(
    mode: ByParts,
    func: Any,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    plain = max_norm is None and not scale_grad_by_freq and not sparse
    if mode.place(weight) is None or not plain or (padding_idx is not None and padding_idx < 0):
        return func(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    return mode.embedding(input, weight, padding_idx)


@use(F.layer_norm)
def _layer_norm(
    mode: ByParts,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if mode.place(weight) is None and mode.place(bias) is None:
        return func(input, normalized_shape, weight, bias, eps)
    y = func(input, normalized_shape, None, None, eps)
    y = y if weight is None else y * mode.by_row(weight, y)
    return y if bias is None else y + mode.by_row(bias, y)


@use(F.rms_norm)
def _rms_norm(
    mode: ByParts,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if mode.place(weight) is None:
        return func(input, normalized_shape, weight, eps)
    y = func(input, normalized_shape, None, eps)
    return y * mode.by_row(weight, y)


@use(
    *(
        getattr(home, name)
        for home in (torch, torch.Tensor)
        for name in ("mul", "add", "sub", "div")
    ),
    torch.true_divide,
    torch.Tensor.true_divide,
)
def _elementwise(mode: ByParts, func: Any, *given: Any, **named: Any) -> Any:
    if len(given) != 2:
        return func(*given, **named)
    one, other = given
    return func(mode.by_row(one, other), mode.by_row(other, one), **named)
