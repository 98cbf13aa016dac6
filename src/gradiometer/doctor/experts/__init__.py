"""Do the experts learn different things? Three questions, answered from a run or a log."""

__all__: list[str] = []
