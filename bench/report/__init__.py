"""From the store to a table."""
