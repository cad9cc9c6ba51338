"""Another program is listening on this port.

**Checks.** Servers that cannot bind: Jupyter, TensorBoard, uvicorn, Gradio, Docker, Ray.

**Why it matters.** A port belongs to one program at a time. On Windows, Hyper-V and WSL also
reserve port ranges without a visible listener.

**Example.** `[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address
already in use`

**Fix.** Use another port, or stop the program that holds it; asks first.

**Source.** man7.org/linux/man-pages/man2/bind.2.html;
learn.microsoft.com/windows/win32/winsock/windows-sockets-error-codes-2.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """An address is in use, other than a rendezvous address."""
    if not case.sees("address-in-use", "server-port-taken"):
        return None
    is_server = case.sees("server-port-taken", "server-named")
    return Finding(
        rule="port-in-use",
        severity="error",
        certainty="decided" if is_server else "likely",
        problem="Another program is listening on this port.",
        because="only one program can listen on a port",
        evidence=case.evidence("server-port-taken", "address-in-use"),
        fixes=(
            Fix(
                text="find the listening program, then choose another port or stop that program",
                safety="ask",
                commands=("ss -ltnp", "kill <pid>"),
                changes="stops that program",
            ),
        ),
        confirm=("ss -ltnp", "netsh interface ipv4 show excludedportrange protocol=tcp"),
    )


RULE = Rule(
    check=check,
    prior=40,
    signatures=(
        signature(
            "address-in-use",
            "Address already in use",
            "EADDRINUSE",
            "Only one usage of each socket address",
            "error 10048",
            "error: 10048",
            "errno: 10048",
            "WinError 10048",
            "access a socket in a way forbidden",
            "Address in use",
            "Errno 98",
            "errno: 98",
            pattern=r"(?P<torch>RuntimeError: Address already in use)"
            r"|address (?:already )?in use|EADDRINUSE|Only one usage of each socket"
            r" address"
            r"|(?:WinError|errno|error):? 10048|access a socket in a way forbidden",
        ),
        signature(
            "server-port-taken",
            "port is already allocated",
            "is in use by another program",
            "Cannot find empty port in range",
            "ports are not available",
            "port",
            pattern=r"port is already allocated"
            r"|(?<!UserWarning: )Port \d+ is (?:already )?in use(?!, trying)"
            r"|Cannot find empty port|ports are not available|TensorBoard could not"
            r" bind to port",
        ),
        signature(
            "server-named",
            "uvicorn",
            "jupyter",
            "tensorboard",
            "gradio",
            "docker",
            "streamlit",
            "flask",
            "gunicorn",
            "ray start",
            "nginx",
            "attempting to bind on address",
            "ollama",
            "vllm serve",
            "mlflow",
            "prometheus",
            "redis",
            pattern=r"uvicorn|jupyter|tensorboard|gradio|docker|streamlit|flask|gunicorn"
            r"|ray start|nginx|attempting to bind on address|ollama|vllm"
            r" serve|mlflow|prometheus"
            r"|redis",
        ),
    ),
)
