"""Where the sidecar may dial, through which proxy, trusting whom."""
