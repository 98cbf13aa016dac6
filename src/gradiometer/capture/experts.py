"""Which parameters are experts: a list of modules of one shape beside a router, or fused weights
[N, ...] under that name.

What counts as a list of experts: at least two modules with the same parameters by name and shape,
in a module that holds a router too (a child or a parameter called router, gate, switch, ... with
one output for each of them), or a list that is called experts. The layers of a transformer are a
list of one shape as well, and stand beside no router.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn

from gradiometer.capture.blocks import WRAPPERS, Model, Selector, modules_of, select
from gradiometer.errors import UsageError

__all__ = ["ExpertLayer", "Experts", "Slab", "find_experts"]

Experts: TypeAlias = Mapping[str, Sequence[Selector] | tuple[Sequence[Selector], nn.Module]]
"""By layer: its experts in order, or those and the router that chooses among them."""

ROUTER = re.compile(
    r"(^|[._])(router|gate|gating|switch|wg|route|routing|selector)(?![a-z])", re.IGNORECASE
)
BARE_ROUTER = re.compile(
    r"(w_?)?(router|gate|gating|switch|wg|route|routing|selector)(_?(w|weights?|kernel))?",
    re.IGNORECASE,
)
EXPERT = re.compile("expert|moe", re.IGNORECASE)
TOP_K = ("top_k", "topk", "num_experts_per_tok", "num_selects", "k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """One tensor of every expert: a parameter each, or one with the expert as first axis."""

    parts: tuple[int, ...]
    """Parameter numbers: one for each expert, or the single fused one."""
    fused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayer:
    """The experts of one layer and their router."""

    path: str
    kind: Literal["list", "fused"]
    num: int
    slabs: tuple[Slab, ...]
    router: nn.Module | None
    """Whose output says who is asked; None where there is none to be seen."""
    router_parameters: tuple[int, ...]
    top_k: int | None
    normalised: bool
    """Whether the weights of the chosen experts are made to add up to one."""

    @property
    def parameters(self) -> frozenset[int]:
        """Every parameter of an expert."""
        return frozenset(i for slab in self.slabs for i in slab.parts)

    def describe(self, names: Sequence[str]) -> dict[str, Any]:
        """For the run: what was found, in plain values."""
        firsts = [names[slab.parts[0]] for slab in self.slabs]
        return {
            "layer": f"layer.{self.path}",
            "router": self.path if self.router_parameters or self.router is not None else None,
            "kind": self.kind,
            "experts": self.num,
            "parameters": len(self.parameters),
            "names": firsts,
        }


def find_experts(
    model: Model, parameters: Mapping[str, nn.Parameter], given: Experts | bool | None
) -> list[ExpertLayer]:
    """The layers of experts: those given, or else those that look like it; none for False."""
    if given is False:
        return []
    index = {id(p): i for i, p in enumerate(parameters.values())}
    if isinstance(given, Mapping):
        return [_given_layer(name, part, model, parameters, index) for name, part in given.items()]
    if given is not None and given is not True:
        raise UsageError(
            "experts is a mapping from a layer's name to its experts, or False to leave them out;"
            f" found {given!r}"
        )
    found: list[ExpertLayer] = []
    taken: set[int] = set()
    for layer in _with_own_paths(_no_stacks(_candidates(model, index))):
        if not layer.parameters & taken:
            taken |= layer.parameters
            found.append(layer)
    return found


def _candidates(model: Model, index: Mapping[int, int]) -> list[tuple[str, ExpertLayer]]:
    """What looks like experts, with its name; some may lie inside others."""
    found: list[tuple[str, ExpertLayer]] = []
    for prefix, root in modules_of(model).items():
        modules = dict(root.named_modules())
        for path, holder in modules.items():
            found += _layers_in(prefix, path, holder, modules, index)
    return found


def _no_stacks(found: Sequence[tuple[str, ExpertLayer]]) -> list[tuple[str, ExpertLayer]]:
    """Without unrouted lists that hold experts themselves: `moe_layers` is a stack of layers."""

    def stack(one: ExpertLayer) -> bool:
        unrouted = one.router is None and not one.router_parameters
        return unrouted and any(other.parameters < one.parameters for _, other in found)

    return [(name, layer) for name, layer in found if not stack(layer)]


def _with_own_paths(found: Sequence[tuple[str, ExpertLayer]]) -> list[ExpertLayer]:
    """A path each. Fused modules of one router hold parts of the same experts: joined."""
    by_path: dict[str, ExpertLayer] = {}
    for name, layer in found:
        first = by_path.get(layer.path)
        same = first is not None and (first.kind, first.num, first.router) == (
            "fused",
            layer.num,
            layer.router,
        )
        if first is None or not (same and layer.kind == "fused"):
            path = layer.path if first is None else f"{layer.path}.{name}"
            by_path[path] = replace(layer, path=path)
        elif not first.parameters & layer.parameters:
            by_path[layer.path] = replace(first, slabs=first.slabs + layer.slabs)
    return list(by_path.values())


def _layers_in(
    prefix: str,
    path: str,
    holder: nn.Module,
    modules: Mapping[str, nn.Module],
    index: Mapping[int, int],
) -> Iterator[tuple[str, ExpertLayer]]:
    for name, child in holder.named_children():
        members = _members(child)
        named = bool(EXPERT.search(name) or EXPERT.search(type(child).__name__))
        slabs = (
            _list_slabs(members, index) if members else _fused_slabs(child, index) if named else ()
        )
        if not slabs:
            continue
        num = (
            len(members) or next(p for p in child.parameters(recurse=False) if p.ndim >= 3).shape[0]
        )
        home, home_path = holder, path
        router_name = _router_in(home, name, num)
        if router_name is None and not members:  # weights and router side by side in one module
            inside = f"{path}.{name}".lstrip(".")
            router_name = _router_in(child, "", num)
            home, home_path = (holder, path) if router_name is None else (child, inside)
        if router_name is None and EXPERT.search(
            path.rpartition(".")[2]
        ):  # experts.list beside a gate one level up
            home_path, _, beside = path.rpartition(".")
            home = modules[home_path]
            router_name = _router_in(home, beside, num)
        if router_name is None and not named:
            continue
        clean = prefix + WRAPPERS.sub("", home_path + ".") if home_path else prefix
        kind: Literal["list", "fused"] = "list" if members else "fused"
        yield name, _layer(clean.rstrip(".") or "model", kind, num, slabs, home, router_name, index)


def _layer(
    path: str,
    kind: Literal["list", "fused"],
    num: int,
    slabs: tuple[Slab, ...],
    home: nn.Module,
    router_name: str | None,
    index: Mapping[int, int],
) -> ExpertLayer:
    part = None if router_name is None else getattr(home, router_name)
    router = part if isinstance(part, nn.Module) else None
    own = (
        list(router.parameters())
        if router is not None
        else [part]
        if isinstance(part, Tensor)
        else []
    )
    return ExpertLayer(
        path=path,
        kind=kind,
        num=num,
        slabs=slabs,
        router=router,
        router_parameters=tuple(index[id(p)] for p in own if id(p) in index),
        top_k=_top_k(home, router, num),
        normalised=all(getattr(part, "norm_topk_prob", True) for part in (home, router)),
    )


def _members(child: nn.Module) -> list[nn.Module]:
    """The modules of a list or dict, if two or more have the same parameters."""
    if not isinstance(child, nn.ModuleList | nn.ModuleDict) or len(child) < 2:
        return []
    members: list[nn.Module] = []
    if isinstance(child, nn.ModuleList):
        members = list(child)
    else:  # one that is a module of its own may hold a dropout beside its experts (NLLB)
        members = [member for member in child.values() if any(True for _ in member.parameters())]
    shapes = {
        tuple((name, tuple(p.shape)) for name, p in member.named_parameters()) for member in members
    }
    return members if len(members) > 1 and len(shapes) == 1 and shapes != {()} else []


def _list_slabs(members: Sequence[nn.Module], index: Mapping[int, int]) -> tuple[Slab, ...]:
    columns = list(zip(*(member.parameters() for member in members), strict=True))
    watched = [column for column in columns if all(id(p) in index for p in column)]
    # A tensor that all experts share is nobody's own.
    own = [column for column in watched if len({id(p) for p in column}) == len(members)]
    return tuple(Slab(parts=tuple(index[id(p)] for p in column), fused=False) for column in own)


def _fused_slabs(child: nn.Module, index: Mapping[int, int]) -> tuple[Slab, ...]:
    named = child.named_parameters(recurse=False)
    own = [
        p for name, p in named if id(p) in index and p.ndim >= 2 and not BARE_ROUTER.fullmatch(name)
    ]
    stacked = [p for p in own if p.ndim >= 3]
    if not stacked or stacked[0].shape[0] < 2 or len({p.shape[0] for p in own}) != 1:
        return ()
    return tuple(Slab(parts=(index[id(p)],), fused=True) for p in own)


def _router_in(home: nn.Module, beside: str, num: int) -> str | None:
    """The child or parameter of `home` that has a router's name and an output for each expert."""
    for name, child in home.named_children():
        if name != beside and ROUTER.search(name) and _has_outputs(child, num):
            return name
    for name, parameter in home.named_parameters(recurse=False):
        if ROUTER.search(name) and num in parameter.shape:
            return name
    return None


