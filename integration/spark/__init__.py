"""Knowledge of Spark: plans, queries, progress, checkpoints, sessions."""
