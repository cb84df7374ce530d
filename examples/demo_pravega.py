"""`lowmark demo` on Pravega: its rows in a stream with one segment per split, read by `format("lowmark_pravega")`.

    python examples/demo_pravega.py --controller tcp://pravega:9090 --jars /opt/pravega

It makes a stream of eight segments, and deletes it. It needs the extra `pravega` and the jars of Pravega's client.
Further options and exit codes are those of the demo. While both queries run batch n, the rows of batch n + 1 are
written. Each split has a routing key that Pravega puts into a segment of its own.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from lowmark.integration.cli.common import Debug, Json
from lowmark.integration.cli.demo import Keep, MetricsPort, Seed, compare
from lowmark.integration.cli.main import app
from lowmark.integration.demo.feed import SteppedFeed
from lowmark.integration.errors import DemoImpossible
from lowmark.sources.generator import StreamScript
from lowmark.sources.spark import register
from lowmark.watermark import LowmarkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCOPE = "lowmark-demo"


class PravegaFeed(SteppedFeed):
    """Creates a stream, fills it batch by batch, and reads it. Use as a context manager around the queries.

    Args:
        script, seed: the rows.
        controller: "tcp://host:port".
        jars: where Pravega's client is; "": where the environment says.

    Raises:
        DemoImpossible: Java or the client are missing, Pravega does not answer, or it refuses the stream.
    """

    split = "split_id"

    def __init__(self, script: StreamScript, seed: int, *, controller: str, jars: str = "") -> None:
        super().__init__(script, seed)
        self._controller, self._jars = controller, jars
        self._stream = f"demo-{uuid.uuid4().hex[:8]}"
        self._keys: list[str] = []
        self._names: dict[str, str] = {}
        self._admin: Any = None
        self._writer: Any = None

    def create(self) -> None:
        from lowmark.sources.pravega.client import client_of
        from lowmark.sources.pravega.settings import PravegaSettings

        try:
            client = client_of(PravegaSettings(self._controller, _SCOPE, (self._jars,) if self._jars else ()))
            self._create(client)
        except LowmarkError as failed:
            raise DemoImpossible(str(failed).partition(" Hint: ")[0], getattr(failed, "hint", "see above.")) from failed

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.close()
        self._admin.sealStream(_SCOPE, self._stream)
        self._admin.deleteStream(_SCOPE, self._stream)

    def read(self, spark: SparkSession) -> DataFrame:
        register(spark)
        options = {"controller": self._controller, "scope": _SCOPE, "streams": self._stream, "columns": "event"}
        if self._jars:
            options["jars"] = self._jars
        reader = spark.readStream.format("lowmark_pravega").options(**options).option("splitColumn", self.split)
        return self.rows(reader.load(), "event")

    def splits(self) -> Sequence[object] | None:
        return list(self._names)

    def name(self, value: object) -> str:
        return self._names[str(value)]

    def _create(self, client: Any) -> None:
        from lowmark.sources.pravega.jvm import java_class
        from lowmark.sources.pravega.segment import split_of

        client.exists(self._stream)  # an error says at once that Pravega does not answer
        config = client.java_config
        self._admin = java_class("io.pravega.client.admin.StreamManager").create(config)
        self._admin.createScope(_SCOPE)
        policy = java_class("io.pravega.client.stream.ScalingPolicy").fixed(len(self.script.splits))
        described = java_class("io.pravega.client.stream.StreamConfiguration").builder().scalingPolicy(policy).build()
        self._admin.createStream(_SCOPE, self._stream, described)
        factory = java_class("io.pravega.client.EventStreamClientFactory").withScope(_SCOPE, config)
        serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")()
        options = java_class("io.pravega.client.stream.EventWriterConfig").builder().build()
        self._writer = factory.createEventWriter(self._stream, serializer, options)
        keys: dict[int, str] = {}
        numbers = count()
        hashed = java_class("io.pravega.common.hash.HashHelper").seededWith("EventRouter")  # as of Pravega's writers
        while len(keys) < len(self.script.splits):  # each segment has an equal part of the hashes from 0 to 1
            key = f"key{next(numbers)}"
            keys.setdefault(int(hashed.hashToRange(key) * len(self.script.splits)), key)
        for split, (segment, key) in zip(self.script.splits, sorted(keys.items()), strict=True):
            self._keys.append(key)
            self._names[split_of(self._stream, segment).split_id] = split.name

    def write(self, batch: Sequence[Sequence[str]]) -> None:
        import jpype

        byte_array = jpype.JArray(jpype.JByte)
        for key, rows in zip(self._keys, batch, strict=True):
            for row in rows:
                self._writer.writeEvent(key, byte_array(row.encode()))
        self._writer.flush()


@app.command("demo-pravega")
def main(
    *,
    controller: Annotated[str, typer.Option(help="A Pravega controller, tcp://HOST:PORT.", show_default=False)],
    jars: Annotated[
        str, typer.Option(help="The folder with the jars of Pravega's client; else where the environment says.")
    ] = "",
    seed: Seed = 42,
    metrics_port: MetricsPort = None,
    keep: Keep = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the demo's rows in a Pravega stream through native Spark and through lowmark, and compare."""
    feed_of = partial(PravegaFeed, controller=controller, jars=jars)
    compare(feed_of, {}, seed=seed, metrics_port=metrics_port, keep=keep, as_json=as_json, debug=debug)


if __name__ == "__main__":
    app(["demo-pravega", *sys.argv[1:]])
