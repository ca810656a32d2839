"""Runs at the start of every Python of a ``forebay run``: installs the import hook, then runs the ``sitecustomize`` that this one hides.

This folder is first on ``PYTHONPATH``. It holds only this file and the hook, so it hides no other module. The next ``sitecustomize`` on the
path (of a distribution or another tool) then becomes the module of that name. If it raises, ``site`` reports that, as without us.

The command may start other Pythons, as old as 2.7, which inherit the variable. So this file uses only syntax that all of them understand.
"""

import sys

if sys.version_info >= (3, 9):
    import forebay_takeover_hook  # type: ignore[import-not-found]  # it is in this folder, which is on the path

    forebay_takeover_hook.install()
    _NEXT = forebay_takeover_hook.next_sitecustomize(sys.path)
    if _NEXT is not None:
        forebay_takeover_hook.run_instead(_NEXT)
else:
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401  # the next one; if there is none, `site` ignores the error
