"""The part of each shard version that is here: its entry, space and files on the disk; ``reclaim`` removes the segments that leave."""
