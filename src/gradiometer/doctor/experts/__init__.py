"""Do the experts learn different things? The three questions of source 002, from a run or a log."""

__all__: list[str] = []
