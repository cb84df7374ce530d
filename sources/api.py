"""The roles of FLIP-27, as a micro-batch engine has them: what a source is made of.

    Source             names the roles, makes them, and knows their formats
    SplitEnumerator    finds splits and gives them to readers: one a source, on the coordinator's thread, on the driver
    SplitPlanner       says how far splits can be read now, and where in a split a time begins: on the driver
    SourceReader       one a reader slot, on an executor: reads the splits it was given
    SplitReader        what a reader asks for rows; the only role that most connectors need to write

Flink reads a split until it is told to stop and then asks the reader where it is. Spark asks first, how far a batch
shall go, writes that down, and reads afterwards, perhaps twice. So a **split** here is a range: it carries where to
go on (`start`) and where it ends (`stop`), and what a batch reads of it is the same split with a `stop`, a *slice*.
The planner chooses the slices; nothing else in FLIP-27 changes. One law holds all of it: the offset fixes the rows.
A slice gives the same rows in any process, at any time, and two adjacent slices give what the joined one gives.
`check_source` is that law as a function.

Nothing in this file knows Spark, a clock or a thread. Names are Flink's, in Python's spelling; "checkpoint" is what
Spark writes into its offset log for every batch, and checkpoint ids grow by one with each.

Source: FLIP-27, FLIP-182, FLIP-217, FLIP-309; FLINK-20270, FLINK-22133; `org.apache.flink.api.connector.source`.
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

__all__ = [
    "EARLIEST_US",
    "Boundedness",
    "ExternallyInducedSourceReader",
    "Fetched",
    "Fetching",
    "InputStatus",
    "ReaderInfo",
    "ReaderOutput",
    "Source",
    "SourceEvent",
    "SourceReader",
    "SourceReaderContext",
    "SourceSplit",
    "SplitChange",
    "SplitEnd",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitPlanner",
    "SplitReader",
    "SplitRows",
    "SplitsAddition",
    "SplitsAssignment",
    "SplitsRemoval",
    "VersionedSerializer",
]


EARLIEST_US = -(2**53)
"""A time before all rows, in the year 1684: a split that has passed it has passed nothing."""


# -- data ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSplit:
    """A part of a source that is read on its own, from `start` up to and without `stop`. Connectors add fields.

    Positions are whole numbers that grow along the split: Kafka offsets, row numbers, bytes of a segment. They need
    not be dense. Only the connector knows what they mean.

    Attributes:
        split_id: its name, unique in the source, which never changes its meaning. Rows carry it, and watermarks are
            kept by it.
        start: the position to go on from.
        stop: the position before which it ends, None while it has no end.
        parents: ids of the splits it carries on, where a source reshards: their rows come before its own.

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
    """What enumerator and readers say to each other beyond splits. Subclass it; events must be picklable."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """A registered reader.

    Attributes:
        subtask: its number, from 0.
        location: host it runs on, "" if unknown.
    """

    subtask: int
    location: str = ""


@dataclass(frozen=True, slots=True)
class SplitsAssignment(Generic[SplitT]):
    """Which splits go to which readers.

    Attributes:
        assignment: subtask -> its new splits, in order.
    """

    assignment: Mapping[int, Sequence[SplitT]]


@dataclass(frozen=True, slots=True)
class SplitsAddition(Generic[SplitT]):
    """A split reader shall read these splits too."""

    splits: tuple[SplitT, ...]


@dataclass(frozen=True, slots=True)
class SplitsRemoval(Generic[SplitT]):
    """A split reader shall read these splits no more. Splits it does not have are ignored."""

    splits: tuple[SplitT, ...]


SplitChange = SplitsAddition[SplitT] | SplitsRemoval[SplitT]


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of one split, in order.

    Attributes:
        split_id: which split.
        rows: of the source's schema; may be empty.
        position: where to go on after them.
    """

    split_id: str
    rows: pa.RecordBatch
    position: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one `SplitReader.fetch` brought (Flink's `RecordsWithSplitIds`).

    Attributes:
        batches: rows by split, in order within each split.
        finished_splits: splits that were read up to their stop; no rows of them follow.
    """

    batches: tuple[SplitRows, ...] = ()
    finished_splits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SplitEnd:
    """How far a split can be read now.

    Attributes:
        position: the position after the last row that is there; at least the split's start.
        rows: how many rows lie before it, from the split's start. An upper bound will do, or an estimate where the
            system does not count, but 0 only where there are none; None if not known.
        size_bytes: how many bytes those are, roughly; None if not known.
        finished: nothing will ever be added: once read up to here, the split is done.
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
        ...

    def serialize(self, value: StateT) -> bytes:
        """Return the value as bytes; equal values give equal bytes."""
        ...

    def deserialize(self, version: int, data: bytes) -> StateT:
        """Return the value.

        Raises:
            ValueError: data of a later version than `version`, or that is none.
        """
        ...


# -- on the driver ------------------------------------------------------------------------------------------------


class SplitEnumeratorContext(Protocol[SplitT]):
    """What an enumerator may ask of its coordinator. All of it is for the coordinator's thread only."""

    @property
    def metric_group(self) -> MetricGroup:
        """Where the enumerator counts; shown as the source's metrics."""
        ...

    @property
    def num_subtasks(self) -> int:
        """How many readers there are now. Do not keep it: it may change."""
        ...

    @property
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        """The readers that are there, by subtask."""
        ...

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> Future[None]:
        """Send an event; the future is done when it was handed over.

        Raises:
            ValueError: no such reader is registered.
        """
        ...

    def assign_splits(self, assignment: SplitsAssignment[SplitT]) -> None:
        """Give splits to readers. From the next checkpoint on they are the readers', not the enumerator's.

        Raises:
            ValueError: a reader is not registered; nothing was assigned.
        """
        ...

    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that it will get no more splits; with its last split it is finished.

        Raises:
            ValueError: the reader is not registered.
        """
        ...

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
            handler: gets (result, None) or (None, error) on the coordinator's thread. What it raises fails the
                enumerator.
            initial_delay: seconds before the first call; None: none.
            period: seconds from one call to the next, never two at once; None: it is called once.
        """
        ...

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Run something on the coordinator's thread, after what is queued there."""
        ...

    def set_is_processing_backlog(self, *, is_processing_backlog: bool) -> None:
        """Say whether the source reads history (FLIP-309): shown, and sent to every reader."""
        ...


class SplitEnumerator(ABC, Generic[SplitT, StateT]):
    """Finds splits and assigns them: one a source. Every method runs on the coordinator's single thread.

    What a method raises fails the enumerator: it is restored from its last snapshot, and fails the query if that
    does not help.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin, before anything else is called; periodic discovery is set up here with `call_async`."""

    @abstractmethod
    def add_reader(self, subtask: int) -> None:
        """A reader has registered."""

    @abstractmethod
    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        """A reader asks for a split: an enumerator that waits to be asked assigns one here.

        Every reader asks before a batch is planned, until nobody gets one any more: a batch takes all splits there are.
        """

    def add_splits_back(self, splits: Sequence[SplitT], subtask: int) -> None:
        """Take back splits of a reader that failed. Never called: readers are rows of a plan, none fails by itself."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> StateT:
        """Return what `Source.restore_enumerator` needs. Splits that are assigned are not part of it."""

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """A reader sent an event.

        Raises:
            NotImplementedError: the enumerator expects none.
        """
        raise NotImplementedError(
            f"{type(self).__name__} got {event!r} from reader {subtask} and handles no events. "
            "Hint: implement handle_source_event, or send none."
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The batch of this checkpoint was committed; of earlier ones too, whether or not they were notified."""

    def handle_splits_finished(self, subtask: int, split_ids: Sequence[str]) -> None:
        """Splits of a reader were planned up to their end. For sources that go on from there: hybrid ones, shards.

        Flink's connectors send an event of their own for this. It comes before the next `snapshot_state`.
        """

    def close(self) -> None:
        """Let go of connections. Called once, on the coordinator's thread unless that hangs."""


class SplitPlanner(ABC, Generic[SplitT]):
    """Says how far splits can be read now: the part that FLIP-27 does not have and a micro-batch needs.

    It runs on the driver, before every batch, and must not keep what only one process would know: after a restart
    another planner is asked the same questions. It may keep connections. Blocking calls are fine.
    """

    @abstractmethod
    def latest(self, splits: Sequence[SplitT]) -> Mapping[str, SplitEnd]:
        """Say where each split ends now.

        Returns:
            split id -> its end. A split that is missing cannot be read at present and is asked about again. A split
            that has a `stop` ends there at the latest, and is `finished` there.
        """

    def after_rows(self, split: SplitT, rows: int, end: SplitEnd) -> int:
        """Return the position after about `rows` rows, more than `split.start` and at most `end.position`.

        At most `rows` rows lie before it, unless a single step of the split holds more. By default a position is a row.
        """
        return min(split.start + max(1, rows), end.position)

    def rows_before(self, split: SplitT, position: int) -> int:
        """Return how many rows lie from `split.start` to `position`, an upper bound. By default a position is a row."""
        return max(0, position - split.start)

    def find_time(self, splits: Sequence[SplitT], time_us: int) -> Mapping[str, int | None] | None:
        """Find where in each split a time begins, by the time that the source's `event_time` column holds.

        Args:
            splits: which; the search is over the whole split, not from its start on.
            time_us: event time, microseconds since the epoch.

        Returns:
            split id -> the position of its first row at or after `time_us`, which may lie before the split's start;
            None where there is no such row yet. None instead of a mapping: this source cannot search by time, and
            slices follow what was observed.
        """
        del splits, time_us
        return None

    def claim_us(self, split: SplitT, position: int, time_us: int) -> int:
        """Say which time a split has passed when it was read up to where `find_time` found a time, or further.

        By default that time. A source whose positions hold more than one row has to say less: rows before the time lie
        beside the one that was found, and are not read yet.

        Args:
            split: which.
            position: where it goes on.
            time_us: what was searched for; its first row lies at `position` or behind it.

        Returns:
            The event time, at most `time_us`, that no row from `position` on is before, the out-of-orderness apart
            that the strategy allows. `EARLIEST_US` where nothing is known.
        """
        del split, position
        return time_us

    def claims(self, splits: Sequence[SplitT], time_us: int, until_us: int | None = None) -> Mapping[str, int]:
        """Say which times splits have passed: `claim_us` of all of them together, by default one after the other.

        A claim raises the watermark before a row is read, and rows behind a false one are dropped. A source whose
        search also finds what is no row overrides this, looks at what lies there, and leaves out what is not known;
        and `find_time` leaves a split out where such a position would be its answer, else it waits for that time.
        A claim need not be the same when a batch is planned again; each has to be true.

        Args:
            splits: each from where it goes on, which is where `find_time` found `time_us` or a later time, or behind.
            time_us: what was searched for, microseconds since the epoch.
            until_us: rows from after this event time are not believed, and prove nothing; None: all are.

        Returns:
            split id -> what `claim_us` returns; missing: not known.
        """
        del until_us
        return {split.split_id: self.claim_us(split, split.start, time_us) for split in splits}

    def passed_us(self, split: SplitT) -> int | None:
        """Say which event time no row from a split's start on is before, because the system itself promises it.

        Unlike a claim it needs no row behind it, so it holds at the end of a split, too: where writers note the time.
        None, as by default: the system promises nothing.
        """
        del split
        return None

    def cut(self, stops: Sequence[tuple[SplitT, int]]) -> Sequence[tuple[SplitT, SplitT]]:
        """Cut splits where a batch ends: the last thing that is asked before the offset is written.

        By default only `stop` and `start` change. A source whose system knows places by more than a whole number (a
        sequence number of 128 bits, a StreamCut) adds here what fixes the rows: both parts are in the offset before a
        row is read.

        Args:
            stops: (split from where it goes on, the position at which the batch stops reading it, which may be its
                start), each split once.

        Returns:
            In the same order: (the slice up to there, the split from there on). Their `start` and `stop` are as asked.
        """
        return [(replace(split, stop=stop), replace(split, start=stop)) for split, stop in stops]

    def notify_checkpoint_complete(self, splits: Sequence[SplitT]) -> None:
        """A batch was committed: rows before these splits are not read again. For systems that keep unread rows.

        Args:
            splits: the splits that are not finished; `start` is where the next batch begins. A batch may be told twice,
                or not at all.
        """

    def metric_values(self) -> Mapping[str, float]:
        """Return what it counts, by name: shown as the source's metrics, beside those of the enumerator."""
        return {}

    def trouble(self) -> str | None:
        """Say in words which splits `latest` left out the last time, since when and why; None: none.

        It stands in the status of the stream while it lasts, so that waiting is seen. Without secrets.
        """
        return None

    def close(self) -> None:
        """Let go of connections."""


# -- on an executor -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetching:
    """How the slices of a task are fetched (FLIP-27's threading models). Rows are the same in all of them.

    Attributes:
        threads: how many read ahead, each with a split reader of its own; 0: none, the task's own thread reads. What
            comes out is in the order of the slices either way.
        splits_at_once: how many slices a split reader has at once; None: all of them.
        ahead_bytes: how much is read ahead in a task at most, and one fetch.

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
        """One slice after the other: for a system that is best asked for one thing at a time."""
        return cls(splits_at_once=1)

    @classmethod
    def multiplexed(cls) -> Fetching:
        """All slices by one split reader, which knows best what to ask for next: Kafka's consumer."""
        return cls()

    @classmethod
    def side_by_side(cls, threads: int) -> Fetching:
        """Each slice by itself, some at a time: for a system in which an answer takes long and splits do not share
        their limits, such as shards that may be asked five times a second.
        """
        return cls(threads=threads, splits_at_once=1)


class SplitReader(ABC, Generic[SplitT]):
    """Reads rows of the splits it has; one thread calls it, `wake_up` apart."""

    @abstractmethod
    def fetch(self) -> Fetched:
        """Return the next rows; may block until there are some, and returns early when woken up.

        Every split with a stop appears in `finished_splits` exactly once, also when its last positions hold no row.
        """

    @abstractmethod
    def handle_splits_changes(self, change: SplitChange[SplitT]) -> None:
        """Take or drop splits; called before the `fetch` that shall follow it."""

    @abstractmethod
    def wake_up(self) -> None:
        """Make a blocking `fetch` return soon, with what it has. Called from another thread."""

    def metric_values(self) -> Mapping[str, float]:
        """Return what it counts, by name. It is asked once, after its last fetch.

        The counts of all readers are added to what the planner shows under the same name.
        """
        return {}

    def close(self) -> None:
        """Let go of connections."""


class InputStatus(Enum):
    """What `SourceReader.poll_next` knows of what follows."""

    MORE_AVAILABLE = "more available"
    NOTHING_AVAILABLE = "nothing available"
    END_OF_INPUT = "end of input"


class ReaderOutput(Protocol):
    """Where a reader puts rows."""

    def collect(self, split_id: str, rows: pa.RecordBatch) -> None:
        """Take rows of one split."""
        ...

    def release(self, split_id: str) -> None:
        """A split is finished: it holds no watermark back any more."""
        ...


class SourceReaderContext(Protocol):
    """What a reader may ask of the task it runs in."""

    @property
    def subtask(self) -> int:
        """The reader's number, from 0."""
        ...

    @property
    def metric_group(self) -> MetricGroup:
        """Where the reader counts."""
        ...

    def send_split_request(self) -> None:
        """Ask the enumerator for a split."""
        ...

    def send_source_event_to_coordinator(self, event: SourceEvent) -> None:
        """Send the enumerator an event; it arrives after the batch that the reader is in."""
        ...


class SourceReader(ABC, Generic[SplitT]):
    """Reads the splits of one reader slot, where a `SplitReader` is not enough; see `Source.create_reader`."""

    @abstractmethod
    def start(self) -> None:
        """Begin; splits of a checkpoint were added before (FLINK-30514)."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Put the next rows into the output without blocking, and say what follows."""

    @abstractmethod
    def is_available(self) -> Future[None]:
        """Return a future that is done when `poll_next` is worth calling."""

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Read these too."""

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """No more splits will come: with the last split the input ends."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[SplitT]:
        """Return the splits that are not finished, each with `start` after the rows that were put out."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint was committed."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """The enumerator sent an event.

        Raises:
            NotImplementedError: the reader expects none.
        """
        raise NotImplementedError(f"{type(self).__name__} got {event!r} and handles no events.")

    @abstractmethod
    def close(self) -> None:
        """Let go of threads and connections."""


class ExternallyInducedSourceReader(SourceReader[SplitT]):
    """A reader whose system decides when a checkpoint is (FLINK-20270): a Pravega reader group, say.

    Spark fixes a batch before it is read, so such a reader is asked on the driver: when it answers with a checkpoint
    id, the batch ends where `snapshot_state` of that id says, whatever its size, and alignment has no say in it. A
    split of the snapshot is finished when its `start` is its `stop`; the reader may set that `stop` first there. It
    hears of that id again when the batch is committed, unless the process was restarted in between; everybody
    else goes by the number of the batch.
    """

    @abstractmethod
    def should_trigger_checkpoint(self) -> int | None:
        """Return the id of a checkpoint that is due now, larger than any before; None if none is."""

    def trouble(self) -> str | None:
        """Say in words what its system's checkpoint waits for; None: nothing. As `SplitPlanner.trouble`."""
        return None


# -- the source ---------------------------------------------------------------------------------------------------


class Source(ABC, Generic[SplitT, StateT]):
    """What can be read. A factory of the roles: it holds options, no connection, and must be picklable.

    Attributes:
        fetching: in which threads a task reads its slices, and how many of them at once.
        externally_induced: whether `create_reader` makes an `ExternallyInducedSourceReader`, which decides where
            batches end.
    """

    fetching: Fetching = Fetching.multiplexed()
    externally_induced: bool = False

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of its rows. Times are `timestamp("us", tz="UTC")`."""

    @property
    def event_time(self) -> str | None:
        """The column with the time that the system keeps for each row, None if it keeps none."""
        return None

    @property
    def boundedness(self) -> Boundedness:
        """Whether it ends by itself."""
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
        """The format of the events that readers send to the enumerator; None: they send none."""
        return None

    @abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext[SplitT]) -> SplitEnumerator[SplitT, StateT]:
        """Make the enumerator of a source that is read for the first time."""

    @abstractmethod
    def restore_enumerator(
        self, context: SplitEnumeratorContext[SplitT], state: StateT
    ) -> SplitEnumerator[SplitT, StateT]:
        """Make the enumerator that goes on from a snapshot."""

    @abstractmethod
    def create_planner(self) -> SplitPlanner[SplitT]:
        """Make the planner."""

    @abstractmethod
    def create_split_reader(self) -> SplitReader[SplitT]:
        """Make a split reader, on an executor."""

    def create_reader(self, context: SourceReaderContext) -> SourceReader[SplitT] | None:
        """Make a reader of one slot, where the source has its own: one that takes or sends events, or that decides when
        a checkpoint is. None, as by default: the slot's slices are read by `create_split_reader` and `fetching`.
        """
        del context
        return None
