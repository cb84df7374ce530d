"""One job: makes the low watermark of each source, and the cap of each group, from the low watermarks of tasks."""