def _has_outputs(router: nn.Module, num: int) -> bool:
    """Whether it has an output for each expert, as far as shapes tell."""
    if isinstance(router, nn.Linear):
        return router.out_features == num
    return any(num in p.shape for p in router.parameters())


def _top_k(home: nn.Module, router: nn.Module | None, num: int) -> int | None:
    for holder in (router, home):
        for name in TOP_K if holder is not None else ():
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < num:
                return value
    return None


def _given_layer(
    name: str,
    given: Any,
    model: Model,
    parameters: Mapping[str, nn.Parameter],
    index: Mapping[int, int],
) -> ExpertLayer:
    router, selectors = _given_parts(given)
    home = router if router is None else _holder_of(router, model)
    if len(selectors) < 2 or "/" in name:
        raise UsageError(
            f"experts[{name!r}] is a list of two or more experts (modules, lists of parameters or"
            " patterns), alone or in a pair with their router, under a name without slashes; found"
            f" {_short(given)}"
        )
    members = [
        select(f"expert {place}", selector, parameters) for place, selector in enumerate(selectors)
    ]
    values = list(parameters.values())
    shapes = [[tuple(values[i].shape) for i in member] for member in members]
    if any(part != shapes[0] for part in shapes):
        place = next(place for place, part in enumerate(shapes) if part != shapes[0])
        raise UsageError(
            f"experts[{name!r}] have different shapes, so tensors cannot be held side by side:"
            f" expert 0 has {shapes[0]}, expert {place} has {shapes[place]}"
        )
    if len({i for member in members for i in member}) != sum(map(len, members)):
        raise UsageError(f"experts[{name!r}] share parameters: each is to hold its own")
    own = [] if router is None else [index[id(p)] for p in router.parameters() if id(p) in index]
    return ExpertLayer(
        path=name,
        kind="list",
        num=len(members),
        slabs=tuple(Slab(parts=column, fused=False) for column in zip(*members, strict=True)),
        router=router,
        router_parameters=tuple(own),
        top_k=None if home is None else _top_k(home, router, len(members)),
        normalised=all(getattr(part, "norm_topk_prob", True) for part in (home, router)),
    )


def _given_parts(given: Any) -> tuple[nn.Module | None, list[Any]]:
    """The router, if any, and the experts. Two plain modules are two experts."""
    several = nn.ModuleList | nn.ModuleDict
    paired = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], nn.Module)
    single = paired and isinstance(given[0], nn.Module | str) and not isinstance(given[0], several)
    routed = paired and not single and not isinstance(given[1], several)
    listed = given[0] if routed else given
    if isinstance(listed, nn.ModuleDict):
        listed = list(listed.values())
    return given[1] if routed else None, (
        list(listed) if isinstance(listed, nn.ModuleList | list | tuple) else []
    )


def _holder_of(router: nn.Module, model: Model) -> nn.Module:
    """The module that has the router as its child: it may know how many are chosen."""
    holders = (module for root in modules_of(model).values() for module in root.modules())
    return next(
        (module for module in holders if any(child is router for child in module.children())),
        router,
    )


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{type(given).__name__} {text[:60]}..."
