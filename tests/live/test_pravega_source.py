"""The Pravega source on a real Pravega, without Spark: positions, scalings, truncation, transactions, errors."""

from __future__ import annotations

import json
import pickle
import random
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lowmark.sources import check_source, read_slices
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.sources.pravega import (
    PravegaDataLost,
    PravegaSource,
    PravegaStreamMissing,
    PravegaUnavailable,
    segment_bytes,
)
from lowmark.sources.pravega.client import StreamCut, client_of
from lowmark.sources.pravega.jvm import java_class
from lowmark.sources.pravega.notes import ENDLESS, Mark

from tests.servers.local import free_ports, wait_until
from tests.servers.pravega import JARS, Pravega, Writer
from tests.worlds.pravega_reading import Reading, events_of

START_MS = 1_700_000_000_000
ROUND_MS = 100_000  # between two times that writers note


def rows(begin: int, end: int, keys: int = 20) -> list[dict[str, object]]:
    """Return rows by number, a second apart, in order for each key."""
    return [{"key": f"k{n % keys}", "at": START_MS + n * 1_000, "n": n} for n in range(begin, end)]


def as_events(given: Sequence[dict[str, object]]) -> list[bytes]:
    return sorted(json.dumps(row, sort_keys=True).encode() for row in given)


def by_number(events: pa.BinaryArray) -> pa.Array[Any]:
    """Return an event time, as a user's own function does."""
    return pa.array([json.loads(each or b"")["at"] * 1_000 for each in events.to_pylist()], pa.int64())


@pytest.mark.parametrize("event_time", [None, "$.at", by_number])
def test_the_law_holds(pravega: Pravega, event_time: Any) -> None:
    stream = pravega.create_stream(2)
    pravega.write_json(stream, rows(0, 600))
    pravega.split_one(stream)
    pravega.write_json(stream, rows(600, 900))
    pravega.merge_two(stream)
    pravega.write_json(stream, rows(900, 1_000))
    if event_time == "$.at":
        pravega.write(stream, [("k1", b'{"n": 1}'), ("k2", b'{"at": "what?"}'), ("k3", b"no JSON")])

    source = pravega.source(stream, event_time=event_time)
    checked = check_source(source, most_rows=120, other_process=event_time == "$.at")

    assert len(checked.splits) == 5
    assert checked.rows >= 400
    assert (checked.found_by_time > 0) == (event_time is not None)


def test_a_stream_cut_ends_and_begins_what_is_read(pravega: Pravega) -> None:
    stream, other = pravega.create_stream(2), pravega.create_stream()
    pravega.write_json(stream, rows(0, 50))
    pravega.write_json(other, rows(1_000, 1_010))
    first = pravega.client.tail(stream)
    pravega.split_one(stream)
    pravega.write_json(stream, rows(50, 120))
    second = pravega.text_of(pravega.client.tail(stream))
    pravega.write_json(stream, rows(120, 130))

    def read(**options: Any) -> list[bytes]:
        query = Reading(pravega.source(stream, other, **options))
        found = [event for _ in range(4) for event in query.events()]  # children wait for their parents
        query.close()
        return sorted(found)

    assert read() == as_events([*rows(0, 130), *rows(1_000, 1_010)])
    text = pravega.text_of(first)
    assert pravega.client.cut_of(text) == first, "a StreamCut's text is read back as it was"
    assert read(start={stream: text, other: "tail"}) == as_events(rows(50, 130))
    bounded = pravega.source(stream, start=text, stop=second)
    assert bounded.boundedness.value == "bounded"
    query = Reading(bounded)
    assert sorted([*query.events(), *query.events()]) == as_events(rows(50, 120))
    assert query.going == [], "it is over"
    with pytest.raises(Exception, match="StreamCut"):
        Reading(pravega.source(stream, start="nonsense"))


