"""The core, decision by decision."""
