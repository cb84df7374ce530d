"""One coordinator for several applications: what `lowmark serve` runs, and its clients."""
