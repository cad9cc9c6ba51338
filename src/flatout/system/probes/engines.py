"""Docker and Podman, and what gives their containers the GPU."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import msgspec

from flatout.schema.environment_facts import ContainerEngine
from flatout.system.host_system import Completed, System, Unread
from flatout.system.probes.settings_files import parse_settings
from flatout.system.timeout_threads import run_together

# `info` queries the daemon, which may hang: an examination, else done within 2 s, is not held up.
TIMEOUT_S = 1.5

_CONFIGURATION = "/etc/nvidia-container-runtime/config.toml"
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")


class _Podman(msgspec.Struct):
    host: dict[str, Any] = {}
    version: dict[str, Any] = {}


class _DockerInfo(msgspec.Struct, rename="pascal"):
    server_version: str = ""
    operating_system: str = ""
    docker_root_dir: str = ""
    runtimes: dict[str, Any] | None = None
    security_options: list[str] | None = None
    discovered_devices: list[dict[str, str]] | None = None
    client_info: dict[str, Any] | None = None


class _Nvidia(msgspec.Struct, frozen=True, kw_only=True):
    """The setup of NVIDIA's container toolkit, the same for every engine."""

    toolkit: str | None
    cdi_devices: tuple[str, ...] | None
    cdi_driver: str | None
    no_cgroups: bool | None


def probe_engines(system: System) -> tuple[tuple[ContainerEngine, ...], dict[str, str]]:
    """The engines whose program is on PATH, and why what is None is None."""
    programs = {name: find_program(system, name) for name in ("docker", "podman", "nvidia-ctk")}
    arguments = {
        "docker": ("info", "--format", "{{json .}}"),
        "podman": ("info", "--format", "json"),
        "nvidia-ctk": ("--version",),
    }
    commands = {name: [path, *arguments[name]] for name, path in programs.items() if path}
    if "docker" not in commands and "podman" not in commands:
        return (), {}
    results = run_together(
        {name: partial(system.run, argv, TIMEOUT_S) for name, argv in commands.items()},
        TIMEOUT_S + 0.2,
    )
    done = {
        name: Completed(reason=result.reason) if isinstance(result, Unread) else result
        for name, result in results.items()
    }
    nvidia = _nvidia(system, done.get("nvidia-ctk"))
    engines: list[ContainerEngine] = []
    unread: dict[str, str] = {}
    for name, parse in (("docker", parse_docker), ("podman", parse_podman)):
        if name not in done:
            continue
        engine, why = parse(done[name])
        path_of_engine = f"engines.{len(engines)}"
        is_snap = engine.is_snap or (programs[name] or "").startswith("/snap/")
        engine = _with_nvidia(engine, nvidia, is_snap=is_snap)
        engines.append(engine)
        unread |= _reasons(engine, path_of_engine, why)
    return tuple(engines), unread


def find_program(system: System, name: str) -> str | None:
    """The first program of that name on PATH; drives of Windows seen from WSL are passed over."""
    separator, slash, ending = (";", "\\", ".exe") if system.platform == "win32" else (":", "/", "")
    for folder in system.environment.get("PATH", "").split(separator):
        path = f"{folder.rstrip(slash)}{slash}{name}{ending}"
        if folder and not folder.startswith("/mnt/") and system.exists(path):
            return path
    return None


def parse_docker(done: Completed) -> tuple[ContainerEngine, str]:
    """Docker from `docker info --format {{json .}}`, and why the rest is not known.

    The program reports what it knows itself even where its daemon does not.
    """
    try:
        info = msgspec.json.decode(done.stdout.strip() or "{}", type=_DockerInfo)
    except msgspec.DecodeError:
        info = _DockerInfo()
    output = f"{done.stdout}\n{done.stderr}"
    why = f"docker: {done.reason or _first_error(done) or 'not in its output'}"
    compose = _compose(info.client_info)
    if not info.server_version:
        is_denied = "permission denied" in output.lower()
        is_running = True if is_denied else None if done.reason else False
        is_permitted = False if is_denied else None
        return ContainerEngine(
            name="docker", is_running=is_running, is_permitted=is_permitted, compose=compose
        ), why
    devices = info.discovered_devices
    is_desktop = "Docker Desktop" in info.operating_system
    return ContainerEngine(
        name="docker-desktop" if is_desktop else "docker",
        version=info.server_version,
        is_running=True,
        is_permitted=True,
        is_snap="/snap/" in info.docker_root_dir,
        is_rootless=any("name=rootless" in option for option in info.security_options or ()),
        runtimes=tuple(sorted(info.runtimes or {})),
        cdi_devices=None
        if devices is None
        else tuple(device["ID"] for device in devices if "nvidia.com" in device.get("ID", "")),
        compose=compose,
    ), why


