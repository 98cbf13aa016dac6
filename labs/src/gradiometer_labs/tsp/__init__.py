"""Tours by an attention model with one rollout from every city: policy gradients of a combinatorial
problem."""
