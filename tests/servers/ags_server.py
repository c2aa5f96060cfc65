"""A stand-in for the API of Tencent's Agent Sandbox: it makes and lists sandbox tools, in Tencent's protocol."""

import http.server
import json
from typing import Any

from servers.stand_in import StandIn

PAGE = 2
"""Tools that a page of the list holds, whatever the request says."""


class AgsServer(StandIn):
    """A server on a free port, used as a context manager.

    Attributes:
        tools: Requests that made the tools, by name.
        failing: Images whose tools fail.
        url: Address for the SDK.
    """

    def __init__(self, *, failing: str = "") -> None:
        self.tools: dict[str, dict[str, Any]] = {}
        self.failing = failing
        self.calls: list[str] = []
        self._asked: set[str] = set()
        super().__init__(_Handler)

    def reply(self, action: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the reply to a request."""
        self.calls.append(action)
        if action == "CreateSandboxTool":
            if request["CustomConfiguration"]["ImageRegistryType"] not in ("enterprise", "personal", "custom"):
                return {"Error": {"Code": "InvalidParameter", "Message": "unknown ImageRegistryType"}}
            self.tools[request["ToolName"]] = request
            return {"ToolId": "sdt-1"}
        names = list(self.tools)[request["Offset"] :][:PAGE]
        tools = [{"ToolName": name, "Status": self._state(name)} for name in names]
        return {"TotalCount": len(self.tools), "SandboxToolSet": tools}

    def _state(self, name: str) -> str:
        """Return a tool's state: "CREATING" the first time."""
        if self.tools[name]["CustomConfiguration"]["Image"] == self.failing:
            return "FAILED"
        known = name in self._asked
        self._asked.add(name)
        return "ACTIVE" if known else "CREATING"


class _Handler(http.server.BaseHTTPRequestHandler):
    service: AgsServer

    def do_POST(self) -> None:
        assert self.headers["Authorization"].startswith("TC3-HMAC-SHA256 Credential=an-id/")
        assert self.headers["X-TC-Version"] == "2025-09-20"
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = {"RequestId": "1", **self.service.reply(self.headers["X-TC-Action"], request)}
        body = json.dumps({"Response": content}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass
