"""What goes between Spark's processes and the driver: both ends of each wire."""
