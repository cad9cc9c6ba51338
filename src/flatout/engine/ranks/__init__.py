"""Data parallelism over several processes: gradients, buffers, FSDP2, timeouts, failures.

`flatout train --on local:4` trains one run in four processes. Each is a **rank**: it holds the
whole model, or a part of every weight, makes forward and backward passes over its share of
every batch, and all make the same update.

   command line --starts--> launcher --starts--> rank 0 .. N-1   `engine.training.worker --ranked`
                                                    |        \\___ meet through torch.distributed
                                                    +--appends--> run folder (rank 0 alone)

- command line: makes the run's folder; starts `python -m flatout.engine.launch RUN_DIR --on
  LAUNCHER:N [--attached] [--change JSON]` in place of the worker (in each of several nodes:
  with `--node K --nodes N --meet HOST:PORT`), and reads lines as ever
- launcher: one file in `engine/launch/`, named as in `--on`, with `launch(job) -> int`: starts
  the ranks, waits until all have ended, gives the exit code. Once one has ended,
  `system/store/shutdown_grace.py` says how long it waits for the others. It restarts nothing,
  and writes into the run only why it could start no rank (`job.log_refusal`)
- rank: `python -m flatout.engine.training.worker RUN_DIR --ranked --attached --change JSON`
  (`RankJob.command`), with `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`
  and `MASTER_PORT` (`rank_variables`), and `OMP_NUM_THREADS`, cores / ranks of its machine
- run folder: the same path for every rank, on a disk that all of them see. Rank 0 holds the
  lock, and alone writes; the others read the checkpoint, and write their own log
  `worker.rank1.log`, which they open themselves. What rank 0 and the launcher print is in
  `worker.log`
- rendezvous: rank 0 listens on `MASTER_PORT` of `MASTER_ADDR` alone, unless the launcher keeps
  the store (torchrun); `local` and Ray's actors hand it the socket. The run's id is in every
  name there, and values are JSON and tensors (`engine/tensors/wire.py`), never pickles. Every
  wait ends after `FLATOUT_RANKS_LIMIT_S`, 600 seconds, and says which rank is missing; rank 0
  receives stop requests and passes them on; after 10 seconds it reports whom it
  waits for (`engine/ranks/wait_watchdog.py`). A connection whose other end cannot be reached
  ends after 60 seconds (`system/tcp_keepalive.py`): the kernel answers for a hung rank, one that
  was cut off is not
- standard input: of every rank: a pipe (`job.Lifeline`) that ends when the launcher dies, or
  the command line of an attached run. Then the ranks stop with a checkpoint. A launcher that
  starts them where no pipe leads leaves `--attached` out, and asks for the stop by the run's
  file `stop`
- exit code: `placement.ending_code` of the ranks' codes: that of rank 0, if it has logged its end;
  10 (`RANK_DIED`) if a rank was killed and nothing was logged
- restart: `runs/supervisor.py` alone: after a `Failed` with the rule `rank-lost` or
  `rendezvous-port-taken`, and after exit code 10 or a kill where the ranks have logged nothing,
  or that they were left alone (`schema/exit_status.py`); not after a stop request; three times at
  most without another checkpoint, from the last one, and never before the run's lock is free

Failures
--------

LIMIT is `FLATOUT_RANKS_LIMIT_S`, 600 seconds unless set; a smaller one also shortens the times of
rendezvous.py, failure_notices.py and tcp_keepalive.py. `runs/supervisor.py` restarts ranks, if they
have trained. A run that ends can be resumed.

failure                     detected by                  after          reaction
--------------------------- ---------------------------- -------------- ---------------------------
a rank does not join        rendezvous.py: await_words   LIMIT          `ranks-not-together`, end
rank 0's name is unknown    rendezvous.py                30 s           `ranks-not-together`, end
a rank is slow              wait_watchdog.py             10 s (1)       note `rank-late`
a rank fails                failure_notices.py: its word 5 s (2)        its error, end
a rank is gone (CPU)        gloo: a closed connection    5 s (2)        `rank-lost`, restart
a rank is gone (GPU)        collectives.py: the same     4 s + 5 s (2)  `rank-lost`, restart
a rank hangs                gloo, collectives.py         LIMIT          `rank-lost`, restart
a machine is cut off        system/tcp_keepalive.py (3)  60 s           `rank-lost`, restart
the store's host hangs      timeout_store.py (4)         LIMIT or 5 s   `rank-lost`, restart
a rank is out of memory     the vote before an update    at once        less memory, or back (5)
one killed for memory       system/free_memory.py        when it ended  restart with less memory
ranks outlive a failed one  system/store/shutdown_grace  20 s, 5 s (6)  the launcher kills them
the same under torchrun     torchrun                     0.1 s          SIGTERM; after LIMIT, kill
a launcher is gone          end of stdin: job.Lifeline   at once        checkpoint, stop, restart
the command line is gone    the same, if `--attached`    at once        checkpoint, stop
a container's is gone       cluster/node_job.py          20 s, 5 s (6)  cluster/node_end.py kills
Ray has no room             launch/ray_cluster.py        60 s           `ranks-not-placed`, end
a Ray node is gone          Ray                          as Ray does    as a killed rank
Ray's head is silent        cluster/ray_jobs.py          10 times (7)   `ray-not-answering`, end
old ranks hold the lock     runs/supervisor.py: _freed   LIMIT (8)      kill; 30 s later, end
restarts do not help        runs/supervisor.py           3 restarts     end

1. Of waits, 5 an hour are reported so; further ones if they last 60 s.
2. The time the others have to say why they left, or that they are still here.
3. The kernel answers for a process that hangs, and not for a machine that was cut off. Complete
   under Linux; idle connections alone under macOS; not under Windows.
4. torch limits the wait for a word, but not for the answer of its store.
5. `RankGroup.agree_on_oom`: see below.
6. 20 s once a rank has failed or rank 0 has finished; 5 s if it was rank 0 that failed. While
   rank 0 holds the run's lock, it may be writing a checkpoint: then LIMIT.
7. In a row, a second or more apart, with up to 15 s for each answer.
8. At least 150 s, after 5 s without a note: ranks on a disconnected node have to notice it first.

In the engine:

   protocol.py              what a training asks of its ranks; `SingleRank` is a single one, and
                            costs nothing
   process_group.py         several: how they meet, decide together, report out-of-memory to each
                            other
   connection.py            torch.distributed with a limit and plain words for every wait
   collectives.py           sends tensors
   rank_env.py              which rank a process is, and where rank 0 waits
   rendezvous.py            where they meet: names, ports and versions are checked first
   listen_socket.py         the socket at which rank 0 waits for the others
   wait_watchdog.py         long waits, reported while they last
   timeout_store.py         asks a store that may hang
   failure_notices.py       why a rank has left, for the others to read
   gradient_sync.py         one gradient out of those of all
   gradient_buffers.py      a rank's gradients on their way to those of the whole batch
   gradient_buckets.py      the same during the backward pass, without agreement (`exchange=plain`)
   buffer_sync.py           buffers that a step has moved
   synced_passes.py         passes that all ranks make together, as they exchange something within
   model_layout.py          a model whole on a device, or in parts on several ranks
   meta_device_build.py     a model built without memory for its weights, which the first rank sends
   fsdp.py                  a model in parts (fully_shard)
   sync_batchnorm.py        BatchNorm over all ranks
   custom_step_sync.py      an experiment's own step

   engine/tensors/wire.py                  what they tell each other, as bytes without pickles
   engine/training/shard_loss_check.py     asked once: is the loss of a share that of the batch?

- Batches are numbered for all ranks, and each takes a contiguous share of each (`BatchShard`). So
  order, sizes and ends of epochs are those of one rank. A share may be empty.
- What the first rank decides, from clock, disk and history, the others
  receive (`RankGroup.broadcast_from_rank0`);
  what follows from numbers that all have, each decides for itself, alike.
- Every meeting begins with the same exchange of a few numbers. A rank whose memory has run out
  says so there, wherever the others are; they raise `PeerOutOfMemory`, and all report what they
  were doing (`RankGroup.agree_on_oom`). If all can repeat the update, all do, with smaller
  micro-batches; otherwise all go
  back to the last checkpoint.
- Gradients are made ready before the vote and added up after it: small ones copied into one
  tensor, in main memory those of 1 MiB and more in place. Nothing is allocated in
  between, so no rank can fail where the others already wait for it. Nothing travels during the
  backward pass either, where DDP's buckets do.
- Buffers that a step has moved are averaged over the ranks after it. So the state is the same
  on all, and the checkpoint is rank 0's, with the generators of the others in it.
- A model in parts, and synchronized norms, exchange tensors within a pass. Each of these
  exchanges is a meeting too (fully_shard takes our own all-gather and reduce-scatter for it),
  so out-of-memory is reported there, and diverged ranks are detected. All ranks make as
  many passes: `SyncedPasses.evened` fills up those of a rank that has
  fewer. States are gathered
  on the first rank, by all of them.
"""
