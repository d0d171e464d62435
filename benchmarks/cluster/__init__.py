"""The cluster: several nodes on one database, many clients, a killer, and a checker that knows every answer.

    ./run python -m benchmarks.cluster --minutes 5

Three `forkpoint serve` nodes share a PostgreSQL server with a synchronous standby (or one SQLite file). Sixteen clients
talk to any node over HTTP, with idempotency keys, and ask again as SDKs do. Meanwhile nodes are killed, stopped and
rolled, connections are cut, and the database restarts and fails over. Every answer that a client got is written down.
In the end everything is compared: nothing that was acknowledged is lost, doubled or half, and all anchors verify.

| module | what |
|---|---|
| `workload`, `worker` | what turns do and what the model answers; the agent of the nodes |
| `ledger` | what was acknowledged, and what was found |
| `caller` | asking any node, and asking again |
| `clients`, `watchers` | who asks, and who follows a stream |
| `nodes` | the processes of `forkpoint serve` |
| `postgres`, `replicas` | a PostgreSQL server; several that replicate, with failover |
| `killer` | who kills what, when |
| `checker` | whether all is as it was acknowledged |
| `report` | what is said in the end |
| `forms`, `run` | the three forms; one run of any of them |
| `patroni` | `--form patroni`: PostgreSQL under Patroni with etcd, behind HAProxy |
| `partition`, `network` | `--form partition`: hosts in network namespaces, whose links are cut |
"""
