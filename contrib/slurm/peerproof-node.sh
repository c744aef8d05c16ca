#!/bin/sh
# For slurm.conf, as Prolog and as HealthCheckProgram: drains the node with what is wrong as the reason.
#
#   Prolog=/etc/slurm/peerproof-node.sh
#   PrologFlags=Alloc                  # at allocation, before any step
#   HealthCheckProgram=/etc/slurm/peerproof-node.sh
#   HealthCheckInterval=600
#   HealthCheckNodeState=IDLE          # never beside a running job: GPUs in use are not tested, and that is unfit
#
# A Prolog that fails requeues the job and drains the node by itself, with the reason "Prolog error"; a failing
# HealthCheckProgram is only logged. So this script gives the reason itself. Slurm asks that prologs do not call its commands:
# this one does so once, and only to take the node out. It never resumes a node: that is for who repaired it.
#
# Where nodes are shared between jobs, set PEERPROOF_RUN=never for the Prolog (it then only reads the verdict) and let the
# health check or the timer in contrib/systemd do the testing.
#
# Settings: /etc/peerproof/gate.conf, lines as PEERPROOF_EXIT_ON=warn (see contrib/peerproof-gate for all of them).
#
# Tried: Slurm 22.05.8 (Debian 12), one host that is controller and node, with a stand-in that answers like peerproof: a
# healthy node runs the job, a broken one is drained with the line and the job goes back to the queue; as Prolog and as
# HealthCheckProgram. Not yet tried: with peerproof on simulated hosts (contrib/try-slurm.sh), real GPUs, several nodes, newer
# Slurm.
set -u
conf=${PEERPROOF_CONF:-/etc/peerproof/gate.conf}
if [ -r "$conf" ]; then
    set -a
    # shellcheck disable=SC1090
    . "$conf"
    set +a
fi
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
gate=${PEERPROOF_GATE:-/usr/libexec/peerproof/peerproof-gate}

line=$("$gate" 2>/dev/null) && exit 0
line=${line:-"peerproof: INCONCLUSIVE $gate did not answer"}
node=${SLURMD_NODENAME:-$(hostname -s)}
# slurmd logs what its health check prints.
echo "$line"
logger -t peerproof "$line" 2>/dev/null
# Whoever drained it already has said why.
case $(timeout -k 2 4 scontrol -o show node "$node" 2>/dev/null) in *DRAIN*) exit 1 ;; esac
timeout -k 2 4 scontrol update "NodeName=$node" State=DRAIN "Reason=$line" ||
    logger -t peerproof "failed to drain $node" 2>/dev/null
exit 1
