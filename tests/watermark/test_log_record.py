"""The text of a log line, for all kinds of values."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowmark.watermark.log_record import Lines, escape_record

HOSTILE = "a\nERROR forged\x1b[2J\x9b1m\u202e\ud800"


def shown(message: str, *values: object, error: BaseException | None = None) -> str:
    """Return the line as a handler writes it."""
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("lowmark", logging.ERROR, __file__, 1, message, values, info)
    assert escape_record(record)
    return logging.Formatter("%(message)s").format(record)


@given(st.sampled_from(["task %s was lost", "task %r was lost", "task %.20s was lost", "%-40s"]), st.text())
def test_a_line_is_one_line_and_nothing_in_it_acts(message: str, name: str) -> None:
    assert shown(message, name).isprintable()
    assert shown(message, LookupError(name)).isprintable()


class Loud:
    def __repr__(self) -> str:
        return HOSTILE


def test_what_shows_itself_is_escaped_too() -> None:
    assert shown("%s %r", Loud(), Loud()).isprintable()


def test_what_is_harmless_stays_what_it_is() -> None:
    record = logging.LogRecord("lowmark", logging.INFO, __file__, 1, "%s %d %.1f %s", ("orders-0", 7, 1.25, None), None)
    escape_record(record)
    assert record.args == ("orders-0", 7, 1.25, None)
    assert record.getMessage() == "orders-0 7 1.2 None"


def test_values_by_name() -> None:
    assert shown("%(task)s of %(count)d", {"task": "a\x1b", "count": 2}) == r"a\x1b of 2"


def test_lines_that_are_meant_stay_lines_and_cannot_be_taken_for_others() -> None:
    assert shown("it stands in\n%s", Lines("one\ntwo\x1b")) == "it stands in\none\n    two\\x1b"


def test_a_traceback_is_indented_and_does_nothing() -> None:
    try:
        raise LookupError(HOSTILE)
    except LookupError as error:
        first, *rest = shown("it failed", error=error).split("\n")
    assert first == "it failed"
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert rest[0] == "    Traceback (most recent call last):"
    assert r"forged\x1b[2J" in rest[-1]


@pytest.mark.parametrize("folder", ["lowmark.integration", "lowmark.sources"])
def test_every_line_of_the_package_goes_through_it(folder: str) -> None:
    script = f"import logging, {folder}; logging.getLogger('lowmark').warning('task %s was lost', {HOSTILE!a})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "task a\\nERROR forged\\x1b[2J\\x9b1m\\u202e\\ud800 was lost\n"
