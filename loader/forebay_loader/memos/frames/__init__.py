"""``fb.frames``: all frames of a clip on the disk, once it was used, so that every epoch draws from them. Needs ``video`` and ``memo``."""
