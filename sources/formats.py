"""Options of the formats `lowmark_kafka`, `lowmark_kinesis`, `lowmark_files` and `lowmark_generator`."""

from lowmark.sources.spark.options import FORMATS, FormatOptions, InvalidOption

__all__ = ["FORMATS", "FormatOptions", "InvalidOption"]
