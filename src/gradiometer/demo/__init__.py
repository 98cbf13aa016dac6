"""A training script, and two wrong lines for it: what `gradiometer demo` measures."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

__all__ = ["BROADCAST", "NO_GRAD", "WrongLine", "script"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongLine:
    """One line of the script, and what it is changed to."""

    right: str
    wrong: str

    @property
    def indent(self) -> int:
        """Spaces before both."""
        return len(self.right) - len(self.right.lstrip())

    def put_into(self, text: str) -> str:
        """The script with the wrong line."""
        if text.count(self.right) != 1:
            raise ValueError(f"the script has {text.count(self.right)} lines {self.right!r}, not 1")
        return text.replace(self.right, self.wrong)


BROADCAST = WrongLine(
    right="    return policy.log_prob(action).sum(-1)",
    wrong="    return policy.log_prob(action)",
)
"""Log-probs of shape (N, 1) against advantages of shape (N,): a product of N × N numbers."""

NO_GRAD = WrongLine(
    right="            entropy = policy.entropy().mean()",
    wrong="            with torch.no_grad():\n                entropy = policy.entropy().mean()",
)
"""An entropy bonus that is in the loss and in no gradient."""


def script() -> str:
    """The text of the healthy script."""
    return files(__package__).joinpath("train.py").read_text(encoding="utf-8")
