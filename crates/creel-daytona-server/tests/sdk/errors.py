"""Tells how the official SDK behaves on each error the server can give.

Usage: errors.py ADMIN_URL, with DAYTONA_API_URL and DAYTONA_API_KEY set.
Prints one JSON object: operation, then fault, then [exception, requests it took].
"""

import json
import sys
import urllib.request

from daytona import CreateSandboxFromSnapshotParams, Daytona

(admin,) = sys.argv[1:]
STATUSES = [400, 401, 403, 404, 409, 429, 500, 502, 503]


def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{admin}/{path}", data=data, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def faults(operation):
    for status in STATUSES:
        yield str(status), {"at": operation, "fault": "status", "status": status}
    own = {"Retry-After-authenticated": "1"}
    yield "429 own header", {"at": operation, "fault": "status", "status": 429, "headers": own}
    for status in [429, 503]:
        plain = {"at": operation, "fault": "status", "status": status, "headers": {"Retry-After": "1"}}
        yield f"{status} retry-after", plain
    yield "cut", {"at": operation, "fault": "cut_before"}


def attempt(call, route):
    ask("DELETE", "requests")
    try:
        call()
        name = None
    except Exception as error:
        name = type(error).__name__
    return [name, ask("GET", "requests")["by_route"].get(route, 0)]


def main():
    client = Daytona()
    (target,) = ask("POST", "seed", {"count": 1, "labels": {"kept": "yes"}})["ids"]
    sandbox = client.get(target)
    calls = {
        "list": (lambda: list(client.list()), "GET /sandbox"),
        "create": (lambda: client.create(CreateSandboxFromSnapshotParams()), "POST /sandbox"),
        "delete": (lambda: client.delete(sandbox), "DELETE /sandbox/{s}"),
    }
    seen = {}
    for operation, (call, route) in calls.items():
        seen[operation] = {}
        for name, fault in faults(operation):
            ask("POST", "faults", fault)
            seen[operation][name] = attempt(call, route)
            ask("DELETE", "faults")
    print(json.dumps(seen))


main()
