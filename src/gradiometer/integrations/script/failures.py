"""A script's failure, said as python says it: without frames of ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

__all__ = ["tell"]

OURS = str(Path(__file__).parent)


def tell(problem: BaseException) -> None:
    """By the script's own sys.excepthook, if it has one."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [problem]
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _without_ours(each.__traceback__)
            chain += [each.__cause__, each.__context__]
    sys.excepthook(type(problem), problem, problem.__traceback__)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if os.path.dirname(trace.tb_frame.f_code.co_filename) != OURS:
            kept.append(trace)
        trace = trace.tb_next
    following: TracebackType | None = None
    for each in reversed(kept):
        following = TracebackType(following, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return following
