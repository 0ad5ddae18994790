"""The one error of the data contract: a sentence for the person who gave the input."""


class InputError(ValueError):
    """Bad input, told in one sentence: which column, how many rows, an example, what to do."""


def count(number: int, noun: str) -> str:
    """ "1 row", "1,234 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
