"""Reports of stalls: to the sidecar, in the log, in a progress bar, and when no batch comes."""
