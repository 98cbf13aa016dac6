"""Shortest solutions of small levels by breadth-first search."""

from __future__ import annotations

from collections import deque

from gradiometer_labs.sokoban.levels import ACTIONS, SokobanLevel, push

__all__ = ["solve"]


def solve(level: SokobanLevel, *, node_limit: int = 200_000) -> tuple[int, ...] | None:
    """The fewest actions that solve the level; None if there are none, or none within `node_limit`
    states."""
    live = _live_cells(level)
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {
        (level.player, level.boxes): None
    }
    frontier = deque([level])
    while frontier and len(came_from) <= node_limit:
        now = frontier.popleft()
        if now.solved:
            return _actions_to(now, came_from)
        for action in range(len(ACTIONS)):
            after, moved = push(now, action)
            state = (after.player, after.boxes)
            if moved and state not in came_from and not after.boxes & ~live:
                came_from[state] = ((now.player, now.boxes), action)
                frontier.append(after)
    return None


def _actions_to(
    level: SokobanLevel, came_from: dict[tuple[int, int], tuple[tuple[int, int], int] | None]
) -> tuple[int, ...]:
    actions: list[int] = []
    step = came_from[level.player, level.boxes]
    while step is not None:
        before, action = step
        actions.append(action)
        step = came_from[before]
    return tuple(reversed(actions))


def _live_cells(level: SokobanLevel) -> int:
    """Cells from which a box alone in the room could still be pushed to a target; a box elsewhere
    is lost."""
    floor = ~level.walls & (1 << level.size * level.size) - 1
    live = level.targets
    while True:
        grown = live
        for shift in (level.size, 1):
            # it comes from the next cell if that one, and the one behind it for the player, are
            # floor
            grown |= live << shift & floor & floor >> shift
            grown |= live >> shift & floor & floor << shift
        if grown == live:
            return live
        live = grown
