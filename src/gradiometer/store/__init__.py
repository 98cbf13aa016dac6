"""Keeping: one SQLite file a run, written by one thread, read without torch."""
