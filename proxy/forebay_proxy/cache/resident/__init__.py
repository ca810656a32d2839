"""The cached part of each shard version: its entry, space and files on the disk; ``reclaim`` removes the segments that leave."""
