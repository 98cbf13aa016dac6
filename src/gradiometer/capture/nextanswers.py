"""What networks say of the next observations, as the training itself asked them.

The networks that a loss trains are known by the parameters below its squared errors. Every module
of the same class and shapes beside them is a copy: a target network, or the other of two critics.
Their forwards are heard on measured steps, before the loss goes backward; nothing is computed
again. Where a program calls `network.forward(x)` itself, hooks of the network are passed by: then
what its first layer took and its last layer gave is the call. A distribution that is asked for
log-probabilities meanwhile is heard too. A few calls of a few hundred rows are kept until the loss
has been looked at. On a CPU only: elsewhere each would be a sync.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.capture import hooks
from gradiometer.capture.callers import namespaces
from gradiometer.capture.living import living
from gradiometer.capture.twins import form_of, is_called_target, sample

__all__ = ["AskedNetwork", "HeardCall", "HeardLogProb", "NextAnswers"]

LEAST_ROWS, MOST_ROWS = 8, 512
"""Of a batch; one row is an action being chosen."""
MOST_CALLS, MOST_LOG_PROBS = 3, 3
"""The last ones of each network, and of all distributions."""
MOST_NETWORKS = 8
MOST_MODULES = 4_000
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Nobody calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardCall:
    """One forward: all that it was given, side by side, and all that it gave."""

    given: Tensor
    said: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardLogProb:
    """What a distribution said of some actions, one row each."""

    value: Tensor
    log_prob: Tensor
    is_normal: bool
    """The actions are as a normal distribution drew them, perhaps before a tanh."""


@dataclass(slots=True, kw_only=True)
class AskedNetwork:
    """A network that is trained, or a copy of one."""

    module: weakref.ref[nn.Module]
    is_trained: bool
    called_target: bool
    first: Tensor
    """Some of its weights when it was found."""
    inner: HeardCall | None = None
    """What its layers say of a call that has not been heard as a whole, or not yet."""
    entered: Tensor | None = None
    """What its first layer took since its last one gave something."""
    _heard: deque[HeardCall] = field(default_factory=lambda: deque(maxlen=MOST_CALLS))

    @property
    def calls(self) -> deque[HeardCall]:
        """The last ones, the newest at the end."""
        self._keep_inner()
        return self._heard

    def whole(self, call: HeardCall) -> None:
        """Its own hook heard a call, the one that its layers have just told of."""
        self.inner = None
        self._heard.append(call)

    def through_layers(self, call: HeardCall) -> None:
        """Its layers were called, perhaps by a forward that nobody hears."""
        self._keep_inner()
        self.inner = call

    def forget(self) -> None:
        """All of it is of the past."""
        self.inner = self.entered = None
        self._heard.clear()

    def _keep_inner(self) -> None:
        if self.inner is not None:
            self._heard.append(self.inner)
            self.inner = None

    @property
    def has_moved(self) -> bool:
        """Whether somebody keeps it up to date."""
        module = self.module()
        return module is not None and not torch.equal(sample(module), self.first)


class NetworkListener(hooks.LayerListener):
    """As for a layer, with all that the module is given and whatever it gives."""

    __slots__ = ()

    def __call__(self, _module: nn.Module, inputs: Any, output: Any) -> None:
        if (
            not torch.compiler.is_compiling()
            and torch._C._functorch.peek_interpreter_stack() is None
        ):
            self._note(inputs, output)


class NextAnswers:
    """Hears the networks of a training from their first loss on, until `stop`."""

    hears_without_graph = True

    def __init__(self, listening: Callable[[], bool]) -> None:
        self._listening = listening
        self.networks: list[AskedNetwork] = []
        """In the order in which they are asked first."""
        self.log_probs: deque[HeardLogProb] = deque(maxlen=MOST_LOG_PROBS)
        self._remove: list[hooks.Remove] = []
        self.is_soft = False
        """Log-probabilities of actions that a gradient goes through were heard: those of an actor
        that is paid for its entropy."""

    @property
    def listening(self) -> bool:
        """Whether what is made now may go backward in a round that is measured."""
        return self._listening()

    @property
    def are_alive(self) -> bool:
        """Whether none of the networks has been replaced."""
        return all(each.module() is not None for each in self.networks)

    def learn(
        self, trained: Sequence[Collection[int]], *, distributions: bool, search: bool
    ) -> None:
        """These are the parameters below each error of a loss, by id. Copies may have been replaced
        since the last time; where no variable around holds one, all modules of the process are
        searched if `search`."""
        if self.networks and self.are_alive:
            return
        self._forget_networks()
        found = list(_networks(_named_modules(namespaces(nn.Module)), trained))
        if search and found and all(each.is_trained for each, _ in found):
            modules = living(nn.Module)[nn.Module]
            found = list(_networks((("", each) for each in modules), trained))
        for network, module in found[:MOST_NETWORKS]:
            self.networks.append(network)
            listener = NetworkListener(_noting(weakref.ref(self), network))
            self._remove.append(hooks.observe_module(module, listener))
            self._remove += _hear_layers(weakref.ref(self), network, module)
        if distributions and self.networks:
            self._remove.append(hooks.observe_distributions(self))

    def forget(self) -> None:
        """A loss was looked at: what was said before it is of the past."""
        for each in self.networks:
            each.forget()
        self.log_probs.clear()

    def stop(self) -> None:
        """Listen no more."""
        self._forget_networks()

    @hooks.harmless
    def heard(self, method: str, distribution: Any, value: Any, answer: Any) -> None:
        """A distribution answered."""
        if method != "log_prob" or not isinstance(value, Tensor) or not isinstance(answer, Tensor):
            return
        if value.ndim != 2 or not LEAST_ROWS <= len(value) <= MOST_ROWS or not _is_read(value):
            return
        if answer.shape[:1] != value.shape[:1] or answer.ndim > 2:
            return
        self.is_soft = self.is_soft or value.requires_grad
        base = vars(distribution).get("base_dist", distribution)
        summed = answer.detach().sum(-1) if answer.ndim == 2 else answer.detach().clone()
        transformed = "transforms" in vars(distribution)
        self.log_probs.append(
            HeardLogProb(
                value=value.detach().clone(),
                log_prob=summed,
                is_normal=type(base).__name__ == "Normal" and not transformed,
            )
        )

    def _forget_networks(self) -> None:
        while self._remove:
            self._remove.pop()()
        self.networks.clear()
        self.log_probs.clear()


def _noting(mine: weakref.ref[NextAnswers], network: AskedNetwork) -> Callable[[Any, Any], None]:
    @hooks.harmless
    def note(inputs: Any, output: Any) -> None:
        answers = mine()
        if answers is None or not answers.listening:
            return
        given = [each for each in inputs if isinstance(each, Tensor)]
        rows = len(given[0]) if given and given[0].ndim == 2 else 0
        if LEAST_ROWS <= rows <= MOST_ROWS:
            said = [output] if isinstance(output, Tensor) else output
            together = _side_by_side(given, rows), _side_by_side(said, rows)
            if together[0] is not None and together[1] is not None:
                network.whole(HeardCall(given=together[0], said=together[1]))

    return note


def _hear_layers(
    mine: weakref.ref[NextAnswers], network: AskedNetwork, module: nn.Module
) -> list[hooks.Remove]:
    """The first and the last layer of a network that is one chain of them: of two critics in one,
    or of a head beside another, the last layer's answer would not be the network's."""
    layers = [each for each in module.modules() if isinstance(each, nn.Linear)]
    chain = all(a.out_features == b.in_features for a, b in itertools.pairwise(layers))
    if len(layers) < 2 or not chain:
        return []

    def entered(given: Tensor, _: Tensor) -> None:
        answers = mine()
        if answers is not None and answers.listening and given.ndim == 2:
            network.entered = given.detach()

    @hooks.harmless
    def left(_: Tensor, said: Tensor) -> None:
        given, network.entered = network.entered, None
        rows = 0 if given is None else len(given)
        if given is None or not LEAST_ROWS <= rows <= MOST_ROWS:
            return
        together = _side_by_side([given], rows), _side_by_side([said], rows)
        if together[0] is not None and together[1] is not None:
            network.through_layers(HeardCall(given=together[0], said=together[1]))

    return [hooks.observe_layer(layers[0], entered), hooks.observe_layer(layers[-1], left)]


def _side_by_side(tensors: Any, rows: int) -> Tensor | None:
    """A copy, one row a sample; None where something is not of that many rows."""
    if not isinstance(tensors, list | tuple) or not tensors:
        return None
    fitting = [
        each
        for each in tensors
        if isinstance(each, Tensor) and each.shape[:1] == (rows,) and _is_read(each)
    ]
    if len(fitting) != len(tensors):
        return None
    return torch.cat([each.detach().reshape(rows, -1).float() for each in fitting], dim=1)


def _is_read(tensor: Tensor) -> bool:
    """Whether a look at it costs nothing."""
    return tensor.device.type == "cpu" and tensor.is_floating_point()


def _named_modules(spaces: Iterable[dict[str, Any]]) -> Iterator[tuple[str, nn.Module]]:
    """All modules around us, each with the path to it."""
    for space in spaces:
        for name, root in space.items():
            for path, module in root.named_modules():
                yield f"{name}.{path}", module


def _compiled(modules: Sequence[nn.Module]) -> set[int]:
    """Modules that torch.compile has been given, by id: a hook would make it compile them again."""
    roots = [each for each in modules if getattr(each, "_compiled_call_impl", None) is not None]
    roots += [each for each in modules if type(each).__name__ == "OptimizedModule"]
    return {id(part) for root in roots for part in root.modules()}


def _networks(
    modules: Iterable[tuple[str, nn.Module]], trained: Sequence[Collection[int]]
) -> Iterator[tuple[AskedNetwork, nn.Module]]:
    """The trained networks and their copies, in the order in which they were found."""
    names: dict[int, set[str]] = {}
    found: dict[int, nn.Module] = {}
    for name, module in modules:
        if len(found) >= MOST_MODULES:
            break
        if not isinstance(module, CONTAINERS):
            names.setdefault(id(module), set()).add(name)
            found[id(module)] = module
    every = set().union(*trained) if trained else set()
    compiled = _compiled(list(found.values()))
    free = [module for key, module in found.items() if key not in compiled]
    forms = {form_of(each) for each in _trained(free, trained)}
    for module in free:
        if form_of(module) in forms:
            held = [id(p) for p in module.parameters()]
            words = (part for name in names[id(module)] for part in name.split("."))
            network = AskedNetwork(
                module=weakref.ref(module),
                is_trained=all(each in every for each in held),
                called_target=any(map(is_called_target, words)),
                first=sample(module),
            )
            yield network, module


def _trained(
    modules: Sequence[nn.Module], trained: Sequence[Collection[int]]
) -> Iterator[nn.Module]:
    """For each error the innermost module that has just its parameters; or the one that has those
    of all of them, as the authors of TD3 write two critics."""
    held = [(frozenset(map(id, each.parameters())), each) for each in modules]
    wanted = {frozenset(each) for each in trained}
    if not any(mine in wanted for mine, _ in held):
        wanted = {frozenset().union(*wanted)}
    for parameters in wanted:
        fitting = [module for mine, module in held if mine == parameters]
        if fitting:
            yield min(fitting, key=lambda module: sum(1 for _ in module.modules()))
