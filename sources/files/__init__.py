"""Files as a source: one split a file, in event-time order where their times are known."""

from .source import FileChanged, FileSource, FileSplit, FileUnreadable, NoSchema

__all__ = ["FileChanged", "FileSource", "FileSplit", "FileUnreadable", "NoSchema"]
