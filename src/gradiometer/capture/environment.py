"""What happened in the environments of this process: actions, rewards, ends, and observations as a
few numbers, in a bounded ring; the return and length of every episode.

One `EnvironmentRecorder` serves the process while anybody listens. It hears the outermost
environment that the training calls (gymnasium, gym, their vector environments, SB3's VecEnv) and
keeps copies, for environments reuse their buffers. What it keeps of a step costs a few
microseconds; all arithmetic waits until somebody asks (`EnvironmentView`).
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradiometer.capture import hooks
from gradiometer.maths.credit import returns_to_go

__all__ = [
    "BASES",
    "Collection",
    "EndedEpisodes",
    "EnvironmentView",
    "listen",
    "look_for_environments",
    "steps_so_far",
]

Floats = NDArray[np.float64]

BASES = {
    "gymnasium": "Env",
    "gymnasium.vector": "VectorEnv",
    "gym": "Env",
    "gym.vector": "VectorEnv",
    "stable_baselines3.common.vec_env": "VecEnv",
}
"""Modules, and the class whose descendants are environments."""
MOST_TRANSITIONS = 16_384
"""Of each environment that are kept; of a vector environment, all of its parts together."""
MOST_EPISODES = 100_000
"""Returns that may wait for somebody to ask."""
MOST_COMPARED = 32
"""Episodes whose return two have told, the newest."""
COLUMNS = 64
"""Numbers of an observation that are kept: every second, third, ..."""
MOST_FIRST = 1 << 20
"""Numbers of an observation that are copied at a reset."""
FREE = MOST_TRANSITIONS
"""Steps that are kept whatever they cost, about a quarter of a second: before the first update
nothing but acting has taken time, and the rollouts of a short script would never be kept."""
MAX_SHARE = 0.01
"""Of the thread's own time: beyond it only returns are kept, until half of it."""
GAMMA = 0.99
NUMBERS = frozenset({float, int, np.float64, np.float32})
FLAG = np.dtype(np.bool_)
SET = b"\x01"
WHOLE = frozenset({int, np.int64, np.int32})


Transition = tuple[Any, Any, Any, Any, Any, Any]
"""A step of an environment, or of all parts of a vector environment: what the action was chosen for
(thinned, None where it is no array), the action, the reward, terminated, truncated, and what the
step led to (thinned; after an end it is of the next episode where nobody tells the last one)."""


class EndedEpisode(NamedTuple):
    """One that ended."""

    total: float
    length: int


@dataclass(slots=True, kw_only=True)
class Stream:
    """One environment as the training sees it."""

    environment: Callable[[], Any]
    num: int | None
    """Parts of a vector environment; None of a single one."""
    ring: deque[Transition]
    total: int = 0
    """Entries so far."""
    observation: Any = None
    paid: list[Any] = field(default_factory=list)
    """Rewards that are not yet in the returns."""
    returns: Any = 0.0
    began: Any = 0
    """At which entry the episode of each part began."""
    next_step: bool = False
    """A part that has ended is reset by the step after, whose action counts for nothing."""
    plain: bool = False
    """Observations are small enough to be kept as they are."""

    @property
    def transitions(self) -> int:
        """Steps so far, of all parts."""
        return self.total * (self.num or 1)


