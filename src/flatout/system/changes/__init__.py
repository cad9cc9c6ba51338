"""Plans carried out and undone: each change is journaled before it is made.

Whatever changes the machine outside flatout's own folders is a `Plan` (`schema/plan.py`) first:
data that can be shown, stored and sent. A plan has a goal and its steps. A step says what it
does, on which side it runs, what it changes, whether it needs root, how safe it is, how it is
taken back, and what it restarts; its action is one of six:

- `RunProgram`: a program with its arguments, without a shell; puts back `files`, removes what
  it `makes`, runs `undo`
- `InstallPackages`: pip or uv in one environment; puts back the environment's files, without a
  network
- `Edit`: entries of an ini or a JSON file; puts back the file
- `Block`: lines between two marks in a text file; puts back the file
- `Write`: a whole file; puts back the file, or removes it
- `Move`: another name for a file or a folder on the same disk; moves it back

   plan --apply.py--> steps, one after the other: done already? --> journal --> action --> journal
   journal --undo.py--> files, packages and folders as they were, then the commands of `undo`

- `doctor/fix/plan.py` makes the plans of fixes, for a machine that was read and never for a
  text. `doctor/fix/commands.py` knows which commands flatout can carry out itself; what it does
  not know, a user types.
- `apply` does not ask: the caller has shown the plan and asked. It yields how each step
  went, and stops at the first that fails.
- Before the first change, `system/store/change_journal.py` has the plan, and a copy of every
  file that it writes, on the disk. A line is written before what it announces is done. So after
  `kill -9` the journal shows what may have been changed, `flatout undo` puts it back, and a
  second run continues: what is done already is passed over.
- A plan is carried out by the process that made it, as soon as it was agreed to, and `done_if` of
  each step is checked then. So it holds no digest of the machine, as it did at first: no one read
  that, and what a plan of several repairs changes would have kept its own later steps from being
  done.
- Edits (`system/changes/ini.py`, `json_object.py`, `block.py`) are functions from text to text
  that leave every other sign as it is, encoding and line ends included. What is broken is
  refused.
- `system/edit_file.py` writes other people's files: whole or not at all, through links, with
  their permissions and owner. `system/hardlink_copy.py` keeps an environment by hard links, in
  `.flatout` inside it: package installers replace files and do not write into them.
"""
