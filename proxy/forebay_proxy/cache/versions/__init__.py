"""Which version of a shard a name means, and whether it is still that one."""
