"""Impossible content of a checkpoint, an event or a message raises our own error, with the expected content."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, cast

import pytest
from lowmark.integration.coordinator import messages
from lowmark.integration.driver.stream import Stream
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.errors import CheckpointUnreadable, UnknownFormat, UnreadableHeartbeat
from lowmark.integration.spark.beside import reach_back
from lowmark.integration.spark.checkpoint import kafka_starting_offsets
from lowmark.integration.spark.checkpoint_store import all_planned, local_store
from lowmark.integration.spark.kafka_offsets import kafka_positions
from lowmark.integration.spark.offset_log import OffsetEntry, planned_entry
from lowmark.integration.transport.heartbeat import HeartbeatOffset, HeartbeatReader
from lowmark.integration.transport.split_key import SplitKey
from lowmark.watermark import CorruptSnapshot, WatermarkStrategy
from lowmark.watermark.tasks.cap import CapKind

from tests.integration.cli.test_cli import call

OFFSET = HeartbeatOffset("orders", 5_000, "run", 3, "state").to_json()
KAFKA = '{"orders":{"0":12}}'


# -- a heartbeat's offset


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"low_us": "5"}, "expected microseconds in 64 bits, or null as low_us, got '5'"),
        ({"low_us": 2**63}, "as low_us, got 9223372036854775808"),
        ({"low_us": True}, "as low_us, got True"),
        ({"token": 7}, "expected a text, or null as token, got 7"),
        ({"epoch": None}, "expected a whole number as epoch, got None"),
        ({"state": None}, "expected a text as state, got None"),
        ({"state": ...}, "expected a text as state, got nothing"),
    ],
)
def test_a_heartbeat_with_a_field_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    offset = {name: value for name, value in {**OFFSET, **change}.items() if value is not ...}
    for form in (offset, json.dumps(offset)):
        with pytest.raises(UnreadableHeartbeat) as refused:
            HeartbeatOffset.find(form)
        assert said in str(refused.value)
        assert 'stream "orders"' in str(refused.value)


def test_a_topic_may_be_called_like_us() -> None:
    assert HeartbeatOffset.find('{"lowmark": {"0": 12}}') is None
    assert HeartbeatOffset.find('{"lowmark": ' + "[" * 100_000) is None


def test_a_low_watermark_that_no_row_can_carry_says_so() -> None:
    reader = HeartbeatReader(address="unix:/none", stream_id="1", stream="orders", delay_ms=0)
    with pytest.raises(UnreadableHeartbeat, match="expected a time before the year 10000"):
        reader.readBetweenOffsets(HeartbeatOffset("orders").to_json(), HeartbeatOffset("orders", 2**62).to_json())


# -- a checkpoint's files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{KAFKA}\n-")
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    return tmp_path


def last_offsets(folder: Path) -> tuple[int, list[str | None]]:
    """The newest planned batch, and the offset of each source."""
    store = local_store(folder)
    planned = all_planned(store)[0]
    return planned, [offset for _, offset in planned_entry(store, planned, "").sources]


def test_offsets_are_read_line_by_line(folder: Path) -> None:
    strange = '{"a\u2028b":{"0":1}}'  # ends a line for Python only
    (folder / "offsets" / "1").write_text(f"v1\n{{}}\n{strange}\n-\n", encoding="utf-8")

    assert last_offsets(folder) == (1, [strange, None])
    assert kafka_starting_offsets(folder, committed=False) == {"a\u2028b": {"0": 1}}
    assert kafka_starting_offsets(folder) == {"orders": {"0": 12}}


def test_what_is_no_batch_is_not_of_the_log(folder: Path) -> None:
    for name in (".0.crc", "2\u00b2", "-1", "x", "9" * 200):
        (folder / "offsets" / name).write_text("junk")

    assert last_offsets(folder) == (0, [KAFKA, None])


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"", "offsets/1 has version ''"),
        (b"v3\n{}\n{}", "offsets/1 has version 'v3'"),
        (b"v2\n{}\n{}", "offsets/1 has a line without the id of a source"),
        (b'v1\n{"batchWat', r"offsets/1 has metadata that is no JSON: .* Hint: did the machine stop while"),
        (b"v1\n{}\n\xff", r"offsets/1 cannot be read \(it is not UTF-8\)"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folder: Path, data: bytes, fact: str) -> None:
    (folder / "offsets" / "1").write_bytes(data)

    with pytest.raises(CheckpointUnreadable, match=fact):
        kafka_starting_offsets(folder, committed=False)
    assert kafka_starting_offsets(folder) == {"orders": {"0": 12}}, "the committed batch is whole"


def test_a_folder_that_is_a_file_and_a_file_that_is_a_folder_are_named(folder: Path) -> None:
    (folder / "offsets" / "1").mkdir()
    with pytest.raises(CheckpointUnreadable, match=r"offsets/1 cannot be read \(Is a directory\)"):
        kafka_starting_offsets(folder, committed=False)
    (folder / "commits" / "0").unlink()
    (folder / "commits").rmdir()
    (folder / "commits").write_text("")
    (folder / "offsets" / "1").rmdir()
    with pytest.raises(CheckpointUnreadable, match=r"commits cannot be read \(Not a directory\)"):
        kafka_starting_offsets(folder)


def test_a_committed_batch_without_its_offsets_is_named(folder: Path) -> None:
    (folder / "offsets" / "0").rename(folder / "offsets" / "3")

    with pytest.raises(CheckpointUnreadable, match="batch 0 is committed, and offsets/0 is not there"):
        kafka_starting_offsets(folder)


def test_windows_of_a_checkpoint_that_is_not_whole(folder: Path) -> None:
    (folder / "commits" / "7").write_text("v1\n{}")
    (folder / "offsets" / "7").write_text(f"v1\n{{}}\n{KAFKA}")
    (folder / "offsets" / "1").mkdir()
    with pytest.raises(CheckpointUnreadable, match=r"offsets/1 cannot be read \(Is a directory\)"):
        reach_back(folder, window_us=1, delay_us=0)


def test_windows_of_a_checkpoint_whose_watermark_is_ahead_of_the_clock(folder: Path) -> None:
    """The filter for emitted windows would leave out all windows until the year 2100."""
    (folder / "offsets" / "0").write_text(f'v1\n{{"batchWatermarkMs":4102444800000}}\n{KAFKA}')
    with pytest.raises(
        CheckpointUnreadable,
        match=r"stands at 2100-01-01 .* not say which windows are open. Hint: begin a new checkpoint",
    ):
        reach_back(folder, window_us=1, delay_us=0)


def test_where_a_checkpoint_lies(folder: Path) -> None:
    assert kafka_starting_offsets(f"file://{folder}/") == kafka_starting_offsets(folder)
    with pytest.raises(CheckpointUnreadable, match=r'"s3a://bucket/orders": it is not on this machine. Hint: copy'):
        kafka_starting_offsets("s3a://bucket/orders")


def test_options_of_windows_that_cannot_be(folder: Path) -> None:
    both = ("--window", "1 minute", "--delay", "1 second")
    wrong = {("--planned",): "--planned does not go with --window", ("--window", "0 seconds"): "more than 0"}
    for more, text in wrong.items():
        code, _, err = call("offsets", str(folder), *both, *more)
        assert (code, text in " ".join(err.split())) == (2, True), err


def test_an_offset_nested_without_end_is_no_kafka(folder: Path) -> None:
    (folder / "offsets" / "0").write_text("v1\n{}\n" + '{"a":' * 100_000)

    with pytest.raises(CheckpointUnreadable, match="none of its sources is Kafka"):
        kafka_starting_offsets(folder)


@pytest.mark.parametrize("id_", ["x", "", "-1", "01", "\u0663", "9" * 19, "10000"])
def test_a_source_of_version_2_that_is_numbered_as_none_is_refused(id_: str) -> None:
    with pytest.raises(UnknownFormat, match=r"numbers a source '.*', expected 0 to 9,999"):
        OffsetEntry.parse(f"v2\n{{}}\n{id_}:1").placed(1)


@pytest.mark.parametrize("partition", ["2\u00b2", "\u0662", "-1", "", "9" * 5_000])
def test_what_is_no_partition_is_not_kafkas(partition: str) -> None:
    assert kafka_positions({"orders": {partition: 1}}) == {}
    assert kafka_positions({"orders": {"0": True}}) == {}


# -- a message to a member


@pytest.mark.parametrize(("kind", "us"), [(CapKind.UP_TO, None), (CapKind.HOLD, 5), (CapKind.UP_TO, 2**63)])
def test_a_cap_that_cannot_be_is_refused_where_it_is_read(kind: CapKind, us: int | None) -> None:
    capped = {"type": "Capped", "group": "g", "task": {"job_id": "j", "source_id": "s", "task_id": "0"}, "version": 1}
    told = messages.encode({"messages": [capped | {"cap": {"kind": kind, "us": us}}]})

    with pytest.raises(ValueError, match=r"\.us"):  # gRPC ends the call because of it, and the member dials again
        messages.WATCH.decode_answer(told)


# -- the state in an offset


@pytest.mark.parametrize("state", ["a", "\u00e9", base64.b64encode(b"LWMK").decode()])
def test_a_state_that_is_no_base64_is_a_corrupt_snapshot(state: str) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 second")
    stream = Stream("orders", "1", strategy, SplitKey(("s",), ("int",)), cast("Any", None), 1, False, {}, {})

    with pytest.raises(CorruptSnapshot):
        StreamRun.attach(stream, token="t", resumes=None, state=state, now_us=0)
