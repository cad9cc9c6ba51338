"""This network requires a proxy, which is not set or only partly set.

**Checks.** Connections to package indexes that time out, and proxies that refuse or are misspelled.

**Why it matters.** Programs read their proxy from different places: Python and curl from the
environment, apt and Docker's daemon from their own files; WSL uses Windows' proxy only if
`autoProxy` is on.

**Example.** `ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407 Proxy
Authentication Required'))`

**Fix.** Set HTTP_PROXY, HTTPS_PROXY and NO_PROXY in the shell, and for Docker the daemon's own
setting; safe in the shell.

**Source.** pip.pypa.io/en/stable/user_guide/ (using a proxy server);
docs.docker.com/engine/daemon/proxy/; MicrosoftDocs/WSL: wsl-config.md.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_HALF = ("proxy-refused", "proxy-misspelt", "wsl-localhost-proxy")


def check(case: Case) -> Finding | None:
    """A proxy failed, or public hosts do not answer."""
    is_silent = case.sees("public-host-silent", "network-unreachable")
    if case.sees("pip-succeeded"):
        # pip only retried.
        is_silent = False
    if not case.sees(*_HALF) and not is_silent:
        return None
    certainty: Certainty = "likely"
    if case.sees("proxy-refused", "proxy-misspelt"):
        certainty = "decided"
    is_error = case.sees("proxy-refused", "proxy-misspelt") or is_silent
    return Finding(
        rule="proxy-not-set",
        severity="error" if is_error else "warning",
        certainty=certainty,
        problem="This network requires a proxy, which is not set or only partly set.",
        because=(
            "programs read their proxy from different places; Docker's daemon and apt use "
            "their own files"
        ),
        evidence=case.evidence(*_HALF, "public-host-silent", "network-unreachable"),
        fixes=(
            Fix(
                text="set the proxy for this shell",
                safety="safe",
                commands=(
                    "export HTTP_PROXY=<url> HTTPS_PROXY=<url> NO_PROXY=localhost,127.0.0.1",
                ),
                changes="environment variables of this shell",
                undo="unset HTTP_PROXY HTTPS_PROXY NO_PROXY",
            ),
            Fix(
                text="for Docker: `proxies` in /etc/docker/daemon.json, then restart the daemon",
                where="host",
            ),
            Fix(
                text="if no proxy is needed, remove a leftover setting",
                safety="safe",
                commands=("env | grep -i _proxy", "pip config list"),
                changes="nothing",
            ),
        ),
        confirm=("env | grep -i proxy", "curl -sSI https://github.com"),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "proxy-refused",
            "Cannot connect to proxy",
            "Unable to connect to proxy",
            "Tunnel connection failed",
            "Proxy Authentication Required",
            "proxyconnect tcp",
            "Could not resolve proxy",
            "from proxy after CONNECT",
            "ERR_TUNNEL_CONNECTION_FAILED",
            "ProxyError",
            "Proxy CONNECT aborted",
            "tunnel error",
            "ProxySchemeUnknown",
            "407 authenticationrequired",
            pattern=r"(?:Cannot|Unable to) connect to proxy|Tunnel connection failed"
            r"|Proxy Authentication Required|proxyconnect tcp|Could not resolve proxy"
            r"|from proxy after CONNECT|TUNNEL_CONNECTION_FAILED|\bProxyError\b"
            r"|Proxy CONNECT aborted|tunnel error: (?:unsuccessful|proxy)"
            r"|407 authenticationrequired",
        ),
        signature(
            "proxy-misspelt",
            "check_hostname requires server_hostname",
            "Missing dependencies for SOCKS support",
            "Unable to determine SOCKS version",
            "ProxySchemeUnknown",
            "Proxy URL had no scheme",
            "Not supported proxy scheme",
            "Please check proxy URL",
            "unsupported proxy",
            "Invalid proxy",
            "Unknown scheme for proxy URL",
            pattern=r"check_hostname requires server_hostname|Missing dependencies for SOCKS"
            r"|Unable to determine SOCKS version|Proxy URL had no scheme"
            r"|Not supported proxy scheme|check proxy URL|unsupported proxy|Invalid"
            r" proxy (?:URL"
            r"|server)|Unknown scheme for proxy URL|ProxySchemeUnknown",
        ),
        signature(
            "wsl-localhost-proxy",
            "localhost proxy configuration was detected",
        ),
        signature(
            "public-host-silent",
            "Connection to",
            "ConnectTimeoutError",
            "ConnectTimeout",
            "Failed to establish a new connection",
            "CONNECTION FAILED for url",
            "Connection timed out",
            "connection timed out",
            "Could not connect to",
            "i/o timeout",
            "Client.Timeout exceeded",
            "request canceled while waiting for connection",
            "Could not fetch URL",
            "operation timed out",
            "error sending request for url",
            "Cannot initiate the connection to",
            "Read timed out",
            "Failed to connect to",
            pattern=r"Connection to (?:pypi|files\.python|download\.pytorch|conda|repo\.anaconda"
            r"|huggingface)[\w.]{1,40} timed"
            r" out|ConnectTimeout(?:Error)?\b.{0,120}timed out"
            r"|HTTP 000 CONNECTION FAILED|(?:pypi|pythonhosted|pytorch\.org|anaconda"
            r"|huggingface\.co|github\.com|ubuntu\.com|debian\.org|docker\.io|nvcr\.io"
            r"|nvidia\.com).{0,200}(?:timed out|i/o timeout|Failed to establish a new"
            r" connection"
            r"|Client\.Timeout|unreachable|No route to host|waiting for connection)|(?:timed out"
            r"|Failed to connect to|i/o"
            r" timeout).{0,160}(?:pypi|pythonhosted|pytorch\.org"
            r"|anaconda|huggingface\.co|github\.com|ubuntu\.com|docker\.io|nvcr\.io)"
            r"|error sending request for url \(https://(?:pypi|files\.pythonhosted"
            r"|download\.pytorch)",
        ),
        signature(
            "network-unreachable",
            "Network is unreachable",
            pattern=r"(?:https?|Errno 101|connect|initiate|pip|apt|curl|wget|url"
            r"|dial tcp).{0,160}Network is unreachable",
        ),
        signature("pip-succeeded", "Successfully installed"),
    ),
    explains=(
        "hugging-face-unreachable",
        "no-wheel-for-python",
        "download-interrupted",
        "conda-solve-failed",
    ),
)
