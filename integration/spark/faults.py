"""Names the parts of a query that would break the low watermark of its wrapped stream."""

from __future__ import annotations

WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def fault_of(*, stacked: bool, watermarks: int, policy: str | None) -> str | None:
    """Say what breaks the low watermark of a running query; None: nothing does.

    Args:
        stacked: a watermark stands on top of another.
    """
    if stacked:
        return (
            "withWatermark stands on top of a wrapped stream, where it would replace the low watermark by the "
            "largest event time again. Hint: remove it; the strategy's bound takes its place."
        )
    if watermarks > 1 and policy == "max":
        return (
            f"{WATERMARK_POLICY} is max, so the stream that is ahead would decide, and rows of the other would be "
            "dropped. Hint: set it to min; it is kept in the checkpoint, so the query needs a new one."
        )
    return None
