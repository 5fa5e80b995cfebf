"""Makes helper processes without a Python start for each: `python zygote.py FD` forks one for every connection that it is handed.

The child has the connection as stdin and stdout and its log as stderr, as systemd gives them, and ends without ever coming back here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import NoReturn

from guestward.helper.main import main


def serve(control: socket.socket) -> None:
    """Fork one helper for each message: its arguments as JSON, with two descriptors. Answers with its process number."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, (connection, log), *_ = socket.recv_fds(control, 65536, 2) if control.recv(1, socket.MSG_PEEK) else (b"", (-1, -1))
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _helper(json.loads(data), connection, log)
        os.close(connection)
        os.close(log)
        control.send(str(pid).encode())


def _helper(arguments: list[str], connection: int, log: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in ((0, connection), (1, connection), (2, log)):
        os.dup2(descriptor, number)
    os.close(connection)
    os.close(log)
    code = 70
    try:
        code = main(arguments)
    finally:
        if "coverage" in sys.modules and (coverage := sys.modules["coverage"].Coverage.current()) is not None:
            coverage.stop()
            coverage.save()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