class EnvironmentRecorder:
    """Listens to every environment of the process."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.episodes: deque[EndedEpisode] = deque(maxlen=MOST_EPISODES)
        self.num_episodes = 0
        self.twice_told: deque[tuple[float, float]] = deque(maxlen=MOST_COMPARED)
        """Returns of episodes as the training was paid, and as a monitor inside says."""
        self._streams: dict[int, Stream] = {}
        self._first: tuple[int, Any] = (0, None)
        """The environment that was reset before its first step, by id, and what it showed."""
        self._remove: list[hooks.Remove] = []
        self._bases: set[str] = set()
        self._num_modules = 0
        self._num = 0
        self._keep = True
        self._seconds = 0.0
        self._began = time.thread_time()
        self._broken = False

    def look(self) -> None:
        """Hook the bases that have been imported since. Asked at every step of a training."""
        if len(sys.modules) == self._num_modules:
            return
        self._num_modules = len(sys.modules)
        told = {"step": told_step, "reset": told_reset}
        for module, name in BASES.items():
            base = getattr(sys.modules.get(module), name, None)
            if module not in self._bases and isinstance(base, type):
                self._bases.add(module)
                here = sys.modules[__name__]
                self._remove.append(hooks.observe_environments(base, told, here))

    def stop(self) -> None:
        """Put every class back as it was."""
        while self._remove:
            self._remove.pop()()

    @property
    def trained(self) -> Stream | None:
        """The environment that was stepped most: not one that only evaluates."""
        if len(self._streams) == 1:
            return next(iter(self._streams.values()))
        return max(self._streams.values(), key=lambda one: one.transitions, default=None)

    def step(self, original: Any, environment: Any, args: Any, kwargs: Any) -> Any:
        """The outermost environment steps. Its cost is counted at every 16th step."""
        global passing
        counted = self._num & 15 == 0
        started = time.thread_time() if counted else 0.0
        self._num += 1
        action = args[0] if args else next(iter(kwargs.values()), None)
        if type(action) is np.ndarray:
            action = action.copy()
        elif type(action) not in WHOLE:
            action = _array(action)
        inner = time.thread_time() if counted else 0.0
        passing = True
        try:
            result = original(environment, *args, **kwargs)
        finally:
            passing = False
        after = time.thread_time() if counted else 0.0
        if not self._broken:
            try:
                self._note_step(environment, action, result)
            except Exception:  # what it answers is the user's, and not as we understand it
                self._broken = True
        if counted:
            self._count(started, inner, after)
        return result

    def _count(self, started: float, inner: float, after: float) -> None:
        now = time.thread_time()
        self._seconds += 16 * (inner - started + now - after)
        share = self._seconds / max(now - self._began, 1e-9)
        # whole rollouts are kept or none: it begins again well below the limit
        self._keep = self._num < FREE or share < (MAX_SHARE if self._keep else MAX_SHARE / 2)

    def reset(self, original: Any, environment: Any, args: Any, kwargs: Any) -> Any:
        """The outermost environment is reset."""
        global passing
        passing = True
        try:
            result = original(environment, *args, **kwargs)
        finally:
            passing = False
        if not self._broken:
            try:
                self._note_reset(environment, result)
            except Exception:
                self._broken = True
        return result

    def _note_step(self, environment: Any, action: Any, result: Any) -> None:
        stream = self._streams.get(id(environment))
        if stream is not None and stream.environment() is not environment:
            stream = None
        if stream is not None and _goes_on(stream, result):
            self._note_plain_step(stream, action, result[0], result[1])
        else:
            self._note_any_step(environment, stream, action, result)

    def _note_plain_step(self, stream: Stream, action: Any, observation: Any, reward: Any) -> None:
        """Nothing ended, and all of it is as it mostly is: at the fewest calls."""
        stream.total += 1
        nobody: Any = False
        if stream.num is not None:
            reward, nobody = reward.copy(), _nobody(stream.num)
        if self._keep:
            following = observation.copy() if stream.plain else _thin(observation, stream)
            seen, stream.observation = stream.observation, following
            stream.ring.append((seen, action, reward, nobody, nobody, following))
        elif stream.ring:
            stream.ring.clear()
            stream.observation = None
        stream.paid.append(reward)
        if len(stream.paid) > 1024:
            _fold(stream)

    def _note_any_step(
        self, environment: Any, stream: Stream | None, action: Any, result: Any
    ) -> None:
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        else:
            observation, reward, terminated, info = result
            terminated, truncated = _told_apart(_array(terminated), info)
        if type(observation) is not np.ndarray:
            observation = _array(observation)
        if type(reward) not in NUMBERS:  # of a single environment they need no look
            reward, terminated = _rows(reward), _rows(terminated)
        if stream is None:
            stream = self._new_stream(environment, reward)
        stream.total += 1
        if stream.num is not None:
            reward, nobody = reward.copy(), _nobody(stream.num)
            if terminated is not nobody:
                terminated = _kept_flags(terminated)
            if truncated is not nobody and truncated is not None:
                truncated = _kept_flags(_rows(truncated))
        ends = None
        if stream.num is not None and (terminated is not nobody or truncated is not nobody):
            ends = terminated if truncated is None else terminated | truncated
            ends = ends if SET in ends.tobytes() else None
        if self._keep:
            shown = observation.copy() if stream.plain else _thin(observation, stream)
            seen, stream.observation = stream.observation, shown
            led = shown if ends is None or shown is None else _with_final(shown, ends, info, stream)
            stream.ring.append((seen, action, reward, terminated, truncated, led))
        elif stream.ring:
            stream.ring.clear()
            stream.observation = None
        stream.paid.append(reward)
        if ends is not None:
            self._end_parts(stream, ends, info)
        elif stream.num is None and (terminated or truncated):
            self._end_one(stream, info)
        if len(stream.paid) > 1024:
            _fold(stream)

    def _note_reset(self, environment: Any, result: Any) -> None:
        stream = self._streams.get(id(environment))
        observation = _array(result[0] if isinstance(result, tuple) else result)
        if stream is None or stream.environment() is not environment:
            array = isinstance(observation, np.ndarray) and observation.size < MOST_FIRST
            self._first = id(environment), observation.copy() if array else None
            return
        stream.observation = _thin(observation, stream)
        _fold(stream)
        stream.returns = stream.returns * 0.0
        stream.began = stream.began * 0 + stream.total

    def _new_stream(self, environment: Any, reward: Any) -> Stream:
        num = len(reward) if getattr(reward, "ndim", 0) == 1 else None
        stream = Stream(
            environment=weakref.ref(environment),
            num=num,
            ring=deque(maxlen=max(64, MOST_TRANSITIONS // (num or 1))),
        )
        if num is not None:
            mode = (getattr(environment, "metadata", None) or {}).get("autoreset_mode")
            stream.next_step = getattr(mode, "name", "") == "NEXT_STEP"
            stream.returns, stream.began = np.zeros(num), np.zeros(num, dtype=np.int64)
        if self._first[0] == id(environment):
            stream.observation = _thin(self._first[1], stream)
        for key in [key for key, one in self._streams.items() if one.environment() is None]:
            del self._streams[key]
        self._streams[id(environment)] = stream
        return stream

    def _end_one(self, stream: Stream, info: Any) -> None:
        _fold(stream)
        told = info.get("episode") if isinstance(info, Mapping) else None
        length = stream.total - stream.began
        self._end(stream, _told(told), EndedEpisode(float(stream.returns), int(length)))
        stream.returns, stream.began = 0.0, stream.total

    def _end_parts(self, stream: Stream, ends: Any, info: Any) -> None:
        _fold(stream)
        for i in np.flatnonzero(ends):
            told = _told(_of_part(info, int(i)))
            length = stream.total - stream.began[i]
            self._end(stream, told, EndedEpisode(float(stream.returns[i]), int(length)))
            stream.returns[i] = 0.0
            stream.began[i] = stream.total + stream.next_step

    def _end(self, stream: Stream, told: EndedEpisode | None, heard: EndedEpisode) -> None:
        if stream is self.trained:
            self.episodes.append(told or heard)
            self.num_episodes += 1
            if told is not None:
                self.twice_told.append((heard.total, told.total))


def _goes_on(stream: Stream, result: Any) -> bool:
    """Whether a step has ended nothing, and gave arrays and flags as most environments do."""
    if type(result[0]) is not np.ndarray:
        return False
    if stream.num is None:
        plain = len(result) == 5 and result[2] is False and result[3] is False
        return plain and type(result[1]) in NUMBERS
    reward, flags = result[1], result[2]
    if type(reward) is not np.ndarray or reward.ndim != 1 or not _has_nobody(flags):
        return False
    return len(result) == 4 or _has_nobody(result[3])


def _has_nobody(flags: Any) -> bool:
    """One flag a part, and none of them set."""
    return (
        type(flags) is np.ndarray
        and flags.dtype is FLAG
        and flags.ndim == 1
        and SET not in flags.tobytes()
    )


def _array(x: Any) -> Any:
    """What a wrapper made a tensor of (VecPyTorch and its like), as an array; all else as it is."""
    if type(x) is np.ndarray or not hasattr(x, "detach") or x.device.type != "cpu":
        return x  # from another device it would be a sync at every step
    return x.detach().numpy().copy()


def _rows(x: Any) -> Any:
    """One number a part, where a wrapper gives columns."""
    if type(x) is np.ndarray and x.ndim == 1:  # nearly always
        return x
    x = _array(x)
    return x.reshape(-1) if type(x) is np.ndarray and x.ndim == 2 and x.shape[1] == 1 else x


def _told_apart(done: Any, info: Any) -> tuple[Any, Any]:
    """Ends and time limits of an environment that has one flag for both, as its info says."""
    if isinstance(info, (list, tuple)) and isinstance(done, np.ndarray) and done.ndim == 1:
        done = _kept_flags(done)
        if done is _nobody(len(done)):
            return done, done
        told = (isinstance(each, Mapping) and each.get("TimeLimit.truncated") for each in info)
        cuts = done.astype(np.bool_) & np.fromiter(map(bool, told), np.bool_, len(done))
        return done.astype(np.bool_) & ~cuts, cuts
    if isinstance(info, Mapping):
        cut = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return done and not cut, cut
    return done, None


def _kept_flags(flags: Any) -> Any:
    """A copy; of flags that nobody has set, the one array that all steps share."""
    return _nobody(len(flags)) if _has_nobody(flags) else flags.copy()


@cache
def _nobody(num: int) -> NDArray[np.bool_]:
    """The flags of so many parts of which none has ended."""
    flags = np.zeros(num, np.bool_)
    flags.setflags(write=False)
    return flags


def _told(told: Any) -> EndedEpisode | None:
    """What RecordEpisodeStatistics and SB3's Monitor say: of the reward before it was scaled."""
    try:
        return EndedEpisode(float(told["r"]), int(told["l"]))
    except (TypeError, KeyError, IndexError, ValueError):
        return None


