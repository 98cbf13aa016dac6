"""A small language model learns Sokoban by PPO or GRPO on groups of rollouts of the same level."""
