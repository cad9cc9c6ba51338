"""Signatures that several rules use: messages with several causes, and what decides."""

from __future__ import annotations

from flatout.doctor.signature import signature

SHARED = (
    # NVML and nvidia-smi. NVML's error texts are from nvmlErrorString; the second text is the
    # wording of NVIDIA's Python binding.
    signature(
        "nvml-blocked",
        "GPU access blocked by the operating system",
        "The operating system has blocked the request",
    ),
    signature("nvml-unknown-error", "Failed to initialize NVML: Unknown Error"),
    signature(
        "nvml-driver-not-loaded",
        "initialize NVML: Driver Not Loaded",
        "NVML_ERROR_DRIVER_NOT_LOADED",
    ),
    signature(
        "nvml-library-missing",
        "libnvidia-ml.so",
        "NVML Shared Library Not Found",
        "libnvidia-ml.so not found in your system",
        pattern=r"libnvidia-ml\.so\S* (?:not found|cannot open)|libnvidia-ml\.so\S*: cannot open"
        r"|NVML Shared Library Not Found",
    ),
    signature(
        "smi-cannot-communicate",
        "communicate with the NVIDIA driver",
        pattern=r"(?:couldn't|could not|can't) communicate with the NVIDIA driver",
    ),
    signature(
        "smi-not-found",
        "nvidia-smi",
        pattern=r"nvidia-smi:? (?:command )?not found|'nvidia-smi' is not recognized"
        r"|nvidia-smi.{0,40}(?:No such file|executable file not found)"
        r"|command 'nvidia-smi' not found",
    ),
    # From libnvidia-container, if Windows exposes no NVIDIA card to WSL.
    signature("wsl-no-adapters", "WSL environment detected but no adapters were found"),
    signature("smi-no-devices", "No devices were found"),
    signature("smi-no-handle", "Unable to determine the device handle"),
    # CUDA, by the runtime's text, the driver's enum, and frameworks' wording of either.
    signature(
        "cuda-unknown-error",
        "CUDA unknown error",
        "CUDA_ERROR_UNKNOWN",
        "cudaErrorUnknown",
        "unknown error",
        "init failure: 999",
        pattern=r"(?:cuda driver library|cudart) init failure: 999\b"
        r"|CUDA unknown error|CUDA_ERROR_UNKNOWN|cudaErrorUnknown"
        r"|(?:Error|error ?=|code ?=|CUresult\() ?\(?(?:30|999)\)?\b.{0,8}unknown error"
        r"|CUDA (?:runtime )?error:? (?:\((?:30|999)\) ?:? )?unknown error",
    ),
    signature(
        "cuda-no-device",
        "no CUDA-capable device is detected",
        "CUDA_ERROR_NO_DEVICE",
        "cudaErrorNoDevice",
        "No CUDA GPUs are available",
        "no NVIDIA GPU device is present",
    ),
    signature(
        "cuda-driver-insufficient",
        "CUDA driver version is insufficient",
        "cudaErrorInsufficientDriver",
    ),
    signature(
        "cuda-init-out-of-memory",
        "out of memory",
        "cudaGetDeviceCount returned 2",
        # The first alternative is deviceQuery's wording.
        pattern=r"cudaGetDeviceCount returned 2\b"
        r"|cudaGetDeviceCount\(\).{0,160}Error 2: out of memory"
        r"|cuInit.{0,60}(?:CUDA_ERROR_OUT_OF_MEMORY|out of memory)",
    ),
    signature(
        "cuda-driver-combination",
        "unsupported display driver / cuda driver combination",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "cudaErrorSystemDriverMismatch",
        "cuda driver library init failure: 803",
    ),
    # libcuda is not found: which file, and by which program.
    signature(
        "libcuda-not-opened",
        "libcuda.so",
        "libcuda.so.1",
        "libcuda",
        "-lcuda",
        pattern=r"libcuda\.so(?P<versioned>\.1)?(?:: cannot open|'; dlerror| cannot (?:be )?found"
        r"|.{0,40}(?:not found|No such file))|cannot find -lcuda\b"
        r"|(?:cannot|can't|could not|unable to) (?:find|load|open|locate)[^.]{0,40}libcuda\b",
    ),
    # Kernel messages.
    signature(
        "modprobe-not-found",
        "modprobe",
        "module not found",
        pattern=r"modprobe.{0,40}Module nvidia\S* not found|module not found: '?nvidia",
    ),
    signature(
        "module-not-loaded",
        "kernel module",
        "nvidia-modprobe",
        pattern=r"Unable to load the (?:kernel module )?'?nvidia"
        r"|nvidia kernel module .{0,30}not load",
    ),
    # Host names, disks and memory.
    signature(
        "name-not-resolved",
        "Temporary failure resolving",
        "Temporary failure in name resolution",
        "Could not resolve host",
        "EAI_AGAIN",
        "NameResolutionError",
        "Could not resolve",
        "Name or service not known",
        pattern=r"Temporary failure (?:resolving|in name resolution)|Could not resolve(?: host)?"
        r"[: ]|EAI_AGAIN|NameResolutionError|^(?:ping|wget|curl|ssh|git|fatal).{0,80}not known",
    ),
    signature(
        "kernel-killed-process",
        "oom-kill",
        "oom_kill",
        "Out of memory",
        "Memory cgroup out of memory",
        pattern=r"oom-kill:|oom_kill_process|Out of memory: Kill(?:ed)? process"
        r"|cgroup out of memory",
    ),
)
