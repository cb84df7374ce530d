"""What a run tells a person in the log."""

from __future__ import annotations

import logging

from lowmark.watermark import NotifyNewLowWatermark
from lowmark.watermark.splits.events import Effect, SplitReturnedLate, SplitStateChanged

from .stream import Stream

__all__ = ["log_effect", "log_unmeasured"]

log = logging.getLogger("lowmark")


def log_effect(stream: Stream, effect: Effect) -> None:
    """Log what a person should know of."""
    match effect:
        case SplitStateChanged(split, before, after, why):
            log.info(
                'stream "%s": split %s is now %s, was %s: %s',
                stream.name,
                stream.name_of(split),
                after.value,
                before.value,
                why,
            )
        case SplitReturnedLate(split, behind_us):
            log.warning(
                'stream "%s": split %s came back %.3f s behind the low watermark; its rows there are late',
                stream.name,
                stream.name_of(split),
                behind_us / 1e6,
            )
        case NotifyNewLowWatermark():
            pass  # once per batch: metrics and status show it


def log_unmeasured(stream: Stream, query: str, batch_id: int) -> None:
    """A batch had rows and no measurement."""
    log.warning(
        'stream "%s", query %s, batch %d: the batch was not measured, so the watermark holds. '
        "Hint: a foreachBatch function must run an action on the batch it is given.",
        stream.name,
        query,
        batch_id,
    )
