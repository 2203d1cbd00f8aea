#!/bin/bash
# Two nodes under Slurm: a Ray cluster for the time of the job, the log's server on the first node, and a run that goes on
# in the next job when this one's time is over.
#
#   sbatch examples/slurm.sh                 # in a folder on a filesystem of all nodes, with .venv, models/ and runs/ in it
#
# 180 s before its time is over Slurm sends USR1 to this script, which hands it on: rollog saves a checkpoint and ends with
# 75, "stopped, can be resumed", and the job puts itself back into the queue. A job that is killed without warning is
# requeued by Slurm and resumes all the same; it only trains some steps again.
#
# What was run: this script on one machine with stand-ins for srun and scontrol, small models on CPUs. Not run: Slurm, GPUs.
#SBATCH --job-name=rollog
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
RUN=${RUN:-two-nodes}
CONFIG=${CONFIG:-examples/two_nodes.yaml}
RAY_PORT=${RAY_PORT:-6380}
REDIS_PORT=${REDIS_PORT:-6379}
SETTINGS=${SETTINGS:-}                         # more settings, such as "grpo.max_steps=50"
source .venv/bin/activate
umask 077

# One password for the run, in a file that only its owner reads; the cluster's token is the same word.
mkdir -p "log-of-$RUN"
[ -s "log-of-$RUN/password" ] || openssl rand -hex 24 >"log-of-$RUN/password"
password=$(<"log-of-$RUN/password")
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export ROLLOG_REDIS_URL="redis://:$password@$head:$REDIS_PORT/0" RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$password
export RAY_USAGE_STATS_ENABLED=0

# The log's server: this script runs on the first node. Its configuration comes over standard input, so the password is
# in no process list. Its data lies in the shared folder and outlives the job.
server=$(python -c 'from rollog.events.server import shipped_binary; print(shipped_binary())')
(cd "log-of-$RUN" && exec "$server" -) <<SERVER &
port $REDIS_PORT
bind * -::*
requirepass $password
appendonly yes
appendfsync always
maxmemory-policy noeviction
save ""
auto-aof-rewrite-percentage 0
SERVER
server_pid=$!
trap 'kill "$server_pid" $(jobs -p) 2>/dev/null || true' EXIT

# The cluster: one task on each node, the head on this one.
srun --nodes=1 --ntasks=1 --nodelist="$head" ray start --head --port="$RAY_PORT" --block &
head_pid=$!
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" ray start --address="$head:$RAY_PORT" --block &
fi
export RAY_ADDRESS="$head:$RAY_PORT"
until python - "$SLURM_JOB_NUM_NODES" 2>/dev/null <<'NODES'
import sys, ray
ray.init(log_to_driver=False)
sys.exit(sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]))
NODES
do
    kill -0 "$server_pid" && kill -0 "$head_pid"   # or this job ends here
    sleep 5
done

if [ -e "runs/$RUN" ]; then
    rollog resume "$RUN" log.redis="redis://$head:$REDIS_PORT/0" $SETTINGS &   # on other nodes than the last time
else
    rollog train "$CONFIG" run="$RUN" log.redis="redis://$head:$REDIS_PORT/0" launch=ray $SETTINGS &
fi
rollog_pid=$!
trap 'kill -USR1 "$rollog_pid" 2>/dev/null || true' USR1
code=0
wait "$rollog_pid" || code=$?
while kill -0 "$rollog_pid" 2>/dev/null; do   # the signal ended the first wait
    code=0
    wait "$rollog_pid" || code=$?
done
if [ "$code" = 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
