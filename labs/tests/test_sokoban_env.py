from __future__ import annotations

import itertools
from collections import deque

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from gradiometer.errors import UsageError
from gradiometer_labs.sokoban.env import Sokoban, TextGame, parse_actions, play
from gradiometer_labs.sokoban.levels import (
    ACTIONS,
    SokobanLevel,
    generate,
    level_seeds,
    push,
    reachable,
)
from gradiometer_labs.sokoban.solver import solve

UP, DOWN, LEFT, RIGHT = range(4)

ROOM = SokobanLevel.from_text("""
######
#____#
#PX_O#
#____#
#____#
######
""")

SETTINGS = (
    {},
    {"size": 5, "max_pushes": 2},
    {"size": 6, "num_walls": 3, "min_pushes": 2},
    {"size": 7, "num_boxes": 2, "num_walls": 3, "min_pushes": 3, "max_pushes": 8},
)


def test_a_level_is_drawn_with_one_symbol_a_cell() -> None:
    text = "######\n#__√_#\n#SX__#\n#_#__#\n#X__O#\n######"
    level = SokobanLevel.from_text(text)
    assert level.text() == text
    assert (level.size, level.on_target, level.solved) == (6, 1, False)
    assert set(level.text()) <= set("#_OX√PS\n")


@pytest.mark.parametrize(
    "text",
    [
        "####\n#PX#\n####",
        "####\n#PX#\n#_!#\n####",
        "####\n#PX#\n#__#\n####",
        "####\n#XO#\n#__#\n####",
        "_###\n#PX#\n#O_#\n####",
    ],
    ids=["not square", "a strange symbol", "no target", "no player", "a hole in the wall"],
)
def test_a_drawing_that_is_no_level_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a level "):
        SokobanLevel.from_text(text)


def test_a_push_moves_player_and_box() -> None:
    after, moved = push(ROOM, RIGHT)
    assert moved
    assert after.text().split("\n")[2] == "#_PXO#"
    assert ROOM.text().split("\n")[2] == "#PX_O#"


def test_walls_stop_the_player_and_boxes_stop_boxes() -> None:
    assert push(ROOM, LEFT) == (ROOM, False)
    against_wall = SokobanLevel.from_text("#####\n#__X#\n#OPX#\n#_O_#\n#####")
    assert push(against_wall, RIGHT) == (against_wall, False)
    two_in_a_row = SokobanLevel.from_text("######\n#PXX_#\n#____#\n#_OO_#\n#____#\n######")
    assert push(two_in_a_row, RIGHT) == (two_in_a_row, False)


@pytest.mark.parametrize("action", range(4), ids=ACTIONS)
def test_each_action_goes_where_its_name_says(action: int) -> None:
    level = SokobanLevel.from_text("#####\n#OX_#\n#_P_#\n#___#\n#####")
    free = SokobanLevel(
        size=5, walls=level.walls, targets=level.targets, boxes=0, player=level.player
    )
    row, column = divmod(push(free, action)[0].player, 5)
    assert (row, column) == {UP: (1, 2), DOWN: (3, 2), LEFT: (2, 1), RIGHT: (2, 3)}[action]


def brute_force(level: SokobanLevel) -> tuple[int, int]:
    """The fewest actions and, apart from that, the fewest pushes that solve a level, by trying
    all."""

    def fewest(push_costs: int, walk_costs: int) -> int:
        cost, queue = {level: 0}, deque([level])
        best = None
        while queue:
            now = queue.popleft()
            if now.solved and (best is None or cost[now] < best):
                best = cost[now]
            for action in range(4):
                after, _ = push(now, action)
                price = cost[now] + (push_costs if after.boxes != now.boxes else walk_costs)
                if price < cost.get(after, 10**9):
                    cost[after] = price
                    queue.append(after)
        assert best is not None
        return best

    return fewest(1, 1), fewest(1, 0)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_generated_levels_are_solvable_within_their_bounds_and_solved_by_the_fewest_actions(
    settings: dict[str, int],
) -> None:
    for level_seed in range(8):
        level = generate(level_seed, **settings)
        actions, pushes = brute_force(level)
        assert settings.get("min_pushes", 1) <= pushes <= settings.get("max_pushes", 4)
        found = solve(level)
        assert found is not None
        assert len(found) == actions
        for action in found:
            level, moved = push(level, action)
            assert moved
        assert level.solved


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_generated_level_has_what_was_asked_for(settings: dict[str, int]) -> None:
    for level_seed in range(50):
        level = generate(level_seed, **settings)
        text, size, boxes = level.text(), settings.get("size", 6), settings.get("num_boxes", 1)
        assert SokobanLevel.from_text(text) == level
        assert not level.solved
        assert (level.size, level.boxes.bit_count(), level.targets.bit_count()) == (
            size,
            boxes,
            boxes,
        )
        assert text.count("#") == 4 * (size - 1) + settings.get("num_walls", 0)
        assert reachable(level) >> level.player & 1
        assert not reachable(level) & (level.walls | level.boxes)


