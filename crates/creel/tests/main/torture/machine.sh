# The first program of the machine. Each passed check prints one line that begins with `machine: `
# to the console; the first failed check ends the machine.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export CREEL_HOME=/mnt/state DOCKER_HOST=unix:///run/engine.sock

say() {
    echo "machine: $*"
}

turn_off() {
    sync
    exec busybox poweroff -f
}

fail() {
    say "FAILED: $*"
    tail -n 40 /run/*.log
    turn_off
}

# Runs a command whose output is only of interest when it fails.
must() {
    "$@" >/run/step.log 2>&1 || fail "$* ended with $?"
}

start_engine() {
    # Its data outlives the machine's power, its sockets do not. The machine has no network.
    dockerd --host "$DOCKER_HOST" --data-root /mnt/engine --exec-root /run/engine \
        --pidfile /run/engine.pid --iptables=false --ip6tables=false >/run/engine.log 2>&1 &
    for _ in $(seq 600); do
        docker version >/dev/null 2>&1 && return
        sleep 0.5
    done
    fail "the engine does not start"
}

make_image() {
    mkdir -p /run/image/bin
    cp /bin/busybox /run/image/bin/
    ln -s busybox /run/image/bin/sleep
    tar -C /run/image -c . | docker import - little >/run/step.log 2>&1 || fail "no image"
}

# Returns how many resources creel reports as its own.
owned() {
    "$creel" ls --owned --json | grep -o '"provider":' | wc -l
}

first() {
    [ "$(wc -l </proc/self/cgroup)" = 1 ] || fail "control groups: $(cat /proc/self/cgroup)"
    say "kernel $(uname -r), control groups of version 2 alone, this is in $(cat /proc/self/cgroup)"
    # Alone first: without another process in a group below, the kernel would hand this controller down
    # from a group that has processes, and refuse all processes below it from then on.
    "$process_tests" the_process_limit_stops_forks >/run/tests.log 2>&1 || fail "the process limit"
    "$process_tests" >/run/tests.log 2>&1 || fail "the tests of the process provider"
    say "process provider: $(grep -o '[0-9]* passed; [0-9]* failed' /run/tests.log)"
    start_engine
    make_image
    "$creel" demo >/run/demo.log 2>&1 || fail "the demo"
    say "demo: $(grep -o 'CLEAN' /run/demo.log)"
    decoys
    "$creel" dev hold --container little --network --volume --directory --process \
        >/run/held.json 2>/run/held.log &
    for _ in $(seq 600); do
        grep -q '"held"' /run/held.json && break
        sleep 0.1
    done
    grep -q '"held"' /run/held.json || fail "nothing is held"
    [ "$(owned)" = 5 ] || fail "held: $("$creel" ls --owned)"
    say "held: a container, a network, a volume, a directory and a process tree; the power is cut"
    sleep 1000
}

# Things that are nearly ours: named as ours are, with labels that differ in one letter.
decoy=creel-01a1e2ac0914720d8ae8731748600000

decoys() {
    must docker run -d --name $decoy --network none \
        --label dev.creel.resources=res_01a1e2ac0914720d8ae8731748600000 little sleep 100000
    must docker network create $decoy
    must docker volume create $decoy
    mkdir -p "/mnt/$decoy"
}

decoys_are_there() {
    docker inspect $decoy >/dev/null &&
        docker network inspect $decoy >/dev/null &&
        docker volume inspect $decoy >/dev/null &&
        [ -d "/mnt/$decoy" ]
}

second() {
    start_engine
    found=$(owned)
    [ "$found" -ge 3 ] || fail "only $found resources are left to be found"
    say "after the power came back: $found resources of a supervisor that is gone"
    must "$creel" reconcile
    [ "$(owned)" = 0 ] || fail "still there: $("$creel" ls --owned)"
    "$creel" ledger --json | grep -q '"records":\[\]' || fail "open: $("$creel" ledger --json)"
    [ "$("$creel" ledger --all --json | grep -o '"state":"gone"' | wc -l)" = 5 ] ||
        fail "not gone: $("$creel" ledger --all --json)"
    must "$creel" ledger check
    say "released by one creel reconcile: all 5 records are closed, the ledger is sound"
    decoys_are_there || fail "a decoy is gone"
    before=$("$creel" ledger --all --json)
    must "$creel" reconcile
    [ "$before" = "$("$creel" ledger --all --json)" ] || fail "a second reconcile changed something"
    say "decoys untouched, a second reconcile changes nothing"
    turn_off
}

"$phase"
