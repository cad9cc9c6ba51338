"""Certificates are signed by an unknown authority, usually a company's proxy.

**Checks.** Errors of pip, uv, conda, git, curl, Docker, apt and Node about certificates they cannot
verify.

**Why it matters.** A company's proxy decrypts TLS and re-signs it with its own certificate
authority. Windows and browsers know that authority; Python, conda, WSL and containers have their
own lists.

**Example.** `SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate
verify failed: self-signed certificate in certificate chain'))`

**Fix.** Give the programs the company's CA: SSL_CERT_FILE, REQUESTS_CA_BUNDLE, `uv --system-certs`,
`/usr/local/share/ca-certificates` and `update-ca-certificates`; asks first. Never disable
verification.

**Source.** pip.pypa.io/en/stable/topics/https-certificates/;
docs.astral.sh/uv/concepts/authentication/certificates/; docs.docker.com/engine/network/ca-certs/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_UNKNOWN = ("tls-self-signed-in-chain", "tls-issuer-unknown")


def check(case: Case) -> Finding | None:
    """A certificate's issuer is unknown."""
    if not case.sees(*_UNKNOWN):
        return None
    # Public sites send complete chains, so failing to verify them means that a proxy re-signs them.
    is_decided = case.sees("tls-self-signed-in-chain", "tls-inspector-named", "public-host-named")
    return Finding(
        rule="tls-inspection-ca-missing",
        severity="error",
        certainty="decided" if is_decided else "likely",
        problem="Certificates are signed by an unknown authority, usually a company's proxy.",
        because=(
            "a proxy that decrypts TLS signs with its own CA, which Python, WSL and "
            "containers do not trust"
        ),
        evidence=case.evidence(*_UNKNOWN, "tls-inspector-named"),
        fixes=(
            Fix(
                text=(
                    "give the programs the company's CA, exported from Windows or provided "
                    "by its administrator"
                ),
                safety="safe",
                commands=("export SSL_CERT_FILE=<ca.pem> REQUESTS_CA_BUNDLE=<ca.pem>",),
                changes="environment variables of this shell",
                undo="unset SSL_CERT_FILE REQUESTS_CA_BUNDLE",
            ),
            Fix(
                text="or add it to the whole system",
                safety="ask",
                commands=(
                    "sudo cp <ca.pem> /usr/local/share/ca-certificates/company.crt",
                    "sudo update-ca-certificates",
                ),
                where="linux",
                changes="the system's list of authorities",
                undo="sudo rm /usr/local/share/ca-certificates/company.crt && sudo "
                "update-ca-certificates --fresh",
            ),
        ),
        confirm=("curl -sv https://github.com 2>&1 | grep -i issuer", "date -u"),
    )


RULE = Rule(
    check=check,
    prior=65,
    signatures=(
        signature(
            "tls-self-signed-in-chain",
            "self signed certificate in certificate chain",
            "self-signed certificate in certificate chain",
            "SELF_SIGNED_CERT_IN_CHAIN",
            "self signed certificate",
            "self-signed certificate",
            "SEC_E_UNTRUSTED_ROOT",
            "CA cert not marked critical",
            "Missing Authority Key Identifier",
            pattern=r"self[ -]signed certificate|SELF_SIGNED_CERT_IN_CHAIN|SEC_E_UNTRUSTED_ROOT"
            r"|CA cert not marked critical|Missing Authority Key Identifier",
        ),
        signature(
            "tls-issuer-unknown",
            "unable to get local issuer certificate",
            "UnknownIssuer",
            "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
            "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
            "certificate signed by unknown authority",
            "server certificate verification failed",
            "certificate issuer is unknown",
            "CERTIFICATE_VERIFY_FAILED",
            "unable to verify the first certificate",
            "cannot verify",
            "certificate verify failed",
            "CondaSSLError",
            "certificate is NOT trusted",
            "Peer's Certificate issuer is not recognized",
            "unable to get issuer certificate",
            pattern=r"unable to get (?:local )?issuer certificate|UnknownIssuer"
            r"|UNABLE_TO_(?:GET_ISSUER|VERIFY_LEAF)|signed by unknown authority"
            r"|server certificate verification failed|certificate issuer is unknown"
            r"|unable to verify the first certificate|cannot verify \S{1,80}certificate"
            r"|CondaSSLError|certificate is NOT trusted|issuer is not recognized"
            r"|certificate verify failed(?!.{0,80}(?:expired|not yet valid|mismatch))"
            r"|CERTIFICATE_VERIFY_FAILED(?!.{0,120}(?:expired|not yet valid|mismatch))",
        ),
        signature(
            "tls-inspector-named",
            "zscaler",
            "netskope",
            "fortinet",
            "FortiGate",
            "palo alto",
            "Blue Coat",
            "bluecoat",
            "Cisco Umbrella",
            "umbrella",
            "Forcepoint",
            "Sophos",
            "mitmproxy",
            "Corporate Root CA",
            "Kaspersky",
            "Avast",
            "ESET SSL",
            pattern=r"zscaler|netskope|forti(?:net|gate)|palo alto|blue ?coat|cisco umbrella"
            r"|forcepoint|sophos.{0,20}CA|mitmproxy|(?:Corporate|Company|Enterprise)"
            r" Root CA"
            r"|kaspersky|avast|ESET SSL",
        ),
        signature(
            "public-host-named",
            "pypi",
            "pythonhosted",
            "conda.anaconda.org",
            "repo.anaconda.com",
            "huggingface.co",
            "download.pytorch.org",
            "github.com",
            "registry-1.docker.io",
            "storage.googleapis.com",
            "npmjs",
            "pypi.nvidia.com",
            "nvcr.io",
            "docker.io",
            "raw.githubusercontent.com",
            "archive.ubuntu.com",
            "developer.download.nvidia.com",
        ),
    ),
    explains=(
        "proxy-not-set",
        "hugging-face-unreachable",
        "download-interrupted",
        "no-wheel-for-python",
    ),
)
