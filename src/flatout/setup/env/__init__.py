"""Environments: planned, created, repaired, locked, exported.

   plan.py     request -> solver -> every wheel, with its hash (uv, else pip) -> EnvironmentPlan
   create.py   lock, note, empty environment, wheels, install, training steps, record

- A virtual environment contains its own path in many files, and cannot be moved. So it is created
  in its final place, and its record (`flatout-environment.json`) is written last, atomically,
  after training steps have verified it. A folder without a record is incomplete: it contains a
  note, no list shows it, `--env` does not find it, and the next run removes it and starts over.
  The wheels are kept, so this is cheap; resuming would have to trust the leftovers of a killed
  installer.
- Removal starts with a rename to a hidden name; only then are files deleted.
- An environment that is being replaced stays next to its successor under a hidden name
  (`system/store/environment_folder.py`) until the successor has its record. After a kill the
  next flatout restores it. A record counts only in the folder that it names.
- There is one lock for all. Installers inherit it, so if a flatout is killed, the next one waits
  for the installers that it has started.
- flatout downloads the wheels itself: so a download resumes after a kill, progress is in bytes,
  and a lock file, a bundle and an offline machine all use the same list of wheels. uv and pip
  resolve, create and install.
- `setup/env/repair.py` repairs a user's own environment. `repair_problems.py` finds what is
  wrong, as a function of metadata and tables; `repair_diff.py` lets uv or pip resolve the
  packages that must change, with all others as constraints; a plan of `InstallPackages` steps
  installs wheels that were downloaded before. Interpreters in such environments run isolated
  (`-I`).
- `engine/smoke_tests/` contains a program for each framework. It imports nothing from flatout,
  since most of these environments have no flatout. All train on one problem with known losses.
- `setup/packages/flatout_wheel.py` builds a wheel of the running flatout, which goes into each
  environment for torch: `check_interpreter` requires the same version on both sides.
"""
