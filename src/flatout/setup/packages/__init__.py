"""Package managers and wheels: uv, pip, conda, downloads, bundles."""
