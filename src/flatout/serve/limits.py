"""How large a request may be: checked before anything of that size is allocated. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

import msgspec

from flatout.errors import UsageError
from flatout.schema.units import bytes_text, count_text, counted_text


class ServeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a request.

    body_bytes: of a body, also after it was decompressed. body_s: until all of it has arrived.
    held_bytes: of the bodies of all requests that are being answered.
    tensor_bytes: of one tensor. num_inputs: inputs or samples. json_depth: of nested lists and
    objects. image_pixels: of an image, by its header; file_bytes: of a compressed file's content.
    """

    body_bytes: int = 64 << 20
    body_s: float = 30.0
    held_bytes: int = 1 << 30
    tensor_bytes: int = 256 << 20
    num_inputs: int = 10_000
    json_depth: int = 32
    image_pixels: int = 50_000_000
    file_bytes: int = 256 << 20


def check_body_bytes(num_bytes: int, limits: ServeLimits) -> None:
    """Refuses a body that is larger than the limit.

    Raises:
        UsageError: body-too-large
    """
    if num_bytes > limits.body_bytes:
        raise UsageError(
            "body-too-large",
            f"the body of the request is larger than {bytes_text(limits.body_bytes)}.",
            because=f"at least {bytes_text(num_bytes)} of it were announced or have arrived",
            fix="send fewer inputs in a request, or numbers as binary tensors (`/v2`)",
        )


def check_num_inputs(count: int, limits: ServeLimits) -> None:
    """Refuses a request with too many inputs, or with none.

    Raises:
        UsageError: too-many-inputs; request-invalid: there are none
    """
    if count == 0:
        raise UsageError(
            "request-invalid", "the request has no inputs.", fix="send at least one input"
        )
    if count > limits.num_inputs:
        raise UsageError(
            "too-many-inputs",
            f"the request has {counted_text(count, 'input')}; "
            f"{count_text(limits.num_inputs)} are allowed.",
            fix="send them in several requests",
        )


_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def check_depth(body: bytes, limits: ServeLimits) -> None:
    """Refuses valid JSON whose lists and objects are nested too deep.

    Raises:
        UsageError: json-too-deep
    """
    # Its texts may contain brackets, too, but in most cases they are balanced or none.
    if _is_deep(body, limits) and _is_deep(_TEXT.sub(b"", body), limits):
        raise too_deep(limits)


def _is_deep(body: bytes, limits: ServeLimits) -> bool:
    brackets = body.translate(_AS_LISTS, _NOT_BRACKETS)
    for _ in range(limits.json_depth):
        if not brackets:
            return False
        # The innermost level.
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def too_deep(limits: ServeLimits) -> UsageError:
    """The error about JSON that is nested too deep."""
    return UsageError(
        "json-too-deep",
        "the JSON of the request is nested too deep.",
        because=f"at most {limits.json_depth} levels of lists and objects are read",
        fix="send flatter data",
    )


def num_elements(shape: Iterable[int], item_bytes: int, limits: ServeLimits) -> int:
    """The number of elements of a declared shape.

    Raises:
        UsageError: input-shape-wrong: a dimension is negative; tensor-too-large
    """
    count = 1
    for size in shape:
        if size < 0:
            raise UsageError(
                "input-shape-wrong", f"a dimension is negative: {size}.", fix="send the true shape"
            )
        count *= size
        # Within the loop: the product of many large dimensions would take long itself.
        if count * item_bytes > limits.tensor_bytes:
            raise UsageError(
                "tensor-too-large",
                f"a tensor is larger than {bytes_text(limits.tensor_bytes)}.",
                fix="send fewer samples in a request",
            )
    return count


# What zlib calls the two formats.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}


def decompressed(body: bytes, encoding: str, limits: ServeLimits) -> bytes:
    """A body without its `Content-Encoding`: gzip, deflate or identity.

    Raises:
        UsageError: content-type-not-supported, body-not-readable, body-too-large
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    bits = _WINDOW_BITS.get(name)
    if bits is None:
        raise UsageError(
            "content-type-not-supported",
            f"`Content-Encoding: {encoding}` is not supported.",
            fix="use gzip, deflate or none",
        )
    stream = zlib.decompressobj(bits)
    try:
        data = stream.decompress(body, limits.body_bytes + 1)
    except zlib.error as error:
        raise UsageError(
            "body-not-readable",
            f"the body of the request is not {name}.",
            because=str(error),
            fix=f"send it as its `Content-Encoding: {name}` says, or leave that header out",
        ) from error
    check_body_bytes(len(data), limits)
    if not stream.eof or stream.unused_data:
        raise UsageError(
            "body-not-readable",
            f"the {name} body of the request "
            + ("has more data after its end." if stream.eof else "is truncated."),
            fix="send all of it, and nothing else",
        )
    return data
