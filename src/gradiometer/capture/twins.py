"""Target networks: a copy of a trained network that is called a target, and how it follows.

Told are five facts. Both names hold the same network; the target equals the trained one before
every step although that one moves, or is never further from it than that one moves in a step (a
rate τ that is exchanged with 1 − τ); it has never changed although that one has moved far; it is
updated, and nobody ever asks it. Frozen references, old policies and teachers are called otherwise,
and are nobody's business.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.capture import hooks
from gradiometer.capture.environment import steps_so_far
from gradiometer.capture.proofs import ProofLog

__all__ = [
    "TargetNetworks",
    "TargetTwin",
    "aliased",
    "form_of",
    "is_called_target",
    "sample",
    "twins_among",
]

ID = "target-network"
TARGET = {"target", "targets", "targ", "tgt", "slow", "lagged", "delayed"}
PREDICTED = {"predictor", "predictors", "rnd"}
"""Random network distillation has a target that never changes, on purpose."""
DEEPEST = 2
"""Modules inside modules that are looked at: `policy.critic_target`, `agent.critic.q1_target`."""
MOST_TENSORS, MOST_ELEMENTS = 6, 32
EQUAL_ROUNDS = 8
"""Looks in a row, with a step between each two, that a target must equal its network."""
CLOSE_PAIRS, CLOSE, LATER, LATER_CLOSE = 6, 1.5, 4, 3.0
"""Pairs of looks in a row at a moving network, how many of its steps its target may be behind in
all of them, later looks that must say so too, and what it may be behind there, where the size of a
step is that of the pairs. A target that follows by 0.1 of the way is 5 steps behind and more."""
NEXT = 2
"""Rounds between two looks in a row: where the actor learns at every second step (TD3), measured
rounds are those. As if the network had moved in each of them, which makes its steps no larger."""
DENSE, RARELY = 16, 8
"""Looks in a row; then every eighth measured round. When the training is over its networks may be
gone, and what the last look has shown must do."""
LONG, OVER = 5_000, 1_000
"""Steps without a change that are told while it trains, and when it is over: the longest intervals
of public settings are 2,500 updates (SB3's DQN) and 10,000 of a much longer training."""
PLAYED, FEW = 3_000, 300
"""Or so many steps of the environment, and of the optimizer, when it is over: a program that
learns at every tenth step counts its intervals in steps of the environment, 500 or 1,000."""
UNASKED = 200
"""Steps after which somebody has asked a target that is asked at all."""
FAR = 0.03
"""Of its own size, that the trained network must have moved."""

Spaces = Sequence[Mapping[str, Any]]


def twins_among(spaces: Spaces, held: Collection[int]) -> list[tuple[str, nn.Module, nn.Module]]:
    """Targets by name, each with the trained networks of the same class and shapes.

    Of several (the two critics of SAC) the nearest is the one it follows.
    """
    named = list(_modules(spaces))
    targets = {id(module) for name, module in named if is_called_target(name)}
    trained: dict[object, list[nn.Module]] = {}
    for _, module in named:
        if _is_held(module, held) and id(module) not in targets:
            trained.setdefault(form_of(module), []).append(module)
    found: dict[int, tuple[str, nn.Module, nn.Module]] = {}
    for name, module in named:
        if id(module) in found or not is_called_target(name) or _is_touched(module, held):
            continue
        if others := trained.get(form_of(module)):
            nearest = min(others, key=lambda other: distance(sample(other), sample(module)))
            found[id(module)] = (name, module, nearest)
    return [twin for twin in found.values() if not _is_part(twin[1], found)]


def _is_part(module: nn.Module, found: Mapping[int, tuple[str, nn.Module, nn.Module]]) -> bool:
    others = [other for _, other, _ in found.values() if other is not module]
    return any(part is module for other in others for part in other.modules())


def aliased(spaces: Spaces, held: Collection[int]) -> Iterator[tuple[str, str]]:
    """Names of a target and of a trained network, side by side, that hold one network."""
    for space in spaces:
        modules = {name: x for name, x in space.items() if isinstance(x, nn.Module)}
        for name, module in modules.items():
            if not is_called_target(name) or not _is_held(module, held):
                continue
            parameters = [id(p) for p in module.parameters()]
            for other, twin in modules.items():
                same = [id(p) for p in twin.parameters()] == parameters
                if same and not is_called_target(other) and type(twin) is type(module):
                    yield name, other


def _modules(spaces: Spaces) -> Iterator[tuple[str, nn.Module]]:
    waiting = [
        (name, x, 0) for space in spaces for name, x in space.items() if isinstance(x, nn.Module)
    ]
    seen: set[int] = set()
    for name, module, depth in waiting:
        if id(module) not in seen or depth == 0:
            yield name, module
        if id(module) not in seen and depth < DEEPEST:
            waiting += [(each, x, depth + 1) for each, x in module.named_children()]
        seen.add(id(module))


def is_called_target(name: str) -> bool:
    """By a word of a variable's or a child's name."""
    words = set(re.split(r"[_\d]+|(?<=[a-z])(?=[A-Z])", name))
    return bool({word.lower() for word in words} & TARGET)


def form_of(module: nn.Module) -> object:
    """What copies of a network share: its class and the shapes of its parameters."""
    shapes = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    return type(module), shapes


def _is_held(module: nn.Module, held: Collection[int]) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and all(id(p) in held for p in parameters)


def _is_touched(module: nn.Module, held: Collection[int]) -> bool:
    """Whether it is trained. Where each network brings an optimizer of its own (minimalRL's SAC), a
    target has one too, and nothing goes backward through it."""
    parameters = list(module.parameters())
    own = [p for p in parameters if id(p) in held]
    in_part = 0 < len(own) < len(parameters)
    return not parameters or in_part or any(p.grad is not None for p in own)


@torch.no_grad()
def sample(module: nn.Module) -> Tensor:
    """A few weights of a network, on the host."""
    parameters = [p for p in module.parameters() if p.layout == torch.strided]
    chosen = parameters[:: max(1, len(parameters) // MOST_TENSORS)]
    parts = []
    for p in chosen:
        flat = torch.view_as_real(p.detach()) if p.is_complex() else p.detach()
        flat = flat.reshape(-1)
        parts.append(flat[:: max(1, flat.numel() // MOST_ELEMENTS)][:MOST_ELEMENTS].float())
    return torch.cat(parts).cpu().clone() if parts else torch.zeros(0)


def distance(one: Tensor, other: Tensor) -> float:
    """Relative to the first."""
    if one.shape != other.shape:
        return float("inf")
    return float((one - other).norm() / one.norm().clamp(min=1e-12))


@dataclass(slots=True, weakref_slot=True)
class TargetTwin:
    """A target and its network, and what the looks have shown."""

    name: str
    target: weakref.ref[nn.Module]
    online: weakref.ref[nn.Module]
    first_target: Tensor
    first_online: Tensor
    begun: int
    """The round of the first look."""
    played: int = 0
    """Steps of the environment before it."""
    last: tuple[int, Tensor] | None = None
    """The round and the trained network of the last one."""
    equal: int = 0
    was_apart: bool = False
    pairs: int = 0
    """Looks in a row between which the network moved."""
    largest: float = 0.0
    """Its largest step between two of them."""
    behind: float = 0.0
    """Of its steps, how far the target was behind at most; without an end once it was far."""
    later: int = 0
    """Looks after those in which it was as close."""
    was_copied: bool = False
    """It equalled the network that had moved: a copy, however seldom."""
    has_changed: bool = False
    moved: float = 0.0
    rounds: int = 0
    asked: bool = False
    is_held: bool = False
    """An optimizer has it."""
    is_trained: bool = False
    """And a gradient reaches it: it is called a target, and is none."""
    unlisten: hooks.Remove | None = None

    def listen(self) -> None:
        """Hear whether it is asked, until it was: at each layer, for of a copy of actor and critics
        in one (Spinning Up) many a training asks the critics alone."""
        target = self.target()
        modules = target.modules() if isinstance(target, nn.Module) else ()
        layers = [each for each in modules if isinstance(each, nn.Linear | nn.Conv2d)]
        if not layers or next(layers[0].parameters()).device.type != "cpu":
            self.asked = True  # nobody can tell
            return
        mine = weakref.ref(self)
        removers: list[hooks.Remove] = []

        def note(_given: Tensor, _said: Tensor) -> None:
            if (twin := mine()) is not None:
                twin.asked = True
            unlisten()

        def unlisten() -> None:
            while removers:
                removers.pop()()

        removers += [hooks.observe_layer(each, note) for each in layers]
        self.unlisten = unlisten

    def look(self, number: int) -> None:
        """Before the first backward of a round."""
        target, online = self.target(), self.online()
        if target is None or online is None:
            return
        if self.is_held and any(p.grad is not None for p in target.parameters()):
            self.is_trained = True
            return
        now, weights = sample(target), sample(online)
        self.has_changed = self.has_changed or not torch.equal(now, self.first_target)
        same = torch.equal(now, weights)
        self.was_apart = self.was_apart or not same
        self._note_distance(number, now, weights)
        if same and self.last is not None and number - self.last[0] <= NEXT:
            self.equal += not torch.equal(self.last[1], weights)
        self.last = number, weights
        self.moved = max(self.moved, distance(self.first_online, weights))
        self.rounds = number - self.begun

    def _note_distance(self, number: int, now: Tensor, weights: Tensor) -> None:
        """How many steps of the network the target is behind."""
        if self.last is None:
            return
        before, last = self.last
        gap, step = (float((weights - other).norm()) for other in (now, last))
        if step == 0.0:
            return
        self.was_copied = self.was_copied or gap == 0.0
        if number - before <= NEXT:
            self.pairs += 1
            step /= number - before
            self.largest = max(self.largest, step)
            self.behind = max(self.behind, gap / step)
        elif self.largest > 0.0:
            self.later += 1
            far = gap > LATER_CLOSE * self.largest
            self.behind = float("inf") if far else self.behind

    @property
    def is_close(self) -> bool:
        """Whether it follows within a step, without being a copy."""
        long = self.pairs >= CLOSE_PAIRS and self.later >= LATER
        return long and self.behind <= CLOSE and not self.was_copied

    @property
    def is_equal(self) -> bool:
        """Whether it always was, while the network moved."""
        return not self.was_apart and self.equal >= EQUAL_ROUNDS

    @property
    def is_ignored(self) -> bool:
        """Whether it is kept up to date for nobody."""
        return self.has_changed and not self.asked and self.rounds >= UNASKED

    def stands_still(self, *, over: bool) -> bool:
        """Whether it never changed, for long enough to say so."""
        long = self.rounds >= (OVER if over else LONG)
        played = steps_so_far() - self.played >= PLAYED and self.rounds >= FEW
        long = long or (over and played)
        return long and not self.has_changed and self.moved >= FAR


class TargetNetworks:
    """Finds the targets of a training once, and follows them."""

    def __init__(self, log: ProofLog) -> None:
        self._log = log
        self._twins: list[TargetTwin] | None = None
        self._looks = 0

    @property
    def is_found(self) -> bool:
        """Whether it was looked for targets."""
        return self._twins is not None

    def find(self, spaces: Spaces, held: Collection[int], number: int) -> None:
        """Among the variables around the first measured backward."""
        for target, online in aliased(spaces, held):
            self._log.found(
                ID,
                f"{target!r} and {online!r} are the same network: a target that is no copy",
                subject=target,
                how="alias",
                target=target,
                online=online,
            )
        self._twins = [
            TargetTwin(
                name=name,
                target=weakref.ref(target),
                online=weakref.ref(online),
                first_target=sample(target),
                first_online=sample(online),
                begun=number,
                played=steps_so_far(),
                is_held=_is_held(target, held),
            )
            for name, target, online in twins_among(spaces, held)
            if not _is_predicted(spaces, online)
        ]
        for twin in self._twins:
            twin.listen()

    def look(self, number: int, measured: int) -> None:
        """Before the first backward of a measured round."""
        self._looks += 1
        if self._twins and (self._looks <= DENSE or measured % RARELY == 0):
            for twin in self._twins:
                twin.look(number)
            self._judge(over=False)

    def finish(self, number: int) -> None:
        """The training is over."""
        for twin in self._twins or ():
            twin.look(number)
            if twin.unlisten is not None:
                twin.unlisten()
        self._judge(over=True)

    def _judge(self, *, over: bool) -> None:
        twins = [twin for twin in self._twins or () if not twin.is_trained]
        for twin in twins:
            if twin.is_equal:
                self._tell(
                    twin,
                    "equal",
                    f"{twin.name!r} equals the network it is a copy of before each of"
                    f" {twin.equal + 1} steps in a row: it is updated at every step",
                )
            elif twin.is_close and self._log.state(ID) != "ok":
                self._tell(
                    twin,
                    "close",
                    f"{twin.name!r} was never further than {twin.behind:.2g} steps from the network"
                    f" it is a copy of, in {twin.pairs + twin.later} looks: it takes over nearly"
                    " all of it at once",
                )
            elif twin.stands_still(over=over):
                self._tell(
                    twin,
                    "never",
                    f"{twin.name!r} has not changed in {twin.rounds} steps, while the network it"
                    f" is a copy of has moved by {twin.moved:.0%} of its size",
                )
            elif twin.is_ignored:
                self._tell(
                    twin,
                    "ignored",
                    f"{twin.name!r} is updated, and was not asked once in {twin.rounds} steps",
                )
        if twins and all(_is_well(twin) for twin in twins):
            self._log.ok(ID)

    def _tell(self, twin: TargetTwin, how: str, message: str) -> None:
        self._log.found(
            ID,
            message,
            subject=twin.name,
            how=how,
            target=twin.name,
            steps=twin.rounds,
            moved=twin.moved,
        )


def _is_well(twin: TargetTwin) -> bool:
    """It is asked, and follows neither never nor at once."""
    slowly = twin.was_copied or twin.behind > CLOSE
    return twin.asked and twin.has_changed and twin.was_apart and slowly


def _is_predicted(spaces: Iterable[Mapping[str, Any]], online: nn.Module) -> bool:
    names = [name for name, module in _modules(list(spaces)) if module is online]
    words = {word for name in names for word in re.split(r"[_\d]+", name.lower())}
    return bool(words & PREDICTED)
