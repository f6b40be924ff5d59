"""What a command does with the official Daytona SDK, alone or under a guard.

Usage: guarded.py WHAT, with DAYTONA_API_URL and DAYTONA_API_KEY set.
Prints one JSON object of what was seen; any surprise is an exception.
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request

from daytona import CreateSandboxFromSnapshotParams, Daytona

OURS = "dev.creel."


def ask(method, path, body=None, headers=()):
    """Asks the API without the SDK; returns status and body."""
    request = urllib.request.Request(
        f"{os.environ['DAYTONA_API_URL']}/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['DAYTONA_API_KEY']}",
            "Content-Type": "application/json",
            **dict(headers),
        },
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def state(sandbox):
    return getattr(sandbox.state, "value", sandbox.state)


def listed(client, labels):
    """Lists by labels; the parameter's shape changed between the versions."""
    try:
        from daytona import ListSandboxesQuery
    except ImportError:
        page = client.list(labels=labels)
        return list(getattr(page, "items", page))
    return list(client.list(ListSandboxesQuery(labels=labels)))


def theirs(labels):
    return {key: value for key, value in labels.items() if not key.startswith(OURS)}


def has_ours(labels):
    return any(key.startswith(OURS) for key in labels)


def refused(call):
    """Returns the exception that a call must raise, and its text."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    raise AssertionError("it must be refused")


def gone(client, id):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            client.get(id)
        except Exception as error:
            return type(error).__name__
        time.sleep(0.05)
    raise AssertionError("it must go")


def use(client):
    """The whole life of two sandboxes; what is returned must not depend on a guard."""
    seen = {}
    named = client.create(
        CreateSandboxFromSnapshotParams(
            name="guarded", labels={"who": "test"}, env_vars={"GREETING": "hello"}
        )
    )
    plain = client.create()
    seen["states"] = [state(named), state(plain)]
    seen["name"] = named.name
    seen["labels"] = theirs(named.labels)
    executed = named.process.exec("echo $GREETING; exit 3")
    seen["exec"] = [executed.exit_code, executed.result]
    named.fs.upload_file(b"x" * 300_000, "big.bin")
    seen["download"] = len(named.fs.download_file("big.bin"))
    seen["listed"] = [one.id == named.id for one in listed(client, {"who": "test"})]
    seen["set_labels"] = theirs(named.set_labels({"new": "label"}))
    again = client.get("guarded")
    seen["got"] = [again.id == named.id, theirs(again.labels)]
    seen["listed_new"] = [one.id == named.id for one in listed(client, {"new": "label"})]
    seen["taken"] = refused(
        lambda: client.create(CreateSandboxFromSnapshotParams(name="guarded"))
    )
    seen["missing"] = refused(lambda: client.get("no-such-sandbox"))
    named.stop()
    seen["stopped"] = state(named)
    named.start()
    seen["started"] = state(named)
    client.delete(plain)
    seen["gone"] = gone(client, plain.id)
    # Not compared: it shows whether a guard was in between.
    seen["ours"] = [has_ours(again.labels), has_ours(plain.labels)]
    return seen


def switches(client):
    """Creates with all kinds of timers, and returns the timers of each sandbox."""

    def shown(sandbox):
        _, row = ask("GET", f"sandbox/{sandbox.id}")
        ends = row.get("autoDestroyAt") is not None
        return [row["autoStopInterval"], row["autoDeleteInterval"], ends]

    def made(**given):
        return client.create(CreateSandboxFromSnapshotParams(**given))

    changed = made(auto_stop_interval=5)
    changed.set_autostop_interval(0)
    seen = {
        "open": shown(client.create()),
        "harbor": shown(made(auto_stop_interval=0, auto_delete_interval=0)),
        "chosen": shown(made(auto_stop_interval=5, auto_delete_interval=7)),
        "changed": shown(changed),
    }
    ask("POST", f"sandbox/{changed.id}/ttl/0")
    seen["ttl"] = shown(changed)
    return seen


def limit(client):
    """Creates until it is refused, makes room, and creates again; then many at once."""
    first, second = client.create(), client.create()
    seen = {"refused": refused(client.create)}
    client.delete(first)
    gone(client, first.id)
    third = client.create()
    for sandbox in [second, third]:
        client.delete(sandbox)
        gone(client, sandbox.id)
    made = []

    def one():
        try:
            made.append(client.create().id)
        except Exception:
            pass

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen["at_once"] = len(set(made))
    return seen


def untracked(client):
    """Requests resources that cannot be released."""
    paths = ["snapshots", "volumes", "secret", "warm-pools", "docker-registry", "sandbox/x/snapshot"]
    seen = {path: ask("POST", path, {"name": "x"}) for path in paths}
    other = {"Authorization": "Bearer another-key"}
    seen["another login"] = ask("POST", "sandbox", {}, other)
    seen["another host"] = ask("GET", "sandbox", None, {"Host": "attacker.example"})
    seen["volume"] = refused(lambda: client.volume.create("x"))
    return seen


def fail(client):
    """Creates once, and returns the result."""
    try:
        return {"created": client.create(CreateSandboxFromSnapshotParams(name="faulty")).id}
    except Exception as error:
        return {"error": type(error).__name__}


def churn(client):
    """Creates and deletes sandboxes until it is killed."""
    number = 0
    while True:
        number += 1
        name = f"churn-{os.getpid()}-{number}" if number % 2 else None
        sandbox = client.create(CreateSandboxFromSnapshotParams(name=name, auto_stop_interval=0))
        if number % 5 == 0:
            client.delete(sandbox)


def wait(client):
    """Creates two, leaves them idle until a file appears, and returns their states."""
    sandbox = client.create()
    chosen = client.create(CreateSandboxFromSnapshotParams(auto_stop_interval=3))
    print(json.dumps([sandbox.id, chosen.id]), flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.05)
    return {"idle": state(client.get(sandbox.id)), "chosen": state(client.get(chosen.id))}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Daytona())))
