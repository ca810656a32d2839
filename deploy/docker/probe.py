"""Exit code 0 when the sidecar of this container answers a path with 200: /healthz, it lives; /readyz, it takes readers.

    python probe.py /readyz

For HEALTHCHECK and for probes of kind ``exec``. A kubelet's ``httpGet`` comes from another address: a sidecar on loopback does not hear it,
and any other one wants the token from it. ``http.client`` goes through no HTTP_PROXY; ``forebay status`` would say more and start slower.
"""

from __future__ import annotations

import http.client
import os
import sys


def main(path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("FOREBAY_PORT") or 7070), timeout=4)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        told = answer.read(200).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer to {path}: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    print(f"{path}: {answer.status} {told}")
    return 0 if answer.status == http.HTTPStatus.OK else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or ["/healthz"]))
