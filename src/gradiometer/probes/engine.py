"""Where the work is done: in this process, in several, or on Ray; the same numbers to the bit.

A task is a plain record whose result depends on nothing but itself and what is measured, under one
number of threads. Results come back in the order of the tasks, whoever did them and however often a
worker was lost.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from gradiometer.errors import MissingExtra, UsageError, WorkersLost

__all__ = ["ENGINES", "Task", "run_tasks"]

ENGINES = ("serial", "processes", "ray")
ATTEMPTS = 3


class Task(Protocol):
    """Something to be done to a subject."""

    def __call__(self, subject: Any) -> Any: ...


def run_tasks(
    tasks: Sequence[Task],
    load: Callable[[], Any],
    *,
    engine: str = "serial",
    workers: int = 1,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    receive: Callable[[int, Any], None],
) -> None:
    """Every task on the subject that `load` gives; beyond `serial` both must be picklable.

    `receive(place, result)` is called in the order of the tasks, so that sums are rounded alike
    whoever did the work, and results need not all be held at once.
    """
    if engine not in ENGINES:
        raise UsageError(f"engine is one of {', '.join(ENGINES)}; found {engine!r}")
    if workers < 1 or threads < 1:
        raise UsageError(f"workers and threads are 1 or more; found {workers} and {threads}")
    run = {"serial": _serial, "processes": _processes, "ray": _ray}[engine]
    early: dict[int, Any] = {}
    following = 0
    for done, (place, result) in enumerate(run(tasks, load, workers, threads), 1):
        early[place] = result
        while following in early:
            receive(following, early.pop(following))
            following += 1
        if progress is not None:
            progress(done, len(tasks))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """A sum over two threads is rounded otherwise than over one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _serial(
    tasks: Sequence[Task], load: Callable[[], Any], workers: int, threads: int
) -> Iterator[tuple[int, Any]]:
    with _threads(threads):
        subject = load()
        for place, task in enumerate(tasks):
            yield place, task(subject)


_HELD: dict[str, Any] = {}
"""A worker's subject: loaded once, used for all its tasks."""


def _begin(load: bytes, threads: int, environment: dict[str, str]) -> None:
    """Nothing that could fail: a worker that dies in its first lines takes the reason with it."""
    os.environ.update(environment)  # that of a fork server is as old as the server
    torch.set_num_threads(threads)
    _HELD.update(load=load)


def _do(task: bytes) -> Any:
    if "subject" not in _HELD:
        _HELD["subject"] = pickle.loads(_HELD["load"])()
    return pickle.loads(task)(_HELD["subject"])


def _packed(thing: Any) -> bytes:
    try:
        return pickle.dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise UsageError(
            f"the policy or the instances cannot be sent to another process ({problem}): use"
            " engine='serial', or a policy whose class is defined in a module and holds no lambdas"
        ) from problem


def _processes(
    tasks: Sequence[Task], load: Callable[[], Any], workers: int, threads: int
) -> Iterator[tuple[int, Any]]:
    left, packed = {place: _packed(task) for place, task in enumerate(tasks)}, _packed(load)
    for _ in range(ATTEMPTS):
        try:
            for place, result in _pooled(left, packed, workers, threads):
                del left[place]
                yield place, result
        except BrokenProcessPool:  # a worker was killed: what it had not delivered is done again
            continue
        return
    raise WorkersLost(
        f"{ATTEMPTS} times a worker process died, with {len(left)} tasks to go: is there enough"
        ' memory, and does a script of yours guard its calls with if __name__ == "__main__"? Use'
        " engine serial to see what happens"
    )


def _context() -> Any:
    """Where workers come from: forking a process that has run torch can hang in its thread pool.

    A fork server has imported torch and run nothing, so all workers of all studies in a process
    share one import, 1.6 s of processor time. Elsewhere each imports for itself.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gradiometer.probes.replicates"])
    return context


def _pooled(
    tasks: dict[int, bytes], load: bytes, workers: int, threads: int
) -> Iterator[tuple[int, Any]]:
    started = (load, threads, dict(os.environ))
    with ProcessPoolExecutor(
        workers, mp_context=_context(), initializer=_begin, initargs=started
    ) as pool:
        waiting: dict[Future[Any], int] = {
            pool.submit(_do, task): place for place, task in tasks.items()
        }
        try:
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield waiting.pop(future), future.result()
        except (ModuleNotFoundError, AttributeError) as problem:
            raise UsageError(
                f"a worker could not find the policy ({problem}): put its class into a module that"
                " can be imported"
            ) from problem
        finally:  # an error or Ctrl-C does not wait for what nobody wants
            pool.shutdown(wait=False, cancel_futures=True)


def _ray(
    tasks: Sequence[Task], load: Callable[[], Any], workers: int, threads: int
) -> Iterator[tuple[int, Any]]:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtra("ray", "ray", "--engine ray") from error
    address = os.environ.get("RAY_ADDRESS")
    started = not ray.is_initialized()
    if started:
        alone = {"num_cpus": workers, "include_dashboard": False}
        where = {"address": address} if address else alone
        ray.init(log_to_driver=False, configure_logging=False, **where)
    try:
        remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS)(_remote)
        token, numbered = uuid.uuid4().hex, enumerate(tasks)
        waiting = {remote.remote(task, load, threads, token): place for place, task in numbered}
        while waiting:
            (finished,), _ = ray.wait(list(waiting), num_returns=1)
            try:
                result = ray.get(finished)
            except ray.exceptions.RayTaskError as problem:
                raise (problem.cause if isinstance(problem.cause, Exception) else problem) from None
            yield waiting.pop(finished), result
    finally:
        if started:
            ray.shutdown()


def _remote(task: Task, load: Callable[[], Any], threads: int, token: str) -> Any:
    # Ray keeps its workers: this one may hold the subject of an earlier call.
    if _HELD.get("token") != token:
        torch.set_num_threads(threads)
        _HELD.update(subject=load(), token=token)
    return task(_HELD["subject"])
