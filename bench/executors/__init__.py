"""Where shards run: here, in spawned processes, on a cluster."""
