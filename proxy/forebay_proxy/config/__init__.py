"""Settings: the only reader of flags, environment and files."""
