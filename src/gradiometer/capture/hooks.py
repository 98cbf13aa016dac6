"""Where we meet the training: hooks on steps, backwards, forwards, clips and graphs.

Trainers import `clip_grad_norm_` by name, so replacing that name would miss them. torch wraps its
clip functions in `no_grad` by a closure; putting an observed function into that closure is seen by
every caller, however they imported it. Where a version of torch has no such closure, the public
names are replaced instead (`replace_names`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import re
import threading
import time
import traceback
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import (
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TextIO,
    TypeVar,
    cast,
)

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradiometer.errors import (
    GradiometerError,
    GradiometerWarning,
    NonFiniteGradient,
    StopTraining,
)

__all__ = [
    "OWN",
    "BackwardCall",
    "BackwardListener",
    "BackwardStart",
    "ClipCall",
    "ClipListener",
    "DistributionListener",
    "GradientListener",
    "Guarded",
    "HookMark",
    "RootListener",
    "ShapeWarning",
    "StepListener",
    "Use",
    "answered",
    "guarded",
    "harmless",
    "hooked_since",
    "listens_after_accumulation",
    "num_compiled_clips",
    "observe_backward",
    "observe_clips",
    "observe_distributions",
    "observe_environments",
    "observe_forward",
    "observe_gradients",
    "observe_layer",
    "observe_module",
    "observe_node",
    "observe_optimizer",
    "observe_retained",
    "observe_roots",
    "observe_shape_warnings",
    "observe_use",
    "observed_clip",
    "own_pass",
    "report_fault",
    "retained",
    "saved_tensors_are_hooked",
    "shape_warnings",
    "tolerated",
    "uncompiled",
    "unwrap",
    "without_graph",
]

Remove = Callable[[], None]
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


def uncompiled(function: F) -> F:
    """The same function, which torch.compile does not look into when compiled code calls it.

    A function around `optimizer.step()` or `loss.backward()` may be compiled, and our hooks are
    called from there. torch.compiler.disable is this too, but takes a second to load, and its
    wrapper, sixteen times a step, longer than most hooks: where torch lets us, the code itself is
    marked.
    """
    if _is_marked(function):
        return function
    disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]
    disabled: F = disable(function)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # what compiles this frame knows the answer
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(F, called)


def _is_marked(function: Any) -> bool:
    """Let neither these frames nor those below them be compiled: private, since torch 2.6."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if not hasattr(frames, "set_code_exec_strategy"):
        return False
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    function._torchdynamo_disable = True  # where a compiled function would take it in
    function._torchdynamo_disable_msg = None
    return True


# The boundary: trouble of ours is told once and never stops the training.

S = TypeVar("S", bound="Guarded")
R = TypeVar("R")
Q = ParamSpec("Q")


class Guarded(Protocol):
    """Something whose hooks can fail, after which it stops measuring, and whose time is counted."""

    seconds: float
    entered: float
    """When the outermost call in progress began."""

    def give_up(self, problem: str) -> None: ...


