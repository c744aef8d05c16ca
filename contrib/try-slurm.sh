#!/bin/sh
# Tries contrib/slurm under a real Slurm on this one machine, with simulated hosts in place of GPUs. Not part of the tests: it
# needs root and Debian's packages
#
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
#
# and starts munged, slurmctld and slurmd of its own, on ports of its own, with all their files in a temporary folder. It ends
# them by their ids and removes the folder. Nothing of an installed Slurm is read or changed.
#
#   cargo build && contrib/try-slurm.sh
#
# Tried with Slurm 22.05.8 on Debian 12, in a container without systemd, with a stand-in for simhost and peerproof.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
built=${PEERPROOF_BUILT:-$root/target/debug}
for program in munged slurmctld slurmd sinfo scontrol sbatch squeue flock; do
    command -v "$program" >/dev/null || { echo "try-slurm: $program is missing (see the head of this script)" >&2; exit 70; }
done
for file in peerproof simhost libsimhost.so; do
    [ -e "$built/$file" ] || { echo "try-slurm: $built/$file is missing: cargo build" >&2; exit 70; }
done
[ "$(id -u)" -eq 0 ] || { echo "try-slurm: needs root" >&2; exit 70; }

dir=$(mktemp -d /tmp/try-slurm.XXXXXX)
chmod 755 "$dir"
munge_pid='' ctl_pid='' node_pid=''
finish() {
    code=$?
    for pid in $node_pid $ctl_pid $munge_pid; do kill "$pid" 2>/dev/null || true; done
    sleep 1
    for pid in $node_pid $ctl_pid $munge_pid; do kill -9 "$pid" 2>/dev/null || true; done
    if [ "$code" -eq 0 ]; then rm -rf "$dir"; else echo "try-slurm: logs are in $dir" >&2; fi
}
trap finish EXIT
trap 'exit 130' INT TERM

host=$(hostname -s)
mkdir "$dir/state" "$dir/spool" "$dir/munge"
dd if=/dev/urandom bs=1 count=1024 of="$dir/munge.key" 2>/dev/null
chmod 400 "$dir/munge.key"
chmod 700 "$dir/munge"

# What Slurm starts has almost no environment, so the settings are in the file that the script reads.
cat >"$dir/peerproof" <<TEXT
#!/bin/sh
exec "$built/simhost" run "\$(cat "$dir/scenario")" -- "$built/peerproof" "\$@" 2>>"$dir/peerproof.err"
TEXT
cat >"$dir/gate.conf" <<TEXT
PEERPROOF=$dir/peerproof
PEERPROOF_GATE=$root/contrib/peerproof-gate
PEERPROOF_VERDICT=$dir/verdict/verdict.json
PEERPROOF_LOCK=$dir/peerproof.lock
PEERPROOF_SECONDS=${PEERPROOF_SECONDS:-55}
SLURM_CONF=$dir/slurm.conf
TEXT
cat >"$dir/node.sh" <<TEXT
#!/bin/sh
PEERPROOF_CONF=$dir/gate.conf
export PEERPROOF_CONF
start=\$(date +%s)
code=0
"$root/contrib/slurm/peerproof-node.sh" || code=\$?
echo "\${SLURM_JOB_ID:-health} \$code \$((\$(date +%s) - start))" >>"$dir/calls"
exit \$code
TEXT
chmod 755 "$dir/peerproof" "$dir/node.sh"
cat >"$dir/slurm.conf" <<TEXT
ClusterName=trial
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=0
SlurmdTimeout=600
Prolog=$dir/node.sh
PrologFlags=Alloc
HealthCheckProgram=$dir/node.sh
HealthCheckInterval=${HEALTH_INTERVAL:-0}
HealthCheckNodeState=IDLE
NodeName=$host NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES State=UP
TEXT
SLURM_CONF=$dir/slurm.conf
export SLURM_CONF

start() {
    munged -F --force --key-file="$dir/munge.key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
        --log-file="$dir/munge.log" --seed-file="$dir/munge/seed" >/dev/null 2>&1 &
    munge_pid=$!
    sleep 1
    slurmctld -D -c >"$dir/slurmctld.out" 2>&1 &
    ctl_pid=$!
    slurmd -D -N "$host" >"$dir/slurmd.out" 2>&1 &
    node_pid=$!
    # A health check may have drained it by then.
    wait_for "the node has registered" 60 sh -c "sinfo -h -o %T | grep -qE '^(idle|drain)'"
}
wait_for() {
    what=$1 most=$2
    shift 2
    while ! "$@"; do
        most=$((most - 1))
        [ "$most" -gt 0 ] || { echo "try-slurm: not in time: $what" >&2; exit 1; }
        sleep 1
    done
    echo "try-slurm: $what"
}
job() { (cd "$dir" && sbatch --parsable --output="$dir/job-%j.out" --wrap 'echo it ran'); }
reason() { scontrol show node "$host" -o | sed -n 's/.* Reason=\(.*\) \[.*/\1/p'; }
back() {
    scontrol update "NodeName=$host" State=RESUME
    rm -f "$dir/verdict/verdict.json"
}

HEALTHY=${HEALTHY:-geforce-x2-refused}
BROKEN=${BROKEN:-opaque-vm-mirrored}

echo "$HEALTHY" >"$dir/scenario"
start
id=$(job)
wait_for "healthy host: job $id ran" 240 test -s "$dir/job-$id.out"
id=$(job)
wait_for "healthy host: job $id ran by the verdict that still holds" 240 test -s "$dir/job-$id.out"
[ -z "$(reason)" ] || { echo "try-slurm: a healthy node has a reason: $(reason)" >&2; exit 1; }

rm -f "$dir/verdict/verdict.json"
echo "$BROKEN" >"$dir/scenario"
id=$(job)
wait_for "broken host: drained" 240 sh -c "sinfo -h -o %T | grep -q '^drain'"
echo "try-slurm: reason: $(reason)"
case $(reason) in peerproof:*FAIL*) ;; *) echo "try-slurm: the reason is not ours" >&2; exit 1 ;; esac
[ ! -e "$dir/job-$id.out" ] || { echo "try-slurm: the job ran on a broken host" >&2; exit 1; }
squeue -h -o "try-slurm: job %i is %T (%r)"
scancel "$id"
sleep 2

# The same as a health check of an idle node.
back
kill "$node_pid" "$ctl_pid"
wait "$node_pid" "$ctl_pid" 2>/dev/null || true
kill "$munge_pid"
wait "$munge_pid" 2>/dev/null || true
sed -i -e 's/^HealthCheckInterval=.*/HealthCheckInterval=15/' -e '/^Prolog/d' "$dir/slurm.conf"
start
wait_for "health check: drained" 240 sh -c "sinfo -h -o %T | grep -q '^drain'"
echo "try-slurm: reason: $(reason)"
case $(reason) in peerproof:*FAIL*) ;; *) echo "try-slurm: the reason is not ours" >&2; exit 1 ;; esac

echo "try-slurm: calls (job, exit code, seconds):"
cat "$dir/calls"
echo "try-slurm: as it should be"
