"""A plan for what environments depend on, with the command to type for each step."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.plan import Plan

Goal = Literal["driver", "wsl", "toolkit", "docker"]


class HostPlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A goal, with its options.

    cuda: of the toolkit, like "12.6". packages: texts of --with, which name further libraries.
    installer: a file to take it from. frameworks: to be set up inside WSL.
    """

    goal: Goal
    cuda: str | None = None
    packages: tuple[str, ...] = ()
    installer: str | None = None
    frameworks: tuple[str, ...] = ("torch",)


class HostPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan. commands: of each step, where scripts are forbidden.

    files: what to write, by name: setup.ps1 for WSL, and a request to an administrator.
    run_line: what runs the script under Windows' default policy. refusal: who forbids it, and why.
    """

    plan: Plan
    commands: tuple[tuple[str, ...], ...]
    files: dict[str, str] = {}
    run_line: str | None = None
    refusal: str | None = None
