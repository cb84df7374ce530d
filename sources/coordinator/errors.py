"""The errors of a source coordinator."""

from __future__ import annotations

from lowmark.watermark import LowmarkError


class CoordinatorNotStarted(LowmarkError, RuntimeError):
    """A coordinator was used before `start`, or started twice."""

    source: str  # name of the source
    action: str  # the requested action
    reason: str  # the fault
    _fact = "source {source!r}: cannot {action}: {reason}"
    _hint = "reset_to_checkpoint, if at all, then start once, then everything else."


class CoordinatorClosed(LowmarkError, RuntimeError):
    """A coordinator was used after `close`."""

    source: str  # name of the source
    action: str  # the requested action
    _fact = "source {source!r}: cannot {action}: the coordinator is closed"
    _hint = "a coordinator that was closed is not started again; make a new one and reset it to the last checkpoint."


class CoordinatorHangs(LowmarkError, TimeoutError):
    """The coordinator did not get to an action in time."""

    source: str  # name of the source
    action: str  # the requested action
    seconds: float  # how long the caller waited
    running: str  # the running action, "" if none
    where: str  # the innermost calls of the running action, the last call first
    _fact = "source {source!r}: cannot {action} within {seconds:g} seconds: {_doing}"
    _hint = "an enumerator must not block; what may take time belongs in the callable of call_async."

    @property
    def _doing(self) -> str:
        return f"it is still to {self.running}, at {self.where}" if self.running else "nothing runs"


class SourceFailed(LowmarkError, RuntimeError):
    """A source's enumerator failed too often. The last failure is the `__cause__`."""

    source: str  # name of the source
    action: str  # the action that failed last
    cause: str  # type and text of its error
    restored: int  # how often the enumerator was restored before
    window: str  # the time within which restores are counted
    known: bool = False  # whether `cause` is a complete reason in words
    _fact = "source {source!r}: {_said}"
    _hint = "remove the cause and start the query again; it goes on from its checkpoint."
    _cause_knows_best = True

    @property
    def _said(self) -> str:
        return self.cause if self.known else f"cannot {self.action} ({self._tried}): {self.cause}"

    @property
    def _tried(self) -> str:
        return f"it was restored {self.restored} times within {self.window}" if self.restored else "it is not restored"


class InvalidCheckpoint(LowmarkError, ValueError):
    """Bytes from which an enumerator cannot be restored."""

    source: str  # name of the source
    checkpoint_id: int | None  # id of their checkpoint
    reason: str  # the fault of the bytes
    _fact = "source {source!r}: cannot restore the enumerator from checkpoint {checkpoint_id}: {reason}"
    _hint = "go on with the version of lowmark and of the connector that wrote it, or a later one."
    _cause_knows_best = True
