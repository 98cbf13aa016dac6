"""What can be broken in the training of a language model that plays.

rewards.py   which levels are played, how they are sampled, and what they are paid
losses.py    what is made of the rewards: advantages, log-probabilities, losses, values
settings.py  lines that are right, with a number that is not
"""

from __future__ import annotations

from gradiometer.labs.sokoban.faults import losses, rewards, settings

__all__ = ["losses", "rewards", "settings"]
