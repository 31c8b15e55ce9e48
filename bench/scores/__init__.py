"""Out-of-distribution scores, one a file; higher means more in-distribution."""
