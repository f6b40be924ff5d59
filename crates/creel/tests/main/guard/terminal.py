"""Runs a command at a terminal of its own, and does what a user would do there.

Arguments: the steps as JSON, then the command. A step is ["expect", text], ["send", text],
["resize", rows, columns] or ["signal", name], which goes to the command itself. Prints what
the terminal showed, and ends with the command's exit code, or 128 and its signal.
"""

import fcntl, json, os, pty, select, signal, struct, sys, termios, time

PATIENCE = 30


def resize(descriptor, rows, columns):
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read(descriptor, shown, until=None):
    """Reads on until the text was shown, or to the end."""
    deadline = time.monotonic() + PATIENCE
    while until is None or until not in shown:
        ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            sys.exit(f"not shown within {PATIENCE} s: {until!r}; there is:\n{shown.decode()}")
        try:
            data = os.read(descriptor, 4096)
        except OSError:
            data = b""
        if not data:
            return None
        shown += data
    del shown[: shown.index(until) + len(until)]


steps, command = json.loads(sys.argv[1]), sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
resize(terminal, 24, 80)
everything = bytearray()
for verb, *words in steps:
    before = bytearray()
    if verb == "expect":
        shown = bytearray()
        read(terminal, shown, words[0].encode())
    elif verb == "send":
        os.write(terminal, words[0].encode())
    elif verb == "resize":
        resize(terminal, *words)
    elif verb == "signal":
        os.kill(pid, getattr(signal, "SIG" + words[0]))
read(terminal, everything)
_, status = os.waitpid(pid, 0)
sys.stdout.write(everything.decode(errors="replace"))
sys.exit(os.waitstatus_to_exitcode(status) % 256 if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
