"""Builds with the classic builder; after so many lines of its output it dies, or says so."""

import io
import os
import sys

import docker

limit, word, mark = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
steps = "".join(f"RUN echo {word} {turn} >/{turn}\nENV TURN{turn}={word}\n" for turn in range(4))
context = io.BytesIO(f"FROM creel-test\n{steps}".encode())
api = docker.from_env().api
for count, _ in enumerate(api.build(fileobj=context, tag=f"{word}:1", rm=True, decode=True)):
    if count == limit and mark:
        with open(mark[0], "w") as file:
            file.write("marked")
    elif count >= limit and not mark:
        os._exit(9)
