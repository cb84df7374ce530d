"""Reading splits, on executors."""
