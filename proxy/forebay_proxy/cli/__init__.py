"""The command ``forebay``."""
