"""Containers as fresh machines. Where there is no engine, and none can be had, all is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from containers import Docker, find_docker
from progress import Problem


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    """An engine; what was made in it goes when the tests end."""
    try:
        found = find_docker()
    except Problem as problem:
        pytest.skip(f"needs containers: {problem.problem} {problem.because or ''}".strip())
    try:
        yield found
    finally:
        found.clean()


@pytest.fixture(scope="session")
def base_image(docker: Docker) -> str:
    """A Debian with Python alone."""
    try:
        return docker.base_image()
    except Problem as problem:
        pytest.skip(f"needs a base image: {problem.problem} {problem.because or ''}".strip())
