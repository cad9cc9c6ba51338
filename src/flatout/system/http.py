"""Openers of package indexes' addresses, through a company's network too.

Trusted are the authorities that the operating system, a variable or a setting of pip names, and the
hosts whose certificate the user does not want to be looked at.
"""

from __future__ import annotations

import http.client
import netrc
import os
import ssl
import urllib.request
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import OpenerDirector

from flatout.errors import RunFailed
from flatout.schema.package_indexes import Indexes


def opener_for(indexes: Indexes, *urls: str) -> OpenerDirector:
    """An opener of addresses with the user's settings: proxies, authorities, passwords.

    urls: further addresses, with their passwords.

    Raises:
        RunFailed: certificate-not-trusted.
    """
    passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
    for url in (*indexes.urls, *urls):
        parts = urlsplit(url)
        if parts.username:
            origin = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
            passwords.add_password(
                None, origin, unquote(parts.username), unquote(parts.password or ""),
                is_authenticated=True,
            )  # fmt: skip
    for host, user, password in _netrc_entries(indexes):
        passwords.add_password(None, f"https://{host}", user, password, is_authenticated=True)
    handlers: list[urllib.request.BaseHandler] = [
        _Trusting(_trust(indexes.certificates), indexes.trusted_hosts),
        urllib.request.HTTPBasicAuthHandler(passwords),
    ]
    if indexes.proxy and not urllib.request.getproxies():
        proxies = {"http": indexes.proxy, "https": indexes.proxy}
        handlers.append(urllib.request.ProxyHandler(proxies))
    return urllib.request.build_opener(*handlers)


class _Trusting(urllib.request.HTTPSHandler):
    """Looks at every certificate, but those of hosts that were named."""

    def __init__(self, context: ssl.SSLContext, trusted_hosts: Sequence[str]) -> None:
        super().__init__(context=context)
        self._context_of_others = context
        self._trusted_hosts = trusted_hosts

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Opens an address."""
        host = request.host
        is_trusted = {host, host.partition(":")[0]} & {*self._trusted_hosts}
        # As the user has set it, for pip and uv too.
        context = ssl._create_unverified_context() if is_trusted else self._context_of_others
        return self.do_open(http.client.HTTPSConnection, request, context=context)


def _trust(certificates: Sequence[str]) -> ssl.SSLContext:
    # Windows' store, SSL_CERT_FILE and SSL_CERT_DIR are in it from the start.
    context = ssl.create_default_context()
    for path in certificates:
        try:
            context.load_verify_locations(path)
        except ssl.SSLError as error:
            raise RunFailed(
                "certificate-not-trusted",
                f"{path} contains no certificates ({error.reason}).",
                because="a setting names it as the CA certificates to trust",
                fix="name a file of PEM certificates: SSL_CERT_FILE=/path/ca.pem",
            ) from error
    return context


def _netrc_entries(indexes: Indexes) -> list[tuple[str, str, str]]:
    try:
        read = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return []
    hosts = {urlsplit(url).hostname for url in indexes.urls} - {None}
    entries = [(host, read.authenticators(host or "")) for host in hosts]
    return [(host or "", entry[0], entry[2] or "") for host, entry in entries if entry]


def without_password(url: str) -> str:
    """An address as it may be kept: without user and password."""
    parts = urlsplit(url)
    _, is_user, host = parts.netloc.rpartition("@")
    if not is_user:
        return url
    return urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))
