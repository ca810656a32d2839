"""The simplest thing that could do Forebay's cold job: one thread, one connection, receive, write to a file, send. A floor to compare with.

python -m benchmarks.relay ORIGIN_PORT DIRECTORY     prints its port, serves one request at a time until it is ended
"""

from __future__ import annotations

import os
import socket
import sys

UNIT_BYTES = 2**20


def main() -> None:
    origin_port, directory = int(sys.argv[1]), sys.argv[2]
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        with client:
            relay(client, origin_port, os.path.join(directory, "relayed"))


def relay(client: socket.socket, origin_port: int, path: str) -> None:
    """One request through; the file is written as the bytes pass and removed afterwards."""
    target = client.recv(65536).split(b" ", 2)[1]
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        with socket.create_connection(("127.0.0.1", origin_port)) as origin:
            origin.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            head, rest = receive_head(origin)
            client.sendall(head + rest)
            copy(origin, client, fd, rest)
    finally:
        os.close(fd)
        os.unlink(path)


def receive_head(origin: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        received += origin.recv(65536)
    head, _, rest = received.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def copy(origin: socket.socket, client: socket.socket, fd: int, rest: bytes) -> None:
    os.pwrite(fd, rest, 0)
    position = len(rest)
    buffer = memoryview(bytearray(UNIT_BYTES))
    while count := origin.recv_into(buffer):
        os.pwrite(fd, buffer[:count], position)
        client.sendall(buffer[:count])
        position += count


if __name__ == "__main__":
    main()
