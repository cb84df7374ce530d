"""The messages of FLINK-4576, and the two roles that speak them.

In a round the coordinator sends ``RetrieveLowWatermark``, every task answers ``ReplyLowWatermark``, and when
the aggregate rose all hear ``NotifyNewLowWatermark``. A task without splits emits what it was notified of, so
that windows downstream go on and a split may still be given to it later. Times are microseconds since the
epoch, UTC.

Source: FLINK-4576 "Low Watermark Service", which Flink itself never built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RetrieveLowWatermark:
    """The coordinator asks a task for its low watermark.

    Attributes:
        job_id: the application, or the query.
        source_id: the stream's name.
        task_id: the task asked.
        timestamp: when it was asked, microseconds since the epoch.
    """

    job_id: str
    source_id: str
    task_id: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class ReplyLowWatermark:
    """A task's answer.

    Attributes:
        current_low_watermark: microseconds of event time; None while the task knows none (no split, or a
            silent one).
    """

    job_id: str
    source_id: str
    task_id: str
    timestamp: int
    current_low_watermark: int | None


@dataclass(frozen=True, slots=True)
class NotifyNewLowWatermark:
    """The low watermark of the stream rose.

    Attributes:
        new_low_watermark: microseconds of event time; larger in every message than in the one before.
    """

    job_id: str
    source_id: str
    task_id: str
    timestamp: int
    new_low_watermark: int


class LowWatermarkCooperatingTask(Protocol):
    """A task that can say how far it is."""

    def retrieve_low_watermark(self, message: RetrieveLowWatermark) -> ReplyLowWatermark:
        """Answer at once, from memory."""
        ...


class LowWatermarkListener(Protocol):
    """Anyone who wants every new low watermark."""

    def on_new_low_watermark(self, message: NotifyNewLowWatermark) -> None:
        """Hear of a rise. Must not block."""
        ...
