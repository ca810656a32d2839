"""Where clips come from: a member of a shard or a file, a network stream, frames that were decoded before, a camera."""
