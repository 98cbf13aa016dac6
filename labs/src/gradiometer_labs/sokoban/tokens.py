"""Words for the game: the small actor's own tokenizer, and how a game becomes one growing context
of tokens.

    observation, answer, observation, answer, ...

Every tokenizer takes the same way, through its chat template; the small one has a template that
leaves out all but what was seen and said. A tokenizer without a template gets plain text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gradiometer.errors import UsageError
from gradiometer_labs.sokoban.env import SYMBOLS
from gradiometer_labs.sokoban.levels import ACTIONS

__all__ = ["Dialogue", "make_tokenizer"]

AND = "||"
REMEMBERED = 2**16  # observations whose tokens are kept: the same rooms come again and again
ANSWER = (  # stands for an answer where a template is asked what comes after one
    "\N{REPLACEMENT CHARACTER}"
)
RULES = (
    "Push every box (X) onto a target (O) in this room. # is a wall, _ floor, P you, S you on a"
    " target, √ a box on a target. Answer with at most {limit} of the moves Up, Down, Left, Right,"
    " separated by ||, and with nothing else."
)
TEMPLATE = (
    "{% for message in messages %}{% if message.role != 'system' %}{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endif %}{% endfor %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each action and for two cells side by side; what it does not know, line breaks
    too, it leaves out.

    With a token for each cell the small model learns to read a room in four times the time.
    """
    cells = SYMBOLS.replace("\n", "")
    pairs = [left + right for left in cells for right in cells]
    words = ["<pad>", "<end>", "<unk>", *ACTIONS, AND, *cells, *pairs]
    known = "|".join([*ACTIONS, r"\|\|", f"[{cells}]{{1,2}}"])
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(known), behavior="removed", invert=True)
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


class Dialogue:
    """Texts of a game to tokens and back, for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_actions: int) -> None:
        if tokenizer.eos_token_id is None:
            raise UsageError(
                "the tokenizer of model_path has no end token (eos_token), so no answer would"
                " ever end"
            )
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        self.pad: int = self.end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.answer_limit = (
            len(self._encode(f"<answer>{f' {AND} '.join(['Right'] * max_actions)}</answer>")) + 1
        )
        """Tokens of an answer, its end included."""
        self._rules = {"role": "system", "content": RULES.format(limit=max_actions)}
        self.opening = lru_cache(REMEMBERED)(self._opening)
        self.following = lru_cache(REMEMBERED)(self._following)

    def _opening(self, observation: str) -> tuple[int, ...]:
        """The context before the first answer."""
        rendered = self._rendered([self._rules, _user(observation)])
        return self._encode(
            f"{self._rules['content']}\n\n{observation}\n" if rendered is None else rendered
        )

    def _following(self, observation: str) -> tuple[int, ...]:
        """What comes between an answer, with its end token, and the next one."""
        answered = {"role": "assistant", "content": ANSWER}
        rendered = self._rendered([self._rules, _user(observation), answered, _user(observation)])
        if rendered is None:
            return self._encode(f"\n{observation}\n")
        return self._encode(
            rendered.partition(ANSWER)[2].removeprefix(str(self.tokenizer.eos_token))
        )

    def answer(self, actions: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens of an answer that says these actions."""
        return (*self._encode(f" {AND} ".join(ACTIONS[action] for action in actions)), self.end)

    def text(self, tokens: list[int]) -> str:
        """What was said."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _rendered(self, messages: list[dict[str, Any]]) -> str | None:
        if not self.tokenizer.chat_template:
            return None
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=False
                )
            )
        except TemplateError:  # some templates refuse a system message
            return None


def _user(observation: str) -> dict[str, Any]:
    return {"role": "user", "content": observation}
