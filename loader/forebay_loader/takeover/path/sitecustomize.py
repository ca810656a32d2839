"""Runs at the start of every Python of a ``forebay run``: hooks ``import webdataset``, then runs the sitecustomize it stands before.

This folder is first on ``PYTHONPATH`` and holds nothing but this and the hook, so it hides no other module. The next ``sitecustomize`` on
the path (a distribution's, another tool's) becomes the module of that name; whatever it raises is reported by ``site``, as without us.

A program of the command's may have another Python, as old as 2.7, which inherits the variable. So this file speaks what all know.
"""

import sys

if sys.version_info >= (3, 9):
    import forebay_takeover_hook  # type: ignore[import-not-found]  # it lies beside this file, which is on the path whenever this runs

    forebay_takeover_hook.install()
    _NEXT = forebay_takeover_hook.next_sitecustomize(sys.path)
    if _NEXT is not None:
        forebay_takeover_hook.run_instead(_NEXT)
else:
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401  # the next one; where there is none `site` passes over it, as without us
