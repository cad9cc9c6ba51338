"""TensorFlow comes with Keras 3, but the code expects Keras 2.

**Checks.** Keras errors of transformers and TensorFlow Hub.

**Why it matters.** Since 2.16, TensorFlow includes Keras 3; Keras 2 is the package tf-keras.

**Example.** `Your currently installed version of Keras is Keras 3, but this is not yet supported
in Transformers.`

**Fix.** Install tf-keras; safe, it adds a package.

**Source.** tensorflow.org/guide/keras; huggingface/transformers#34761.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("keras-three",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="tf-keras-versions-differ",
        severity="error",
        problem="TensorFlow comes with Keras 3, but the code expects Keras 2.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install Keras 2 alongside it",
                safety="safe",
                commands=(
                    "pip install tf-keras",
                    "export TF_USE_LEGACY_KERAS=1",
                ),
                changes="adds a package to this environment",
                undo="pip uninstall tf-keras",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "keras-three",
            "installed version of Keras is Keras 3",
            "requires Keras 2",
            "TF_USE_LEGACY_KERAS",
            "No module named 'tf_keras'",
            "No module named 'keras.src",
            "No module named 'keras.engine",
        ),
    ),
)
