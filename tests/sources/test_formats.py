"""Options of `format("lowmark_...")`, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lowmark.sources.files import FileSource, InvalidFileOption
from lowmark.sources.formats import FormatOptions, InvalidOption
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.kafka import KafkaSource
from lowmark.sources.kafka.errors import InvalidKafkaOption

SCRIPT = StreamScript((SplitScript("a", 2),), 0, 3, 1_000_000, 1)
SCRIPT_TEXT = json.dumps(SCRIPT.to_plain())
KAFKA = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders"}


def script(**change: object) -> str:
    """Return the script with some fields changed."""
    return json.dumps({**SCRIPT.to_plain(), **change})


def test_options_of_batches_are_read_whatever_their_case() -> None:
    given = {**KAFKA, "MAXROWSPERBATCH": "10", "maxSlice": "10 minutes", "byTime": "False", "tasks": "3",
             "splitColumn": "split", "name": "orders", "maxBytesPerBatch": "1000"}  # fmt: skip
    read = FormatOptions.read("lowmark_kafka", given)

    assert isinstance(read.source, KafkaSource)
    assert (read.name, read.split_column) == ("orders", "split")
    batches = read.batches
    assert (batches.max_rows, batches.max_bytes, batches.max_slice_us, batches.by_time, batches.slots) == (
        10, 1_000, 600_000_000, False, 3,
    )  # fmt: skip


def test_what_spark_calls_the_limit_of_kafka_is_the_limit() -> None:
    assert FormatOptions.read("lowmark_kafka", {**KAFKA, "maxOffsetsPerTrigger": "7"}).batches.max_rows == 7


def test_files_and_generator_are_made_of_their_options(tmp_path: Path) -> None:
    files = FormatOptions.read(
        "lowmark_files", {"path": str(tmp_path), "fileFormat": "csv", "eventTime": "ts", "recursive": "true"}
    )
    assert isinstance(files.source, FileSource)
    assert files.source.event_time == "ts"
    given = {"script": SCRIPT_TEXT, "seed": "7", "ticksPerBatch": "2", "tasks": "3"}
    generator = FormatOptions.read("lowmark_generator", given)
    assert isinstance(generator.source, GeneratorSource)
    assert (generator.source.script, generator.source.seed, generator.source.ticks_per_batch) == (SCRIPT, 7, 2)
    assert generator.batches.slots == 3


@pytest.mark.parametrize(
    ("format_name", "options", "said"),
    [
        ("lowmark_kafka", {**KAFKA, "maxRowsPerBatch": "0"}, "maxRowsPerBatch is '0', expected a whole number"),
        ("lowmark_kafka", {**KAFKA, "byTime": "maybe"}, "byTime is 'maybe', expected true or false"),
        ("lowmark_files", {"fileFormat": "csv"}, "option path is missing"),
        ("lowmark_files", {"path": "x", "fileFromat": "csv"}, "option filefromat is 'csv', expected one of path"),
        ("lowmark_generator", {}, "option script is missing"),
        ("lowmark_generator", {"script": SCRIPT_TEXT, "ticksPerBatch": "0"}, "ticksPerBatch is '0', expected a whole"),
        ("lowmark_generator", {"script": SCRIPT_TEXT, "bounded": "yes"}, "bounded is 'yes', expected true or false"),
        ("lowmark_kafka", {**KAFKA, "maxRowsPerBatch": "2²"}, "maxRowsPerBatch is '2²', expected a whole number"),
        ("lowmark_kafka", {**KAFKA, "tasks": "9" * 5_000}, r"tasks is '9+\.\.\., expected a whole number in 64 bits"),
        ("lowmark_generator", {"script": SCRIPT_TEXT, "seed": "1.5"}, "seed is '1.5', expected a whole number"),
        ("lowmark_generator", {"script": "{"}, r"script is '{', expected a script as JSON \(Expecting"),
        ("lowmark_generator", {"script": "[]"}, r"script is '\[\]', expected a script as JSON \(it: expected the f"),
        ("lowmark_generator", {"script": "[" * 100_000}, r"script is '\[+\.\.\., expected a script"),
        ("lowmark_generator", {"script": script(ticks="3")}, r"Expected `int`, got `str` - at `\$\.ticks`"),
        ("lowmark_generator", {"script": script(ticks=0)}, r"\(ticks: expected 1 or more, got 0\)"),
        ("lowmark_generator", {"script": script(start_us=10**30)}, "start_us and shuffle_us: expected numbers"),
        ("lowmark_generator", {"script": script(tick=1)}, r"the script: expected fields among .*, got 'tick'"),
        ("lowmark_files", {"path": "x", "fileFormat": "avro"}, "option format: expected one of .*, got 'avro'"),
        ("lowmark_files", {"path": "x", "onVanished": "cry"}, 'option on_vanished: expected "error" or "skip"'),
    ],
)
def test_a_wrong_option_is_named(format_name: str, options: dict[str, str], said: str) -> None:
    with pytest.raises((InvalidOption, InvalidFileOption), match=said):
        FormatOptions.read(format_name, options)


def test_a_misspelt_option_of_kafka_is_not_without_effect_in_silence() -> None:
    with pytest.raises(InvalidKafkaOption, match=r"did you mean .subscribePattern"):
        FormatOptions.read("lowmark_kafka", {**KAFKA, "subscribePatern": "o.*"})
