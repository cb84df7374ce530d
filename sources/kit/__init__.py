"""Parts that most connectors need."""
