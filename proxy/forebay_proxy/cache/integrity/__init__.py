"""Whether stored bytes are still what the origin named."""
