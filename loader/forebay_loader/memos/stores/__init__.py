"""Where entries lie: four formats behind one protocol."""
