"""Drives the local server with the official SDK, end to end.

Usage: drive.py ADMIN_URL [terminals], with DAYTONA_API_URL and DAYTONA_API_KEY set.
Prints one JSON object of what was seen; any surprise is an exception.
"""

import asyncio
import faulthandler
import json
import os
import sys
import time
import traceback
import urllib.request
import uuid

from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaNotFoundError,
    SessionExecuteRequest,
)
from daytona.common.pty import PtySize

admin, *parts = sys.argv[1:]


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


def refused(call):
    """Returns the exception that a call must raise."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    raise AssertionError("it must be refused")


def files(sandbox):
    """Uses every call of the files module beyond up and down."""
    fs = sandbox.fs
    fs.upload_file(b"one\ntwo fish\nred fish\n", "/tmp/tree/sea/a.txt")
    fs.upload_file(b"\0two fish", "/tmp/tree/binary.bin")
    fs.upload_file(b"blue fish", "/tmp/tree/b.md")
    found = [(match.file, match.line, match.content) for match in fs.find_files("/tmp/tree", "fish")]
    assert found == [
        ("/tmp/tree/b.md", 1, "blue fish"),
        ("/tmp/tree/sea/a.txt", 2, "two fish"),
        ("/tmp/tree/sea/a.txt", 3, "red fish"),
    ], found
    assert fs.find_files("/tmp/none", "fish") == []
    assert fs.search_files("/tmp/tree", "**/*.txt").files == ["/tmp/tree/sea/a.txt"]
    assert fs.search_files("/tmp/tree", "*.{md,txt}").files == ["/tmp/tree/b.md"]
    assert fs.search_files("/tmp/tree", "*.txt").files == []

    replaced = fs.replace_in_files(["/tmp/tree/b.md", "/tmp/tree/none"], "fish", "crab")
    assert [(one.file, one.success) for one in replaced] == [
        ("/tmp/tree/b.md", True),
        ("/tmp/tree/none", False),
    ], replaced
    assert replaced[1].error, replaced
    assert fs.download_file("/tmp/tree/b.md") == b"blue crab"

    fs.move_files("/tmp/tree/b.md", "/tmp/tree/sea/c.md")
    assert {entry.name for entry in fs.list_files("/tmp/tree/sea")} == {"a.txt", "c.md"}
    taken = refused(lambda: fs.move_files("/tmp/tree/sea/c.md", "/tmp/tree/sea/a.txt"))
    absent = refused(lambda: fs.move_files("/tmp/tree/b.md", "/tmp/tree/d.md"))
    nowhere = refused(lambda: fs.move_files("/tmp/tree/sea/c.md", "/tmp/none/d.md"))

    fs.set_file_permissions("/tmp/tree/sea/c.md", mode="640", owner="1234", group="root")
    info = fs.get_file_info("/tmp/tree/sea/c.md")
    assert (info.permissions, info.owner, info.group) == ("0640", "1234", "0"), info
    assert info.mode == "-rw-r-----", info
    unknown = refused(lambda: fs.set_file_permissions("/tmp/tree/sea/c.md", owner="no-such-user"))

    full = refused(lambda: fs.delete_file("/tmp/tree"))
    fs.delete_file("/tmp/tree", recursive=True)
    gone = refused(lambda: fs.list_files("/tmp/tree"))
    return {
        "move": [taken, absent, nowhere],
        "unknown_user": unknown,
        "delete_directory": full,
        "list_missing": gone,
    }


def until(handle, text):
    """Reads the output of a terminal until it contains this text."""
    shown = b""
    for piece in handle:
        shown += piece
        if text in shown:
            return shown
    raise AssertionError(f"{text} never came: {shown}")


def terminals(sandbox):
    """Uses an interactive shell as a person would.

    Typed text is echoed, so the expected text is typed with quotes in it.
    """
    process = sandbox.process
    handle = process.create_pty_session(
        id="one", cwd="/tmp", envs={"COLOUR": "teal"}, pty_size=PtySize(cols=100, rows=30)
    )
    assert handle.is_connected()
    handle.send_input("stty size; echo $COLOUR-$TERM\n")
    shown = until(handle, b"teal-xterm-256color")
    assert b"30 100" in shown, shown
    assert [one.id for one in process.list_pty_sessions()] == ["one"]
    info = process.get_pty_session_info("one")
    assert (info.active, info.cols, info.rows) == (True, 100, 30), info
    taken = refused(lambda: process.create_pty_session(id="one"))

    assert process.resize_pty_session("one", PtySize(cols=120, rows=40)).cols == 120
    handle.send_input("stty size; [ -t 0 ] && echo on-a-'terminal'\n")
    shown = until(handle, b"on-a-terminal\r\n")
    assert b"40 120" in shown, shown

    # A second connection to the same terminal does not end the first one.
    second = process.connect_pty_session("one")
    second.send_input("echo seen-by-'both'\n")
    until(second, b"seen-by-both\r\n")
    until(handle, b"seen-by-both\r\n")
    second.disconnect()

    # A job of its own process group does not stop Ctrl+C from reaching it.
    handle.send_input("sh -c 'echo asle\"ep\"; exec sleep 4321'\n")
    until(handle, b"asleep\r\n")
    handle.send_input("\x03")
    handle.send_input("exit 3\n")
    ended = handle.wait(timeout=20)
    assert ended.exit_code == 3, ended
    assert process.list_pty_sessions() == []
    unknown = refused(lambda: process.get_pty_session_info("one"))

    handle = process.create_pty_session(id="two")
    handle.send_input("sleep 8765 & echo start'ed'\n")
    until(handle, b"started\r\n")
    is_running = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\000' ' ' | grep -q 'sleep 876[5]'"
    assert process.exec(is_running).exit_code == 0
    process.kill_pty_session("two")
    assert handle.wait(timeout=20).exit_code == 137
    deadline = time.monotonic() + 20
    while process.exec(is_running).exit_code != 1:
        assert time.monotonic() < deadline, "what ran on a killed terminal still runs"
    absent = refused(lambda: process.connect_pty_session("two"))
    return {"pty": [taken, unknown, absent]}


def only_terminals():
    client = Daytona()
    sandbox = client.create()
    print(json.dumps(terminals(sandbox)))
    client.delete(sandbox)


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

    seen.update(files(sandbox))
    seen.update(terminals(sandbox))
    if hasattr(sandbox, "get_metrics_latest"):
        metrics = sandbox.get_metrics_latest()
        assert metrics.cpu_count >= 1 and 0 <= metrics.cpu_used_pct <= 100, metrics
        assert 0 < metrics.mem_used < metrics.mem_total, metrics
        assert 0 < metrics.disk_used <= metrics.disk_total, metrics

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


# A connection that stays open keeps the interpreter from ending, so nothing here relies on that.
faulthandler.dump_traceback_later(120, exit=True)
try:
    only_terminals() if parts == ["terminals"] else main()
except BaseException:
    traceback.print_exc()
    os._exit(1)
