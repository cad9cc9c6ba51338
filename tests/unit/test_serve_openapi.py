"""The description of the routes, and schemathesis, which believes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from support.linear_dispatcher import MODEL, LinearDispatcher, serving

from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.serve.openapi_document import openapi_document

schemathesis: Any = pytest.importorskip("schemathesis", reason="schemathesis is not installed")


def body_of(model: ServedModel) -> dict[str, Any]:
    document = openapi_document(model, "1", has_token=False)
    content = document["paths"]["/predict"]["post"]["requestBody"]["content"]
    found: dict[str, Any] = content["application/json"]
    return found


def test_openapi_document_when_the_model_takes_an_image() -> None:
    spec = TensorSpec(name="x", dtype="uint8", shape=(None, 1, 28))
    found = body_of(ServedModel(name="m", version="1", format="run", inputs=(spec,), example=[[1]]))
    number = {"type": "integer", "minimum": 0, "maximum": 255}
    row = {"type": "array", "items": number, "minItems": 28, "maxItems": 28}
    sample = {"type": "array", "items": row, "minItems": 1, "maxItems": 1}
    assert found["schema"]["properties"]["input"] == sample
    assert found["example"] == {"input": [[1]]}


def test_openapi_document_when_no_model_is_named() -> None:
    document = openapi_document(None, "1", has_token=True)
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert "linear" not in str(document)


@pytest.mark.parametrize("accepts", [("tensors",), ("tensors", "file", "text"), ("value",)])
def test_schemathesis_finds_nothing(accepts: tuple[Any, ...]) -> None:
    model = msgspec.structs.replace(MODEL, accepts=accepts, has_decode="value" in accepts)
    with serving(LinearDispatcher(model)) as address:
        schema = schemathesis.openapi.from_url(f"http://{address}/openapi.json")
        for result in schema.get_all_operations():
            _try(result.ok())


def _try(operation: Any) -> None:
    from hypothesis import given
    from schemathesis import checks

    @settings(
        max_examples=15, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def call(case: Any) -> None:
        # A schema does not say that a file must not be empty, or that 3.0 is no number of classes.
        case.call_and_validate(timeout=120, excluded_checks=[checks.positive_data_acceptance])

    call()
