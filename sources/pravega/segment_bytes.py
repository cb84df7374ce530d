"""The bytes of one segment, read on from a position, through Java's `SegmentInputStream`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowmark.sources.kit.patience import Patience
from lowmark.watermark import LowmarkError

from .errors import PravegaAccessDenied, PravegaUnavailable
from .java_error import JavaError, cause_of

ANSWER_MS = 10_000
"""How long one question to Pravega may take before it is asked again."""


class Truncated(LowmarkError):
    """Bytes of a segment were truncated, or the whole segment is gone, or it ends before them."""


class SegmentBytes:
    """An open segment. For one thread.

    Args:
        tail: returns where the segment ends now, None without an answer.
    """

    def __init__(
        self, source: Any, place: str, action: str, patience: Patience, *, tail: Callable[[], int | None]
    ) -> None:
        self._source, self._place, self._action, self._patience = source, place, action, patience
        self._tail = tail

    def fill(self) -> None:
        """Ask for the next bytes without waiting."""
        self._source.fillBuffer()

    def read_into(self, data: memoryview) -> None:
        """Fill `data` with bytes that are known to exist. Raises Truncated, PravegaAccessDenied, PravegaUnavailable."""
        import jpype.nio

        target, filled = jpype.nio.convertToDirectBuffer(data), 0
        self._patience.renew()
        while filled < len(data):
            count, cause = 0, "no bytes came"
            try:
                count = int(self._source.read(target, ANSWER_MS))
                if not count and self._ends_before(len(data) - filled):  # Pravega waits for an event there
                    raise Truncated(f"the segment ends before {len(data) - filled} more bytes")
            except jpype.JException as failed:
                cause = cause_of(failed)
                if JavaError.TRUNCATED.is_in(cause) or JavaError.MISSING.is_in(cause):
                    raise Truncated(cause) from None
                if JavaError.DENIED.is_in(cause):
                    raise PravegaAccessDenied(self._place, self._action, cause) from None
                if JavaError.AT_END.is_in(cause):
                    raise Truncated(f"the segment ends {len(data) - filled} bytes before it should") from None
            filled += count
            if count:
                self._patience.renew()
            elif not self._patience.goes_on(cause):
                raise PravegaUnavailable(self._place, self._action, self._patience.spent_seconds, cause)

    def _ends_before(self, size: int) -> bool:
        tail = self._tail()
        return tail is not None and tail < int(self._source.getOffset()) + size

    def close(self) -> None:
        self._source.close()
