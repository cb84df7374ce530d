"""One job: from the low watermarks of its tasks to that of each source, and to each group's cap."""
