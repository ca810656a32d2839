"""The words that every room uses: shard, segments, errors, events."""
