"""Sokoban levels made by reverse play, and the rules; a level is a few integers, so it is small and
hashable.

Cell (row, column) has the number row·size + column; a set of cells is an integer with those bits
set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradiometer.errors import UsageError

__all__ = ["ACTIONS", "SokobanLevel", "generate", "level_seeds", "push", "reachable"]

ACTIONS = ("Up", "Down", "Left", "Right")
TRIES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class SokobanLevel:
    """A room and what stands where; every cell of its border is a wall."""

    size: int
    walls: int
    targets: int
    boxes: int
    player: int

    @property
    def solved(self) -> bool:
        """Every box is on a target."""
        return self.boxes == self.targets

    @property
    def on_target(self) -> int:
        """Boxes on a target."""
        return (self.boxes & self.targets).bit_count()

    def text(self) -> str:
        """One symbol a cell: # wall, _ floor, O target, X box, √ box on target, P player, S player
        on target."""
        cells = [_symbol(self, cell) for cell in range(self.size * self.size)]
        return "\n".join(
            "".join(cells[start : start + self.size]) for start in range(0, len(cells), self.size)
        )

    @classmethod
    def from_text(cls, text: str) -> SokobanLevel:
        """The level that is drawn so."""
        rows = text.strip().split("\n")
        size, cells = len(rows), "".join(rows)
        if any(len(row) != size for row in rows) or set(cells) - set("#_OX√PS"):
            raise UsageError("a level is a square of the symbols # _ O X √ P S, one row a line")
        edge = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
        players = [cell for cell, symbol in enumerate(cells) if symbol in "PS"]
        targets, boxes = _mask(cells, "O√S"), _mask(cells, "X√")
        if (
            set(edge) != {"#"}
            or len(players) != 1
            or not boxes
            or boxes.bit_count() != targets.bit_count()
        ):
            raise UsageError(
                "a level has walls all around, one player, a box or more, and as many targets as"
                " boxes"
            )
        return cls(
            size=size, walls=_mask(cells, "#"), targets=targets, boxes=boxes, player=players[0]
        )


def push(level: SokobanLevel, action: int) -> tuple[SokobanLevel, bool]:
    """The level after a step up, down, left or right, and whether anything moved."""
    size = level.size
    delta = (-size, size, -1, 1)[action]
    player, boxes = level.player + delta, level.boxes
    here = 1 << player
    if level.walls & here:
        return level, False
    if boxes & here:
        beyond = 1 << (player + delta)
        if (level.walls | boxes) & beyond:
            return level, False
        boxes ^= here | beyond
    return (
        SokobanLevel(
            size=size, walls=level.walls, targets=level.targets, boxes=boxes, player=player
        ),
        True,
    )


def reachable(level: SokobanLevel) -> int:
    """The cells the player can walk to without pushing."""
    return _flood(1 << level.player, level.size, ~(level.walls | level.boxes))


def level_seeds(*key: int, count: int) -> list[int]:
    """Seeds of levels that belong to a key such as (seed, purpose, step); other keys give other
    seeds."""
    return [int(each) for each in np.random.SeedSequence(key).generate_state(count)]


def generate(
    level_seed: int,
    *,
    size: int = 6,
    num_boxes: int = 1,
    num_walls: int = 0,
    min_pushes: int = 1,
    max_pushes: int = 4,
) -> SokobanLevel:
    """A level that can be solved with at most `max_pushes` pushes and not with fewer than
    `min_pushes`.

    Played backwards from the solved room: boxes start on the targets and are pulled off them.
    """
    floor = (size - 2) ** 2 if size > 2 else 0
    if min(num_boxes, min_pushes) < 1 or num_walls < 0 or max_pushes < min_pushes or level_seed < 0:
        raise UsageError(
            f"no such level: level_seed={level_seed} and num_walls={num_walls} must be 0 or more,"
            f" num_boxes={num_boxes} and min_pushes={min_pushes} 1 or more, max_pushes={max_pushes}"
            " at least min_pushes"
        )
    if floor < 2 * num_boxes + num_walls + 1:
        raise UsageError(
            f"size={size} has {floor} cells inside its walls, too few for num_boxes={num_boxes}, as"
            f" many targets, num_walls={num_walls} and a player: use a larger size"
        )
    rng = np.random.default_rng(level_seed)
    for _ in range(TRIES):
        start = _solved_room(rng, size, num_boxes, num_walls)
        level = _pulled(rng, start, int(rng.integers(min_pushes, max_pushes + 1)))
        if level is not None and _pushes_needed(level) >= min_pushes:
            return level
    raise UsageError(
        f"no level in {TRIES} tries with size={size}, num_boxes={num_boxes}, num_walls={num_walls},"
        f" min_pushes={min_pushes}, max_pushes={max_pushes}: use a larger size, fewer boxes or"
        " walls, or fewer pushes"
    )


def _solved_room(
    rng: np.random.Generator, size: int, num_boxes: int, num_walls: int
) -> SokobanLevel:
    inside = [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    cells = [
        inside[each] for each in rng.permutation(len(inside))[: num_boxes + num_walls + 1].tolist()
    ]
    walls = (1 << size * size) - 1
    for cell in inside:
        walls ^= 1 << cell
    targets = sum(1 << cell for cell in cells[:num_boxes])
    walls |= sum(1 << cell for cell in cells[num_boxes:-1])
    return SokobanLevel(size=size, walls=walls, targets=targets, boxes=targets, player=cells[-1])


def _pulled(rng: np.random.Generator, level: SokobanLevel, pulls: int) -> SokobanLevel | None:
    """After so many random pulls and a walk; None where the player gets stuck."""
    for chance in rng.random(pulls).tolist():
        options = _pulls(level)
        if not options:
            return None
        level = options[int(chance * len(options))]
    reach = reachable(level)
    cells = [cell for cell in range(level.size * level.size) if reach >> cell & 1]
    return _with(level, level.boxes, cells[int(rng.integers(len(cells)))])


def _pulls(level: SokobanLevel) -> list[SokobanLevel]:
    """Where one pull can lead: the player beside a box steps away from it and takes it along."""
    reach, taken = reachable(level), level.walls | level.boxes
    options = []
    for box in _cells(level.boxes):
        for delta in (-level.size, level.size, -1, 1):
            beside, away = box + delta, box + 2 * delta
            if reach >> beside & 1 and not taken >> away & 1:
                options.append(_with(level, level.boxes ^ (1 << box | 1 << beside), away))
    return options


def _pushes_needed(level: SokobanLevel) -> int:
    """A lower bound: the sum over boxes of the distance |Δrow| + |Δcolumn| to the nearest
    target."""
    size, targets = level.size, _cells(level.targets)
    return sum(
        min(abs(box // size - goal // size) + abs(box % size - goal % size) for goal in targets)
        for box in _cells(level.boxes)
    )


def _with(level: SokobanLevel, boxes: int, player: int) -> SokobanLevel:
    return SokobanLevel(
        size=level.size, walls=level.walls, targets=level.targets, boxes=boxes, player=player
    )


def _flood(cells: int, size: int, free: int) -> int:
    while True:
        grown = (cells | cells << 1 | cells >> 1 | cells << size | cells >> size) & free
        if grown == cells:
            return cells
        cells = grown


def _cells(mask: int) -> list[int]:
    cells = []
    while mask:
        lowest = mask & -mask
        cells.append(lowest.bit_length() - 1)
        mask ^= lowest
    return cells


def _mask(cells: str, symbols: str) -> int:
    return sum(1 << cell for cell, symbol in enumerate(cells) if symbol in symbols)


def _symbol(level: SokobanLevel, cell: int) -> str:
    target = level.targets >> cell & 1
    if cell == level.player:
        return "S" if target else "P"
    if level.boxes >> cell & 1:
        return "√" if target else "X"
    if level.walls >> cell & 1:
        return "#"
    return "O" if target else "_"
