"""Parts that most connectors need: discovery, and a source of a few methods."""
