"""The shared tier: an S3 store near the cluster, which all its sidecars read before they ask far origins."""
