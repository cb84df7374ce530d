from __future__ import annotations

import pytest
from lowmark.watermark import (
    CorruptSnapshot,
    DisagreeingGroup,
    InvalidDuration,
    InvalidMessage,
    InvalidReshard,
    InvalidSplitId,
    InvalidStrategy,
    InvalidTime,
    InvalidWatermark,
    LowmarkError,
    StaleRun,
    TaskNotAway,
    TooManyTasks,
    UnknownTask,
    errors,
)

# An example of each error, and its text for the user.
EXAMPLES: list[tuple[LowmarkError, type[Exception], str]] = [
    (
        InvalidDuration("idleness", "'1 month'", "a month has no fixed length", "use weeks or days."),
        ValueError,
        "idleness: '1 month' is not a duration: a month has no fixed length. Hint: use weeks or days.",
    ),
    (
        InvalidTime("--past", "'10:00'", "it has no time zone"),
        ValueError,
        (
            "--past: '10:00' is not a time: it has no time zone. Hint: write the zone behind the time, as "
            '"2026-11-23T10:00Z" or "2026-11-23T11:00+01:00".'
        ),
    ),
    (
        InvalidStrategy("with_idleness", "0s", "more than 0", "leave it out to keep the default."),
        ValueError,
        "with_idleness: expected more than 0, got 0s. Hint: leave it out to keep the default.",
    ),
    (
        InvalidSplitId("1.5", "an int or a str"),
        ValueError,
        (
            "split id 1.5: expected an int or a str. Hint: use either names (str) or hashes (int) for all the splits "
            "of one stream."
        ),
    ),
    (
        InvalidWatermark("orders-7", 2**63),
        ValueError,
        (
            "watermark of split 'orders-7': expected microseconds since the epoch in 64 bits, got 9223372036854775808. "
            "Hint: is the event time in nanoseconds?"
        ),
    ),
    (
        InvalidReshard("('a',)", "()", "at least one parent and one child"),
        ValueError,
        (
            "reshard of ('a',) into (): expected at least one parent and one child. Hint: name the ids as the source "
            "does; the id of a split that ended is not used again."
        ),
    ),
    (
        CorruptSnapshot("3 trailing bytes", 100),
        ValueError,
        (
            "cannot restore a state from 100 bytes: 3 trailing bytes. Hint: pass the bytes of snapshot() "
            "unchanged, to the version of lowmark that wrote them."
        ),
    ),
    (
        DisagreeingGroup("g", "a/orders/0", "max drift 30s", "b/clicks/0", "max drift 1m"),
        ValueError,
        (
            "alignment group 'g': task a/orders/0 asks for max drift 30s, but task b/clicks/0 joined with max drift "
            "1m. Hint: give every stream of the group the same parameters, or this one another group."
        ),
    ),
    (
        UnknownTask("a/orders/0", "alignment group 'g'", 2),
        LookupError,
        (
            "task a/orders/0 is not known to alignment group 'g' (2 tasks are). Hint: a task joins before it reports, "
            "and joins again after its lease ran out."
        ),
    ),
    (
        StaleRun("billing/orders/0", "run-1", "was replaced by a newer one"),
        RuntimeError,
        (
            "run 'run-1' of task billing/orders/0 was replaced by a newer one; its message was not counted. Hint: if "
            "this process is the one that should run, start its query again, else stop it."
        ),
    ),
    (
        TaskNotAway("billing/orders/0", "it is registered, and alive"),
        RuntimeError,
        (
            "task billing/orders/0 is not away: it is registered, and alive. Hint: `lowmark status --coordinator` "
            "shows who is away; a query that runs is stopped first."
        ),
    ),
    (
        TooManyTasks("billing/orders/0", 200_000),
        RuntimeError,
        (
            "task billing/orders/0 was not registered: the coordinator has 200,000 tasks, which is all it takes. Hint: "
            "look in its status for tasks that nobody needs; else serve some of the jobs by another coordinator."
        ),
    ),
    (
        InvalidMessage("ReplyLowWatermark", "timestamp", "'now'", "an integer of 64 bits"),
        ValueError,
        (
            "ReplyLowWatermark.timestamp: expected an integer of 64 bits, got 'now'; the message was not counted. "
            "Hint: times are integers, microseconds since the epoch, and names are not empty."
        ),
    ),
]


@pytest.mark.parametrize(("error", "builtin", "text"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_says_what_was_expected_and_what_to_do(
    error: LowmarkError, builtin: type[Exception], text: str
) -> None:
    assert text == str(error)
    assert isinstance(error, builtin)


def test_every_error_has_an_example_here() -> None:
    raised = {
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, LowmarkError) and cls is not LowmarkError
    }

    assert raised == {type(error) for error, _, _ in EXAMPLES}


def test_a_cause_that_ends_with_a_point_gets_no_second_one() -> None:
    """Errors of Arrow and of AWS are whole sentences."""
    error = InvalidTime("--past", "'noon'", "This is not a time.")
    assert str(error).startswith("--past: 'noon' is not a time: This is not a time. Hint: write the zone")
    assert "it is 'noo.... Hint: " in str(InvalidTime("--past", "'noon'", "it is 'noo..."))
