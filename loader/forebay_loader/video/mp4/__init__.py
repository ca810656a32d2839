"""The index of an MP4: where each frame's bytes lie and when it is shown, from the boxes alone."""
