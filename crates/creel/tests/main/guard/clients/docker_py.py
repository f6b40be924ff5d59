"""What a harness does with docker-py; prints what it saw."""

import io
import tarfile

import docker

client = docker.from_env()
print(client.ping(), client.containers.run("creel-test", "echo run", remove=True))

image, _ = client.images.build(
    fileobj=io.BytesIO(b"FROM creel-test\nRUN echo built >/built\nVOLUME /data\n"),
    tag="built:py", rm=True,
)
network = client.networks.create("net")
volume = client.volumes.create("data")
container = client.containers.run(
    "built:py", "sh -c 'echo started; exec sleep 1000'", name="worker", detach=True, init=True,
    network="net", volumes={"data": {"bind": "/d"}, "implicit": {"bind": "/i"}}, mem_limit="64m",
)
print(image.tags, container.status, next(iter(container.logs(stream=True, follow=True))))
print(container.exec_run("cat /built").output, container.exec_run("sh -c 'exit 7'").exit_code)

archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w") as tar:
    entry = tarfile.TarInfo("sent")
    entry.size = 4
    tar.addfile(entry, io.BytesIO(b"text"))
print(container.put_archive("/tmp", archive.getvalue()), container.exec_run("cat /tmp/sent").output)
stream, stat = container.get_archive("/tmp/sent")
print(stat["name"], stat["size"], len(b"".join(stream)) > 512)

socket = container.attach_socket(params={"stdin": 1, "stream": 1})
socket.close()
print([one.name for one in client.containers.list(all=True, filters={"network": "net"})])
try:
    client.containers.get("nothing")
except docker.errors.NotFound as error:
    print(error.explanation)
try:
    client.containers.run("creel-test", "sh -c 'echo bad >&2; exit 3'", remove=True)
except docker.errors.ContainerError as error:
    print(error.exit_status, error.stderr)
committed = container.commit("committed", "py")
print(committed.tags, client.images.get("committed:py").id == committed.id)
container.stop(timeout=1)
print(container.wait()["StatusCode"], client.api.inspect_container("worker")["State"]["Status"])
# Nothing is removed: that is for the guard.
