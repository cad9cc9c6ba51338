"""Package managers."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    apt_dependencies_broken,
    apt_key_missing_other_repo,
    apt_locked,
    apt_refuses_old_signature,
    apt_repository_gone,
    apt_signed_by_conflict,
    build_tools_missing,
    checkpoint_damaged,
    conda_and_pip_mixed,
    conda_solve_failed,
    conda_terms_not_accepted,
    cuda_toolkit_differs_from_torch,
    cuda_toolkit_missing_for_build,
    dependency_conflict,
    disk_full,
    dpkg_interrupted,
    git_lfs_not_pulled,
    host_compiler_too_new_for_nvcc,
    nvidia_apt_key_rotated,
    wheel_index_not_given,
)

RULES: tuple[Rule, ...] = (
    nvidia_apt_key_rotated.RULE,
    apt_key_missing_other_repo.RULE,
    apt_refuses_old_signature.RULE,
    apt_signed_by_conflict.RULE,
    apt_locked.RULE,
    dpkg_interrupted.RULE,
    apt_dependencies_broken.RULE,
    apt_repository_gone.RULE,
    disk_full.RULE,
    dependency_conflict.RULE,
    wheel_index_not_given.RULE,
    conda_solve_failed.RULE,
    conda_terms_not_accepted.RULE,
    git_lfs_not_pulled.RULE,
    checkpoint_damaged.RULE,
    cuda_toolkit_missing_for_build.RULE,
    cuda_toolkit_differs_from_torch.RULE,
    host_compiler_too_new_for_nvcc.RULE,
    build_tools_missing.RULE,
    conda_and_pip_mixed.RULE,
)
