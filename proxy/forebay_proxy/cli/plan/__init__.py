"""``forebay plan``: what a cache would do for a run."""
