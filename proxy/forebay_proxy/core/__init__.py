"""The words that every room uses: shard, segments, the Range of a request, errors, events."""
