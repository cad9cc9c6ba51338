"""Makes shards from a source; needs pyarrow, and Ray or Dask to run on a cluster.

Nothing here needs torch.

   __main__.py              a separate process, in an environment with pyarrow (and Ray or Dask)
     listing.py               SOURCE -> settings and pieces: depends on the source only, never on
                              the executor
     executors.py             gives pieces to processes, Ray or Dask
       piece.py                 one piece: read (readers.py, tables.py), cleaned, split, written;
                                in any process
     ingestion.py             writes manifest.json last, then removes files no longer needed
   engine/data/shards.py    reads shards for training, and verifies each

- `python -m flatout.engine.ingest` reads one `IngestRequest` as JSON from stdin and answers with
  JSON lines (`schema/ingest_protocol.py`), like `engine.predict.worker`;
  `system/json_process.py` is the other end of both. Nothing in `engine/ingest` imports torch,
  so an environment for Ray does not need it.
- With `--on cluster`, `cluster/ingest.py` runs the same process on the head with `docker exec`,
  which passes standard input through; paths are given as the nodes see them.
- A finished piece has a record in `.ingest/`, written after its shards. A piece counts as finished
  if the stamp of its files and the settings are unchanged and the shards exist. Idempotence and
  resuming are based on this alone.
- A worker's error comes back as a value, because each executor changes exceptions in its own way.

To add a kind of source
-----------------------

1. `schema/ingest_protocol.py: SourceKind`.
2. `listing.py`: its endings in `_ENDINGS`, and how a source of it is cut into pieces, by the source
   alone (`scan_source`).
3. A reader in `readers.py` (or `tables.py`), and in `piece.py` `_read`, `_schema` and
   `versions_for`, if it depends on another package.
4. `engine/data/shards.py: _READERS`: which method reads the shards; `CONTENT_OF` of
   `runs/model/new_experiment.py`: what `flatout new` makes of them.
5. `cli/commands/ingest.py`: the choice of `--kind`, written out (a test compares it);
   tests/cases/cli/options.txt; docs/ingest.md.
"""
