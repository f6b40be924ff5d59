"""Drives the local server with the official SDK, end to end.

Usage: drive.py ADMIN_URL, with DAYTONA_API_URL and DAYTONA_API_KEY set.
Prints one JSON object of what was seen; any surprise is an exception.
"""

import asyncio
import json
import sys
import urllib.request
import uuid

from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaNotFoundError,
    SessionExecuteRequest,
)

(admin,) = sys.argv[1:]


def seed(count, labels):
    body = json.dumps({"count": count, "labels": labels}).encode()
    with urllib.request.urlopen(f"{admin}/seed", data=body) as answer:
        return json.load(answer)["ids"]


def state(sandbox):
    return getattr(sandbox.state, "value", sandbox.state)


def listed(client, labels):
    """Lists by labels; the parameter's shape changed between the versions."""
    try:
        from daytona import ListSandboxesQuery
    except ImportError:
        return list(pages(client, labels))
    return list(client.list(ListSandboxesQuery(labels=labels, limit=100)))


def pages(client, labels):
    page = client.list(labels=labels, limit=100)
    if hasattr(page, "items"):
        number = 1
        while True:
            yield from page.items
            if number >= page.total_pages:
                return
            number += 1
            page = client.list(labels=labels, page=number, limit=100)
    else:
        yield from page


def main():
    seen = {}
    client = Daytona()

    batch = {"batch": str(uuid.uuid4())}
    ids = seed(250, batch)
    found = [sandbox.id for sandbox in listed(client, batch)]
    assert sorted(found) == sorted(ids), (len(found), len(ids))
    seen["listed"] = len(found)

    sandbox = client.create(
        CreateSandboxFromSnapshotParams(
            name="sdk-driver", labels={"made": "by-sdk"}, env_vars={"GREETING": "hi"}
        )
    )
    assert state(sandbox) == "started", state(sandbox)
    assert client.get(sandbox.id).name == "sdk-driver"
    assert client.get("sdk-driver").id == sandbox.id

    answer = sandbox.process.exec("echo $GREETING; echo oops >&2; exit 3")
    assert (answer.exit_code, answer.result) == (3, "hi\noops\n"), answer
    answer = sandbox.process.exec("echo $A; pwd", cwd="/tmp", env={"A": "1"}, timeout=10)
    assert answer.exit_code == 0 and answer.result.startswith("1\n"), answer
    answer = sandbox.process.exec("true", cwd="/no/such/place")
    assert answer.exit_code == -1, answer
    try:
        sandbox.process.exec("sleep 60", timeout=1)
        raise AssertionError("a timeout must raise")
    except Exception as error:
        seen["exec_timeout"] = type(error).__name__

    sandbox.process.create_session("one")
    first = sandbox.process.execute_session_command(
        "one", SessionExecuteRequest(command="cd /tmp && KEPT=yes && echo out && echo err >&2")
    )
    assert first.exit_code == 0, first
    assert (first.stdout, first.stderr) == ("out\n", "err\n"), first
    second = sandbox.process.execute_session_command(
        "one", SessionExecuteRequest(command="echo $KEPT; false")
    )
    assert (second.exit_code, second.stdout) == (1, "yes\n"), second
    third = sandbox.process.execute_session_command(
        "one",
        SessionExecuteRequest(
            command="read word; echo got $word; for i in 1 2 3; do echo line $i; sleep 0.1; done; echo bad >&2",
            run_async=True,
        ),
    )
    assert sandbox.process.get_session_command("one", third.cmd_id).exit_code is None
    sandbox.process.send_session_command_input("one", third.cmd_id, "fish\n")
    out, err = [], []
    asyncio.run(
        sandbox.process.get_session_command_logs_async("one", third.cmd_id, out.append, err.append)
    )
    assert "".join(out) == "got fish\nline 1\nline 2\nline 3\n", out
    assert "".join(err) == "bad\n", err
    logs = sandbox.process.get_session_command_logs("one", third.cmd_id)
    assert (logs.stdout, logs.stderr) == ("".join(out), "bad\n"), logs
    assert sandbox.process.get_session_command("one", third.cmd_id).exit_code == 0
    assert len(sandbox.process.get_session("one").commands) == 3
    sandbox.process.delete_session("one")
    seen["followed"] = len(out)

    content = bytes(range(256)) * 64
    sandbox.fs.upload_file(content, "/tmp/bytes.bin")
    assert sandbox.fs.download_file("/tmp/bytes.bin") == content
    sandbox.fs.upload_file(b"relative", "deep/er/file.txt")
    assert sandbox.fs.download_file("deep/er/file.txt") == b"relative"
    assert sandbox.process.exec("cat deep/er/file.txt").result == "relative"
    assert sandbox.fs.get_file_info("/tmp/bytes.bin").size == len(content)
    sandbox.fs.create_folder("/tmp/folder", "755")
    assert {"bytes.bin", "folder"} <= {entry.name for entry in sandbox.fs.list_files("/tmp")}
    assert sandbox.process.exec("cmp /tmp/bytes.bin /tmp/bytes.bin").exit_code == 0
    sandbox.fs.delete_file("/tmp/bytes.bin")
    try:
        sandbox.fs.download_file("/tmp/bytes.bin")
        raise AssertionError("a missing file must raise")
    except Exception as error:
        seen["missing_file"] = type(error).__name__

    home = sandbox.get_user_home_dir()
    made = sandbox.process.exec(
        "git init -q origin && cd origin && "
        "git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m first"
    )
    assert made.exit_code == 0, made
    sandbox.git.clone(f"{home}/origin", "cloned")
    assert sandbox.process.exec("git -C cloned log --oneline").result.strip().endswith("first")
    try:
        sandbox.git.clone(f"{home}/nowhere", "not-cloned")
        raise AssertionError("a missing repository must raise")
    except Exception as error:
        seen["missing_repository"] = type(error).__name__

    assert sandbox.set_labels({"made": "again"}) == {"made": "again"}
    assert [one.id for one in listed(client, {"made": "again"})] == [sandbox.id]
    sandbox.set_autostop_interval(30)
    sandbox.set_auto_delete_interval(60)
    sandbox.refresh_activity()
    assert sandbox.get_preview_link(3000).url
    assert sandbox.create_ssh_access(60).token

    sandbox.stop()
    assert state(client.get(sandbox.id)) == "stopped"
    sandbox.start()
    assert state(client.get(sandbox.id)) == "started"
    assert sandbox.fs.download_file("deep/er/file.txt") == b"relative"

    client.delete(sandbox)
    try:
        client.get("sdk-driver")
        raise AssertionError("a deleted name must be gone")
    except DaytonaNotFoundError:
        seen["deleted_name"] = "DaytonaNotFoundError"

    built = client.create(CreateSandboxFromImageParams(image="debian:12"))
    assert state(built) == "started", state(built)
    built.delete()
    print(json.dumps(seen))


main()
