"""How Spark reads the values of its settings."""

from __future__ import annotations


def is_true(value: object) -> bool:
    """Whether the value of a setting means true: Spark takes the word in any case, with spaces around it.

    >>> is_true("TRUE "), is_true("false"), is_true(None)
    (True, False, False)
    """
    return str(value).strip().lower() == "true"