def test_a_seed_is_one_level_and_many_seeds_are_many() -> None:
    levels = [generate(level_seed, num_walls=2) for level_seed in range(200)]
    assert levels == [generate(level_seed, num_walls=2) for level_seed in range(200)]
    assert len(set(levels)) > 150


def test_level_seeds_belong_to_their_key() -> None:
    seeds = level_seeds(1, 0, 5, count=8)
    assert seeds == level_seeds(1, 0, 5, count=8)
    assert len(set(seeds)) == 8
    others = [
        level_seeds(*key, count=8)
        for key in itertools.product((1, 2), (0, 1), (5, 6))
        if key != (1, 0, 5)
    ]
    assert not set(seeds) & {seed for each in others for seed in each}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 3}, "size=3 has 1 cells inside its walls, too few"),
        ({"size": -5}, "size=-5 has 0 cells"),
        ({"num_walls": 14}, "too few for num_boxes=1"),
        ({"min_pushes": 5, "max_pushes": 4}, "max_pushes=4 at least min_pushes"),
        ({"num_boxes": 0}, "num_boxes=0"),
        ({"size": 4}, "no level in 2000 tries .* larger size"),
        ({"min_pushes": 40, "max_pushes": 40}, "no level in 2000 tries .* fewer pushes"),
    ],
)
def test_levels_that_cannot_be_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        generate(0, **settings)


def test_a_level_without_a_solution_has_none() -> None:
    assert solve(SokobanLevel.from_text("######\n#X___#\n#P___#\n#___O#\n#____#\n######")) is None
    assert solve(SokobanLevel.from_text("######\n#P_#_#\n#X_#O#\n#__#_#\n#__#_#\n######")) is None


def test_the_solver_stops_at_its_limit_and_knows_a_solved_level() -> None:
    assert solve(ROOM, node_limit=3) is None
    assert solve(ROOM) == (RIGHT, RIGHT)
    solved, _ = push(push(ROOM, RIGHT)[0], RIGHT)
    assert solve(solved) == ()


def test_rewards_are_of_the_step_the_box_and_the_solution() -> None:
    two = SokobanLevel.from_text("######\n#____#\n#PXO_#\n#____#\n#OX__#\n######")
    on, reward = play(two, RIGHT)
    assert reward == pytest.approx(0.9)
    off, reward = play(on, RIGHT)
    assert reward == pytest.approx(-1.1)
    assert off.on_target == 0
    assert play(two, LEFT) == (two, pytest.approx(-0.1))
    closer, reward = play(ROOM, RIGHT)
    assert reward == pytest.approx(-0.1)
    assert play(closer, RIGHT)[1] == pytest.approx(10.9)


def test_pushing_on_and_off_a_target_cannot_be_farmed() -> None:
    rng = np.random.default_rng(0)
    level, total, steps = generate(3, num_boxes=2), 0.0, 0
    start = level.on_target
    while not level.solved and steps < 500:
        level, reward = play(level, int(rng.integers(4)))
        total, steps = total + reward, steps + 1
    assert total == pytest.approx(-0.1 * steps + level.on_target - start + 10 * level.solved)


def test_the_environment_keeps_gymnasiums_contract() -> None:
    check_env(Sokoban(num_boxes=2, num_walls=1), skip_render_check=True)
    env = Sokoban(render_mode="ansi")
    observation, _ = env.reset(seed=1)
    assert env.render() == observation
    assert observation in env.observation_space


