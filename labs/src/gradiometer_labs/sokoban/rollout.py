"""Games played by the actor, all at once: N rollouts side by side, one growing context each.

Shapes: N rollouts, T tokens of the longest. Every tensor of the rows has N in front:

    tokens          [N, T]  observations and answers in turn, padded on the right
    mask            [N, T]  1 where the actor chose the token
    old_log_probs   [N, T]  of the chosen tokens, as the sampler had them
    token_rewards   [N, T]  a turn's reward stands at the last token of its answer
    rewards         [N]     their sum over the game
    groups          [N]     the number of the level: a group's rollouts share it
    solved, turns   [N]
    complete        [N]     answers that said as many moves as a turn has room for
    truncated       [N]     whether an answer was cut off before its end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from gradiometer_labs.sokoban.config import Config
from gradiometer_labs.sokoban.env import TextGame
from gradiometer_labs.sokoban.levels import SokobanLevel
from gradiometer_labs.sokoban.pieces import Pieces
from gradiometer_labs.sokoban.tokens import Dialogue
from gradiometer_labs.streams import generator_of

__all__ = [
    "Rows",
    "Sampler",
    "SokobanPurpose",
    "Transcript",
    "cut",
    "generator_for",
    "play_games",
    "rows_of",
    "select",
]

Rows = dict[str, Tensor]


class SokobanPurpose(IntEnum):
    """What a random number is drawn for. Each has its own stream at each step, so a resumed
    training draws the same."""

    TRAIN = 1
    ANALYSIS = 2
    VALIDATION = 3
    WARM_START = 4
    ACTOR_UPDATE = 5
    CRITIC_UPDATE = 6


def generator_for(
    config: Config, purpose: SokobanPurpose, step: int, device: torch.device
) -> torch.Generator:
    """The random numbers of one purpose at one step."""
    # The 1 keeps these streams apart from those of the levels, see `level_seeds`.
    return generator_of(config.seed, purpose, step, 1, device=device)


@dataclass(slots=True)
class Transcript:
    """One game as it is written down."""

    group: int
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    token_rewards: list[float] = field(default_factory=list)
    turns: int = 0
    complete: int = 0
    solved: bool = False
    truncated: bool = False

    def saw(self, tokens: Sequence[int]) -> None:
        """An observation."""
        self.tokens += tokens
        self.mask += [False] * len(tokens)
        self.log_probs += [0.0] * len(tokens)
        self.token_rewards += [0.0] * len(tokens)

    def said(self, tokens: Sequence[int], log_probs: Sequence[float], reward: float) -> None:
        """An answer, and what it was worth."""
        self.tokens += tokens
        self.mask += [True] * len(tokens)
        self.log_probs += log_probs
        self.token_rewards += [*([0.0] * (len(tokens) - 1)), reward]
        self.turns += 1


def play_games(
    actor: PreTrainedModel,
    dialogue: Dialogue,
    levels: Sequence[SokobanLevel],
    *,
    group_size: int,
    pieces: Pieces,
    generator: torch.Generator,
) -> Rows:
    """`group_size` games of each level, played to the end by the actor's own draws."""
    env = pieces.config.env
    starts = [(number, level) for number, level in enumerate(levels) for _ in range(group_size)]
    games = [
        TextGame(max_turns=env.max_turns, max_actions_per_turn=env.max_actions_per_turn)
        for _ in starts
    ]
    transcripts = [Transcript(group=number) for number, _ in starts]
    sampler = Sampler(actor, dialogue, pieces=pieces, generator=generator)
    seen = [
        dialogue.opening(game.reset(level)) for game, (_, level) in zip(games, starts, strict=True)
    ]
    playing = list(range(len(games)))
    while playing:
        answers = sampler.answers(seen)
        going: list[int] = []
        for place, (row, tokens, (answer, log_probs)) in enumerate(
            zip(playing, seen, answers, strict=True)
        ):
            result = games[row].step(dialogue.text(answer))
            transcripts[row].saw(tokens)
            transcripts[row].said(answer, log_probs, result.reward)
            transcripts[row].complete += result.complete
            transcripts[row].solved = result.solved
            transcripts[row].truncated |= answer[-1] != dialogue.end
            if not result.done:
                going.append(place)
        playing = [playing[place] for place in going]
        sampler.keep(going)
        seen = [dialogue.following(games[row].level.text()) for row in playing]  # type: ignore[union-attr]
    return rows_of(transcripts, pad=dialogue.pad, device=actor.device)


