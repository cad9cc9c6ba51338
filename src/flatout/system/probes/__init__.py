"""Facts of the machine: one family a file, a command or file and a pure parser.

To add a fact about GPUs
------------------------

1. `schema/machine.py: Gpu`: a field, None by default, for old recordings.
2. `system/nvml_child.py`: its name in `_FIELDS`, and the query in `_read_gpu`, or in `_read_state`
   if it changes from minute to minute. NVML runs in a child process, which may hang.
3. `system/probes/gpus.py`: nvidia-smi, where NVML does not respond: `_SMI_FIELDS` or `_SMI_STATE`,
   and the cell with it in `parse_smi` or `with_state`; `_STATE`, so that None has a reason.
4. `doctor/redaction.py: _ALLOWED`, if it is a text: a text that is not listed is hidden.
5. Shown in `cli/render/machine_rows.py`.
6. tests/unit/test_nvml.py; `LATER` of tests/unit/test_probes_machine.py, since older recordings
   lack it; test_probes_gpus.py, and `tests/cases/driver/nvml.c` for test_fake_driver.py.

To add a measurement of training steps: see `engine/training/__init__.py`.
"""
