"""A process that stands between like a pooler: what it names to clients is a process of its own.

It is no thread, because a client that connects keeps all others of its process waiting.
"""

import socket
import sys
import threading

# The server's answer to a new connection that names the process to cancel it by.
_KEY = b"K\x00\x00\x00\x0c"


def copy(source: socket.socket, target: socket.socket) -> None:
    while received := source.recv(65_536):
        head, key, tail = received.partition(_KEY)
        target.sendall(head + key + (b"\x00\x00\x00\x07" + tail[4:] if key else tail))
    target.shutdown(socket.SHUT_WR)


def serve(client: socket.socket, port: int) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        back = threading.Thread(target=copy, args=(server, client), daemon=True)
        back.start()
        copy(client, server)
        back.join()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            serve(listening.accept()[0], int(sys.argv[1]))
