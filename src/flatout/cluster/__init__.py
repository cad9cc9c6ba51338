"""`flatout cluster`, `launch` and `--on`: a cluster of containers, and scripts on several nodes.

Clusters
--------

   Machine, request --layout.py--> ClusterLayout --compose_file.py, image.py--> compose.yaml, .env
   compose config --docker_output.py--> Services --checks.py--> Findings    (before any start)
   docker inspect --docker_output.py--> Containers
   docker exec node_report --node_health.py--> Findings

- `cluster/` is pure; `cluster/compose/docker.py` runs Docker and Compose,
  `cluster/compose/cluster_folder.py` keeps the folder.
- v1 and v2 of Compose agree on what is used: no `name`, no cache mounts, settings from `.env`.
  Running containers are queried from Docker itself, since the two print them differently.
- `cluster/compose/node_report.py` runs inside each node, whose image holds the same flatout.
- `cluster/train.py` starts a training: the command line creates the run in the folder that all
  nodes see. Where the engine does not place ranks (torchrun, Dask), `cluster/rank_assignment.py`
  says which node takes how many, and `cluster/node_job.py` runs `engine.launch RUN_DIR --on
  torchrun:2 --node 0 --nodes 2 --meet HOST:PORT` in each by `docker exec`. It is supervised from
  outside; `cluster/node_end.py` kills it from inside.
- For Ray, `cluster/ray_jobs.py` hands `engine.launch RUN_DIR --on ray` to the Jobs API by HTTP.
  `engine/launch/ray.py` runs on the head, has Ray place an actor for each rank, and each actor
  holds the process of its rank and the pipe that is its standard input.
  `engine/launch/ray_cluster.py` wraps Ray for all callers, with a timeout and an error message for
  every wait. Ray never restarts an actor or a job; `runs/supervisor.py` submits another job.
- `cluster/predict.py` predicts: `docker compose run` starts a container of the service `inference`
  for each request, which `engine.predict.worker` in it reads from standard input; names are
  returned as they were typed. `cluster/serve.py` does so for the replicas of `flatout serve`, which
  runs outside.
- Docker runs each container's health check. `cluster/ray_head.py` asks Ray's head whether the node
  is still alive.
- A worker with a GPU is a service of its own: Compose gives all containers of a service the same
  devices.

Nodes of a user's script
------------------------

`cluster/local_launch.py` gets the variables of each node, a function of framework, addresses and
number, from `schema/script_launch.py`, and passes them to `cluster/node_processes.py`, which
starts, reads and ends processes and knows no framework. `cluster/script_launch.py` does so for
containers: the processes here are clients of `docker exec`, and `system/die_with_parent.py`
ends what they have started when their standard input ends, as it does on Ray.
`cluster/forecast.py` does the same with `cluster/model/scaling_model.py`: the model is a
function of a measured step.
"""