def _of_part(info: Any, i: int) -> Any:
    if isinstance(info, (list, tuple)):
        return info[i].get("episode") if isinstance(info[i], Mapping) else None
    if isinstance(info, Mapping) and "episode" in info:
        there = info.get("_episode")
        if there is None or there[i]:
            return {name: info["episode"][name][i] for name in ("r", "l")}
    return None


FINAL = ("final_obs", "final_observation")
"""What gymnasium's vector environments call the last observation of a part that has been reset."""


def _with_final(shown: Any, ends: Any, info: Any, stream: Stream) -> Any:
    """What a step led to: of a part that was reset at once, its last observation is in the info."""
    led = shown
    for i in np.flatnonzero(ends):
        final = _final_of(info, int(i))
        row = None if final is None else _thin(np.asarray(final)[None], stream, parts=1)
        if row is not None and row.size == led[i].size:
            led = led.copy() if led is shown else led
            led[i] = row.reshape(led[i].shape)
    return led


def _final_of(info: Any, i: int) -> Any:
    """The last observation of a part before its reset; None where nobody says."""
    if isinstance(info, (list, tuple)):  # Stable-Baselines3
        return info[i].get("terminal_observation") if isinstance(info[i], Mapping) else None
    if isinstance(info, Mapping):
        told = next((info[name] for name in FINAL if name in info), None)
        return told[i] if isinstance(told, np.ndarray) and len(told) > i else None
    return None


