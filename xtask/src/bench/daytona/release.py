"""Releases all sandboxes with a label by the official SDK, as its users do.

Usage: release.py WAY KEY VALUE, with DAYTONA_API_URL and DAYTONA_API_KEY set.
WAY is loop, threads, or threads-wait, which also waits until each answers 404.
Prints one JSON object; the seconds do not count the start and the end of Python.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from daytona import Daytona, ListSandboxesQuery

THREADS = 32

way, key, value = sys.argv[1:]
started_at = time.monotonic()
client = Daytona()
sandboxes = list(client.list(ListSandboxesQuery(labels={key: value}, limit=200)))
if way == "loop":
    for sandbox in sandboxes:
        sandbox.delete()
else:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda sandbox: sandbox.delete(wait=way == "threads-wait"), sandboxes))
seconds, ended_at = time.monotonic() - started_at, time.time()
print(json.dumps({"released": len(sandboxes), "seconds": seconds, "ended_at": ended_at}))
