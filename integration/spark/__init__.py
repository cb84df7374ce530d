"""What is known of Spark: plans, queries, progress, checkpoints, sessions."""