def parse_podman(done: Completed) -> tuple[ContainerEngine, str]:
    """Podman from `podman info --format json`, and why the rest is not known."""
    why = f"podman: {done.reason or _first_error(done) or 'not in its output'}"
    try:
        info = msgspec.json.decode(done.stdout, type=_Podman)
    except msgspec.DecodeError:
        return ContainerEngine(name="podman"), why
    security = info.host.get("security")
    runtime = info.host.get("ociRuntime")
    name = runtime.get("name") if isinstance(runtime, dict) else None
    version = info.version.get("Version")
    return ContainerEngine(
        name="podman",
        version=version if isinstance(version, str) else None,
        # It has no daemon.
        is_running=True,
        is_permitted=True,
        is_rootless=bool(security.get("rootless")) if isinstance(security, dict) else None,
        runtimes=(name,) if isinstance(name, str) else None,
    ), why


def parse_cdi(text: str) -> tuple[tuple[str, ...], str | None]:
    """Devices and the driver's version in a CDI specification, as nvidia-ctk writes it."""
    kind = re.search(r"""^\s*"?kind"?\s*:\s*"?(nvidia\.com/gpu)"?""", text, re.MULTILINE)
    if kind is None:
        return (), None
    names = re.findall(r"""^\s{0,8}(?:- )?"?name"?\s*:\s*"?([\w:.-]{1,60})"?,?\s*$""", text,
                       re.MULTILINE)  # fmt: skip
    driver = re.search(r"libcuda\.so\.(\d{2,3}\.[\d.]*\d)", text)
    return tuple(f"{kind[1]}={name}" for name in dict.fromkeys(names)), driver and driver[1]


def _first_error(done: Completed) -> str:
    return next((line.strip() for line in done.stderr.splitlines() if line.strip()), "")[:160]


def _compose(client: dict[str, Any] | None) -> str | None:
    for plugin in (client or {}).get("Plugins") or ():
        if isinstance(plugin, dict) and plugin.get("Name") == "compose":
            version = plugin.get("Version")
            return version.removeprefix("v") if isinstance(version, str) else None
    return None


def _nvidia(system: System, done: Completed | None) -> _Nvidia:
    match = re.search(r"version (\d+\.\d+\.\d+)", done.stdout) if done else None
    devices: tuple[str, ...] | None = None
    driver = None
    for folder in _CDI_FOLDERS:
        for name in system.list_folder(folder):
            text = system.read(f"{folder}/{name}")
            if isinstance(text, str) and name.endswith((".yaml", ".yml", ".json")):
                more, version = parse_cdi(text)
                devices = (*(devices or ()), *more)
                driver = driver or version
    text = system.read(_CONFIGURATION)
    settings = {} if isinstance(text, Unread) else parse_settings(text)
    no_cgroups = settings.get("nvidia-container-cli.no-cgroups", "false")
    return _Nvidia(
        toolkit=match[1] if match else None,
        cdi_devices=devices and tuple(dict.fromkeys(devices)),
        cdi_driver=driver,
        no_cgroups=None if isinstance(text, Unread) else no_cgroups == "true",
    )


def _with_nvidia(engine: ContainerEngine, nvidia: _Nvidia, *, is_snap: bool) -> ContainerEngine:
    return msgspec.structs.replace(
        engine,
        is_snap=is_snap or engine.is_snap,
        toolkit=nvidia.toolkit,
        cdi_devices=engine.cdi_devices or nvidia.cdi_devices,
        cdi_driver=nvidia.cdi_driver,
        no_cgroups=nvidia.no_cgroups,
    )


def _reasons(engine: ContainerEngine, path_of_engine: str, why: str) -> dict[str, str]:
    own = {
        "toolkit": "nvidia-ctk does not answer",
        "cdi_devices": "no CDI specification found",
        "cdi_driver": "no CDI specification names it",
        "no_cgroups": f"{_CONFIGURATION}: unreadable or missing",
        "compose": "Docker does not list it",
    }
    names = [name for name in engine.__struct_fields__ if getattr(engine, name) is None]
    return {f"{path_of_engine}.{name}": own.get(name, why) for name in names}
