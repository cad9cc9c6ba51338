"""A model or data set is not in the cache, and Hugging Face is not reachable.

**Checks.** Offline errors of huggingface_hub and transformers.

**Why it matters.** Without a network, or with HF_HUB_OFFLINE set, only cached files can be used;
cluster compute nodes often have no internet access.

**Example.** `We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it
in the cached files`

**Fix.** Download on a machine with internet access (`hf download`), and copy HF_HOME; asks first.

**Source.** huggingface.co/docs/transformers/installation (offline mode);
huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Offline errors of huggingface_hub and transformers."""
    if not case.sees("hugging-face-offline"):
        return None
    return Finding(
        rule="hugging-face-unreachable",
        severity="error",
        certainty="likely",
        problem="A model or data set is not in the cache, and Hugging Face is not reachable.",
        because=(
            "the files are not in HF_HOME, and the network or HF_HUB_OFFLINE prevents a download"
        ),
        evidence=case.evidence("hugging-face-offline"),
        fixes=(
            Fix(
                text="download on a machine with internet access",
                safety="ask",
                commands=("hf download <model>",),
                changes="writes to HF_HOME",
            ),
        ),
        confirm=("env | grep -E '^HF_|TRANSFORMERS_OFFLINE'", "curl -sSI https://huggingface.co"),
    )


RULE = Rule(
    check=check,
    prior=45,
    signatures=(
        signature(
            "hugging-face-offline",
            "OfflineModeIsEnabled",
            "LocalEntryNotFoundError",
            "connect to 'https://huggingface.co'",
            "look-up in the local cache",
            "outgoing traffic has been disabled",
            "trying to locate the file on the Hub",
            "connect to the Hugging Face Hub",
            pattern=r"OfflineModeIsEnabled|LocalEntryNotFoundError"
            r"|couldn.?t connect to .https://huggingface\.co|outgoing traffic has"
            r" been disabled"
            r"|locate the file(?:s)? on the Hub|(?:reach|connect to) the Hugging Face"
            r" Hub",
        ),
    ),
)
