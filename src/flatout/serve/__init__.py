"""Trained models that answer requests: the HTTP server, its replicas, load tests. No torch.

    client --HTTP--> server process --MessagePack on pipes--> replicas (`engine/serve`)

The server checks and queues requests, and sends them to replicas in batches. A replica that dies
takes only the requests it was computing with it.
"""
