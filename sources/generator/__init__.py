"""A source over a scripted stream, for demos, tests and benchmarks."""

from .script import SCHEMA, InvalidScript, SplitScript, StreamScript
from .source import GeneratorSource

__all__ = ["SCHEMA", "GeneratorSource", "InvalidScript", "SplitScript", "StreamScript"]
