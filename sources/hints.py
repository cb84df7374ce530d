"""What to do stands in an error once: errors are told with their causes in them, and the cause knows best."""

from __future__ import annotations

__all__ = ["hinted"]


def hinted(text: str, hint: str) -> str:
    """Return the text of an error with a hint, unless it tells of a cause that has brought its own.

    >>> hinted("cannot plan batch 3: OSError: no route", "try again.")
    'cannot plan batch 3: OSError: no route. Hint: try again.'
    >>> hinted("cannot plan batch 3: the topic is gone. Hint: create it.", "try again.")
    'cannot plan batch 3: the topic is gone. Hint: create it.'
    """
    return text if "Hint: " in text else f"{text.removesuffix('.')}. Hint: {hint}"
