"""Plans batches on the driver: their ends, their rate, and their offsets."""
