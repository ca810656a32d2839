"""This machine: run file, the cache's place, mounts, fingerprints of credentials."""
