"""The roles of a source: FLIP-27 for a micro-batch engine.

    Source             makes the other roles, and knows their formats
    SplitEnumerator    finds splits and gives them to readers: one for a source, on the driver's coordinator thread
    SplitPlanner       says how far splits can be read now, and where in a split a time begins: on the driver
    SourceReader       reads the splits of one reader slot, on an executor
    SplitReader        gives rows to a reader; most connectors write no `SourceReader`

Flink reads a split until it is told to stop and then asks the reader for its position. Spark first asks how far a batch
shall go, writes the answer down, and reads afterwards, perhaps twice. So a **split** here is a range, from `start` to
`stop`, and a batch reads a split with a `stop`, a *slice*, which the planner chooses. The rest of FLIP-27 is unchanged.
One law governs sources: the offset fixes the rows. A slice gives the same rows in any process, at any time, and two
adjacent slices give the same rows as the joined slice. `check_source` tests this law.

Names are Flink's, in Python's spelling; a "checkpoint" is the entry of Spark's offset log for a batch, and checkpoint
ids grow by one with each batch.

Source: FLIP-27, FLIP-182, FLIP-217, FLIP-309; FLINK-20270, FLINK-22133; `org.apache.flink.api.connector.source`.

One file, because the roles are one contract, which authors of connectors read as a page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from .metric_group import MetricGroup


EARLIEST_US = -(2**53)
"""A time before all rows, in the year 1684: a claim of this time claims nothing."""


# -- data ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSplit:
    """A part of a source that is read on its own, from `start` up to and without `stop`. Connectors add fields.

    Positions are whole numbers that grow along the split: Kafka offsets, row numbers, bytes of a segment. Positions are
    below 2**63, because plans keep 64 bits of each, and may have gaps. Only the connector knows their meaning.

    Attributes:
        split_id: its name, unique in the source, with a meaning that never changes. Rows carry this id, and watermarks
            are kept by it.
        start: the position to go on from.
        stop: the position where it ends, not included; None for a split without an end.
        parents: ids of its predecessors in a reshard, whose rows come before the rows of this split.

    >>> from dataclasses import replace
    >>> orders = SourceSplit(split_id="orders/0")
    >>> replace(orders, stop=100)
    SourceSplit(split_id='orders/0', start=0, stop=100, parents=())
    """

    split_id: str
    start: int = 0
    stop: int | None = None
    parents: tuple[str, ...] = ()


SplitT = TypeVar("SplitT", bound=SourceSplit)
StateT = TypeVar("StateT")
ResultT = TypeVar("ResultT")


class Boundedness(Enum):
    """Whether a source ends by itself (Flink's `Boundedness`)."""

    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "continuous_unbounded"


class SourceEvent:
    """A message between enumerator and readers, beside splits. Subclass it; events must be picklable."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """A registered reader: its number, from 0, and its host, "" if unknown."""

    subtask: int
    location: str = ""


@dataclass(frozen=True, slots=True)
class SplitsAssignment(Generic[SplitT]):
    """The splits to give to readers: subtask -> its new splits, in order."""

    assignment: Mapping[int, Sequence[SplitT]]


@dataclass(frozen=True, slots=True)
class SplitsAddition(Generic[SplitT]):
    """A split reader shall read these splits too."""

    splits: tuple[SplitT, ...]


@dataclass(frozen=True, slots=True)
class SplitsRemoval(Generic[SplitT]):
    """A split reader shall stop reading these splits. Splits that the reader does not have are ignored."""

    splits: tuple[SplitT, ...]


SplitChange = SplitsAddition[SplitT] | SplitsRemoval[SplitT]


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of one split, in order, in the source's schema, and the position after them. There may be no row."""

    split_id: str
    rows: pa.RecordBatch
    position: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one `SplitReader.fetch` (`RecordsWithSplitIds`); finished splits were read to their stop."""

    batches: tuple[SplitRows, ...] = ()
    finished_splits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SplitEnd:
    """How far a split can be read now.

    Attributes:
        position: the position after the last present row; at least the split's start. A row that appears before
            it later, as a slow transaction may bring one, is never read.
        rows: number of rows from the split's start to `position`. May be an upper bound, or an estimate if the
            system does not count, but 0 only without rows; None if unknown.
        size_bytes: rough size of these rows, bytes; None if unknown.
        finished: whether no row will ever be added, so that the split is done once read up to here. If others carry it
            on, only once all of these are among the splits asked about: the watermark would pass their rows otherwise.
    """

    position: int
    rows: int | None = None
    size_bytes: int | None = None
    finished: bool = False


class VersionedSerializer(Protocol[StateT]):
    """Turns a value into bytes and back, across versions of the connector (`SimpleVersionedSerializer`)."""

    @property
    def version(self) -> int:
        """The version that `serialize` writes."""

    def serialize(self, value: StateT) -> bytes:
        """Return the value as bytes; equal values give equal bytes."""

    def deserialize(self, version: int, data: bytes) -> StateT:
        """Return the value. Raises ValueError for invalid data, and for a later version than this serializer's."""


# -- on the driver ------------------------------------------------------------------------------------------------


class SplitEnumeratorContext(Protocol[SplitT]):
    """The calls of an enumerator to its coordinator, on the coordinator's thread only."""

    @property
    def metric_group(self) -> MetricGroup:
        """The metrics of the enumerator; shown as the source's metrics."""

    @property
    def num_subtasks(self) -> int:
        """The present number of readers. Do not keep the number, because it may change."""

    @property
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        """The registered readers, by subtask."""

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> Future[None]:
        """Send an event; the future is done when the event was handed over. Raises ValueError without such a reader."""

    def assign_splits(self, assignment: SplitsAssignment[SplitT]) -> None:
        """Give splits to readers. From the next checkpoint on the splits are state of the readers.

        Raises ValueError, and assigns nothing, if a reader is not registered.
        """

    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that no more splits come: the reader finishes with its last split.

        Raises ValueError without such a reader.
        """

    def call_async(
        self,
        callable: Callable[[], ResultT],  # noqa: A002  # FLIP-27's name
        handler: Callable[[ResultT | None, BaseException | None], None],
        initial_delay: float | None = None,
        period: float | None = None,
    ) -> None:
        """Call something that may block on a worker thread, and hand its result to the coordinator's thread.

        Args:
            callable: runs on the worker thread; it must not touch the enumerator's state.
            handler: gets (result, None) or (None, error) on the coordinator's thread. Its errors fail the enumerator.
            initial_delay: seconds before the first call; None: no delay.
            period: seconds from one call to the next, never two at once; None: one call only.
        """

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Run an action on the coordinator's thread, after the queued actions."""

    def set_is_processing_backlog(self, *, is_processing_backlog: bool) -> None:
        """Say whether the source reads history (FLIP-309); the status shows it, and every reader is told."""


class SplitEnumerator(ABC, Generic[SplitT, StateT]):
    """Finds splits and assigns them; one for each source. Every method runs on the coordinator's single thread.

    An error of a method fails the enumerator: it is restored from its last snapshot, and the query fails if restoring
    does not help.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin, before all other calls; set up periodic discovery here with `call_async`.

        A run of `availableNow` waits until the gauge `discoveries` of the context's `metric_group` is more than 0. For
        an enumerator without that gauge, the run waits for a first split only.
        """

    @abstractmethod
    def add_reader(self, subtask: int) -> None:
        """Note that a reader has registered."""

    @abstractmethod
    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        """Answer a reader that asks for a split: an enumerator that assigns on request assigns a split here.

        Every reader asks before a batch is planned, until no reader gets a split any more: a batch takes all splits.
        """

    def add_splits_back(self, splits: Sequence[SplitT], subtask: int) -> None:
        """Take back splits of a failed reader. Never called, because a reader is a task, and Spark repeats tasks."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> StateT:
        """Return the state for `Source.restore_enumerator`, without assigned splits."""

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """Take an event that a reader sent. By default no event is expected, and one is an error."""
        raise NotImplementedError(
            f"{type(self).__name__} got {event!r} from reader {subtask} and handles no events. "
            "Hint: implement handle_source_event, or send none."
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that the batches of this checkpoint and of all earlier checkpoints were committed."""

    def handle_splits_finished(self, subtask: int, split_ids: Sequence[str]) -> None:
        """Note that splits of a reader were planned up to their end, for sources that continue there: hybrids, shards.

        Flink's connectors send an event of their own for this. The call comes before the next `snapshot_state`.
        """

    def close(self) -> None:
        """Close connections. Called once, on the coordinator's thread unless that thread hangs or has ended."""


class SplitPlanner(ABC, Generic[SplitT]):
    """Says how far splits can be read now: a role that a micro-batch needs and FLIP-27 lacks.

    A planner runs on the driver, before every batch, on one thread beside those of the enumerator. It may remember
    answers to save questions, but nothing that another planner could not ask for, because after a restart another one
    answers the same questions; `cut` writes what a restart needs into the splits.

    A call may block, and all splits wait for it: leave a split out of `latest` that gives no answer within seconds. An
    error of a method ends the query with `PlanningFailed`, so ask again before you raise one (`Patience`).
    """

    @abstractmethod
    def latest(self, splits: Sequence[SplitT]) -> Mapping[str, SplitEnd]:
        """Say where each split ends now.

        Returns:
            split id -> its end. A missing split cannot be read at present and is asked about again; it holds the
            watermark meanwhile. A split with a `stop` ends there at the latest, and is `finished` there. A split that
            is gone for good ends where it starts, `SplitEnd(split.start, rows=0, finished=True)`, once its loss was
            counted or raised. The id of a finished split is not read again: a split that is made anew has another id.
        """

    def after_rows(self, split: SplitT, rows: int, end: SplitEnd) -> int:
        """Return the position after about `rows` rows, more than `split.start` and at most `end.position`.

        At most `rows` rows lie before that position, unless a single step of the split has more rows. By default a
        position is a row.
        """
        return min(split.start + max(1, rows), end.position)

    def rows_before(self, split: SplitT, position: int) -> int:
        """Return how many rows lie from `split.start` to `position`, an upper bound. By default a position is a row."""
        return max(0, position - split.start)

    def find_time(self, splits: Sequence[SplitT], time_us: int) -> Mapping[str, int | None] | None:
        """Find the position in each split where a time begins, by the time in the source's `event_time` column.

        The whole split is searched, including rows before its start.

        Returns:
            split id -> the position of its first row at or after `time_us` (microseconds since the epoch, between
            `EARLIEST_US` and `-EARLIEST_US`, the years 1684 to 2255); None if there is no such row yet. A missing split
            is unknown at present: a fair share of it is read, and nothing is claimed. None instead of a mapping: this
            source cannot search by time, and slices follow observed times.
        """
        del splits, time_us
        return None

    def claim_us(self, split: SplitT, position: int, time_us: int) -> int:
        """Say which time a split has passed once it is read up to a position that `find_time` found, or further.

        By default that time. A source with several rows at one position has to claim an earlier time, because unread
        rows before `time_us` may lie at the found position.

        Returns:
            The event time, at most `time_us`, such that no row from `position` on is earlier, except for the
            out-of-orderness that the strategy allows. `EARLIEST_US` if nothing is known.
        """
        del split, position
        return time_us

    def claims(self, splits: Sequence[SplitT], time_us: int, until_us: int | None = None) -> Mapping[str, int]:
        """Say which times splits have passed: `claim_us` for many splits, by default in turn.

        A claim raises the watermark before a row is read, and rows behind a false claim are dropped. A source whose
        search may find a position without a row overrides this method, looks at the row there, and leaves out splits
        with an unknown claim. Its `find_time` leaves out a split with such an answer, because the split would otherwise
        wait for that time. A claim may differ when a batch is planned again, but must always be true.

        Args:
            splits: the splits, each with the `start` where it goes on: a position that `find_time` found for `time_us`,
                or a later position.
            until_us: rows after this event time are not trusted, and prove nothing; None: all rows are trusted.

        Returns:
            split id -> its `claim_us`; missing: unknown.
        """
        del until_us
        return {split.split_id: self.claim_us(split, split.start, time_us) for split in splits}

    def passed_us(self, split: SplitT) -> int | None:
        """Return the event time before which no row from a split's start on lies; None: the system promises none.

        Unlike a claim this needs no later row, so it also holds at the end of a split: if writers note the time.
        """
        del split
        return None

    def cut(self, stops: Sequence[tuple[SplitT, int]]) -> Sequence[tuple[SplitT, SplitT]]:
        """Cut splits where a batch ends: the last call before the offset is written.

        By default only `stop` and `start` change. If the system's positions are more than a whole number (a
        sequence number of 128 bits, a StreamCut), the source adds to both parts the values that fix the rows: both
        parts are in the offset before a row is read.

        Args:
            stops: (split, with the `start` where it goes on; the position before which the batch stops, perhaps that
                `start`), each split once.

        Returns:
            In the same order: (the slice up to the stop, the split from the stop on), with `start` and `stop` as asked.
        """
        return [(replace(split, stop=stop), replace(split, start=stop)) for split, stop in stops]

    def notify_checkpoint_complete(self, splits: Sequence[SplitT]) -> None:
        """Note that a batch was committed: rows before the `start` of these unfinished splits are not read again.

        For systems that keep unread rows. A batch may be told twice, or never. Enumerators and readers have a method of
        this name, too, which gets the id of the checkpoint.
        """

    def metric_values(self) -> Mapping[str, float]:
        """Return the planner's counts by name; they are shown with the enumerator's as metrics of the source."""
        return {}

    def trouble(self) -> str | None:
        """Say which splits the last `latest` left out, since when and why; None: no split.

        The status of the stream shows the text, so it has no secrets.
        """
        return None

    def close(self) -> None:
        """Close connections."""


# -- on an executor -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetching:
    """How the slices of a task are fetched (FLIP-27's threading models). All models give the same rows.

    Attributes:
        threads: number of threads that read ahead, each with its own split reader; 0: the task's own thread reads. The
            rows come in the order of the slices in any case.
        splits_at_once: how many slices a split reader has at once; None: all slices.
        ahead_bytes: the largest size that a task reads ahead, beside one fetch, bytes.

    Raises:
        ValueError: a number is too small.

    >>> Fetching.side_by_side(8)
    Fetching(threads=8, splits_at_once=1, ahead_bytes=67108864)
    """

    threads: int = 0
    splits_at_once: int | None = None
    ahead_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for what, number, least in (
            ("threads", self.threads, 0),
            ("splits_at_once", 1 if self.splits_at_once is None else self.splits_at_once, 1),
            ("ahead_bytes", self.ahead_bytes, 1),
        ):
            if number < least:
                raise ValueError(f"fetching: expected {what} of {least} or more, got {number}")

    @classmethod
    def one_by_one(cls) -> Fetching:
        """Read slices in turn, for systems that answer one question at a time best."""
        return cls(splits_at_once=1)

    @classmethod
    def multiplexed(cls) -> Fetching:
        """Read all slices by one split reader, which chooses the next request, such as Kafka's consumer."""
        return cls()

    @classmethod
    def side_by_side(cls, threads: int) -> Fetching:
        """Read each slice by itself, some at a time, for systems with slow answers and a limit for each split."""
        return cls(threads=threads, splits_at_once=1)


class SplitReader(ABC, Generic[SplitT]):
    """Reads rows of its splits. One thread makes all calls except `wake_up`."""

    @abstractmethod
    def fetch(self) -> Fetched:
        """Return the next rows; may block until there are rows, and returns early when woken up.

        Every split with a stop appears in `finished_splits` exactly once, even if its last positions have no row.
        """

    @abstractmethod
    def handle_splits_changes(self, change: SplitChange[SplitT]) -> None:
        """Take or drop splits; the next `fetch` follows the change."""

    @abstractmethod
    def wake_up(self) -> None:
        """Make a blocking `fetch` return soon, with the rows that it has. Called from another thread."""

    def metric_values(self) -> Mapping[str, float]:
        """Return the reader's counts by name. Called once, after its last fetch.

        The counts of all readers are added to the planner's counts of the same names.
        """
        return {}

    def close(self) -> None:
        """Close connections."""


class InputStatus(Enum):
    """The result of `SourceReader.poll_next`: whether rows follow."""

    MORE_AVAILABLE = "more available"
    NOTHING_AVAILABLE = "nothing available"
    END_OF_INPUT = "end of input"


class ReaderOutput(Protocol):
    """Takes the rows of a reader."""

    def collect(self, split_id: str, rows: pa.RecordBatch) -> None:
        """Take rows of one split."""

    def release(self, split_id: str) -> None:
        """Note that a split is finished and must not hold the watermark back."""


class SourceReaderContext(Protocol):
    """The calls of a reader to its task."""

    @property
    def subtask(self) -> int:
        """The number of the reader, from 0."""

    @property
    def metric_group(self) -> MetricGroup:
        """The reader's metrics."""

    def send_split_request(self) -> None:
        """Ask the enumerator for a split."""

    def send_source_event_to_coordinator(self, event: SourceEvent) -> None:
        """Send the enumerator an event; the event arrives after the present batch."""


class SourceReader(ABC, Generic[SplitT]):
    """Reads the splits of one reader slot, if a `SplitReader` is not enough; see `Source.create_reader`."""

    @abstractmethod
    def start(self) -> None:
        """Begin, after the splits of a checkpoint were added (FLINK-30514)."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Put the next rows into the output without blocking, and say whether more follow."""

    @abstractmethod
    def is_available(self) -> Future[None]:
        """Return a future that is done when `poll_next` is worth calling."""

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Read these splits too."""

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """Note that no more splits will come, so that the input ends with the last split."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[SplitT]:
        """Return the unfinished splits, each with `start` after its last row in the output."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that the checkpoint was committed."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """Take an event that the enumerator sent. By default no event is expected, and one is an error."""
        raise NotImplementedError(f"{type(self).__name__} got {event!r} and handles no events.")

    @abstractmethod
    def close(self) -> None:
        """End threads and close connections."""


class ExternallyInducedSourceReader(SourceReader[SplitT]):
    """A reader whose system decides the checkpoints (FLINK-20270), such as a Pravega reader group.

    Spark fixes a batch before reading, so such a reader is asked on the driver: when it answers with a checkpoint
    id, the batch ends at the `snapshot_state` of that id, for any size of the batch and without alignment. A
    split of the snapshot is finished when its `start` is its `stop`; the reader may set that `stop` in the snapshot.
    The reader is told the same id when the batch is committed, unless the process was restarted in between; all other
    parts use the number of the batch as checkpoint id.
    """

    def use_planner(self, planner: SplitPlanner[SplitT]) -> None:
        """Take the planner of the driver, for the metrics and the trouble of the source. Called before `start`."""

    @abstractmethod
    def should_trigger_checkpoint(self) -> int | None:
        """Return the id of a checkpoint that is due now, larger than all earlier ids; None if no checkpoint is due."""

    def trouble(self) -> str | None:
        """Say in words what delays the system's checkpoint; None: no delay. As `SplitPlanner.trouble`."""
        return None


# -- the source ---------------------------------------------------------------------------------------------------


class Source(ABC, Generic[SplitT, StateT]):
    """A source of rows, and the factory of its roles. It has options, no connection, and must be picklable.

    Attributes:
        fetching: how the threads of a task read its slices.
        externally_induced: whether `create_reader` makes an `ExternallyInducedSourceReader`, which decides where
            batches end.
        requires: modules beside lowmark's own that reading needs, such as "confluent_kafka", the name of an `import`.
            They are looked for where readers run before the first query, and an error names the missing package and
            this source. Name the module of your source, too, because `ship` does not bring your packages. A source
            that reads through others has their modules, too.
    """

    fetching: Fetching = Fetching.multiplexed()
    externally_induced: bool = False
    requires: tuple[str, ...] = ()

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of its rows. Times are `timestamp("us", tz="UTC")`."""

    @property
    def event_time(self) -> str | None:
        """The column with the system's own time of each row, None if the system keeps no time."""
        return None

    @property
    def boundedness(self) -> Boundedness:
        """Whether the source ends by itself."""
        return Boundedness.CONTINUOUS_UNBOUNDED

    @property
    @abstractmethod
    def split_serializer(self) -> VersionedSerializer[SplitT]:
        """The format of splits in checkpoints."""

    @property
    @abstractmethod
    def enumerator_state_serializer(self) -> VersionedSerializer[StateT]:
        """The format of the enumerator's state in checkpoints."""

    @property
    def event_serializer(self) -> VersionedSerializer[Any] | None:
        """The format of the events that readers send to the enumerator; None: readers send no events."""
        return None

    @abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext[SplitT]) -> SplitEnumerator[SplitT, StateT]:
        """Make the enumerator of a new source."""

    @abstractmethod
    def restore_enumerator(
        self, context: SplitEnumeratorContext[SplitT], state: StateT
    ) -> SplitEnumerator[SplitT, StateT]:
        """Make an enumerator that goes on from a snapshot."""

    @abstractmethod
    def create_planner(self) -> SplitPlanner[SplitT]:
        """Make the planner."""

    @abstractmethod
    def create_split_reader(self) -> SplitReader[SplitT]:
        """Make a split reader, on an executor."""

    def create_reader(self, context: SourceReaderContext) -> SourceReader[SplitT] | None:
        """Make a reader of one slot, for events or induced checkpoints; None: `create_split_reader` is enough."""
        del context
        return None
