"""``forebay doctor``: whether a set suits a run, by the rules that people learn too late."""
