"""Options of the formats `lowmark_kafka`, `lowmark_files`, `lowmark_generator` and so on: see `FormatOptions`."""

from lowmark.sources.spark.options import FORMATS, FormatOptions, InvalidOption

__all__ = ["FORMATS", "FormatOptions", "InvalidOption"]
