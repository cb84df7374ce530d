"""One task: makes its low watermark from the events of its splits."""
