"""Names, proxies, busy ports, and how far WSL's clock is off."""

from __future__ import annotations

import re

from flatout.schema.environment_facts import Network
from flatout.system.host_system import System, Unread

LOOKUP_TIMEOUT_S = 5.0
# torchrun, TensorBoard, Ray (head, dashboard, client), Dask (scheduler, dashboard), Jupyter.
PORTS = (29400, 29500, 6006, 6379, 8265, 10001, 8786, 8787, 8888)
_LOOKUP = "import socket; socket.getaddrinfo('github.com', 443)"


def probe_network(system: System, *, is_deep: bool = False) -> tuple[Network, dict[str, str]]:
    """The network as this process sees it, and why what is None is None.

    Nothing leaves the machine, but for the look-up of a name where is_deep asks for it.
    """
    unread: dict[str, str] = {}
    can_resolve = None
    if is_deep:
        done = system.run([system.python, "-I", "-c", _LOOKUP], LOOKUP_TIMEOUT_S)
        can_resolve = done.exit_code == 0 if done.reason is None else None
        if can_resolve is None:
            unread["network.can_resolve"] = f"looking up a name: {done.reason}"
    else:
        unread["network.can_resolve"] = "looked up only with --deep"
    is_loopback, why = _own_name(system)
    if is_loopback is None:
        unread["network.is_own_name_loopback"] = why
    # In WSL, Windows' clock is the second one.
    unread["network.clock_skew_s"] = "there is no second clock to compare with"
    ports = _listening(system)
    if isinstance(ports, Unread):
        unread["network.busy_ports"] = ports.reason
    devices = system.list_folder("/sys/class/infiniband") if system.platform == "linux" else None
    if devices is None:
        unread["network.has_infiniband"] = "checked only on Linux"
    variables = {name.lower() for name, value in system.environment.items() if value}
    return Network(
        can_resolve=can_resolve,
        is_own_name_loopback=is_loopback,
        has_proxy=bool(variables & {"http_proxy", "https_proxy", "all_proxy"}),
        busy_ports=None
        if isinstance(ports, Unread)
        else tuple(port for port in PORTS if port in ports),
        has_infiniband=None if devices is None else bool(devices),
    ), unread


def own_addresses(system: System) -> frozenset[str]:
    """The IPv4 addresses of this Linux."""
    text = system.read("/proc/net/fib_trie")
    return frozenset() if isinstance(text, Unread) else parse_fib_trie(text)


def parse_fib_trie(text: str) -> frozenset[str]:
    """Addresses of the machine's own: those that the kernel's table calls local hosts."""
    return frozenset(re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", text))


def parse_hosts(text: str, name: str) -> bool | None:
    """Whether /etc/hosts leads this name to 127.*; None where it does not have it."""
    addresses = []
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if name.lower() in (other.lower() for other in names):
            addresses.append(address)
    if not addresses:
        return None
    return all(address.startswith("127.") or address == "::1" for address in addresses)


def parse_listening(text: str) -> set[int]:
    """Ports in state LISTEN in /proc/net/tcp or tcp6."""
    row = r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A "
    return {int(port, 16) for port in re.findall(row, text, re.MULTILINE)}


def _own_name(system: System) -> tuple[bool | None, str]:
    name = system.read("/proc/sys/kernel/hostname")
    hosts = system.read("/etc/hosts")
    for text in (name, hosts):
        if isinstance(text, Unread):
            return None, text.reason
    assert isinstance(name, str)
    assert isinstance(hosts, str)
    return parse_hosts(hosts, name.strip()), "/etc/hosts does not list this machine's name"


def _listening(system: System) -> set[int] | Unread:
    if system.platform != "linux":
        ports = system.listening()
        return ports if isinstance(ports, Unread) else set(ports)
    texts = [system.read(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    if isinstance(texts[0], Unread):
        return texts[0]
    return set().union(*(parse_listening(text) for text in texts if isinstance(text, str)))
