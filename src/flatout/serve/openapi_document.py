"""The OpenAPI description of the routes, with the served model's own shapes and example. Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.serve.http_errors import ErrorBody, error_statuses
from flatout.serve.inputs import MOST_TOP, PredictAnswer, takes_values
from flatout.serve.open_inference import V2ModelMetadata, V2Request, V2Response, model_metadata

Document = dict[str, Any]

_DESCRIPTION = """\
Predictions of a model that flatout has trained. `POST /predict` takes JSON, files and texts; `/v2`
is the KServe Open Inference Protocol, for `tritonclient` and others. Every error is JSON with
`error`, `fix`, and `rule`, the name of its page: `flatout explain RULE`.
"""
_NAME = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
_VERSION = {"name": "version", "in": "path", "required": True, "schema": {"type": "string"}}


def openapi_document(model: ServedModel | None, version: str, *, has_token: bool) -> Document:
    """The document. model: None describes the routes without saying what is served."""
    document: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": f"flatout: {model.name}" if model else "flatout serve",
            "version": version,
            "description": _DESCRIPTION,
        },
        "paths": _paths(model),
        "components": {"schemas": _schemas()},
    }
    if has_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _schemas() -> Document:
    _, components = msgspec.json.schema_components(
        (ErrorBody, PredictAnswer, V2Request, V2Response, V2ModelMetadata),
        ref_template="#/components/schemas/{name}",
    )
    return components


def _paths(model: ServedModel | None) -> Document:
    ready = _get("Whether a replica is ready", {"200": _value("ready", True)}, (503,))
    live = _get("Whether the server runs", {"200": _value("live", True)}, ())
    # Open, so that what restarts a container needs no token.
    live["security"] = []
    metadata = {"200": _json("The model", "V2ModelMetadata")}
    text = {"description": "Text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    v2 = {
        "/v2": {"get": _get("The server", {"200": _value("name", "flatout")}, ())},
        "/v2/health/live": {"get": live},
        "/v2/health/ready": {"get": ready},
    }
    for path, parameters in (
        ("/v2/models/{model}", [_NAME]),
        ("/v2/models/{model}/versions/{version}", [_NAME, _VERSION]),
    ):
        named: Document = {"parameters": parameters}
        v2[path] = {**named, "get": _get("The model's inputs and outputs", metadata, (404,))}
        ready_there = _get("Whether the model is ready", ready["responses"], (404, 503))
        v2[f"{path}/ready"] = {**named, "get": ready_there}
        v2[f"{path}/infer"] = {**named, "post": _infer(model)}
    return {
        "/predict": {"post": _predict(model)},
        "/health/live": {"get": live},
        "/health/ready": {"get": ready},
        "/metrics": {"get": _get("Metrics for Prometheus", {"200": text}, ())},
        **v2,
    }


def _get(summary: str, responses: Document, errors: tuple[int, ...]) -> Document:
    return {"summary": summary, "responses": {**_errors((401, 421, *errors)), **responses}}


def _errors(statuses: tuple[int, ...]) -> Document:
    ids = error_statuses()
    return {str(status): _json(", ".join(ids[status]), "ErrorBody") for status in statuses}


def _json(description: str, schema: str) -> Document:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": description, "content": {"application/json": {"schema": reference}}}


def _value(name: str, value: bool | str) -> Document:
    kind = "boolean" if isinstance(value, bool) else "string"
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    content = {"application/json": {"schema": schema, "example": {name: value}}}
    return {"description": name, "content": content}


_COMPUTING = (400, 401, 408, 413, 415, 421, 422, 500, 503)


def _predict(model: ServedModel | None) -> Document:
    query: tuple[tuple[str, Document, str], ...] = (
        ("top", {"type": "integer", "minimum": 1, "maximum": MOST_TOP}, "classes to report"),
        ("timeout_s", {"type": "number", "exclusiveMinimum": 0}, "how long the client waits"),
    )
    answer = _json("Predictions", "PredictAnswer")
    if model is None or model.can_stream:
        query = (*query, ("stream", {"type": "boolean"}, "answer as server-sent events"))
        answer["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": "Predictions for one or several inputs",
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema, "description": text}
            for name, schema, text in query
        ],
        "requestBody": {"required": True, "content": _predict_content(model)},
        "responses": {**_errors(_COMPUTING), "200": answer},
    }


def _predict_content(model: ServedModel | None) -> Document:
    one = _input_schema(model)
    body: Document = {
        "type": "object",
        "properties": {
            "inputs": {"type": "array", "items": one, "minItems": 1},
            "input": one,
            "top": {"type": "integer", "minimum": 1, "maximum": MOST_TOP},
            "timeout_s": {"type": "number", "exclusiveMinimum": 0},
        },
        "oneOf": [{"required": ["inputs"]}, {"required": ["input"]}],
        "additionalProperties": False,
    }
    json: Document = {"schema": body}
    if model is not None and model.example is not None:
        json["example"] = {"input": model.example}
    content: Document = {"application/json": json}
    if model is None or "file" in model.accepts:
        file = {"type": "string", "contentMediaType": "application/octet-stream"}
        form = {"type": "object", "properties": {"file": file}, "required": ["file"]}
        content["multipart/form-data"] = {"schema": form}
        content["application/octet-stream"] = {"schema": file}
    if model is not None and "text" in model.accepts:
        content["text/plain"] = {"schema": {"type": "string"}}
    return content


def _input_schema(model: ServedModel | None) -> Document:
    """What one input may be."""
    if model is None or takes_values(model):
        return {}
    kinds: list[Document] = []
    if "tensors" in model.accepts and len(model.inputs) == 1:
        kinds.append(_sample_schema(model.inputs[0]))
    elif "tensors" in model.accepts and model.inputs:
        kinds.append(_object({spec.name: _sample_schema(spec) for spec in model.inputs}))
    if "text" in model.accepts:
        kinds.append({"type": "string"})
    if "file" in model.accepts:
        kinds.append(_object({"base64": {"type": "string", "contentEncoding": "base64"}}))
    return {"anyOf": kinds} if len(kinds) > 1 else kinds[0] if kinds else {}


def _object(properties: Document) -> Document:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


# Numbers that a JSON schema says of a dtype: float16 ends at 65504.
_FLOAT_LIMITS = {"float16": 65504.0, "float32": 3.4e38}


def _sample_schema(spec: TensorSpec) -> Document:
    schema: Document
    if spec.dtype == "bool":
        schema = {"type": "boolean"}
    elif spec.dtype.startswith("float"):
        most = _FLOAT_LIMITS.get(spec.dtype, 1.7e308)
        schema = {"type": "number", "minimum": -most, "maximum": most}
    else:
        bits = int(spec.dtype.lstrip("uint"))
        low, high = (0, 2**bits) if spec.dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        schema = {"type": "integer", "minimum": low, "maximum": high - 1}
    for size in reversed(spec.shape[1:]):
        schema = {"type": "array", "items": schema, "minItems": 1 if size is None else size}
        if size is not None:
            schema["maxItems"] = size
    return schema


def _infer(model: ServedModel | None) -> Document:
    json: Document = {"schema": {"$ref": "#/components/schemas/V2Request"}}
    if model is not None:
        example = _v2_example(model)
        if example is not None:
            json["example"] = example
    answer = _json("Outputs", "V2Response")
    answer["content"]["application/octet-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": "Predictions as tensors",
        "description": "With the header `Inference-Header-Content-Length: BYTES`, the binary data "
        "of inputs with the parameter `binary_data_size` follows that many bytes of JSON.",
        "requestBody": {"required": True, "content": {"application/json": json}},
        "responses": {**_errors((*_COMPUTING, 404, 501)), "200": answer},
    }


def _v2_example(model: ServedModel) -> Document | None:
    """A request with zeros, if it is short."""
    inputs = []
    for tensor in model_metadata(model).inputs:
        shape = [1, *(1 if size == -1 else size for size in tensor.shape[1:])]
        count = math.prod(shape)
        if count > 1024:
            return None
        zero = {"BYTES": "a text", "BOOL": False}.get(tensor.datatype, 0)
        data = [zero] * count
        inputs.append(
            {"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": data}
        )
    return {"inputs": inputs} if inputs else None