def guarded(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Count the time of a hook, and let no exception reach the training but those asked for."""

    @functools.wraps(method)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        started = self.entered = time.perf_counter()
        try:
            method(self, *args, **kwargs)
        except (NonFiniteGradient, StopTraining):
            raise
        except Exception:
            report_fault(self)
        finally:
            self.seconds += time.perf_counter() - started

    return wrapper


def report_fault(owner: Guarded | None = None) -> None:
    """Within an `except`: stop measuring and say so. Reporting may fail as well, and the training
    hears of neither."""
    problem = "unknown"
    with contextlib.suppress(Exception):
        problem = traceback.format_exc()
    with contextlib.suppress(Exception):
        if owner is not None:
            owner.give_up(problem)
    message = (
        "Gradiometer had a fault and stopped measuring; your training goes on untouched. Please"
        f" report this with the versions that `gradiometer env` prints:\n{problem}"
    )
    try:
        warnings.warn(message, GradiometerWarning, stacklevel=4)
    except GradiometerWarning:  # somebody has asked for errors in place of warnings
        raise
    except Exception:
        return


def without_graph(method: Callable[P, R]) -> Callable[P, R]:
    """`torch.no_grad()` as a decorator makes a context for each call, at several times the price;
    these are called ten times a step."""

    @functools.wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_grad_enabled():
            return method(*args, **kwargs)
        torch._C._set_grad_enabled(False)
        try:
            return method(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(True)

    return wrapper


class Tolerant(Guarded, Protocol):
    """Something whose user may give it what cannot be kept."""

    def _refuse(self, call: str, problem: Exception) -> None: ...


T = TypeVar("T", bound="Tolerant")


def tolerated(method: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """Around a method to which the user hands records: one that fails is refused and told, and
    measuring goes on."""

    @functools.wraps(method)
    def wrapper(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
        started = self.entered = time.perf_counter()
        try:
            method(self, *args, **kwargs)
        except (GradiometerError, GradiometerWarning):
            raise
        except Exception as problem:
            try:
                self._refuse(method.__name__, problem)
            except GradiometerWarning:
                raise
            except Exception:
                report_fault(self)
        finally:
            self.seconds += time.perf_counter() - started

    return wrapper


PASSED_ON = (NonFiniteGradient, StopTraining, GradiometerWarning)
"""What the user asked to be raised."""


def harmless(call: Callable[P, None]) -> Callable[P, None]:
    """What torch calls of ours: whatever happens in there, the training does not hear of it. The
    listeners are guarded themselves; this is for the way to them."""

    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except PASSED_ON:
            raise
        except Exception:
            report_fault()

    return wrapper


def answered(otherwise: Callable[[], R]) -> Callable[[Callable[Q, R]], Callable[Q, R]]:
    """Around a method that the user asks for something: after a fault of ours it answers
    `otherwise()`. A mistake of the user's stays one."""

    def decorate(method: Callable[Q, R]) -> Callable[Q, R]:
        @functools.wraps(method)
        def wrapper(*args: Q.args, **kwargs: Q.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except (GradiometerError, GradiometerWarning):
                raise
            except Exception:
                report_fault(args[0])  # type: ignore[arg-type]
                return otherwise()

        return wrapper

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCall:
    """One call of a clip function; by norm it has the norm that torch found."""

    parameters: tuple[Tensor, ...]
    kind: Literal["norm", "value"]
    threshold: float
    total_norm: Tensor | None = None


class ClipListener(Protocol):
    """Told of every clip in the process, before and after the gradients change. Must not raise."""

    def before_clip(self, call: ClipCall) -> None: ...
    def after_clip(self, call: ClipCall) -> None: ...


class StepListener(Protocol):
    """Told of an optimizer's step. `closure` is there when gradients are made inside the step."""

    def before_step(self, optimizer: Optimizer, closure: Any) -> None: ...
    def after_step(self, optimizer: Optimizer, closure: Any) -> None: ...


class BackwardListener(Protocol):
    """Told of a backward that reaches sentinels. Must not raise."""

    def before_backward(self) -> None:
        """Before it adds to the gradient of any sentinel."""

    def after_backward(self, reached: frozenset[int]) -> None:
        """Once it has ended, with the sentinels it reached."""


def unwrap(optimizer: Any) -> Optimizer:
    """The torch optimizer inside the wrappers of accelerate and Lightning."""
    while not isinstance(optimizer, Optimizer) or isinstance(
        getattr(optimizer, "optimizer", None), Optimizer
    ):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise TypeError(f"not a torch optimizer: {type(optimizer).__name__}")
        optimizer = inner
    return optimizer


def observe_optimizer(optimizer: Optimizer, listener: StepListener) -> Remove:
    """Tell `listener` of each step, until the returned function is called.

    Under `torch.compile(optimizer.step)` the hooks run as they are, and the step between them is
    compiled as it is without them: torch itself breaks the graph around a step.
    """

    def before(opt: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        listener.before_step(opt, _closure(args, kwargs))

    def after(opt: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        listener.after_step(opt, _closure(args, kwargs))

    return _remover(
        [
            optimizer.register_step_pre_hook(uncompiled(harmless(before))),
            optimizer.register_step_post_hook(uncompiled(harmless(after))),
        ]
    )


def _remover(handles: Sequence[RemovableHandle]) -> Remove:
    """These are hooks of ours."""
    global _num_own_hooks
    _num_own_hooks += len(handles)

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def _closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # torch hands the hooks (self, *args) of the step call.
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def observe_backward(sentinels: Sequence[Tensor], listener: BackwardListener) -> Remove:
    """Tell `listener` at the start and at the end of each backward that reaches a sentinel.

    Two hooks on a few parameters, before and after their gradient is added, cost a call each; the
    end of the backward is the engine's own callback (private; DDP and FSDP stand on it). A torch
    without it gets no report, and nothing that needs one is measured. FSDP2 adds to gradients by
    itself: of its backwards only the end is heard.
    """
    engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
    task_id = getattr(torch._C, "_current_graph_task_id", None)
    if task_id is None or not hasattr(engine, "queue_callback"):
        return lambda: None
    leaves = {i: p for i, p in enumerate(sentinels) if p.is_leaf and p.requires_grad}
    end = BackwardEnd(task_id, engine, listener)
    start = BackwardStart(task_id, listener)
    starts: list[Any] = list(leaves.values())
    remove_start = _remover([p.register_hook(start) for p in starts])
    remove_end = _on_gradients(leaves, end.hook_for)

    def remove() -> None:
        remove_start()
        remove_end()

    return remove


class BackwardStart:
    """The hook before a gradient is added: the first one of a backward is its start.

    Hooks on tensors are called by `autograd.grad` too, which adds to no gradient.
    """

    __slots__ = ("_listener", "_task", "_task_id")

    def __init__(self, task_id: Callable[[], int], listener: BackwardListener) -> None:
        self._task_id, self._listener = task_id, weakref.ref(listener)
        self._task = -1

    @uncompiled
    def __call__(self, _: Tensor) -> None:
        if self._task_id() != self._task:
            self._begin()

    @harmless
    def _begin(self) -> None:
        if not is_own_pass():
            self._task = self._task_id()
            if (listener := self._listener()) is not None:
                listener.before_backward()


class BackwardEnd:
    """The hooks after a gradient was added: the first of them asks the engine to call at the end.
    They run for every sentinel of every backward, measured or not."""

    def __init__(self, task_id: Callable[[], int], engine: Any, listener: BackwardListener) -> None:
        self._task_id, self._engine = task_id, engine
        # The collector does not see through a tensor's hooks; the optimizer's hold the listener.
        self._listener = weakref.ref(listener)
        self._reached: set[int] = set()
        self._task = -1

    def hook_for(self, number: int) -> Callable[[Tensor], None]:
        """The hook of one sentinel."""
        task_id, add = self._task_id, self._reached.add

        @uncompiled
        def accumulated(_: Tensor) -> None:
            if task_id() == self._task or self._begins():
                add(number)

        return accumulated

    def _begins(self) -> bool:
        """Also after a backward that raised and never ended."""
        try:
            if is_own_pass():
                return False
            self._task = self._task_id()
            self._reached.clear()
            self._engine.queue_callback(self._ended)
        except Exception:
            report_fault()
        return True

    @uncompiled
    @harmless
    def _ended(self) -> None:
        seen = frozenset(self._reached)
        self._reached.clear()
        if (listener := self._listener()) is not None:
            listener.after_backward(seen)


def observe_gradients(parameters: Sequence[Tensor], accumulated: Callable[[int], None]) -> Remove:
    """Call `accumulated` with a parameter's number inside backward, once its gradient is there."""
    trained = {i: p for i, p in enumerate(parameters) if p.requires_grad and p.is_leaf}
    told = weakref.WeakMethod(accumulated) if inspect.ismethod(accumulated) else lambda: accumulated

    def hook_for(number: int) -> Callable[[Tensor], None]:
        @uncompiled
        @harmless
        def hook(_: Tensor) -> None:
            if not is_own_pass() and (call := told()) is not None:
                call(number)

        return hook

    return _on_gradients(trained, hook_for)


def observe_forward(module: nn.Module, note: Callable[..., None]) -> Remove:
    """Call `note(output, trained=...)` after each forward of the module; `trained` says whether a
    graph was being made.

    Not while the module is compiled, nor inside torch.func, whose tensors are not to leave it.
    """
    return observe_module(module, ForwardListener(note))


def observe_layer(module: nn.Module, note: Callable[[Tensor, Tensor], None]) -> Remove:
    """Call `note(input, output)` after each forward of a layer on the CPU. Must not raise."""
    return observe_module(module, LayerListener(note))


def observe_module(module: nn.Module, listener: Callable[..., None]) -> Remove:
    """Call `listener` as torch's hook after each forward. Every hook of ours on a module goes this
    way: one that is not counted as ours would look like a stranger's inside of a graph."""
    return _remover([module.register_forward_hook(listener)])


class LayerListener:
    """Hands on what a layer was given and gave. A copy of the module, or a file of it, gets a hook
    in its place that does nothing and needs nothing of ours."""

    __slots__ = ("_note",)

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note

    def __call__(self, _module: nn.Module, inputs: Any, output: Any) -> None:
        if (
            inputs
            and isinstance(inputs[0], Tensor)
            and isinstance(output, Tensor)
            and output.is_cpu
            and not torch.compiler.is_compiling()
            and torch._C._functorch.peek_interpreter_stack() is None
        ):
            self._note(inputs[0], output)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes anything, gives None


class ForwardListener(LayerListener):
    """The same of whatever a module gives, and whether a graph was being made."""

    __slots__ = ()

    @harmless
    def __call__(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if (
            not torch.compiler.is_compiling()
            and torch._C._functorch.peek_interpreter_stack() is None
        ):
            self._note(output, trained=torch.is_grad_enabled())


def _on_gradients(
    parameters: Mapping[int, Any], hook_for: Callable[[int], Callable[[Tensor], None]]
) -> Remove:
    made = {i: hook_for(i) for i in parameters}
    for hook in made.values():
        _after_accumulation.add(hook)
    return _remover([p.register_post_accumulate_grad_hook(made[i]) for i, p in parameters.items()])


_after_accumulation: weakref.WeakSet[Callable[[Tensor], None]] = weakref.WeakSet()
"""Those of them that are ours."""


def listens_after_accumulation(tensors: Iterable[Tensor]) -> bool:
    """Whether somebody but us waits for the gradient of one of these leaves, and may step with it:
    a backward of ours would call him too."""
    return any(
        hook not in _after_accumulation
        for x in tensors
        for hook in (getattr(x, "_post_accumulate_grad_hooks", None) or {}).values()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardCall:
    """One call of `torch.autograd.backward`, before it runs."""

    tensors: tuple[Any, ...]
    given: tuple[Any, ...] = ()
    """What arrives at each of them, as the caller said; nothing where he did not."""
    inputs: Any = None
    """The only tensors whose gradients are wanted; None for all leaves."""

    @classmethod
    def of(
        cls,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> BackwardCall:
        """From the arguments as torch takes them."""
        given = grad_variables if grad_tensors is None else grad_tensors
        return cls(tensors=_several(tensors), given=_several(given), inputs=inputs)

    def slope(self, number: int) -> Tensor:
        """What arrives at one of the tensors: one, if the caller did not say."""
        given = self.given[number] if number < len(self.given) else None
        return torch.ones_like(self.tensors[number]) if given is None else given.detach()


def _several(given: Any) -> tuple[Any, ...]:
    return () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)


class RootListener(Protocol):
    """Told what is about to go backward. Must not raise."""

    @property
    def wants_graph(self) -> bool:
        """Asked at every backward: whether this one is to be told."""

    def graph_ready(self, call: BackwardCall) -> None: ...


# Weakly: who has neither meter nor optimizer any more must not be kept by us, with his model.
_root_listeners: list[weakref.ref[RootListener]] = []


def observe_roots(listener: RootListener) -> Remove:
    """Tell `listener` of the tensors of each backward call, until removed. One patch serves all.

    `Tensor.backward` looks `torch.autograd.backward` up at each call, so it is seen there.
    """
    if not _root_listeners:
        _restore_roots.append(_wrap_backward())
    reference = weakref.ref(listener)
    _root_listeners.append(reference)

    def remove() -> None:
        _forget(reference, _root_listeners, _restore_roots)

    return remove


_restore_roots: list[Remove] = []


def _wrap_backward() -> Remove:
    original = torch.autograd.backward

    # Called at every backward of the process, measured or not: asks, and builds nothing.
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        try:
            if not torch.compiler.is_compiling() and _graph_is_wanted() and not _is_own_thread():
                _tell_roots(tensors, *args, **kwargs)
        except PASSED_ON:
            raise
        except Exception:
            report_fault()
        original(tensors, *args, **kwargs)

    torch.autograd.backward = backward

    def restore() -> None:
        # Somebody may have wrapped it after us: then ours stays inside, and tells nobody.
        if torch.autograd.backward is backward:
            torch.autograd.backward = original

    return restore


def _graph_is_wanted() -> bool:
    for held in _root_listeners:
        listener = held()
        if listener is not None and listener.wants_graph:
            return True
    return False


def _tell_roots(tensors: Any, *args: Any, **kwargs: Any) -> None:
    call = BackwardCall.of(tensors, *args, **kwargs)
    for listener in _living(_root_listeners):
        if listener.wants_graph:
            listener.graph_ready(call)


L = TypeVar("L")


def _living(references: Sequence[weakref.ref[L]]) -> list[L]:
    return [listener for held in tuple(references) if (listener := held()) is not None]


def _forget(reference: Any, references: list[Any], restore: list[Remove]) -> None:
    """One listener less; torch is as it was when none is left."""
    with contextlib.suppress(ValueError):
        references.remove(reference)
    if not references:
        while restore:
            restore.pop()()


# Distributions: what was asked of them, while a graph is made and somebody listens. Each class of
# torch.distributions has methods of its own; those that call another one's (Independent) are heard
# once, at the outermost.

HEARD = ("log_prob", "entropy", "sample", "rsample")


class DistributionListener(Protocol):
    """Told what a distribution answered. Must not raise."""

    @property
    def listening(self) -> bool:
        """Whether it wants to be told now. One with `hears_without_graph` is told of answers under
        `no_grad` too."""

    def heard(self, method: str, distribution: Any, value: Any, answer: Tensor) -> None: ...


_distribution_listeners: list[weakref.ref[DistributionListener]] = []
_restore_distributions: list[Remove] = []
_inside_distribution = False
_num_without_graph = 0
"""Listeners that are told of answers under `no_grad`."""


def observe_distributions(listener: DistributionListener) -> Remove:
    """Tell `listener` of log_prob, entropy and samples, until removed. One patch serves all."""
    if not _distribution_listeners:
        _restore_distributions.extend([*_wrap_distributions(), _note_saved_tensors_hooks()])
    global _num_without_graph
    reference = weakref.ref(listener)
    _distribution_listeners.append(reference)
    without_graph = hears_without_graph(listener)
    _num_without_graph += without_graph

    def remove() -> None:
        global _num_without_graph
        _num_without_graph -= without_graph and reference in _distribution_listeners
        _forget(reference, _distribution_listeners, _restore_distributions)

    return remove


def hears_without_graph(listener: DistributionListener) -> bool:
    """Whether it is told of answers under `no_grad`."""
    return bool(getattr(listener, "hears_without_graph", False))


def _wrap_distributions() -> Iterator[Remove]:
    for kind in _subclasses(torch.distributions.Distribution):
        if kind.__module__.startswith("torch.distributions"):
            for name in HEARD:
                if isinstance(original := vars(kind).get(name), types.FunctionType):
                    yield replace_method(kind, name, original, _observed_method(name, original))


def _observed_method(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _inside_distribution:
            return original(self, *args, **kwargs)
        if torch.is_grad_enabled():
            listeners = [one for one in _living(_distribution_listeners) if one.listening]
        elif _num_without_graph:
            listeners = [
                one
                for one in _living(_distribution_listeners)
                if hears_without_graph(one) and one.listening
            ]
        else:
            listeners = []
        if not listeners:
            return original(self, *args, **kwargs)
        return _heard(listeners, name, original, self, args, kwargs)

    return observed


def _heard(
    listeners: Sequence[DistributionListener],
    name: str,
    original: Callable[..., Any],
    distribution: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    global _inside_distribution
    _inside_distribution = True
    try:
        answer = original(distribution, *args, **kwargs)
    finally:
        _inside_distribution = False
    value = args[0] if args else kwargs.get("value")
    for listener in listeners:
        listener.heard(name, distribution, value, answer)
    return answer


def replace_method(kind: type, name: str, original: Any, observed: Any) -> Remove:
    """Put `observed` in the place of a class's own method; the remover puts the old one back,
    unless somebody else has taken the place."""
    setattr(kind, name, observed)

    def restore() -> None:
        if vars(kind).get(name) is observed:
            setattr(kind, name, original)

    return restore


def _subclasses(kind: type) -> Iterator[type]:
    seen: dict[type, None] = {}
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen[one] = None
            waiting += type.__subclasses__(one)
    yield from seen


# Environments: every class below a base that has a `step` or a `reset` of its own. Whoever is told
# finds the outermost one, which the training calls.


def observe_environments(
    base: type, told: Mapping[str, Callable[..., Any]], stage: types.ModuleType
) -> Remove:
    """Let `step` and `reset` of each class below `base` be called by `told[name](original,
    environment, args, kwargs)`, also of classes that are made later, until removed; as they are
    while `stage.passing`.

    What stands in a class must be fit to be pickled, for a class of the script's goes to worker
    processes by its value: modules and their functions are, and nothing else is held.
    """
    restore: list[Remove] = []
    for kind in _subclasses(base):
        restore += _wrap_environment(kind, told, stage)

    def derived(kind: type) -> None:
        restore.extend(_wrap_environment(kind, told, stage))

    restore.append(_on_subclass(base, derived))

    def remove() -> None:
        while restore:
            restore.pop()()

    return remove


def _wrap_environment(
    kind: type, told: Mapping[str, Callable[..., Any]], stage: types.ModuleType
) -> Iterator[Remove]:
    for name, call in told.items():
        original = vars(kind).get(name)
        if isinstance(original, types.FunctionType):
            yield replace_method(kind, name, original, _told_call(original, call, stage))


def _told_call(
    original: Callable[..., Any], call: Callable[..., Any], stage: Any
) -> Callable[..., Any]:
    @functools.wraps(original)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if stage.passing:
            return original(self, *args, **kwargs)
        return call(original, self, args, kwargs)

    return observed


def _on_subclass(base: type, note: Callable[[type], None]) -> Remove:
    """Call `note` with each class that is derived from `base` from now on."""
    own: Any = vars(base).get("__init_subclass__")

    def derived(cls: Any, /, **kwargs: Any) -> None:
        if own is None:
            parent: Any = super(base, cls)
            parent.__init_subclass__(**kwargs)
        else:
            own.__func__(cls, **kwargs)
        note(cls)

    hook: Any = classmethod(derived)
    setattr(base, "__init_subclass__", hook)  # noqa: B010

    def restore() -> None:
        if vars(base).get("__init_subclass__") is not hook:
            return
        if own is None:
            delattr(base, "__init_subclass__")
        else:
            setattr(base, "__init_subclass__", own)  # noqa: B010

    return restore


# Saved tensors: to look at one that somebody packs (checkpoints, offloading) makes them unpack it,
# which runs a forward again. Once that has been used beside a listener, none is looked at.

_saved_tensors_are_hooked = False


def saved_tensors_are_hooked() -> bool:
    """Whether anybody has packed what graphs save since somebody listens."""
    return _saved_tensors_are_hooked


def _note_saved_tensors_hooks() -> Remove:
    global _saved_tensors_are_hooked
    _saved_tensors_are_hooked = False  # what was packed before anybody listened is of the past
    kind: Any = torch.autograd.graph.saved_tensors_hooks
    original = kind.__enter__

    @functools.wraps(original)
    def entered(self: Any) -> None:
        global _saved_tensors_are_hooked
        if not torch.compiler.is_compiling():
            _saved_tensors_are_hooked = True
        original(self)

    return replace_method(kind, "__enter__", original, entered)


_clip_listeners: list[weakref.ref[ClipListener]] = []
_restore_clips: list[Remove] = []


def observe_clips(listener: ClipListener) -> Remove:
    """Tell `listener` of each clip in this process, until removed. One patch serves all."""
    if not _clip_listeners:
        _restore_clips.extend(_install())
    reference = weakref.ref(listener)
    _clip_listeners.append(reference)

    def remove() -> None:
        _forget(reference, _clip_listeners, _restore_clips)

    return remove


def _install() -> list[Remove]:
    observers = {"_clip_grads_with_norm_": _observe_norm, "clip_grad_value_": _observe_value}
    return [
        fill_closure(name, observer) or replace_names(name, observer)
        for name, observer in observers.items()
        if hasattr(clip_grad, name)
    ]


def fill_closure(name: str, observer: Callable[..., Callable[..., Any]]) -> Remove | None:
    """Put an observed function inside torch's no_grad wrapper; None if we do not know it."""
    wrapper = getattr(clip_grad, name)
    cells = getattr(wrapper, "__closure__", None) or ()
    inner = getattr(wrapper, "__wrapped__", None)
    cell = next((cell for cell in cells if cell.cell_contents is inner), None)
    if cell is None or not isinstance(inner, types.FunctionType):
        return None
    cell.cell_contents = observer(inner)

    def restore() -> None:
        cell.cell_contents = inner

    return restore


def replace_names(name: str, observer: Callable[..., Callable[..., Any]]) -> Remove:
    """Replace the names in torch; callers who imported them before are missed."""
    original = getattr(clip_grad, name)
    public = name.removeprefix("_") if hasattr(torch.nn.utils, name.removeprefix("_")) else name
    places = [(clip_grad, name), (torch.nn.utils, public)]
    observed = observer(original)
    for module, attribute in places:
        setattr(module, attribute, observed)

    def restore() -> None:
        for module, attribute in places:
            setattr(module, attribute, original)

    return restore


def _observe_norm(inner: Callable[..., Any]) -> Callable[..., Any]:
    def observed(
        parameters: Tensor | Iterable[Tensor],
        max_norm: float,
        total_norm: Tensor,
        foreach: bool | None = None,
    ) -> Any:
        # A generator can be walked once only, and both torch and the listeners need it.
        listed = (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)
        if torch.compiler.is_compiling():
            _note_compiled_clip()
            return inner(listed, max_norm, total_norm, foreach)
        how = {"kind": "norm", "threshold": max_norm, "total_norm": total_norm}
        return observed_clip(lambda: inner(listed, max_norm, total_norm, foreach), listed, **how)

    return observed


def _observe_value(inner: Callable[..., Any]) -> Callable[..., Any]:
    def observed(
        parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
    ) -> Any:
        listed = (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)
        if torch.compiler.is_compiling():
            _note_compiled_clip()
            return inner(listed, clip_value, foreach)
        how = {"kind": "value", "threshold": clip_value}
        return observed_clip(lambda: inner(listed, clip_value, foreach), listed, **how)

    return observed


def observed_clip(clip: Callable[[], Any], parameters: Iterable[Tensor], **how: Any) -> Any:
    """What `clip` returns, the listeners told of it: for trainers that scale gradients themselves;
    `how` are the fields of a `ClipCall`."""
    call = _tell_before(tuple(parameters), how)
    result = clip()
    if call is not None:
        _tell_after(call)
    return result


_num_compiled_clips = 0


def num_compiled_clips() -> int:
    """Clips that torch.compile has made part of a graph, where no listener hears them."""
    return _num_compiled_clips


def _note_compiled_clip() -> bool:
    global _num_compiled_clips
    _num_compiled_clips += 1
    return True


# Dynamo calls it while it traces and keeps the answer (torch._dynamo.assume_constant_result, which
# takes a second to load, does the same).
_note_compiled_clip._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _tell_before(listed: tuple[Tensor, ...], how: Mapping[str, Any]) -> ClipCall | None:
    """The call as the listeners know it; None after a fault of ours."""
    try:
        call = ClipCall(parameters=listed, **{**how, "threshold": float(how["threshold"])})
        for listener in _living(_clip_listeners):
            listener.before_clip(call)
    except PASSED_ON:
        raise
    except Exception:
        report_fault()
        return None
    return call


@harmless
def _tell_after(call: ClipCall) -> None:
    for listener in _living(_clip_listeners):
        listener.after_clip(call)


# Inside the graph of a loss: who else listens there, whose gradient is kept, and whether a backward
# came through. autograd does not tell what hangs on a node. But torch numbers its hooks by one
# counter: where that stands still nothing was hooked, and where it moved the newer hooks are
# looked up among all living objects (milliseconds, and rare). `retain_grad` has no number; it is
# wrapped as long as somebody watches.

_own_passes: dict[int, int] = {}
"""By thread: trainings in other threads go on meanwhile."""
_num_own_hooks = 0


class GradientListener:
    """Hands on the gradient that arrives at a node, or that leaves it, in a backward of the
    user's."""

    __slots__ = ("_note",)

    def __init__(self, note: Callable[[tuple[Any, ...]], None]) -> None:
        self._note = note

    @uncompiled
    def __call__(self, gradients: tuple[Any, ...], _: Any = None) -> None:
        if not is_own_pass():
            self._note(gradients)


def is_own_pass() -> bool:
    """Whether this backward is one of ours. On a GPU autograd calls hooks from its own threads,
    which nobody can tell apart: there any pass of ours counts."""
    return bool(_own_passes) and (_is_own_thread() or torch.cuda.is_available())


def _is_own_thread() -> bool:
    return bool(_own_passes) and threading.get_ident() in _own_passes


class Use:
    """Whether a backward of the user's has come through some tensors; hooked to their nodes."""

    __slots__ = ("came",)

    def __init__(self, *, came: bool) -> None:
        self.came = came

    @uncompiled
    def __call__(self, _: Any) -> None:
        try:
            self.came = self.came or not is_own_pass()
        except Exception:
            self.came = True


OWN = (Use, BackwardStart, GradientListener)
"""Hooks of ours among those of a tensor or a node."""


def observe_node(
    node: Any, note: Callable[[tuple[Any, ...]], None], *, leaving: bool = False
) -> None:
    """Call `note` with the gradients of a node's outputs, or of its inputs where they are `leaving`
    it, when the user's backward comes through. The hook dies with the node; `note` must not raise.
    """
    global _num_own_hooks
    listener = GradientListener(note)
    (node.register_hook if leaving else node.register_prehook)(listener)
    _num_own_hooks += 1


def observe_use(tensors: Iterable[Tensor]) -> Use:
    """Notice the backward of these tensors, on the node: the tensor itself shows nothing."""
    global _num_own_hooks
    nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    use = Use(came=not nodes)  # of a leaf nothing can be known
    for node in nodes:
        node.register_prehook(use)
        _num_own_hooks += 1
    return use


@contextmanager
def own_pass() -> Iterator[None]:
    """A backward of ours, which is nobody's use."""
    thread = threading.get_ident()
    _own_passes[thread] = _own_passes.get(thread, 0) + 1
    try:
        yield
    finally:
        _own_passes[thread] -= 1
        if not _own_passes[thread]:
            del _own_passes[thread]


class HookMark(NamedTuple):
    """Where torch's counter of hooks stood."""

    next_id: int
    not_ours: int

    @classmethod
    def now(cls) -> HookMark:
        """At this moment."""
        return cls(RemovableHandle.next_id, RemovableHandle.next_id - _num_own_hooks)


def hooked_since(mark: HookMark, modules: Iterable[nn.Module] = ()) -> bool:
    """Whether anybody has hooked a tensor or a node since then, and the hook still lives.

    Where all new numbers are of hooks on `modules`, there is nothing to look for: transformers
    hooks a module anew at every generation, and beside it a process holds a million objects, half a
    second to look through.
    """
    moved = HookMark.now().not_ours - mark.not_ours
    if moved == 0 or moved == _num_on(modules, mark.next_id):
        return False
    newer = [
        held
        for held in gc.get_objects()
        if type(held) is OrderedDict and _has_newer(held, mark.next_id)
    ]
    return bool(newer) and not {id(held) for held in newer} <= _owned(newer)


def _num_on(modules: Iterable[nn.Module], since: int) -> int:
    """How many hooks of at least that number hang on these modules."""
    parts = {id(part): part for root in modules for part in root.modules()}
    tables = [
        held
        for part in parts.values()
        for name, held in vars(part).items()
        if name.endswith("_hooks") and isinstance(held, dict)  # some models have lists
    ]
    return sum(
        type(number) is int and number >= since and not isinstance(hook, LayerListener)
        for held in tables
        for number, hook in held.items()
    )


def _has_newer(held: OrderedDict[Any, Any], since: int) -> bool:
    return any(
        type(number) is int
        and number >= since
        and callable(hook)
        and not isinstance(hook, OWN)
        and not _of_fsdp(hook)
        for number, hook in list(held.items())
    )


def _of_fsdp(hook: Any) -> bool:
    """FSDP2 hooks the results of every forward, and bears several backwards."""
    owner = type(getattr(hook, "__self__", None))
    return owner.__module__.startswith("torch.distributed.fsdp.")


def _owned(held: list[OrderedDict[Any, Any]]) -> set[int]:
    """Hooks of modules, of optimizers, and those after accumulation: not autograd's."""
    owned: set[int] = set()
    for owner in gc.get_referrers(*held):
        if type(owner) is dict:
            owned.update(map(id, owner.values()))
        elif isinstance(owner, (nn.Module, Optimizer)):
            owned.update(map(id, vars(owner).values()))
        elif isinstance(owner, Tensor):
            owned.add(id(getattr(owner, "_post_accumulate_grad_hooks", None)))
    return owned


_retained: dict[int, tuple[int, weakref.ref[Tensor]]] = {}
"""With the thread that retains each: those of another training are none of ours."""
_watching_retained: list[object] = []
_restore_retain_grad: list[Remove] = []


def retained() -> list[Tensor]:
    """Living tensors inside graphs whose gradient is kept: each backward adds to it."""
    thread = threading.get_ident()
    own = [reference for of, reference in list(_retained.values()) if of == thread]
    return [tensor for reference in own if (tensor := reference()) is not None]


def observe_retained() -> Remove:
    """Note every `retain_grad` in this process, until removed. One wrapper serves all."""
    if not _watching_retained:
        _restore_retain_grad.append(_wrap_retain_grad())
    token = object()
    _watching_retained.append(token)

    def remove() -> None:
        if token in _watching_retained:
            _watching_retained.remove(token)
            if not _watching_retained:
                _restore_retain_grad.pop()()

    return remove


def _note_retained(tensor: Tensor) -> None:
    key = id(tensor)
    reference = weakref.ref(tensor, lambda _: _retained.pop(key, None))
    _retained[key] = (threading.get_ident(), reference)


def _wrap_retain_grad() -> Remove:
    wrapped_before, original = "retain_grad" in vars(Tensor), Tensor.retain_grad

    def retain_grad(self: Tensor) -> None:
        original(self)
        if not self.is_leaf:
            harmless(lambda: _note_retained(self))()

    # Dynamo breaks its graph here with and without us; it should not try to look inside.
    setattr(Tensor, "retain_grad", uncompiled(retain_grad))  # noqa: B010

    def restore() -> None:
        if wrapped_before:
            setattr(Tensor, "retain_grad", original)  # noqa: B010
        else:
            delattr(Tensor, "retain_grad")  # that of torch's base class is seen again

    return restore


# torch's own word on shapes: mse_loss and the like warn where target and input differ.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeWarning:
    """What torch warned of, and where."""

    target: tuple[int, ...]
    given: tuple[int, ...]
    file: str
    line: int


SHAPES = re.compile(
    r"Using a target size \(torch\.Size\(\[([\d, ]*)\]\)\) that is different to the input size"
    r" \(torch\.Size\(\[([\d, ]*)\]\)\)"
)
MOST_WARNINGS = 20
_shape_warnings: list[ShapeWarning] = []
_hearing: list[object] = []
_restore_warnings: list[Remove] = []


def shape_warnings() -> tuple[ShapeWarning, ...]:
    """Those that were shown since somebody listens."""
    return tuple(_shape_warnings)


def observe_shape_warnings() -> Remove:
    """Overhear the warnings that are shown, until removed; each is shown as it is without us."""
    if not _hearing:
        _shape_warnings.clear()
        _restore_warnings.append(_wrap_showwarning())
    token = object()
    _hearing.append(token)

    def remove() -> None:
        if token in _hearing:
            _hearing.remove(token)
            if not _hearing:
                _restore_warnings.pop()()

    return remove


def _wrap_showwarning() -> Remove:
    original = warnings.showwarning

    def showwarning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        found = SHAPES.match(str(message))
        if found is not None and len(_shape_warnings) < MOST_WARNINGS:
            sides = [tuple(map(int, re.findall(r"\d+", side))) for side in found.groups()]
            _shape_warnings.append(
                ShapeWarning(target=sides[0], given=sides[1], file=filename, line=lineno)
            )
        original(message, category, filename, lineno, file, line)

    warnings.showwarning = showwarning

    def restore() -> None:
        # Somebody (logging.captureWarnings) may have taken its place: then ours stays inside.
        if warnings.showwarning is showwarning:
            warnings.showwarning = original

    return restore
