"""Which things to measure, one suite a file."""
