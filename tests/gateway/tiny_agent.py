"""An agent of few lines, for the tests: it asks its model for a command until it gets none, and runs each."""

import json
import os
import subprocess
import sys
import urllib.request

ISSUE = sys.argv[1]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages, "tools": [TOOL]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


messages = [{"role": "user", "content": ISSUE}]
while True:
    said = ask(messages)
    messages.append(said)
    for call in said.get("tool_calls") or []:
        command = json.loads(call["function"]["arguments"])["command"]
        if command == "crash":
            sys.exit(7)
        done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout.decode()})
    if not said.get("tool_calls"):
        break
sys.stdout.write("the tiny agent is done\n")
