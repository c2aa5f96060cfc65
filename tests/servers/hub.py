"""A stand-in for the Hugging Face Hub with one dataset, `owner/name`: it serves the files and accepts new ones."""

import base64
import hashlib
import http.server
import json
from typing import Any

from servers.stand_in import StandIn

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATASET = "owner/name"
TOKEN = "hf_right"

Reply = tuple[int, bytes, dict[str, str]]


class Hub(StandIn):
    """A server on a free port, until `close`.

    Attributes:
        files: Path -> content of the dataset's files. A commit changes them.
        url: Address for `HF_ENDPOINT`.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.private: bool | None = None
        super().__init__(_Handler)

    def get(self, path: str) -> Reply:
        """Return the reply to a GET request."""
        if path.startswith(f"/api/datasets/{DATASET}/revision/"):
            if path.rpartition("/")[2] not in ("main", COMMIT):
                return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
            siblings = [{"rfilename": name} for name in self.files]
            return _json({"id": DATASET, "sha": COMMIT, "siblings": siblings})
        if path in (f"/api/datasets/{DATASET}/tree/{COMMIT}", f"/api/datasets/{DATASET}/tree/main"):
            entries = self.files.items()
            return _json([{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in entries])
        name = path.removeprefix(f"/datasets/{DATASET}/resolve/{COMMIT}/")
        if name in self.files:
            tag = hashlib.sha1(self.files[name]).hexdigest()
            return 200, self.files[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'}
        return 404, b"{}", {"X-Error-Code": "RepoNotFound"}

    def post(self, path: str, body: bytes) -> Reply:
        """Return the reply to a POST request, in the protocol of `huggingface_hub`."""
        if path == "/api/repos/create":
            asked = json.loads(body)
            self.private = asked.get("visibility") == "private" or asked.get("private", False)  # newer, older clients
            return _json({"url": f"{self.url}/datasets/{DATASET}"})
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if path == f"/api/datasets/{DATASET}/preupload/main":
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return _json({"files": files})
        if path == f"/api/datasets/{DATASET}/commit/main":
            for line in map(json.loads, body.splitlines()):
                self._change(line["key"], line["value"])
            return _json({"commitUrl": f"{self.url}/datasets/{DATASET}/commit/{COMMIT}", "commitOid": COMMIT})
        return 404, b"{}", {}

    def _change(self, key: str, value: dict[str, Any]) -> None:
        if key == "file":
            self.files[value["path"]] = base64.b64decode(value["content"])
        elif key == "deletedFile":
            del self.files[value["path"]]


def _json(content: object) -> Reply:
    return 200, json.dumps(content).encode(), {"Content-Type": "application/json"}


class _Handler(http.server.BaseHTTPRequestHandler):
    service: Hub

    def do_GET(self) -> None:
        self.answer(self.service.get(self.path.partition("?")[0]))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] == f"Bearer {TOKEN}":
            self.answer(self.service.post(self.path.partition("?")[0], body))
        else:
            self.answer((401, b'{"error": "Invalid credentials"}', {"Content-Type": "application/json"}))

    def answer(self, reply: Reply) -> None:
        status, body, headers = reply
        self.send_response(status)
        for header, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass
