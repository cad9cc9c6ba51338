"""Names, proxies and certificates."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    dns_broken,
    download_interrupted,
    download_rate_limited,
    hugging_face_access_denied,
    hugging_face_unreachable,
    port_in_use,
    proxy_not_set,
    tls_inspection_ca_missing,
)

RULES: tuple[Rule, ...] = (
    tls_inspection_ca_missing.RULE,
    proxy_not_set.RULE,
    dns_broken.RULE,
    port_in_use.RULE,
    hugging_face_access_denied.RULE,
    hugging_face_unreachable.RULE,
    download_rate_limited.RULE,
    download_interrupted.RULE,
)
