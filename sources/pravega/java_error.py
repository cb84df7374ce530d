"""Tells kinds of errors of Pravega's Java client by the exception names in the text of an error.

The names are the protocol, because the client wraps its errors in each other and in a controller's texts. This table
has all of them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

_WRAPPERS = ("ExecutionException", "CompletionException", "RetriesExhaustedException")


class JavaError(Enum):
    """A kind of error, with the names by which it is known. An error of no kind passes if one waits.

    >>> JavaError.MISSING.is_in("RuntimeException: failed < NoSuchSegmentException: shop/orders/0.#epoch.0")
    True
    >>> JavaError.MISSING.is_in("InvalidStreamException < StatusRuntimeException: UNAVAILABLE: io exception")
    False
    """

    DENIED = ("UNAUTHENTICATED", "PERMISSION_DENIED", "AuthenticationException", "TokenException")
    # Without a text of its own, an InvalidStreamException wraps any error of the controller, also that it is away.
    MISSING = ("NoSuchSegmentException", "InvalidStreamException: Stream ", "NoSuchScopeException", "NOT_FOUND")
    TRUNCATED = ("SegmentTruncatedException",)
    AT_END = ("EndOfSegmentException",)
    FOR_GOOD = ("IllegalArgumentException", "SSLHandshakeException", "CertificateException")
    GROUP_MISMATCH = ("ConfigMismatch",)
    GROUP_BUSY = ("MaxNumberOfCheckpoints",)

    def is_in(self, cause: str) -> bool:
        """Whether the text of `cause_of` has an error of this kind."""
        return any(name in cause for name in self.value)


def cause_of(error: Any) -> str:
    """Return the text of a Java error and its causes, without stacks and without mere wrappers."""
    said: list[str] = []
    each: Any = error
    while each is not None and len(said) < 8:
        name, text = str(each.getClass().getSimpleName()), str(each.getMessage() or "").partition("\n")[0]
        cause = each.getCause()
        if cause is not None and str(cause.toString()).partition("\n")[0] in text:
            text = ""  # the text only repeats its cause
        if text or cause is None or name not in _WRAPPERS:
            said.append(f"{name}: {text}" if text else name)
        each = cause
    return " < ".join(said)
