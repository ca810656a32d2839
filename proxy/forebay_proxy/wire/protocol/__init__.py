"""What sidecar and loader say to each other: plans, descriptors, names, the run file."""
