"""How to measure one thing."""
