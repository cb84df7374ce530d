"""Why there is no reader-group mode: what a group's checkpoint says is known after reading, and Spark asks before.

A batch's offset is written before its tasks run, and a task may run twice. These tests show on a real Pravega that a
group can give neither: its checkpoint completes only when every reader has read up to it, names the positions that were
read and never later ones, and after a crash between Spark's commit and the group's it stands elsewhere than Spark does.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from lowmark.sources.pravega.jvm import java_class

from tests.live.pravega_reading import Reading
from tests.live.pravega_server import Pravega
from tests.live.servers import wait_until

MOST_MS = 2_000


class Group:
    """A reader group over one stream, with checkpoints by hand only."""

    def __init__(self, pravega: Pravega, stream: str) -> None:
        self.pravega, self.name = pravega, f"g{uuid.uuid4().hex[:8]}"
        config = pravega.client.java_config
        self.manager = java_class("io.pravega.client.admin.ReaderGroupManager").withScope(pravega.scope, config)
        builder = java_class("io.pravega.client.stream.ReaderGroupConfig").builder()
        described = builder.stream(pravega.client.java_stream(stream)).disableAutomaticCheckpoints().build()
        self.manager.createReaderGroup(self.name, described)
        self.group = self.manager.getReaderGroup(self.name)

    def reader(self, name: str) -> Any:
        serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")()
        config = java_class("io.pravega.client.stream.ReaderConfig").builder().build()
        return self.pravega._writers.createReader(name, self.name, serializer, config)

    def checkpoint(self, name: str) -> Any:
        return self.group.initiateCheckpoint(name, self.pravega.client.executor)


@pytest.fixture
def stream(pravega: Pravega) -> str:
    name = pravega.create_stream(1)
    pravega.write(name, [("k", b"%04d" % n) for n in range(20)])  # 12 bytes each, with their headers
    return name


@pytest.fixture
def group(pravega: Pravega, stream: str) -> Iterator[Group]:
    made = Group(pravega, stream)
    yield made
    made.group.close()
    made.manager.close()


def byte_of(checkpoint: Any) -> int:
    [positions] = [cut.asImpl().getPositions() for cut in dict(checkpoint.asImpl().getPositions()).values()]
    [byte] = dict(positions).values() if hasattr(positions, "values") else positions.values()
    return int(byte)


def test_a_checkpoint_waits_until_readers_have_read_and_says_where_they_are(group: Group) -> None:
    reader = group.reader("one")
    first = [str(bytes(reader.readNextEvent(MOST_MS).getEvent()), "ascii") for _ in range(3)]
    assert first == ["0000", "0001", "0002"]
    due = group.checkpoint("c1")
    with pytest.raises(Exception, match="TimeoutException"):
        due.get(MOST_MS, java_class("java.util.concurrent.TimeUnit").MILLISECONDS)
    seen = 3
    while not (event := reader.readNextEvent(MOST_MS)).isCheckpoint():
        seen += 1
    reader.readNextEvent(MOST_MS)  # only who reads on behind it says that it is done with what lies before
    done = wait_until(lambda: due.getNow(None), "the checkpoint", seconds=20)
    assert byte_of(done) == seen * 12, "the position that was read, which nobody knew when the batch was planned"
    assert str(event.getCheckpointName()) == "c1"
    reader.close()


def test_a_checkpoint_without_readers_moves_nothing(group: Group) -> None:
    due = group.checkpoint("c1")
    done = wait_until(lambda: due.getNow(None), "the checkpoint", seconds=20)
    assert byte_of(done) == 0, "20 events are there, and the batch would be empty for ever"


def test_a_group_is_elsewhere_than_spark_after_a_crash_and_segments_are_not(
    pravega: Pravega, stream: str, group: Group
) -> None:
    query = Reading(pravega.source(stream))
    reader = group.reader("first-attempt")
    read = [bytes(reader.readNextEvent(MOST_MS).getEvent()) for _ in range(5)]
    assert len(read) == 5
    # The task dies: Spark has not committed the batch and runs it again. The group has given out these events.
    group.group.readerOffline("first-attempt", None)
    again = group.reader("second-attempt")
    repeated = bytes(again.readNextEvent(MOST_MS).getEvent())
    split = next(iter(query.splits.values()))
    twice = [Reading(pravega.source(stream)).events() for _ in range(2)]
    assert twice[0] == twice[1] == [b"%04d" % n for n in range(20)], "a range gives the same events, however often"
    assert repeated in {b"0000", b"0005"}, "where the group goes on is its own affair: nobody has told it the batch"
    assert split.start == 0
    again.close()
