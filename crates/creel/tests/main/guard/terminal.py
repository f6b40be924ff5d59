"""Runs a command at a terminal of its own, and does there what a user would do.

Arguments: the steps as JSON, then the command. A step is ["expect", text], which must be shown
after what was expected before, ["send", text] or ["resize", rows, columns]. Prints what the
terminal showed, and ends with the command's exit code, or 128 and its signal.
"""

import fcntl, json, os, pty, select, struct, sys, termios, time

PATIENCE = 30


def resize(terminal, rows, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read(terminal, shown, is_enough):
    """Reads on until it is enough, or to the end."""
    deadline = time.monotonic() + PATIENCE
    while not is_enough():
        ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(terminal, 4096)
        except OSError:
            # What Linux says when nobody has the other end any more.
            return True
        shown += data
    return True


def main(steps, command):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    resize(terminal, 24, 80)
    shown, place = bytearray(), 0
    for verb, *words in steps:
        if verb == "send":
            os.write(terminal, words[0].encode())
        elif verb == "resize":
            resize(terminal, *words)
        else:
            wanted = words[0].encode()
            read(terminal, shown, lambda: wanted in shown[place:])
            if wanted not in shown[place:]:
                os.kill(pid, 9)
                sys.exit(f"{words[0]!r} is not shown; there is:\n{shown.decode()}")
            place = shown.index(wanted, place) + len(wanted)
    is_over = read(terminal, shown, lambda: False)
    if not is_over:
        os.kill(pid, 9)
    _, status = os.waitpid(pid, 0)
    print(shown.decode(errors="replace"), end="" if is_over else "\nit did not end\n")
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
