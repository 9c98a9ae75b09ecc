#!/usr/bin/env bash
# Two hosts on one machine: two Ray nodes in network namespaces of their own, joined by a cable.
#   benchmarks/soak/two_hosts.sh [arguments of soak_cluster.py]       (root; the recipe of docs/cluster.md)
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python work=$(mktemp -d /tmp/two-hosts.XXXX)
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token PYTHONPATH=$PWD

close() {
  for host in lw-a lw-b; do
    ip netns pids $host | xargs -r kill -9 || true
    ip netns del $host || true
  done
  rm -rf "$work"
}
trap close EXIT

ip netns add lw-a
ip netns add lw-b
ip link add eth0 netns lw-a type veth peer name eth0 netns lw-b
for host in a:1 b:2; do
  ip -n lw-${host%:*} addr add 10.77.0.${host#*:}/24 dev eth0
  ip -n lw-${host%:*} link set eth0 up
  ip -n lw-${host%:*} link set lo up
done

start() { ip netns exec "$1" "$python" -m ray.scripts.scripts start --num-cpus 2 "${@:2}" >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; exit 1; }; }
start lw-a --head --node-ip-address 10.77.0.1 --port 6379 --include-dashboard false --temp-dir "$work/ray"
start lw-b --address 10.77.0.1:6379 --node-ip-address 10.77.0.2
ip netns exec lw-a "$python" benchmarks/soak/cluster.py --address 10.77.0.1:6379 "${@:-"--streams=600"}"
