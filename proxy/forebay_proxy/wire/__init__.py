"""What both sides of the wire agree on. Importing this loads nothing; it runs in training processes too."""
