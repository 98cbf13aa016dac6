"""The rules, a file for each family; `doctor.rule.rules` imports them all."""

__all__: list[str] = []