def test_a_sealed_segment_holds_until_its_successors_are_known(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    query = Reading(pravega.source(stream))
    pravega.split_one(stream)
    pravega.write_json(stream, rows(10, 30))

    assert query.events() == as_events(rows(0, 10))
    assert query.finished == set(), "nobody knows of its children yet: it still holds the watermark"
    assert len(query.discover()) == 2
    found = query.plan()
    assert [cut.finished for cut in found.slices.values() if cut.start == cut.stop] == [True]
    assert query.events() == as_events(rows(10, 30))
    assert query.finished == {f"{stream}/0.#epoch.0"}
    [*children] = query.going
    assert {child.parents for child in children} == {(f"{stream}/0.#epoch.0",)}


def test_children_wait_for_all_that_they_carry_on(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.split_one(stream)
    pravega.write_json(stream, rows(0, 200))
    pravega.merge_two(stream)
    pravega.write_json(stream, rows(200, 300))
    query, got = Reading(pravega.source(stream)), list[bytes]()
    child = next(split for split in query.going if len(split.parents) == 2)
    while {split.split_id for split in query.going} != {child.split_id}:
        over = set(child.parents) <= set(query.finished)
        for name, table in query.batch(rows=17).items():
            assert name != child.split_id or over or not table.num_rows, "it was read beside its parents"
            got += events_of(table)
    while len(got) < 300:
        got += query.events(17)
    assert sorted(got) == as_events(rows(0, 300))


def test_scalings_that_nobody_saw_are_found_after_a_restart(pravega: Pravega) -> None:
    stream = pravega.create_stream(2)
    pravega.write_json(stream, rows(0, 40))
    source = pravega.source(stream)
    query = Reading(source)
    got = query.events()
    for n, change in enumerate([pravega.split_one, pravega.merge_two, pravega.split_one], start=1):
        pravega.write_json(stream, rows(40 * n, 40 * n + 40))
        change(stream)
    pravega.write_json(stream, rows(160, 200))

    again = Reading(source, query)
    for _ in range(8):
        got += again.events()
    assert sorted(got) == as_events(rows(0, 200))
    assert not again.discover()


def test_a_sealed_stream_ends(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    source = pravega.source(stream)
    query = Reading(source)
    pravega.split_one(stream)
    pravega.write_json(stream, rows(10, 20))
    pravega.seal_stream(stream)
    query.discover()
    got = [event for _ in range(3) for event in query.events()]
    assert sorted(got) == as_events(rows(0, 20))
    assert query.going == []


def test_new_streams_of_a_pattern_begin_at_their_head(pravega: Pravega) -> None:
    prefix = pravega.create_stream(1)
    pravega.write_json(prefix, rows(0, 5))
    query = Reading(pravega.source(stream_pattern=f"{prefix}.*", start="tail"))
    assert query.events() == []
    later = pravega.create_stream(1, f"{prefix}-later")
    pravega.write_json(later, rows(5, 9))
    pravega.write_json(prefix, rows(9, 10))
    assert query.discover() == [f"{later}/0.#epoch.0"]
    assert query.events() == as_events(rows(5, 10))


def test_a_stream_of_a_pattern_that_was_sealed_before_the_start_at_the_tail_is_not_read(pravega: Pravega) -> None:
    prefix = pravega.create_stream(2)
    pravega.write_json(prefix, rows(0, 20))
    pravega.split_one(prefix)
    pravega.write_json(prefix, rows(20, 40))
    pravega.seal_stream(prefix)
    source = pravega.source(stream_pattern=f"{prefix}.*", start="tail")
    query = Reading(source)
    assert (query.events(), query.going) == ([], [])
    later = pravega.create_stream(1, f"{prefix}-later")
    pravega.write_json(later, rows(40, 50))
    again = Reading(source, query)
    assert [split.split_id for split in again.going] == [f"{later}/0.#epoch.0"]
    assert again.events() == as_events(rows(40, 50))
    assert len(query.finished) == 3, "the last segments, one without a predecessor"
    assert Reading(pravega.source(prefix, start="tail", stop="tail")).events() == []
    bounded = Reading(pravega.source(prefix, stop="tail"))
    assert sorted([*bounded.events(), *bounded.events()]) == as_events(rows(0, 40))


def test_truncated_events_are_an_error_or_are_counted(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    cut = pravega.client.tail(stream)
    source = pravega.source(stream)
    query, bearing = Reading(source), Reading(pravega.source(stream, on_data_loss="go_on"))
    pravega.write_json(stream, rows(10, 20))
    pravega.truncate(cut)

    with pytest.raises(PravegaDataLost) as lost:
        query.batch()
    assert (lost.value.position, lost.value.head) == (0, cut.positions[0])
    assert f"byte {cut.positions[0]}" in str(lost.value)
    assert bearing.events() == as_events(rows(10, 20))
    assert bearing.planner.metric_values()["lost_bytes"] == cut.positions[0]
    assert Reading(source).events() == as_events(rows(10, 20)), "who begins at the head has lost nothing"


def test_a_generation_that_nobody_saw_and_that_is_gone_is_a_loss(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    source = pravega.source(stream)
    query = Reading(source)
    query.events()
    pravega.split_one(stream)
    pravega.write_json(stream, rows(10, 20))
    pravega.merge_two(stream)
    pravega.write_json(stream, rows(20, 30))
    pravega.truncate(pravega.client.tail(stream))
    pravega.write_json(stream, rows(30, 40))

    again = Reading(source, query)
    with pytest.raises(PravegaDataLost, match=r"whole segment|head is byte"):
        [again.batch() for _ in range(4)]
    bearing, got = Reading(pravega.source(stream, on_data_loss="go_on"), query), list[bytes]()
    for _ in range(5):
        got += bearing.events()
    assert sorted(got) == as_events(rows(30, 40))


def test_events_that_are_truncated_between_plan_and_read_are_counted(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    source = pravega.source(stream, on_data_loss="go_on")
    [split] = Reading(source).going
    planned = replace(split, stop=source.latest([split])[split.split_id].position)
    pravega.truncate(pravega.client.tail(stream))
    counted: list[Mapping[str, float]] = []
    assert sum(part.rows.num_rows for part in read_slices(source, [planned], count=counted.append)) == 0
    assert counted == [{"data_losses": 1, "lost_bytes": planned.stop}]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_segment_that_ends_before_a_planned_slice_does_is_a_loss_and_not_read_for_ever(
    pravega: Pravega, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Pravega was set up anew between plan and read. Pravega waits for the next event of an open segment."""
    monkeypatch.setattr(segment_bytes, "ANSWER_MS", 500)
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    source = pravega.source(stream, give_up_after="3 seconds")
    [split] = Reading(source).going
    tail = source.latest([split])[split.split_id].position
    if sealed:
        pravega.seal_stream(stream)
    planned = replace(split, stop=tail + 50)
    with pytest.raises(PravegaDataLost, match=f"it was read up to byte 0, and it ends at byte {tail} now"):
        list(islice(source.read(planned), 20))

    bearing = pravega.source(stream, on_data_loss="go_on").create_split_reader()
    assert [(part.num_rows, position) for part, position in islice(bearing.read(planned), 20)] == [(0, planned.stop)]
    assert bearing.metrics.values() == {"data_losses": 1, "lost_bytes": planned.stop}


def test_events_that_were_truncated_before_the_plan_are_counted_once(pravega: Pravega) -> None:
    """The planner counts them, and the reader, whose slice begins with them, does not."""
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    query = Reading(pravega.source(stream, on_data_loss="go_on"))
    tail = pravega.client.tail(stream)
    pravega.truncate(tail)
    pravega.write_json(stream, rows(10, 20))

    assert query.events() == as_events(rows(10, 20))
    assert (query.count("data_losses"), query.count("lost_bytes")) == (1, tail.positions[0])


def test_a_bounded_read_from_a_cut_that_was_truncated_is_a_loss(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    cut = pravega.text_of(pravega.client.tail(stream))
    pravega.write_json(stream, rows(10, 20))
    pravega.split_one(stream)
    pravega.truncate(pravega.client.tail(stream))
    pravega.write_json(stream, rows(20, 30))

    with pytest.raises(PravegaDataLost, match="the whole segment is gone"):
        Reading(pravega.source(stream, start=cut, stop="tail")).batch()
    bearing = Reading(pravega.source(stream, start=cut, stop="tail", on_data_loss="go_on"))
    assert sorted([*bearing.events(), *bearing.events()]) == as_events(rows(20, 30))
    assert bearing.going == []


def test_a_stream_that_is_deleted_or_not_there_is_named(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 10))
    query = Reading(pravega.source(stream))
    query.events()
    pravega.delete_stream(stream)
    with pytest.raises(PravegaStreamMissing, match=f"{stream}.*deleted"):
        query.batch()
    with pytest.raises(Exception, match="no-such-stream"):
        Reading(pravega.source("no-such-stream"))
    with pytest.raises(Exception, match=r"scope no-such-scope is not there \(list its streams\)"):
        Reading(pravega.source(stream_pattern=".*", scope="no-such-scope", give_up_after="2 seconds"))


@pytest.mark.parametrize("by", ["name", "pattern"])
def test_a_stream_that_is_made_anew_after_it_was_read_to_its_end_is_named_because_it_would_not_be_read(
    pravega: Pravega, by: str
) -> None:
    stream = pravega.create_stream(1)
    source = pravega.source(stream) if by == "name" else pravega.source(stream_pattern=f"{stream}.*")
    pravega.write_json(stream, rows(0, 10))
    query = Reading(source)
    pravega.seal_stream(stream)
    assert query.events() == as_events(rows(0, 10))
    query.plan()
    assert query.finished == {f"{stream}/0.#epoch.0"}
    pravega.delete_stream(stream)
    if by == "pattern":
        assert query.discover() == [], "nothing is lost yet"
    pravega.create_stream(1, stream)
    pravega.write_json(stream, rows(10, 20))
    with pytest.raises(Exception, match=f"{stream} is not there .it was deleted and made anew"):
        Reading(source, query)


def test_only_committed_transactions_are_read(pravega: Pravega) -> None:
    import jpype

    stream = pravega.create_stream(1)
    builder = java_class("io.pravega.client.stream.EventWriterConfig").builder()
    config = builder.transactionTimeoutTime(10_000).build()
    serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")()
    writer = pravega._writers.createTransactionalEventWriter(stream, serializer, config)
    byte_array = jpype.JArray(jpype.JByte)

    def begun(text: bytes) -> Any:
        transaction = writer.beginTxn()
        for n in range(3):
            transaction.writeEvent("k", byte_array(text + b"%d" % n))
        transaction.flush()
        return transaction

    committed, aborted, left_open = begun(b"committed"), begun(b"aborted"), begun(b"open")
    query = Reading(pravega.source(stream))
    assert query.events() == []
    committed.commit()
    aborted.abort()
    got, deadline = list[bytes](), time.monotonic() + 20
    while len(got) < 3 and time.monotonic() < deadline:
        got += query.events()
    assert got == [b"committed0", b"committed1", b"committed2"]
    assert query.events() == []
    left_open.abort()
    writer.close()


def test_events_of_all_sizes_come_whole(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    sent = [b"", b"a", b"\0" * 9, *(bytes([n % 251]) * (n * 7_919 % 300_000) for n in range(40)), b"x" * 3_000_000]
    pravega.write(stream, [("k", event) for event in sent])
    query = Reading(pravega.source(stream, columns=["offset", "event"]))
    [table] = query.batch().values()
    assert table["event"].to_pylist() == sent
    offsets = table["offset"].to_pylist()
    assert offsets == [sum(len(event) + 8 for event in sent[:n]) for n in range(len(sent))]


def test_slices_by_time_stay_below_a_cap_and_say_what_they_have_reached(pravega: Pravega) -> None:
    fast, slow = pravega.create_stream(1), pravega.create_stream(1)
    pravega.write_json(fast, rows(5_000, 9_000))
    pravega.write_json(slow, rows(0, 3_000))
    query = Reading(pravega.source(fast, slow, event_time="$.at"))
    read_before_us = (START_MS + 2_000_000) * 1_000
    tables = query.batch(read_before_us=read_before_us)
    assert tables[f"{fast}/0.#epoch.0"].num_rows == 0
    times = tables[f"{slow}/0.#epoch.0"]["event_time"].cast(pa.int64())
    assert (len(times), pc.max(times).as_py()) == (2_000, read_before_us - 1_000_000)
    plan = query.plan(rows=700)
    assert plan.rows <= 700
    assert plan.slices[f"{slow}/0.#epoch.0"].claim_us == plan.time_us


def test_secrets_are_in_no_text(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    given: dict[str, Any] = {
        "controller": pravega.controller,
        "scope": pravega.scope,
        "jars": JARS,
        "streams": [stream],
    }
    source = PravegaSource(**given, username="me", password="s3cret-pass")
    options = PlanOptions()
    planner = BatchPlanner(source, name="orders", options=options, now_us=lambda: time.time_ns() // 1_000)
    pravega.write_json(stream, rows(0, 3))
    offset = planner.plan(planner.initial(), None)
    planner.close()
    for text in (repr(source), repr(source.settings), json.dumps(offset.to_json()), repr(source.discover())):
        assert "s3cret-pass" not in text
    assert pickle.loads(pickle.dumps(source)).settings == source.settings  # noqa: TID251  # our own


def test_nobody_answering_is_an_error_in_time(pravega: Pravega) -> None:
    pravega.client  # noqa: B018  # Java runs
    [port] = free_ports(1)
    away = PravegaSource(
        controller=f"tcp://127.0.0.1:{port}", scope="shop", streams=["orders"], jars=JARS, give_up_after="1 second"
    )
    with pytest.raises(Exception, match="cannot look up the head") as refused:
        Reading(away)
    assert isinstance(refused.value, PravegaUnavailable) or isinstance(refused.value.__cause__, PravegaUnavailable)


def test_a_controller_that_is_away_is_connected_to_at_each_question(pravega: Pravega) -> None:
    """gRPC paused longer and longer, so a query ended although the controller had been back for half a minute."""
    connected = list[object]()

    def refuse() -> None:
        with suppress(OSError):  # the end of the test
            while True:
                connection, place = away.accept()
                connected.append(place)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as away:
        refusing = threading.Thread(target=refuse, name="refusing", daemon=True)
        refusing.start()
        controller = f"tcp://127.0.0.1:{away.getsockname()[1]}"
        client = client_of(replace(pravega.settings, controller=controller, give_up_seconds=0.3))
        for _ in range(8):
            with pytest.raises(PravegaUnavailable):
                client.open_segments("orders")
        away.shutdown(socket.SHUT_RDWR)
    refusing.join(10)
    assert len(connected) >= 8


def test_a_cut_of_another_stream_is_refused(pravega: Pravega) -> None:
    stream, other = pravega.create_stream(1), pravega.create_stream(1)
    text = pravega.text_of(StreamCut(other, {0: 0}))
    with pytest.raises(Exception, match=f"one of {pravega.scope}/{stream}, got a StreamCut of {pravega.scope}/{other}"):
        Reading(pravega.source(stream, start={stream: text}))


def marks_of(pravega: Pravega, stream: str, place: int = 0, most: int | None = None) -> list[Mark]:
    found = pravega.client.marks(stream, place, most)
    return [] if found is None else list(found.marks)


def note_time(pravega: Pravega, stream: str, writer: Writer, time_ms: int) -> None:
    """Note a time until it has a mark; each try is a millisecond later, as writers do.

    A single note may be lost: the controller suspends a stream whose writers were silent for a few seconds, and a note
    at that moment waits for the next note. The last note gets its mark, so no mark comes later.
    """

    def is_marked(noted_ms: int) -> bool:
        marks = marks_of(pravega, stream)
        return bool(marks) and marks[-1].lower == noted_ms

    for again_ms in range(10):
        writer.note_time(time_ms + again_ms)
        with suppress(TimeoutError):
            wait_until(partial(is_marked, time_ms + again_ms), "the controller's mark", seconds=4)
            return
    pytest.fail(f"{stream}: no mark of 10 notes from {time_ms} on, the marks are {marks_of(pravega, stream)[-3:]}")


def test_what_writers_note_is_the_time_of_what_follows(pravega: Pravega) -> None:
    stream = pravega.create_stream(2)
    with pravega.writer(stream) as writer:
        for round_ in range(3):
            some = rows(round_ * 100, round_ * 100 + 100)
            writer.write((str(row["key"]), json.dumps(row, sort_keys=True).encode()) for row in some)
            note_time(pravega, stream, writer, START_MS + (round_ + 1) * ROUND_MS - 1_000)
            if round_ == 1:
                pravega.split_one(stream)
        writer.write([("k1", b"behind the newest mark")])
        source = pravega.source(stream, noted_time=True)
        checked = check_source(source, rows=25, most_rows=400)
        assert (checked.rows, checked.found_by_time > 0) == (300, True)
        query = Reading(source)
        tables = [query.batch() for _ in range(2)]
        found = pa.concat_tables([table for batch in tables for table in batch.values()])
        assert as_events(rows(0, 300)) == sorted(events_of(found)), "up to the newest mark, and no further"
        noted_us = found["noted_time"].cast(pa.int64()).to_pylist()
        for event, at_us in zip(events_of(found), noted_us, strict=True):
            own_us = json.loads(event)["at"] * 1_000
            assert at_us is None or at_us <= own_us, "no event is before what was noted where it is"
        newest = marks_of(pravega, stream)[-1].lower * 1_000
        over = query.plan()
        claims = {cut.claim_us for name, cut in over.slices.items() if not cut.finished}
        assert claims == {newest}, "read to the newest mark, all have reached its time"
        rounds = {None if at_us is None else round((at_us // 1_000 - START_MS) / ROUND_MS) for at_us in noted_us}
        assert rounds == {None, 1, 2}

        both, marks = Reading(pravega.source(stream, noted_time=True, event_time="$.at")), marks_of(pravega, stream)
        claimed = set()
        for second in (50, 98, 100, 150):
            plan = both.plan(read_before_us=(START_MS + second * 1_000) * 1_000)
            assert plan.time_us is not None
            for name, cut in plan.slices.items():
                segment = both.splits[name].segment
                lower_us = [mark.lower * 1_000 for mark in marks if mark.positions.get(segment, ENDLESS) <= cut.stop]
                expected_us = min(plan.time_us, max(lower_us)) if lower_us else None
                assert cut.claim_us == expected_us, f"{name} up to byte {cut.stop} at {second} s"
                claimed.add("nothing" if expected_us is None else "time" if expected_us == plan.time_us else "mark")
        assert claimed == {"nothing", "time", "mark"}


def test_a_stream_that_is_made_again_has_marks_of_its_own(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    for time_ms in (START_MS + ROUND_MS, START_MS):
        with pravega.writer(stream) as writer:
            writer.write([("k", b"before")])
            note_time(pravega, stream, writer, time_ms)
            writer.write([("k", b"behind")])
            note_time(pravega, stream, writer, time_ms + 1_000)
        [table] = Reading(pravega.source(stream, noted_time=True)).batch().values()
        first_us, behind_us = table["noted_time"].cast(pa.int64()).to_pylist()
        assert first_us is None
        assert behind_us is not None
        assert 0 <= behind_us // 1_000 - time_ms < ROUND_MS, "by its own marks, whatever this process has read before"
        assert marks_of(pravega, stream)[0].lower - time_ms < ROUND_MS
        pravega.delete_stream(stream)
        assert pravega.client.marks(stream) is None
        pravega.create_stream(1, name=stream)


def test_marks_that_pravega_truncated_are_passed_over_and_others_read_from_where_they_are_needed(
    pravega: Pravega,
) -> None:
    stream = pravega.create_stream(1)
    with pravega.writer(stream) as writer:
        for round_ in range(3):
            writer.write([("k", b"event %d" % round_)])
            note_time(pravega, stream, writer, START_MS + round_ * ROUND_MS)
    marks = marks_of(pravega, stream)
    assert marks_of(pravega, stream, marks[0].after, 1) == [marks[1]]
    assert marks_of(pravega, stream, marks[-1].after) == []

    query = Reading(pravega.source(stream, noted_time=True))
    assert len(query.events()) == 3
    [split] = query.going
    assert split.noted_from == marks[-1].place, "the mark that is in force where it stands"
    reader = pravega.client._marks[stream]._reader
    reader.truncateToRevision(next(reader.readFrom(reader.fetchOldestRevision())).getKey())
    assert marks_of(pravega, stream) == marks[1:]
    again = Reading(pravega.source(stream, noted_time=True))
    [table] = again.batch().values()
    noted_us = table["noted_time"].cast(pa.int64()).to_pylist()
    assert len(noted_us) == 3, "no event is lost with a mark"
    assert noted_us[0] is None


def test_where_a_query_stands_is_a_stream_cut_from_which_the_rest_is_read(pravega: Pravega) -> None:
    stream = pravega.create_stream(2)
    number = 0
    for change in (pravega.split_one, pravega.merge_two, pravega.split_one, None):
        pravega.write_json(stream, rows(number, number + 60))
        number += 60
        if change is not None:
            change(stream)
    for seed in range(3):
        rng = random.Random(seed)
        query, got = Reading(pravega.source(stream)), list[bytes]()
        while query.going and len(got) < number and rng.random() < 0.9:
            got += query.events(rng.randrange(5, 40))
        standing = {split.split_id: split.start for split in query.going}
        [text] = pravega.source(stream).stream_cuts(standing).values()
        rest, came = Reading(pravega.source(stream, start=text)), list[bytes]()
        for _ in range(6):  # children wait for their parents
            came += rest.events()
        assert sorted([*got, *came]) == as_events(rows(0, number)), f"seed {seed}: {standing}"
        # Pravega itself accepts it as a place in the stream: the rest of the stream lies between it and the end.
        bounded, between = Reading(pravega.source(stream, start=text, stop="tail")), list[bytes]()
        for _ in range(6):
            between += bounded.events()
        assert sorted(between) == sorted(came), f"seed {seed}"


def test_key_value_tables_are_no_streams(pravega: Pravega) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(0, 5))
    manager = java_class("io.pravega.client.admin.KeyValueTableManager").create(pravega.client.java_config)
    described = java_class("io.pravega.client.tables.KeyValueTableConfiguration").builder().partitionCount(1)
    assert manager.createKeyValueTable(pravega.scope, f"{stream}-table", described.primaryKeyLength(8).build())
    manager.close()
    query = Reading(pravega.source(stream_pattern=f"{stream}.*"))
    assert sorted(query.splits) == [f"{stream}/0.#epoch.0"]
    assert query.events() == as_events(rows(0, 5))


def test_a_stream_that_does_not_exist_is_told_with_the_whole_question(pravega: Pravega) -> None:
    with pytest.raises(
        PravegaStreamMissing, match=r"stream shop/nope is not there \(look up the head of it\)\. Hint: "
    ):
        pravega.client.head("nope")
