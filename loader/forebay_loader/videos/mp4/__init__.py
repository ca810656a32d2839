"""The index of an MP4: where each frame's bytes lie and when it is shown, from the boxes alone (ISO/IEC 14496-12, QuickTime).

The words are the standard's. A *box* is a size, a kind of four characters and a payload; boxes lie in boxes. A *track* is a sequence of
*samples*: here that is the bytes of one coded picture or of one packet of sound, not what a data set calls a sample. A *chunk* is a run of
samples that lie one after the other; an *edit list* says which part of a track is shown.

Only plain MP4s are read: all samples in moov, each shown once, the sound compressed. Others are left to PyAV's demuxer, which needs all of
the clip.

``index.read_index`` is the door. ``boxes`` finds the boxes of the top level with few reads, and takes them apart; ``trak`` reads one track
and its edit list by ``sample_table`` and ``sample_entry``; ``track`` is what becomes of it. Who reads a clip needs ``index`` and ``track``
only.
"""
