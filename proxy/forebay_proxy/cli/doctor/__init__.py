"""``forebay doctor``: what stands in the way of a run, on this machine, in its sidecar, at an origin, and in the set."""
