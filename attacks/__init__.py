"""One attack a file, and the engine they share."""
