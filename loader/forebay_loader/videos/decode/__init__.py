"""From a clip's bytes to arrays: which parts are read, how they are decoded, what is made of the pictures and the sound."""
