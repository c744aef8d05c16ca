#!/bin/sh
# Runs 'peerproof measure' and copy_rates in turns on a real host and sets their medians side by side.
#
#     tests/hardware/alternate.sh PEERPROOF COPY_RATES [RUNS [BYTES [FOLDER]]]     (10 runs, 268435456 bytes)
#
# Turns, because clocks, temperature and neighbours change over minutes: both programs see the same weather. A case agrees when
# the medians of all runs are within 1%, or closer than both programs' own spread from run to run (highest - lowest). Needs
# python3 for the table. FOLDER keeps what each run printed. Exit code 0: all agree; 1: some do not; 64: wrong use.
set -eu

[ $# -ge 2 ] || {
    sed -n '3,5p' "$0" >&2
    exit 64
}
peerproof=$1
copy_rates=$2
runs=${3:-10}
bytes=${4:-268435456}
folder=${5:-$(mktemp -d)}
mkdir -p "$folder"
command -v python3 >/dev/null || {
    echo "alternate.sh: python3 is missing: it makes the table" >&2
    exit 64
}

run=1
while [ "$run" -le "$runs" ]; do
    # A warning or a gap (exit codes 1 and 3) is no reason to stop; the report says what was measured.
    "$peerproof" measure --only copies --size "$bytes" --report "$folder/$run.json" >"$folder/$run.page" ||
        [ $? -le 3 ] || exit 1
    "$copy_rates" "$bytes" >"$folder/$run.rates"
    run=$((run + 1))
done

python3 - "$folder" "$runs" "$bytes" <<'PYTHON'
import json, statistics, sys

folder, runs, asked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ours, theirs, sizes = {}, {}, set()
for run in range(1, runs + 1):
    report = json.load(open(f"{folder}/{run}.json"))
    for case in report["traffic"]:
        flow = case["flows"][0]
        end = lambda place: "host" if place == "host" else str(place["gpu"])
        shape = {"one_way": "one-way", "both_directions": "both"}.get(case["shape"])
        if shape and case["executor"] == "copy_engine" and case["streams"] == "non_blocking" and case["whole"]:
            key = (f"{shape}-{case['way']}", end(flow["source"]), end(flow["destination"]))
            ours.setdefault(key, []).append(statistics.median(case["whole"]))
            sizes.add(case["bytes"])
    for line in open(f"{folder}/{run}.rates"):
        name, source, destination, rate, _, _ = line.split()
        theirs.setdefault((name, source, destination), []).append(float(rate))
if sizes != {asked}:
    print(f"peerproof copied {sorted(sizes)} bytes where {asked} were asked for: the rates are of different sizes")
print(f"{runs} alternating runs; GB/s, median of the runs' medians (highest - lowest of them)")
print(f"{'case':<16} {'flow':<10} {'peerproof':>18} {'copy_rates':>18} {'apart':>8}")
apart_all = True
for key in sorted(set(ours) & set(theirs)):
    a, b = ours[key], theirs[key]
    x, y = statistics.median(a), statistics.median(b)
    wide = [max(v) - min(v) for v in (a, b)]
    agrees = abs(x - y) <= 0.01 * y or abs(x - y) <= min(wide)
    apart_all &= agrees
    cell = lambda value, spread: f"{value:.2f} ({spread:.2f})"
    print(f"{key[0]:<16} {key[1] + '->' + key[2]:<10} {cell(x, wide[0]):>18} {cell(y, wide[1]):>18} "
          f"{(x - y) / y * 100:>+7.2f}% {'' if agrees else ' APART'}")
lone = sorted(set(theirs) - set(ours))
if lone:
    print("not measured by peerproof:", ", ".join(f"{k[0]} {k[1]}->{k[2]}" for k in lone))
if not ours or not set(ours) & set(theirs):
    sys.exit("no case in common")
print("all agree" if apart_all else "some are apart")
sys.exit(0 if apart_all else 1)
PYTHON