def test_an_episode_ends_solved_or_out_of_steps() -> None:
    env = Sokoban(max_steps=2)
    env.reset(options={"level": ROOM})
    assert env.step(RIGHT)[1:4] == (pytest.approx(-0.1), False, False)
    observation, reward, terminated, truncated, info = env.step(RIGHT)
    assert (reward, terminated, truncated) == (pytest.approx(10.9), True, True)
    assert info == {"solved": True, "boxes_on_target": 1}
    assert observation.split("\n")[2] == "#__P√#"
    env.reset(options={"level": ROOM})
    env.step(LEFT)
    assert env.step(LEFT)[2:4] == (False, True)


def test_the_same_level_seed_is_the_same_level_whatever_the_environments_seed() -> None:
    first = [Sokoban().reset(seed=seed, options={"level_seed": 7})[0] for seed in (1, 2)]
    assert first == [generate(7).text()] * 2
    assert Sokoban().reset(seed=1)[0] != Sokoban().reset(seed=2)[0]


def test_wrong_use_of_the_environment_is_answered() -> None:
    env = Sokoban()
    with pytest.raises(UsageError, match="call reset"):
        env.step(UP)
    with pytest.raises(UsageError, match="of size 5, the environment of size 6"):
        env.reset(options={"level": generate(0, size=5)})
    env.reset(seed=0)
    for action in (-1, 4):
        with pytest.raises(UsageError, match=f"action {action} is not one of"):
            env.step(action)
    with pytest.raises(UsageError, match="max_steps=0"):
        Sokoban(max_steps=0)
    with pytest.raises(UsageError, match="size=0 has 0 cells"):
        Sokoban(size=0)


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("Up", (UP,)),
        (" down ", (DOWN,)),
        ("LEFT || right", (LEFT, RIGHT)),
        ("Up||Up||Down||Left", (UP, UP, DOWN)),
        ("the box is below, so <answer>Down || Down</answer>", (DOWN, DOWN)),
        ("<answer>Up</answer> no: <ANSWER>\nLeft\n</ANSWER>", (LEFT,)),
        ("", ()),
        ("upwards", ()),
        ("Up Right", ()),
        ("Up || ", ()),
        ("Up || jump", ()),
        ("<answer></answer> Up", ()),
    ],
)
def test_answers_are_read_as_actions(text: str, actions: tuple[int, ...]) -> None:
    assert parse_actions(text, limit=3) == actions


def test_a_game_is_played_by_writing() -> None:
    game = TextGame(max_turns=5, max_actions_per_turn=2)
    assert game.reset(ROOM) == ROOM.text()
    first = game.step("Up || Down")
    assert (first.reward, first.done, first.actions, first.valid) == (
        pytest.approx(-0.2),
        False,
        (UP, DOWN),
        True,
    )
    assert first.observation == ROOM.text()
    last = game.step("Right || Right")
    assert (last.reward, last.done, last.solved) == (pytest.approx(10.8), True, True)
    assert last.observation.split("\n")[2] == "#__P√#"
    with pytest.raises(UsageError, match="call reset"):
        game.step("Up")


def test_what_is_written_after_the_solution_is_not_played() -> None:
    game = TextGame(max_turns=5, max_actions_per_turn=4)
    game.reset(ROOM)
    result = game.step("Right || Right || Up || Up")
    assert (result.actions, result.reward) == ((RIGHT, RIGHT), pytest.approx(10.8))


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("Up", False),
        ("Up || Down", True),
        ("Right || Right", True),
        ("Up || Down || Up", False),
        ("Up || fly", False),
    ],
)
def test_an_answer_is_complete_when_it_has_as_many_moves_as_a_turn(
    text: str, complete: bool
) -> None:
    game = TextGame(max_turns=5, max_actions_per_turn=2)
    game.reset(ROOM)
    assert game.step(text).complete is complete


def test_an_answer_that_cannot_be_read_costs_a_turn_and_the_format_penalty() -> None:
    game = TextGame(max_turns=2)
    game.reset(ROOM)
    result = game.step("I would go right")
    assert (result.reward, result.valid, result.actions, result.done) == (
        pytest.approx(-0.1),
        False,
        (),
        False,
    )
    assert result.observation == ROOM.text()
    assert game.step("").done
    with pytest.raises(UsageError, match="call reset"):
        game.step("Up")
    game.reset(ROOM)
    assert game.turns == 0
