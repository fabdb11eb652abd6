"""Stands before an S3 server and does to some of its requests what a bad day does; ends at the end of its stdin.

    python s3_fault.py ENDPOINT FAULT

FAULT: list-500, list-503: listings fail so. list-hang: they are never answered. list-cut: they break off in the middle
of the body. list-no-token: they say that there is more, and not where. list-short: they end after their first keys as
if that was all. delete-403: what deletes is denied. Prints "listening PORT"; all else is passed on as it is.
"""

import http.client
import re
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

upstream = urllib.parse.urlsplit(sys.argv[1]).netloc
fault = sys.argv[2]
ended = threading.Event()


def error(code):
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body, headers=(), length=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
        # Ours are of tables' folders; the plans are kept elsewhere.
        lists = self.command == "GET" and "list-type" in query
        deletes = self.command == "DELETE" or self.command == "POST" and "delete" in query
        if deletes and fault == "delete-403":
            return self.say(403, error("AccessDenied"))
        if fault == "snap-404" and self.command == "GET" and "/snap-" in self.path and not lists:
            return self.say(404, error("NoSuchKey"))
        if lists and fault in ("list-500", "list-503"):
            return self.say(int(fault[5:]), error("InternalError" if fault == "list-500" else "SlowDown"))
        if lists and fault == "list-hang":
            ended.wait()
            self.close_connection = True
            return None
        connection = http.client.HTTPConnection(upstream)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        said = answer.read()
        hop = ("content-length", "transfer-encoding", "connection")
        passed = [(name, value) for name, value in answer.getheaders() if name.lower() not in hop]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        if lists and answer.status == 200:
            if fault == "list-cut":
                self.say(200, said[: len(said) // 2], passed, len(said))
                self.close_connection = True
                return None
            if fault == "list-no-token":
                said = re.sub(rb"<IsTruncated>.*?</IsTruncated>", b"<IsTruncated>true</IsTruncated>", said)
                said = re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", said)
            if fault == "list-short":
                entries = re.findall(rb"<Contents>.*?</Contents>", said, re.DOTALL)
                for entry in entries[len(entries) // 2 :]:
                    said = said.replace(entry, b"")
        return self.say(answer.status, said, passed, length)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print("listening", server.server_address[1], flush=True)
sys.stdin.read()
ended.set()
