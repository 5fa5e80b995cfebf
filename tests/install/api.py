"""PVE's API over real HTTPS, as far as the rights of a token go: answered from the state that the stand-in pveum keeps."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from .host import Host


class Api:
    """Serves a host with a certificate, as a context manager. asked: method and path of every request."""

    def __init__(self, host: Host, certificate: Path) -> None:
        self.asked: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                api.asked.append(f"{self.command} {self.path.removeprefix('/api2/json')}")
                id, _, secret = self.headers["Authorization"].removeprefix("PVEAPIToken=").partition("=")
                access, path = host.access, parse_qs(url.query).get("path")
                if access.secrets.get(id) != secret or id not in access.tokens:
                    self.send_response(401, "invalid token value!")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                assert url.path == "/api2/json/access/permissions"
                body = json.dumps({"data": {path[0]: access.effective(id, path[0])} if path else access.listed(id)}).encode()
                self.send_response(200, "OK")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = int(self.server.server_address[1])

    def __enter__(self) -> Api:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.server.shutdown()
        self.server.server_close()
