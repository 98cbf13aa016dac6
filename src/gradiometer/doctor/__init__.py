"""Judging what was measured: plain numpy and scipy, on a run that is read from disk."""
