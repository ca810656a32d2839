"""Where entries lie: three formats behind one protocol."""
