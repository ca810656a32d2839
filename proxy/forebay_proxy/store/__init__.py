"""The owned directory on disk: its lock, its recovery, its garbage, its health."""
