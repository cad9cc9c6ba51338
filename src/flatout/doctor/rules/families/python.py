"""Interpreters, environments and compilers."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    build_isolation_hides_torch,
    c_compiler_missing,
    conda_not_initialized,
    duplicate_openmp_runtime,
    missing_main_guard,
    no_wheel_for_python,
    own_file_shadows_module,
    package_not_in_environment,
    pip_externally_managed,
    powershell_scripts_disabled,
    python_built_without_library,
    python_environment_not_writable,
    python_venv_missing,
    setuptools_or_distutils_missing,
    user_site_shadows_env,
    windows_default_encoding,
    windows_long_paths_off,
    windows_python_inside_wsl,
    windows_store_python,
    worker_cannot_pickle,
)

RULES: tuple[Rule, ...] = (
    pip_externally_managed.RULE,
    python_venv_missing.RULE,
    no_wheel_for_python.RULE,
    user_site_shadows_env.RULE,
    c_compiler_missing.RULE,
    duplicate_openmp_runtime.RULE,
    missing_main_guard.RULE,
    worker_cannot_pickle.RULE,
    build_isolation_hides_torch.RULE,
    package_not_in_environment.RULE,
    setuptools_or_distutils_missing.RULE,
    own_file_shadows_module.RULE,
    python_built_without_library.RULE,
    python_environment_not_writable.RULE,
    conda_not_initialized.RULE,
    powershell_scripts_disabled.RULE,
    windows_long_paths_off.RULE,
    windows_store_python.RULE,
    windows_python_inside_wsl.RULE,
    windows_default_encoding.RULE,
)
