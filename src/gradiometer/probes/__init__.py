"""Experiments on a model held still: what its gradients say when asked on purpose."""
