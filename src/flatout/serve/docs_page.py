"""`GET /docs`: Swagger UI from its package, so that it needs no internet and loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response
from swagger_ui_bundle import swagger_ui_path

# Not all of the package: its own page shows an example from the internet. With types, because
# Windows may have another one for .js, with which a browser does not run it.
_FILES = {
    "swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}  # fmt: skip
# The package's Swagger UI refuses 3.1, but shows what there is of it here.
# Addresses are relative, for a proxy that serves it under a prefix, as Ray Serve does; those of
# requests are to the page's own folder.
_SCRIPT = """const servers = [{url: new URL(".", location).pathname.slice(0, -1) || "/"}];
fetch("openapi.json").then(response => response.json()).then(document =>
  SwaggerUIBundle({spec: {...document, servers, openapi: "3.0.3"}, dom_id: "#swagger-ui"}));"""
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>flatout serve</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def docs_page() -> Response:
    """The page, which may run this script alone and ask this server alone."""
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; connect-src 'self'; "
        # Swagger UI sets styles of its elements, and has its icons in its style sheet.
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": policy})


def docs_file(name: str) -> Response:
    """A file that the page loads."""
    if name not in _FILES:
        raise HTTPException(404)
    return FileResponse(
        Path(swagger_ui_path) / name,
        media_type=_FILES[name],
        headers={"X-Content-Type-Options": "nosniff"},
    )