def _fold(stream: Stream) -> None:
    """Add the rewards that wait to the returns."""
    if stream.paid:
        stream.returns = stream.returns + np.sum(stream.paid, axis=0, dtype=np.float64)
        stream.paid.clear()


def _thin(observation: Any, stream: Stream, *, parts: int | None = None) -> Any:
    """A copy of a few numbers of an observation, or of each part's."""
    if not isinstance(observation, np.ndarray) or observation.dtype == object:
        return None
    flat = observation.reshape(parts or stream.num or 1, -1)
    every = _every(flat.shape[1])
    stream.plain = every == 1
    return flat[:, ::every].copy()


def _every(size: int) -> int:
    return -(-size // COLUMNS) or 1


# One for the process.

_current: EnvironmentRecorder | None = None
_listeners: list[object] = []


passing = True
"""Whether environments are passed by: nobody listens, or this one is inside of another."""


def told_step(original: Any, environment: Any, args: Any, kwargs: Any) -> Any:
    """In the place of every `step` that is not passed by."""
    recorder = _current
    if recorder is None or (recorder.thread != get_ident() and not _is_here(recorder)):
        return original(environment, *args, **kwargs)
    return recorder.step(original, environment, args, kwargs)


def told_reset(original: Any, environment: Any, args: Any, kwargs: Any) -> Any:
    """In the place of every `reset` that is not passed by."""
    recorder = _current
    if recorder is None or not _is_here(recorder):
        return original(environment, *args, **kwargs)
    return recorder.reset(original, environment, args, kwargs)


def _is_here(recorder: EnvironmentRecorder) -> bool:
    """Environments are heard in one thread: that of the first one."""
    if recorder.thread is None:
        recorder.thread = get_ident()
    return recorder.thread == get_ident()


def listen() -> hooks.Remove:
    """Record environments until the returned function is called; one recorder serves all."""
    global _current, passing
    token = object()
    _listeners.append(token)
    if _current is None:
        _current, passing = EnvironmentRecorder(), False
    _current.look()

    def remove() -> None:
        global _current, passing
        if token in _listeners:
            _listeners.remove(token)
        if not _listeners and _current is not None:
            _current.stop()
            _current, passing = None, True

    return remove


def steps_so_far() -> int:
    """Of the environment that is stepped most."""
    trained = None if _current is None else _current.trained
    return 0 if trained is None else trained.transitions


def look_for_environments() -> None:
    """Something was imported: hook what is new."""
    if _current is not None:
        _current.look()


def _forget() -> None:
    global _current, passing
    _current, passing = None, True


os.register_at_fork(after_in_child=_forget)


# What somebody who measures sees of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEpisodes:
    """Those that ended since the last look."""

    totals: Floats
    lengths: Floats

    def values(self) -> dict[str, float]:
        """By their names in the catalogue."""
        return {
            "env/return": float(self.totals.mean()),
            "env/return_spread": float(self.totals.std()),
            "env/episode_length": float(self.lengths.mean()),
            "env/episodes": float(len(self.totals)),
        }


class Collection:
    """Consecutive steps of an environment between two updates: a rollout."""

    def __init__(self, number: int, transitions: list[Transition], stream: Stream) -> None:
        self.number = number
        self._transitions, self._num = transitions, stream.num
        self.space = _space(stream)
        self.lacks_first = False
        """Whether its first step is left out: nobody listened when its observation was shown."""
        self.is_whole = stream.total == len(stream.ring)
        """Whether all that ever happened there is still kept."""

    def __len__(self) -> int:
        return len(self._transitions) * (self._num or 1)

    @cached_property
    def _places(self) -> ObservationIndex:
        parts = self._num or 1
        known = [t for t, (seen, *_) in enumerate(self._transitions) if seen is not None]
        rows = _by_row([self._transitions[t][0] for t in known], parts)
        return ObservationIndex(rows, [t * parts + part for t in known for part in range(parts)])

    def places(self, observations: Floats) -> list[list[int]]:
        """Of each row, which transitions began with that observation."""
        return self._places.of(observations)

    @property
    def varies(self) -> bool:
        """Whether most transitions began with an observation that hardly another one has."""
        return 2 * len(self._places) > len(self)

    @cached_property
    def _places_after(self) -> ObservationIndex:
        return ObservationIndex(self.following, range(len(self.following)))

    def places_after(self, observations: Floats) -> list[list[int]]:
        """Of each row, which transitions led to that observation."""
        return self._places_after.of(observations)

    @cached_property
    def actions(self) -> Floats | None:
        """One row a transition."""
        held = [action for _, action, *_ in self._transitions]
        try:
            return np.asarray(held, dtype=np.float64).reshape(len(self), -1)
        except (TypeError, ValueError, RuntimeError):  # none, a dictionary, of several shapes
            return None

    @cached_property
    def rewards(self) -> Floats:
        """One a transition."""
        paid = [reward for _, _, reward, *_ in self._transitions]
        return np.asarray(paid, dtype=np.float64).reshape(-1)

    @cached_property
    def returns(self) -> Floats:
        """Discounted, from each transition to the end of its episode or of the rollout."""
        rewards = self.rewards.reshape(self.ends.shape)
        return returns_to_go(rewards, (self.ends + self.cuts) > 0, GAMMA).reshape(-1)

    @cached_property
    def ends(self) -> Floats:
        """Which transitions ended their episode, [steps, parts]."""
        return self._flags([terminated for *_, terminated, _, _ in self._transitions])

    @cached_property
    def cuts(self) -> Floats:
        """Which a time limit cut, [steps, parts]."""
        told = [truncated for *_, truncated, _ in self._transitions]
        return self._flags([False if each is None else each for each in told])

    def _flags(self, told: list[Any]) -> Floats:
        parts = self._num or 1
        if parts > 1:  # an environment may say of all of them at once
            told = [np.broadcast_to(each, parts) for each in told]
        return np.asarray(told, dtype=np.float64).reshape(len(told), parts)

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """Which transitions began their episode, [steps, parts]; of the earliest it is not known,
        and they do not count."""
        over = (self.ends + self.cuts) > 0
        return np.concatenate([np.zeros_like(over[:1]), over[:-1]])

    @cached_property
    def observations(self) -> list[bytes]:
        """What each transition began with, to be compared; empty where that is not known."""
        return self._rows([observation for observation, *_ in self._transitions])

    @cached_property
    def following(self) -> list[bytes]:
        """What each transition led to."""
        return self._rows([following for *_, following in self._transitions])

    def led_to(self, places: NDArray[np.int64]) -> Floats | None:
        """What these transitions led to, one row each; None where that is not known."""
        return self._seen(places, 5)

    def began_with(self, places: NDArray[np.int64]) -> Floats | None:
        """What these transitions began with, one row each; None where that is not known."""
        return self._seen(places, 0)

    def _seen(self, places: NDArray[np.int64], column: int) -> Floats | None:
        parts = self._num or 1
        steps, part = np.divmod(places, parts)
        seen = [self._transitions[t][column] for t in steps.tolist()]
        if not seen or any(each is None for each in seen):
            return None
        flat = (np.asarray(each, dtype=np.float32).reshape(parts, -1) for each in seen)
        return np.stack([rows[n] for rows, n in zip(flat, part.tolist(), strict=True)])

    def _rows(self, seen: list[Any]) -> list[bytes]:
        if any(each is None for each in seen):
            return []
        return _by_row(seen, self._num or 1)


class ObservationIndex:
    """Where each observation is found among rows. Most are found once, and a list for each of ten
    thousand would bring the garbage collector, which takes longer than the index."""

    def __init__(self, rows: Sequence[bytes], places: Sequence[int]) -> None:
        self._first = dict(zip(reversed(rows), reversed(places), strict=True))
        self._again: dict[bytes, list[int]] = {}
        """All places of those that are found more than once."""
        if len(self._first) == len(rows):
            return
        for row, place in zip(rows, places, strict=True):
            if (first := self._first[row]) != place:
                self._again.setdefault(row, [first]).append(place)

    def __len__(self) -> int:
        return len(self._first)

    def of(self, observations: Floats) -> list[list[int]]:
        """Of each row of a table, in their order."""
        return [self._of(row) for row in _by_row([observations], len(observations))]

    def _of(self, row: bytes) -> list[int]:
        if (again := self._again.get(row)) is not None:
            return again
        first = self._first.get(row)
        return [] if first is None else [first]


def _by_row(seen: Sequence[Any], parts: int) -> list[bytes]:
    """Observations as bytes, one for each part of each."""
    kept = [np.ascontiguousarray(each, dtype=np.float32) for each in seen]
    if parts == 1:
        return [each.tobytes() for each in kept]
    found: list[bytes] = []
    for each in kept:
        whole, size = each.tobytes(), each.nbytes // max(parts, 1)
        found += [whole[part * size : (part + 1) * size] for part in range(parts)]
    return found


def _space(stream: Stream) -> tuple[Floats, Floats] | None:
    """The bounds that actions are clipped to."""
    environment = stream.environment()
    space = getattr(environment, "single_action_space", None)
    space = getattr(environment, "action_space", None) if space is None else space
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if not isinstance(low, np.ndarray) or not isinstance(high, np.ndarray):
        return None
    return low.astype(np.float64).reshape(-1), high.astype(np.float64).reshape(-1)


@dataclass(slots=True)
class EnvironmentView:
    """One meter's view: where it has read, and the rollout that its updates learn from."""

    collection: Collection | None = None
    num_collections: int = 0
    rounds: int = 0
    """Updates on the collection so far, with the one in progress."""
    _remove: hooks.Remove = field(default_factory=listen)
    _read: int = 0
    _place: int = 0
    _round: int = -1

    def close(self) -> None:
        """Listen no more."""
        self._remove()

    def episodes(self) -> EndedEpisodes | None:
        """What ended since the last look."""
        if _current is None or _current.num_episodes == self._read:
            return None
        new = min(_current.num_episodes - self._read, len(_current.episodes))
        self._read = _current.num_episodes
        last: Iterable[EndedEpisode] = list(_current.episodes)[-new:]
        totals, lengths = zip(*last, strict=True)
        return EndedEpisodes(totals=np.array(totals), lengths=np.array(lengths, dtype=np.float64))

    @property
    def twice_told(self) -> Floats:
        """Of the newest episodes the return as the training was paid it, beside that of a monitor
        inside, which saw the reward before anybody changed it: one row each."""
        pairs = [] if _current is None else list(_current.twice_told)
        return np.array(pairs, dtype=np.float64).reshape(-1, 2)

    @property
    def shows_numbers(self) -> bool:
        """Whether the newest observation has no NaN and no Inf."""
        trained = None if _current is None else _current.trained
        seen = None if trained is None else trained.observation
        return seen is None or bool(np.isfinite(seen).all())

    @property
    def width(self) -> int:
        """Numbers of an observation; 0 where that is not known, or only some of them are kept."""
        trained = None if _current is None else _current.trained
        if trained is None or trained.observation is None:
            return 0
        size = int(trained.observation.size) // (trained.num or 1)
        return size if size < COLUMNS else 0

    def history(self) -> Collection | None:
        """All that is kept of the environment, newest last."""
        trained = None if _current is None else _current.trained
        held = [] if trained is None else [each for each in trained.ring if each[0] is not None]
        known = trained is not None and all(each[4] is not None for each in held)
        return Collection(0, held, trained) if trained is not None and held and known else None

    def newest(self, num: int) -> Collection | None:
        """The newest steps that are kept; None where something of them is not known."""
        return self.last(num) if self.parts == 1 else None

    def last(self, num: int) -> Collection | None:
        """The newest steps of all parts that are kept; None where something is not known."""
        trained = None if _current is None else _current.trained
        held = [] if trained is None else list(islice(reversed(trained.ring), num))[::-1]
        known = all(each[0] is not None and each[4] is not None for each in held)
        return Collection(0, held, trained) if trained is not None and held and known else None

    @property
    def parts(self) -> int:
        """Environments that are stepped together."""
        trained = None if _current is None else _current.trained
        return 1 if trained is None else trained.num or 1

    @property
    def steps(self) -> int:
        """Of the environment so far."""
        return steps_so_far()

    @property
    def is_ahead(self) -> bool:
        """Whether the environment has gone on since the last update: a rollout is being made, or
        waits for its first one."""
        stream = None if _current is None else _current.trained
        return stream is not None and stream.total > self._place

    def round_ended(self, number: int) -> None:
        """An update is over; told twice of one is fine. Was there a rollout before it?"""
        look_for_environments()
        stream = None if _current is None else _current.trained
        if number == self._round or stream is None:
            return
        self._round = number
        self.rounds += 1
        new = stream.total - self._place
        if new > 0:
            self._place = stream.total
            self.rounds = 1
            self.num_collections += 1
            held = list(islice(reversed(stream.ring), new))[::-1]
            complete = len(held) == new
            # many a trainer resets its environment before anybody listens
            lacks = complete and new == stream.total and held[0][0] is None
            held = held[lacks:]
            complete = complete and bool(held) and held[0][0] is not None
            self.collection = Collection(self.num_collections, held, stream) if complete else None
            if self.collection is not None:
                self.collection.lacks_first = lacks