class Sampler:
    """Answers from the actor for several contexts at once; what it has read before stays in its
    cache.

    Contexts need not be of one length: a gap in the cache is masked and takes no position.
    """

    def __init__(
        self,
        actor: PreTrainedModel,
        dialogue: Dialogue,
        *,
        pieces: Pieces,
        generator: torch.Generator,
    ) -> None:
        self._actor, self._dialogue = actor, dialogue
        self._pieces, self._generator = pieces, generator
        self._cache = DynamicCache(config=actor.config)
        self._attention: Tensor | None = None
        self._unread: list[tuple[int, ...]] = []

    @torch.no_grad()
    def answers(self, seen: Sequence[Sequence[int]]) -> list[tuple[list[int], list[float]]]:
        """What the actor says after each observation: tokens, and their log-probabilities."""
        said: list[tuple[list[int], list[float]]] = [([], []) for _ in seen]
        before = self._unread or [()] * len(seen)
        logits = self._read([(*old, *new) for old, new in zip(before, seen, strict=True)])
        open_rows = list(range(len(seen)))
        temperature = self._pieces.config.actor_rollout_ref.rollout.temperature
        for left in range(self._pieces.answer_limit_of(self._dialogue) - 1, -1, -1):
            log_policy = self._pieces.sampler_logits_of(logits, temperature).log_softmax(-1)
            drawn = torch.multinomial(log_policy.exp(), 1, generator=self._generator)
            chosen, log_probs = (
                drawn.squeeze(-1).tolist(),
                log_policy.gather(-1, drawn).squeeze(-1).tolist(),
            )
            for row in open_rows:
                said[row][0].append(chosen[row])
                said[row][1].append(log_probs[row])
            open_rows = [row for row in open_rows if chosen[row] != self._dialogue.end]
            if not open_rows or not left:
                break
            still_open = set(open_rows)
            logits = self._read(
                [(chosen[row],) if row in still_open else () for row in range(len(seen))]
            )
        self._unread = [
            (tokens[-1],) for tokens, _ in said
        ]  # nothing was to be foretold from it yet
        return said

    def keep(self, places: Sequence[int]) -> None:
        """Only these contexts go on."""
        if self._attention is None or len(places) == len(self._attention):
            return
        index = torch.tensor(places, dtype=torch.long, device=self._actor.device)
        self._cache.batch_select_indices(index)
        self._attention = self._attention[index]
        self._unread = [self._unread[place] for place in places]

    def _read(self, news: Sequence[Sequence[int]]) -> Tensor:
        """Take in a few more tokens of each context, and foretell the next one: logits [N, V]."""
        width = max(map(len, news))
        ids = [[*[self._dialogue.pad] * (width - len(new)), *new] for new in news]
        real = [[*[0] * (width - len(new)), *[1] * len(new)] for new in news]
        attention = torch.tensor(real, device=self._actor.device)
        self._attention = (
            attention if self._attention is None else torch.cat([self._attention, attention], 1)
        )
        positions = (self._attention.cumsum(-1) - 1).clamp(min=0)[:, -width:]
        output = self._actor(
            input_ids=torch.tensor(ids, device=self._actor.device),
            attention_mask=self._attention,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits


def rows_of(transcripts: Sequence[Transcript], *, pad: int, device: torch.device) -> Rows:
    """Games side by side, padded on the right to the longest."""
    width = max(len(each.tokens) for each in transcripts)

    def padded(
        lists: list[list[float]] | list[list[int]] | list[list[bool]], filling: float
    ) -> Tensor:
        return torch.tensor(
            [[*each, *[filling] * (width - len(each))] for each in lists], device=device
        )

    token_rewards = padded([each.token_rewards for each in transcripts], 0.0)
    return {
        "tokens": padded([each.tokens for each in transcripts], pad),
        "mask": padded([each.mask for each in transcripts], 0).float(),
        "old_log_probs": padded([each.log_probs for each in transcripts], 0.0),
        "token_rewards": token_rewards,
        "rewards": token_rewards.sum(-1),
        "groups": torch.tensor([each.group for each in transcripts], device=device),
        "solved": torch.tensor([each.solved for each in transcripts], device=device),
        "turns": torch.tensor([each.turns for each in transcripts], device=device),
        "complete": torch.tensor([each.complete for each in transcripts], device=device),
        "truncated": torch.tensor([each.truncated for each in transcripts], device=device),
    }


def select(rows: Mapping[str, Tensor], index: Tensor) -> Rows:
    """Some of the rollouts."""
    return {name: column[index] for name, column in rows.items()}


def cut(rows: Mapping[str, Tensor]) -> Rows:
    """Without the columns that are padding in every row; what is computed of the others is the
    same."""
    chosen = rows["mask"].any(0).nonzero()
    width = int(chosen.max()) + 1 if len(chosen) else rows["mask"].shape[1]
    return {
        name: column[:, :width] if column.ndim == 2 else column for name, column in rows.items()
    }
