"""The errors of the Pravega connector."""

from __future__ import annotations

from lowmark.sources.coordinator import SuppressRestarts
from lowmark.sources.kit.options import InvalidSourceOption
from lowmark.sources.kit.unanswered import SourceUnavailable
from lowmark.watermark import LowmarkError


class InvalidPravegaOption(SuppressRestarts, InvalidSourceOption):
    """An invalid option of `PravegaSource`. The error never has values of secrets."""

    _source = "PravegaSource"


class PravegaClientMissing(SuppressRestarts, RuntimeError):
    """Pravega's Java client is not available in this process."""

    what: str  # the missing part
    hint: str  # what to do
    _fact = "Pravega is read through its Java client, and {what}"


class PravegaStreamMissing(SuppressRestarts, LookupError):
    """A stream does not exist, or was deleted while it was read."""

    scope: str
    stream: str  # its name, "" if the scope is missing
    controller: str  # the asked controller
    when: str  # the question
    _fact = "Pravega at {controller}: {_what} not there ({when})"
    _hint = (
        "check the spelling, and the right to list; a stream that was deleted and made anew is read from its head "
        "by a query with a new checkpoint."
    )

    @property
    def _what(self) -> str:
        return f"stream {self.scope}/{self.stream} is" if self.stream else f"scope {self.scope} is"


class PravegaAccessDenied(SuppressRestarts, RuntimeError):
    """Pravega does not know the user, or gives no right to read."""

    controller: str  # the controller
    action: str  # the question
    cause: str  # Pravega's answer
    _fact = "Pravega at {controller}: cannot {action}: access is denied ({cause:.300})"
    _hint = "check username and password, and the user's right to READ the scope and its streams."


class PravegaUnavailable(SourceUnavailable):
    """Pravega did not answer in time."""

    _system = "Pravega"
    _hint = (
        "is the address right, and the controller and every segment store reachable? give_up_after= waits longer; of "
        "tls://, trust_store= names the authority of the certificate."
    )


class PravegaGroupTaken(SuppressRestarts, ValueError):
    """A group of that name reads other streams or has readers of others, so a reset would harm its owner."""

    scope: str  # the scope
    group: str  # name of the group
    streams: str  # the streams of the group, separated by commas, and its readers
    expected: str  # the streams of the query
    _fact = "Pravega's reader group {scope}/{group} reads {streams}; expected a group of {expected} alone"
    _hint = "give the query a group of its own: it is reset whenever the query starts."


class PravegaDataLost(LowmarkError, RuntimeError):
    """Events are gone before they were read."""

    split: str  # id of the split
    position: int  # the next byte to read in the segment
    head: int | None  # the first present byte, None if no later byte is there
    tail: int | None = None  # where the segment ends, if that is before the position
    _fact = "Pravega split {split!r}: it was read up to byte {position}, and {_lost}"
    _hint = "{_next}"

    @property
    def _lost(self) -> str:
        if self.tail is not None:
            return f"it ends at byte {self.tail} now, so what came after is lost"
        if self.head is None:
            return "the whole segment is gone now: the stream was truncated"
        lost = f"so bytes {self.position} to {self.head - 1} are lost"
        return f"its head is byte {self.head} now, {lost}: the stream was truncated"

    @property
    def _next(self) -> str:
        if self.tail is not None:
            return "if Pravega was set up anew, a query with a new checkpoint reads the stream from its head."
        return (
            'to go on with what is left, use on_data_loss="go_on"; to lose nothing next time, give the stream a longer '
            "retention than the query may stand still."
        )


class PravegaEventBroken(LowmarkError, RuntimeError):
    """Bytes where an event should begin are no event."""

    split: str  # id of the split
    position: int  # the byte
    what: str  # the found bytes
    _fact = "Pravega split {split!r}, byte {position}: expected an event, found {what}"
    _hint = "byte streams have no events; else position and segment do not belong together: is the StreamCut right?"
