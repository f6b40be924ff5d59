"""What a test suite does with testcontainers; its own reaper needs an image that nobody has."""

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.waiting_utils import wait_for_logs

with Network() as network:
    with DockerContainer("creel-test").with_command("sh -c 'echo up; sleep 1000'").with_network(
        network
    ).with_kwargs(init=True) as container:
        wait_for_logs(container, "up")
        print(container.exec("echo inside"))

leaked = DockerContainer("creel-test").with_command("sleep 1000").with_kwargs(init=True)
leaked = leaked.with_env("A", "b").with_volume_mapping("/tmp", "/host", "ro").start()
print(leaked.exec("printenv A"), leaked.get_wrapped_container().status)
raise SystemExit(4)
