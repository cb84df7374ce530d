"""Sources for Spark: the only room of sources that imports pyspark."""

from .naming import named_reader
from .source import Binding, Recorder, Recording, SourceStreamReader, bound_source, load, prefer_own_python, register

__all__ = [
    "Binding",
    "Recorder",
    "Recording",
    "SourceStreamReader",
    "bound_source",
    "load",
    "named_reader",
    "prefer_own_python",
    "register",
]
