"""What a scan finds out of clips, once for all epochs: one file, written by ``forebay index --video``, mapped read-only by every worker."""
