"""The errors of a source that Spark reads."""

from __future__ import annotations

from lowmark.watermark import LowmarkError


class SplitColumnTaken(LowmarkError, ValueError):
    """The source itself has a column with the name of the split's column."""

    stream: str
    column: str
    columns: str  # the columns of the source, separated by commas
    _fact = (
        'stream "{stream}": split_column is "{column}", a column that the source has itself; expected a new name '
        "beside {columns}"
    )
    _hint = "pass another name."


class SourceNotPicklable(LowmarkError, TypeError):
    """A source cannot be pickled, so it cannot get to Spark's processes."""

    stream: str
    source: str  # class of the source
    cause: str  # the error
    _fact = 'stream "{stream}": {source} cannot be sent to Spark\'s processes: {cause}'
    _hint = (
        "keep options only in the source, and make connections, locks and files where they are used; __getstate__ can "
        "leave them out. check_source(source) finds it without Spark."
    )


class EventNotTaken(LowmarkError, RuntimeError):
    """A reader sends its enumerator an event, but events are not taken there."""

    stream: str
    reader: int  # its subtask
    event: str
    _fact = (
        'stream "{stream}": reader {reader} sends the event {event} to its enumerator, and a plain readStream cannot '
        "deliver the event"
    )
    _hint = "read the source by LowWatermarkService.read, which delivers events."
