"""Files as a source: one split a file, in event-time order where their times are known."""

from .errors import FileChanged, FileUnreadable, InvalidFileOption, NoSchema
from .source import FileSource, FileSplit

__all__ = ["FileChanged", "FileSource", "FileSplit", "FileUnreadable", "InvalidFileOption", "NoSchema"]
