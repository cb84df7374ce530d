"""Planning batches, on the driver: how far each, at which rate, and what is written down of it."""
